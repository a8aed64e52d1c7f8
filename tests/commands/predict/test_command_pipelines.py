"""Pipelines as shells run them: conditions, readers that leave, programs at both ends."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import cv2
import pytest
from colour_model import image
from documentation.shells import blocks, page, skip_without_jq
from documentation.shells import run as bash
from json_lines import column_of, detection_counts, lines

pytestmark = pytest.mark.slow

PAGE = page("recipes")

if os.name != "posix":
    pytest.skip("needs a shell", allow_module_level=True)


@pytest.fixture
def shell(warm_detcli, make_model, make_images, tmp_path, monkeypatch):
    """Run a script in bash beside six images, the first and the fourth with a red cell."""
    make_model()
    make_images(6)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DETCLI_MODEL", "colours.onnx")
    path = [warm_detcli, Path(sys.executable).parent, os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, path)))
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):  # of the make that runs the tests
        monkeypatch.delenv(name, raising=False)

    def run(script, code=0):
        completed = bash(["bash", "-c", f"set -eo pipefail\n{script}"])
        assert completed.returncode == code, completed.stderr
        assert "Traceback" not in completed.stderr
        return completed

    return run


def condition(text, inputs="pics", following=""):
    return f"detcli predict {inputs} -q --conf 0.6 --fail-if '{text}' {following}"


TORN = "pics torn.png"
NOTHING = "--files-from /dev/null"
CONDITIONS = [
    ("red>1", "pics", 6),
    ("red>2", "pics", 0),
    ("red==2", "pics", 6),
    ("red<2", "pics", 0),
    ("red>1", TORN, 6),
    ("red>2", TORN, 3),
    ("red==2", TORN, 3),
    ("red<3", TORN, 3),
    ("any>0", NOTHING, 3),
    ("any==0", NOTHING, 3),
    ("any<1", NOTHING, 3),
]


@pytest.mark.parametrize(("text", "inputs", "code"), CONDITIONS)
def test_a_condition_never_says_what_nobody_saw(text, inputs, code, shell, tmp_path):
    (tmp_path / "torn.png").write_bytes(b"torn")
    completed = shell(condition(text, inputs), code)
    why = "there were no inputs" if inputs == NOTHING else "1 input failed"
    assert (f"--fail-if is undecided, as {why}: {text} " in completed.stderr) == (code == 3)


@pytest.mark.parametrize(
    ("text", "code"), [("red>0", 6), ("red>5000", 3), ("red==0", 0), ("blue==0", 3), ("red<0", 0)]
)
@pytest.mark.parametrize("reader", ["head -n 1", "grep -q -m 1 red", "true"])
def test_a_reader_that_leaves_does_not_decide_a_condition(text, code, reader, shell):
    """Its detections are counted until then; the record that it did not take is among them."""
    inputs = "$(for _ in {1..500}; do printf 'pics/0000.png '; done)"
    completed = shell(condition(text, inputs, f"| {reader} > /dev/null"), code)
    assert ("the run ended before its last input" in completed.stderr) == (code == 3)
    assert completed.stderr == "" or code


def test_jq_and_sqlite_take_the_records(shell, tmp_path):
    skip_without_jq("jq")
    run = "detcli predict pics -q --conf 0.6"
    completed = shell(f"{run} | jq -r 'select(.detections[0]).source'")
    assert completed.stdout.split() == ["pics/0000.png", "pics/0003.png"]
    completed = shell(f"{run} | jq -r '[.source, (.detections | length)] | @csv' > counts.csv")
    shell(f"{run} -o boxes.csv")
    if shutil.which("sqlite3") is None:
        pytest.skip("sqlite3 is not installed")
    query = "SELECT source, count(nullif(class_name, '')) FROM t GROUP BY source"
    completed = shell(f'sqlite3 -csv ":memory:" ".import boxes.csv t" "{query}"')
    assert (
        completed.stdout.split() == (tmp_path / "counts.csv").read_text().replace('"', "").split()
    )


def test_make_redoes_what_is_older_than_its_image(shell, tmp_path):
    """A run that fails leaves no target behind."""
    (tmp_path / "Makefile").write_text(blocks(PAGE, "make")[0])
    assert shell("make -s -j2 && ls boxes | wc -l").stdout.strip() == "6"
    assert shell("make").stdout.count("detcli") == 0
    completed = shell("sleep 0.01; touch pics/0003.png; make")
    assert completed.stdout.count("detcli predict") == 1
    shell("echo torn > pics/torn.png; make", code=2)
    assert not (tmp_path / "boxes/torn.json").exists()


def test_set_e_ends_a_script_where_an_input_failed(shell, tmp_path):
    (tmp_path / "torn.png").write_bytes(b"torn")
    completed = shell("detcli predict pics torn.png -q -o out.jsonl; echo went on", code=3)
    assert completed.stdout == ""
    completed = shell("detcli predict pics torn.png -q | tail -n 1; echo went on", code=3)
    assert "went on" not in completed.stdout
    completed = shell("detcli predict pics torn.png -q -o out.jsonl || [ $? -eq 3 ]; echo went on")
    assert completed.stdout == "went on\n"


def test_a_process_that_stays_open_answers_each_line(shell, tmp_path):
    """Its queue is a named pipe that it holds open itself; writers come and go."""
    recipe = next(block for block in blocks(PAGE, "bash") if "mkfifo" in block)
    queue, start = recipe.splitlines()[:2]
    shell(queue)
    with subprocess.Popen(["bash", "-c", f"exec {start.removesuffix(' &')}"]) as process:  # noqa: S607
        for number in range(3):
            shell(f"echo pics/000{number}.png > q")
            for _ in range(1000):
                if (tmp_path / "boxes.jsonl").exists():
                    text = (tmp_path / "boxes.jsonl").read_text()
                    if text.count("\n") > number:
                        break
                time.sleep(0.01)
            assert column_of(lines(text), "source")[number:] == [f"pics/000{number}.png"]
        assert process.poll() is None
        process.terminate()
        assert process.wait(60) == 143


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".ppm"])
def test_frames_that_are_piped_have_times(suffix, shell, tmp_path):
    frame = image(("red", 2, 2))
    (tmp_path / "frames").write_bytes(3 * cv2.imencode(suffix, frame)[1].tobytes())
    completed = shell("cat frames | detcli predict - -q --conf 0.6 --fps 8 | tee out.jsonl")
    records = lines(completed.stdout)
    assert column_of(records, "frame") == [0, 1, 2]
    assert column_of(records, "time_s") == [0.0, 0.125, 0.25]
    assert detection_counts(records) == [1, 1, 1]
    command = "cat frames | detcli predict - -q --every 0.25s"
    assert column_of(lines(shell(f"{command} --fps 8").stdout), "time_s") == [0, 0.25]
    assert "only with --fps" in shell(command, code=2).stderr
