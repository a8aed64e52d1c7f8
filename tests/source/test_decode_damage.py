"""500 damaged files: no crash and no hang, each is a picture or an error."""

import json
from collections import Counter
from pathlib import Path

import pytest
from source.damage import COUNT, damaged

from detcli.core.errors import InputError

pytestmark = pytest.mark.slow


def test_each_file_is_a_picture_or_an_error(report_of):
    outcomes = report_of("source.damage")
    assert sum(outcomes.values()) == COUNT
    kinds = Counter(kind for kind, _, _ in damaged())
    assert outcomes["rename: picture"] == kinds["rename"]
    assert outcomes["empty: error"] == kinds["empty"]
    assert outcomes["cut: error"] > kinds["cut"] * 0.9
    for kind in ("flip_bits", "shuffle"):
        assert min(outcomes[f"{kind}: {end}"] for end in ("error", "picture")) > 0


def test_each_file_becomes_a_record(tmp_path, detcli, make_model):
    folder = tmp_path / "in"
    folder.mkdir()
    some = list(damaged())[::5]  # of each kind
    for number, (_, suffix, data) in enumerate(some):
        (folder / f"{number:03}.{suffix}").write_bytes(data)
    finished = detcli("predict", folder, "--model", make_model(), timeout=240)
    assert finished.returncode == InputError.exit_code, finished.stderr[-2000:]
    records = [json.loads(line) for line in finished.stdout.splitlines()]
    assert [int(Path(one["source"]).stem) for one in records] == list(range(len(some)))
    assert all(("error" in one) != ("detections" in one) for one in records)
    assert {one["error"]["type"] for one in records if "error" in one} == {"DecodeError"}
