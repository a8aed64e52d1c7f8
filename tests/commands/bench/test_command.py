"""`detcli bench`, as a user calls it."""

import json
import os
import re
import shlex
from pathlib import Path

import forked
import onnx
import pytest
import typer.main
from report_schemas import validator
from typer.testing import CliRunner

from detcli.cli.app import app
from detcli.commands.bench import parse_percentage

pytestmark = pytest.mark.slow

SHORT = ("--seconds", "0.05", "--cold-starts", "0", "--device", "cpu")

HELP = {"help_option_names": ["-h", "--help"]}  # a command keeps those of its first context


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Run it in an empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return lambda *arguments: CliRunner().invoke(app, ["bench"] + forked.words_of(arguments))


def report_of(completed, exit_code=0):
    assert completed.exit_code == exit_code, completed.stderr
    report = json.loads(completed.stdout)
    validator("bench").validate(report)
    return report


def test_latency_without_any_source(bench, make_model, tmp_path):
    model = make_model(size=None)
    completed = bench("-m", model, "--device", "cpu", "--seconds", "0.1", "--cold-starts", "1")
    assert "1 cold start, then a warm-up, then 0.1 s of measuring" in completed.stderr
    report = report_of(completed)
    assert report["kind"] == "run"
    conditions = {"mode": "latency", "device": "cpu", "batch": 1, "workers": 1, "sources": []}
    assert report["conditions"].items() >= (conditions | {"canvas": [640, 640]}).items()
    assert report["cold_start"]["processes"] == 1
    assert report["memory"]["host_peak_bytes"] > 20e6
    assert report["throughput"] is None
    assert report["comparison"] is None
    assert report["memory"]["device_bytes"] is None
    total_s = 0.0
    for stage in report["latency"]["stages"]:
        if stage["summary"]:
            total_s += stage["summary"]["mean_s"]
    assert total_s == pytest.approx(report["latency"]["wall"]["mean_s"])
    assert list((tmp_path / "here").iterdir()) == []


def test_comparisons_with_a_baseline(bench, make_model, tmp_path):
    model = make_model()
    report_of(bench("-m", model, SHORT, "--save-baseline", "b.json"))
    path = tmp_path / "here/b.json"

    def again(*arguments):
        return bench("-m", model, SHORT, "--baseline", "b.json", arguments)

    within = report_of(again("--max-regress", "100000%"))["comparison"]
    assert within["verdict"] == "within the limit"
    assert within["max_regress"] == 1000.0
    assert "compared with b.json, limit +5%" in again("--format", "table").stdout

    document = json.loads(path.read_text())
    for name, samples in document["samples"].items():
        document["samples"][name] = [seconds / 1000 for seconds in samples]
    path.write_text(json.dumps(document))
    before = path.read_bytes()
    completed = again("--save-baseline", "b.json")
    assert report_of(completed, 6)["comparison"]["verdict"] == "regression"
    assert "slower than b.json by more than 5%: wall clock" in completed.stderr
    assert path.read_bytes() == before  # a regression does not replace the baseline

    path.write_text(json.dumps(document | {"samples": {"wall clock": [1e-6]}}))
    completed = again()
    assert report_of(completed)["comparison"]["verdict"] == "undecided"
    assert "measure longer, with --seconds" in completed.stderr

    document["identity"]["processor"] = "another"
    path.write_text(json.dumps(document))
    completed = again()
    assert completed.exit_code == 2
    assert completed.stdout == ""
    assert "processor was another" in completed.stderr


@pytest.mark.parametrize(
    ("arguments", "exit_code", "complaint"),
    [
        (["-m", "none.onnx"], 4, "cannot read the model none.onnx"),
        (["-m", "MODEL", "--workers", "2"], 2, "--mode throughput"),
        (["-m", "MODEL", "--device", "cpu,cuda"], 2, "several devices"),
        (["-m", "MODEL", "--device", "cuda"], 5, "detcli: "),
        (["-m", "MODEL", __file__ + ".jpg"], 3, ".jpg: no such file"),
        (["-m", "MODEL", "none.jpg", "--cold-starts", "3"], 5, "none.jpg: no such file"),
        (["-m", "MODEL", "--save-baseline", "none/a.json"], 1, "cannot write none/a.json"),
        (["--seconds", "nan"], 2, "--seconds: 'nan' is not a valid float"),
        (["-m", "MODEL", "--seconds", "-1"], 2, "--seconds: -1.0 is not in the range x>=0"),
        (["-m", "MODEL", "--seconds", "inf"], 2, "--seconds: 'inf' is not a valid float"),
        (["-m", "MODEL", "-"], 2, "cannot be read again and again"),
        (["-m", "MODEL", "camera:0"], 2, "cannot be read again and again"),
        (["-m", "MODEL", "rtsp://example.org/stream"], 2, "cannot be read again and again"),
        (["model.ONNX"], 2, "name it with -m model.ONNX"),
        (["--max-regress", "5%"], 2, "--max-regress needs --baseline"),
        (["-m", "MODEL", "--baseline", "none.json"], 2, "cannot read the baseline none.json"),
        (["--baseline", "a.json", "--max-regress", "5"], 2, "not a percentage"),
        (["--baseline", "a.json", "--max-regress", "%"], 2, "not a percentage"),
        (["--baseline", "a.json", "--max-regress", "five%"], 2, "not a percentage"),
        (["--baseline", "a.json", "--max-regress", "-1%"], 2, "not a percentage"),
        (["--baseline", "a.json", "--max-regress", "nan%"], 2, "not a percentage"),
        (["--baseline", "a.json", "--max-regress", "inf%"], 2, "not a percentage"),
        (["--baseline", "a.json", "--max-regress", "5%%"], 2, "not a percentage"),
        (["--baseline", "a.json", "--max-regress", "5% more"], 2, "not a percentage"),
    ],
)
def test_errors(arguments, exit_code, complaint, bench, make_model):
    words = []
    for word in arguments:
        if word == "MODEL":
            words.append(make_model())
        else:
            words.append(word)
    for option, value in (("--seconds", "0.05"), ("--cold-starts", "0")):
        if option not in arguments:
            words += [option, value]
    completed = bench(words)
    assert completed.exit_code == exit_code
    assert complaint in completed.stderr
    assert "Traceback" not in completed.stderr
    assert completed.stdout == ""


def test_no_input_is_overwritten(bench, make_model, make_image):
    model = make_model()
    image = make_image("pics/a.png")
    model_before = model.read_bytes()
    image_before = image.read_bytes()
    for output, source in ((model, image), (image, image), (image, image.parent)):
        completed = bench(source, "-m", model, SHORT, "--save-baseline", output)
        assert completed.exit_code == 2
        assert completed.stdout == ""
        assert f"{output} is one of the inputs" in completed.stderr
    assert model.read_bytes() == model_before
    assert image.read_bytes() == image_before


def test_the_commands_of_the_documentation_parse():
    page = (Path(__file__).parents[3] / "docs/benchmark.md").read_text(encoding="utf-8")
    lines = re.findall(r"^detcli bench\b([^|\n]*)", page, re.MULTILINE)
    assert len(lines) == 6
    command = typer.main.get_command(app).get_command(None, "bench")  # type: ignore[attr-defined]
    for line in lines:
        command.make_context("bench", shlex.split(line), **HELP)


def circular(path):
    model = onnx.load(path)
    model.graph.node[0].input[0] = model.graph.node[-1].output[0]
    onnx.save(model, path)


def piped(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(("spoil", "mode"), [(circular, "latency"), (piped, "throughput")])
def test_a_hostile_model_is_refused(bench, make_model, spoil, mode):
    model = make_model()
    spoil(model)
    completed = bench("-m", model, "--mode", mode, SHORT)
    assert completed.exit_code == 4
    assert "colours.onnx" in completed.stderr
    assert "bug" not in completed.stderr


def test_percentages():
    assert parse_percentage("5%") == 0.05
    assert parse_percentage(" 12.5% ") == 0.125
    assert parse_percentage("0%") == 0
