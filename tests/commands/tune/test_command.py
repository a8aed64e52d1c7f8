"""`detcli tune`, as a user calls it, with the commands that it starts."""

import contextlib
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import labelled
import psutil
import pytest
import thinning
import typer.main
from documentation.shells import page
from json_lines import column_of

from detcli.cli.app import app

pytestmark = pytest.mark.slow


def test_8_bits_that_break_boxes_are_not_chosen(tune, commands, fragile, tuning_images):
    """They are the fastest here, but for their boxes; the user's own defaults change nothing."""
    (fragile.parent / "detcli.toml").write_text('classes = "red"\nhalf = true\n')
    commands.made = {"bench"}
    commands.rates = {"cpu int8": 1000.0}
    report = tune(fragile, tuning_images, "--device", "cpu")
    names = {"cpu", "cpu int8"}
    reference, int8 = [row for row in report["rows"] if row["name"] in names]
    assert reference["name"] == "cpu"
    assert reference["keeps_boxes"]
    assert int8["name"] == "cpu int8"
    assert int8["keeps_boxes"] is False
    assert int8["error"] is None
    assert int8["boxes"]["equal"] < 0.6
    assert int8["boxes"]["lost"] > 0
    assert int8["many"]["estimate"] == 1000
    assert set(column_of(report["choices"], "way")) == {"cpu"}


def test_8_bits_that_keep_boxes_are_kept(tune, commands, fragile, tuning_images, cache):
    commands.rates = {"cpu int8": 1000.0}
    report = tune(fragile, tuning_images, "--device", "cpu", "--write")
    choices = {choice["kind"]: choice for choice in report["choices"]}
    assert choices["many"]["way"] == "cpu int8"
    assert column_of(choices.values(), "gain") == pytest.approx([100] * 3)
    model = Path(choices["many"]["options"]["model"])
    assert model.read_bytes() == b"convert"
    assert model.is_relative_to(cache.resolve() / "tuned")
    assert f"--model {model} --device cpu {tuning_images}" in choices["many"]["command"]
    assert str(model) in (fragile.parent / "detcli.toml").read_text()


def test_a_choice_needs_boxes(tune, commands, make_model, make_image, tmp_path):
    """Ways that find nothing have proven nothing."""
    make_image("pics/grey.png")
    commands.made = {"bench", "convert"}
    commands.rates = {"openvino": 99.0}
    says = "no boxes above 0.99 were compared: name images with some"
    words = ("--device", "cpu", "--conf", "0.99")
    report = tune(make_model(), tmp_path / "pics", words, says=says)
    assert set(column_of(report["choices"], "way")) == {"cpu"}


def test_a_page_of_what_differs(tune, commands, fragile, tuning_images, tmp_path):
    commands.made = {"bench"}
    commands.rates = {"cpu int8": 1000.0}
    says = f"wrote a page of cpu int8 beside the CPU: {tmp_path / 'page/index.html'}"
    tune(fragile, tuning_images, "--device", "cpu", "--report", tmp_path / "page", says=says)
    assert (tmp_path / "page/index.html").exists()


@pytest.mark.usefixtures("commands")
def test_nothing_is_written_without_a_file_for_it(tune, make_model, monkeypatch):
    monkeypatch.setenv("DETCLI_CONFIG", "/dev/null")
    tune(make_model(), "--write", code=2, says="--write needs a file of defaults")


@pytest.mark.usefixtures("commands")
def test_a_default_that_wins_over_the_choice_is_named(tune, make_model, tmp_path, monkeypatch):
    (tmp_path / "detcli.toml").write_text('device = "cpu"\n')
    tune(make_model(), "--write", says="detcli.toml sets device, too, and overrides the choice")
    monkeypatch.setenv("DETCLI_DEVICE", "cpu")
    tune(make_model(), "--write", says="DETCLI_DEVICE sets device, too, and overrides the choice")


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("none.onnx pics", 4, "no model has that name"),
        ("torn.onnx pics", 4, "is not an ONNX model"),
        ("fragile.onnx pics --budget soon", 2, "is not a time"),
        ("fragile.onnx pics --budget 0", 6, "the time ended first"),
        ("fragile.onnx pics --tolerance 0.99", 2, "'' is unknown"),
        ("fragile.onnx pics --tolerance boxes=2", 2, "boxes is a share"),
        ("fragile.onnx pics --plot a.png", 2, "leave it out"),
    ],
)
@pytest.mark.usefixtures("tuning_images")
def test_wrong_requests(tune, fragile, line, code, says):
    fragile.with_name("torn.onnx").write_bytes(b"torn")
    assert tune(line.split(), code=code, says=says) == ""


@thinning.only_whole
def test_real_processes(tune, make_model, tuning_images, monkeypatch):
    for name, value in (
        ("run.ROUNDS", 1),
        ("configurations.BATCHES", ()),
        ("run.BUDGET_PER_MEASUREMENT", 10_000),  # it takes seconds
    ):
        monkeypatch.setattr(f"detcli.commands.tune.{name}", value)
    report = tune(make_model(), tuning_images, "--device", "cpu,cuda", "--budget", "1h")
    row = report["rows"][0]
    assert row["many"]["low"] <= row["many"]["estimate"]
    assert min(row["one"]["estimate"], row["start"]["estimate"]) > 0
    assert row["host_peak_bytes"] > 20e6
    assert set(column_of(report["choices"], "kind")) == {"many", "one", "start"}


def wait_for_bench(process):
    """The processes that tune has started, once one of them measures."""
    while process.poll() is None:
        children = psutil.Process(process.pid).children(recursive=True)
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                if "bench" in child.cmdline():
                    return children
        time.sleep(0.05)
    pytest.fail(f"tune ended before it measured: {process.stderr.read()!r}")


@pytest.mark.skipif(sys.platform == "win32", reason="signals are of POSIX")
def test_an_interrupt_leaves_nothing_behind(make_model, tuning_images):
    command = [
        sys.executable,
        "-m",
        "detcli",
        "tune",
        make_model(),
        tuning_images,
        "--budget",
        "10h",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            children = wait_for_bench(process)
            time.sleep(0.5)  # the moment in which it starts has a test of its own
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert out == b""
    assert b"Traceback" not in err
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


INTERRUPTED_START = """
import subprocess, sys
from detcli.cli.app import app

class Started(subprocess.Popen):
    def __init__(self, *words, **options):
        super().__init__(*words, **options)
        print(self.pid, flush=True)
        raise KeyboardInterrupt

subprocess.Popen = Started
app(sys.argv[1:])
"""


def test_an_interrupt_while_a_process_starts_ends_it(make_model, tuning_images):
    command = [sys.executable, "-c", INTERRUPTED_START, "tune", make_model(), tuning_images]
    result = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert result.returncode == 130
    pid = int(result.stdout)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--report pics", "has other files in it"),
    ],
)
@pytest.mark.usefixtures("tuning_images")
def test_what_cannot_be_written_is_said_at_once(tune, commands, fragile, line, says):
    assert tune(fragile, "pics", line.split(), code=2, says=says) == ""
    assert commands.asked == []


def test_map_of_images_elsewhere(tune, commands, fragile, tuning_images):
    commands.made -= {"eval", "predict"}
    labelled.write_coco(tuning_images.parent / "coco", [labelled.Scene.found(("red", 1, 1, 1.0))])
    (tuning_images.parent / "coco/images").rename(tuning_images.parent / "elsewhere")
    words = ("--data", "coco/instances.json", "--device", "cpu", "elsewhere")
    report = tune(fragile, words)
    assert report["rows"][0]["map50_95"] == 1


def test_the_commands_of_the_documentation_parse():
    command = typer.main.get_command(app).get_command(None, "tune")  # type: ignore[attr-defined]
    lines = re.findall(r"^detcli tune\b(.*)$", page("tune") + page("benchmark"), re.MULTILINE)
    assert len(lines) == 6
    for line in lines:
        command.make_context("tune", shlex.split(re.sub("[>|].*", "", line)))
