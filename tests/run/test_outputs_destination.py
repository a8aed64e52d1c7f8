from pathlib import Path

import pytest

from detcli.config.config import Config
from detcli.config.inputs import InputOptions
from detcli.config.outputs import Outputs
from detcli.config.values import Format
from detcli.core.errors import UsageError
from detcli.run.destination import Destination, choose_destination

OUTPUT = Path("boxes")


def test_an_endless_run_adds_to_files_that_are_complete_after_each_record():
    for format_ in Format:
        can_append = format_ in {Format.TABLE, Format.JSONL, Format.CSV}
        assert Destination(format_, OUTPUT, endless=True).appends == can_append
        assert not Destination(format_, OUTPUT).appends
    for source in ("camera:0", "a.jpg"):
        config = Config(inputs=InputOptions(source=(source,)), outputs=Outputs(output="boxes.csv"))
        assert choose_destination(config).appends == (source == "camera:0")


def test_json_alone_can_say_what_made_the_records():
    for format_ in Format:
        config = Config(outputs=Outputs(format=format_, output="boxes", provenance=True))
        if format_ in {Format.JSONL, Format.JSON}:
            assert choose_destination(config) == Destination(format_, OUTPUT)
        else:
            with pytest.raises(UsageError, match=f"not part of the format {format_}"):
                choose_destination(config)
