"""Pipelines as shells run them: conditions, readers that leave, programs at both ends."""

import os
import sys
from pathlib import Path

import pytest
from documentation.shells import run as bash

if os.name != "posix":
    pytest.skip("needs a shell", allow_module_level=True)


@pytest.fixture
def shell(warm_detcli, make_model, make_pictures, tmp_path, monkeypatch):
    """Run a script in bash beside six pictures, the first and the fourth with a red cell."""
    make_model()
    make_pictures(6)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DETCLI_MODEL", "colours.onnx")
    path = [warm_detcli, Path(sys.executable).parent, os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, path)))

    def run(script, code=0):
        done = bash(["bash", "-c", f"set -eo pipefail\n{script}"])
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


def condition(text, inputs="pics", then=""):
    return f"detcli predict {inputs} -q --conf 0.6 --fail-if '{text}' {then}"


TORN = "pics torn.png"
NOTHING = "--files-from /dev/null"
CONDITIONS = [
    *(("red>1", "pics", 6), ("red>2", "pics", 0), ("red==2", "pics", 6), ("red<2", "pics", 0)),
    *(("red>1", TORN, 6), ("red>2", TORN, 3), ("red==2", TORN, 3), ("red<3", TORN, 3)),
    *(("any>0", NOTHING, 3), ("any==0", NOTHING, 3), ("any<1", NOTHING, 3)),
]


@pytest.mark.parametrize(("text", "inputs", "code"), CONDITIONS)
def test_a_condition_never_says_what_nobody_saw(text, inputs, code, shell, tmp_path):
    (tmp_path / "torn.png").write_bytes(b"torn")
    done = shell(condition(text, inputs), code)
    why = "there were no inputs" if inputs == NOTHING else "1 input failed"
    assert (f"--fail-if is undecided, as {why}: {text} " in done.stderr) == (code == 3)


@pytest.mark.parametrize(
    ("text", "code"), [("red>0", 6), ("red>5000", 3), ("red==0", 0), ("blue==0", 3), ("red<0", 0)]
)
@pytest.mark.parametrize("reader", ["head -n 1", "grep -q -m 1 red", "true"])
def test_a_reader_that_leaves_does_not_decide_a_condition(text, code, reader, shell):
    """Its detections are counted until then; the record that it did not take is among them."""
    inputs = "$(for _ in {1..500}; do printf 'pics/0000.png '; done)"
    done = shell(condition(text, inputs, f"| {reader} > /dev/null"), code)
    assert ("the run ended before its last input" in done.stderr) == (code == 3)
    assert done.stderr == "" or code
