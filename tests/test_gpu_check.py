"""`make gpu-check` from its command to its report, without a GPU."""

import json
import os
import sys
from pathlib import Path

from benchmarks.gpu import __main__ as check
from benchmarks.gpu import bench

ROOT = Path(__file__).parents[1]


SUITE = """
import pytest

@pytest.mark.gpu
def test_right(): pass

@pytest.mark.gpu
def test_wrong(): assert 1 == 2

@pytest.mark.gpu
def test_missing(): pytest.skip("no network on a GPU")

def test_elsewhere(): raise SystemExit
"""


def test_everything_is_reported_where_the_gpu_fails(tmp_path, monkeypatch, capsys):
    """Here it fails because there is none; all parts are tried, and the report is there."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, ROOT / "tests"))))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(check, "look", lambda: ({"name": "Some GPU"}, ""))
    tests = tmp_path / "test_some.py"
    tests.write_text(SUITE)
    command = ["gpu", "--out", str(tmp_path / "new/out"), "--tests", str(tests), "--quick"]
    monkeypatch.setattr(sys, "argv", command)
    assert check.main() == 1
    written = json.loads((tmp_path / "new/out/gpu-check.json").read_text())
    outcomes = {part["name"]: part["outcome"] for part in written["parts"]}
    assert set(outcomes) == {"tests", *check.SANITIZERS, *check.BENCHMARKS}
    assert {outcomes[name] for name in bench.KERNELS} == {"failed"}
    assert outcomes["network"] == "passed"  # for want of a model
    table = (tmp_path / "new/out/gpu-check.md").read_text()
    assert "| name | Some GPU |" in table
    assert "no GPU number 0" in table
    assert table in capsys.readouterr().out
