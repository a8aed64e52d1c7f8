"""500 damaged files: no crash and no hang, each is an image or an error."""

from collections import Counter
from pathlib import Path

import pytest
from json_lines import lines
from source.damage import COUNT, damaged

from detcli.core.errors import InputError

pytestmark = pytest.mark.slow


def test_each_file_is_an_image_or_an_error(report_of):
    outcomes = report_of("source.damage")
    assert sum(outcomes.values()) == COUNT
    kinds: Counter[str] = Counter()
    for kind, _, _ in damaged():
        kinds[kind] += 1
    assert outcomes["rename: image"] == kinds["rename"]
    assert outcomes["empty: error"] == kinds["empty"]
    assert outcomes["cut: error"] > kinds["cut"] * 0.9
    for kind in ("flip_bits", "shuffle"):
        assert outcomes[f"{kind}: error"] > 0
        assert outcomes[f"{kind}: image"] > 0


def test_each_file_becomes_a_record(tmp_path, detcli, make_model):
    folder = tmp_path / "in"
    folder.mkdir()
    some_files = list(damaged())[::5]  # of each kind
    for number, (_, suffix, data) in enumerate(some_files):
        (folder / f"{number:03}.{suffix}").write_bytes(data)
    finished = detcli("predict", folder, "--model", make_model(), timeout=240)
    assert finished.returncode == InputError.exit_code, finished.stderr[-2000:]
    records = lines(finished.stdout)
    numbers = [int(Path(record["source"]).stem) for record in records]
    assert numbers == list(range(len(some_files)))
    error_types = set()
    for record in records:
        assert ("error" in record) != ("detections" in record)
        if "error" in record:
            error_types.add(record["error"]["type"])
    assert error_types == {"DecodeError"}
