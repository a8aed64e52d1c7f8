"""Sweeps: axes among the sources, and combinations in processes of their own."""

import json
import subprocess

import pytest
from commands.bench.requests import bench_request
from typer.testing import CliRunner

from detcli.app import app
from detcli.commands.bench import sweep as module
from detcli.commands.bench.request import Mode
from detcli.commands.bench.sweep import combined, run_sweep, split_axes
from detcli.errors import UsageError


def test_further_axes_arrive_as_sources():
    axes, sources = split_axes(["batch=1,2,4,8"], ["device=cpu,cuda", "a.jpg", "workers=1,2"])
    assert axes == {"batch": ("1", "2", "4", "8"), "device": ("cpu", "cuda"), "workers": ("1", "2")}
    assert sources == ("a.jpg",)


def test_a_file_that_is_named_like_an_axis():
    axes, sources = split_axes(["batch=1"], ["./device=cpu", "a b=c.jpg"])
    assert axes == {"batch": ("1",)}
    assert sources == ("./device=cpu", "a b=c.jpg")


def test_a_value_counts_once():
    assert split_axes(["batch=2, 1,2"], [])[0] == {"batch": ("2", "1")}


@pytest.mark.parametrize(
    ("given", "sources", "complaint"),
    [
        (["a.jpg"], [], "is not an axis"),
        (["bath=1"], [], "is not an axis"),
        (["batch=1"], ["devise=cpu"], "is not an axis"),
        (["batch=1"], ["batch=2"], "is given twice"),
        (["batch=1,,2"], [], "empty value"),
        (["batch="], [], "empty value"),
        (["batch=0"], [], "cannot be '0'"),
        (["workers=two"], [], "cannot be 'two'"),
        (["imgsz=-32"], [], "cannot be '-32'"),
        (["batch=²"], [], "cannot be"),
    ],
)
def test_malformed_axes(given, sources, complaint):
    with pytest.raises(UsageError, match=complaint) as caught:
        split_axes(given, sources)
    assert caught.value.hint


def test_a_combination():
    request = bench_request(mode=Mode.THROUGHPUT, batch=7, cold_starts=5)
    found = combined(request, {"device": "cuda", "workers": "2", "imgsz": "320", "model": "b.onnx"})
    run = found.run
    assert (list(map(str, run.devices)), run.device_options.workers, run.batch) == (
        ["cuda:0"],
        2,
        7,
    )
    assert (run.settings.imgsz, run.model, found.cold_starts) == (320, "b.onnx", 0)
    assert combined(request, {}).run == request.run


@pytest.fixture
def _in_this_process(monkeypatch):
    """Runs the command lines of the combinations without starting processes."""

    def run(command, **_):
        done = CliRunner().invoke(app, command[3:])
        return subprocess.CompletedProcess(command, done.exit_code, done.stdout, done.stderr)

    monkeypatch.setattr(module.subprocess, "run", run)


@pytest.mark.usefixtures("_in_this_process")
def test_every_combination_is_measured(make_model):
    request = bench_request(make_model(batch=None), Mode.LATENCY, "cpu", seconds=0.05)
    told = []
    report = run_sweep(request, {"batch": ("1", "3"), "device": ("cpu", "cuda")}, told.append)
    assert told[0] == "1 of 4: batch=1 device=cpu"
    assert len(told) == 4
    on_cpu = [point for point in report.points if point.values["device"] == "cpu"]
    assert [point.batch for point in on_cpu] == [1, 3]
    for point in on_cpu:
        assert point.failure is None
        assert point.pictures_per_second == pytest.approx(point.batch / point.latency.p50_s)
        assert point.interval.low <= point.pictures_per_second <= point.interval.high
        assert point.memory.host_peak_bytes > 20e6
        assert point.device == "cpu"


@pytest.mark.usefixtures("_in_this_process")
def test_a_failing_combination_does_not_affect_others(make_model):
    model = str(make_model())
    request = bench_request(model, Mode.THROUGHPUT, "cpu", seconds=0.05)
    report = run_sweep(request, {"model": ("none.onnx", model), "workers": ("1",)}, lambda _: None)
    broken, whole = report.points
    assert broken.failure.exit_code == 4
    assert "none.onnx" in broken.failure.message
    assert broken.pictures_per_second is None
    assert whole.failure is None
    assert whole.workers == 1


def test_a_contradiction_is_found_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr(module.subprocess, "run", None)
    request = bench_request()
    with pytest.raises(UsageError, match="--workers 2"):
        run_sweep(request, {"workers": ("1", "2")}, lambda _: None)
    with pytest.raises(UsageError, match="again and again"):
        run_sweep(bench_request(sources=("-",)), {"batch": ("1",)}, lambda _: None)


@pytest.mark.usefixtures("_in_this_process")
def test_the_machine_is_that_of_the_gpu(monkeypatch, make_model):
    """A GPU's report, which is made up of the CPU's."""
    real = module.subprocess.run

    def run(command, **options):
        done = real(command, **options)
        report = json.loads(done.stdout)
        report["machine"] |= {"gpu": "NVIDIA H200", "driver": "580.65"}
        report["conditions"] |= {"device": "cuda:0", "workers": 1}
        report["memory"]["device_bytes"] = 1 << 30
        done.stdout = json.dumps(report)
        return done

    monkeypatch.setattr(module.subprocess, "run", run)
    request = bench_request(make_model(), Mode.THROUGHPUT, "cpu", seconds=0.05)
    report = run_sweep(request, {"workers": ("2",)}, lambda _: None)
    assert report.machine.gpu == "NVIDIA H200"
    (point,) = report.points
    assert (point.device, point.workers, point.memory.device_bytes) == ("cuda:0", 1, 1 << 30)
