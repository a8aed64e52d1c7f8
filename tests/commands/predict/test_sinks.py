from pathlib import Path

import pytest

from detcli.commands.predict.sinks import SinkOptions
from detcli.commands.shared.formats import Format
from detcli.errors import UsageError

OUTPUT = Path("boxes")


def test_an_endless_run_adds_to_files_that_are_complete_after_each_record():
    grow = {one for one in Format if SinkOptions(one, output=OUTPUT, append=True).appends}
    assert grow == {Format.TABLE, Format.JSONL, Format.CSV}
    assert not any(SinkOptions(one, output=OUTPUT).appends for one in Format)


def test_json_alone_can_say_what_made_the_records():
    for one in Format:
        if one in {Format.JSONL, Format.JSON}:
            assert SinkOptions(one, output=OUTPUT, provenance=True).needs_settings
        else:
            with pytest.raises(UsageError, match=f"not part of the format {one}"):
                SinkOptions(one, output=OUTPUT, provenance=True)
