"""Whole processes."""

import sys
from pathlib import Path

import pytest
import typer.main
from commands.bench.requests import bench_config

from detcli.cli.app import app
from detcli.commands.bench import cold_start as module
from detcli.commands.bench.cold_start import measure_cold_start, predict_command
from detcli.commands.bench.report import ColdStart
from detcli.config.values import BoxFormat
from detcli.core.errors import ModelError

pytestmark = pytest.mark.slow

HELP = {"help_option_names": ["-h", "--help"]}  # a command keeps those of its first context


def test_a_cold_start(make_model):
    cold_start = measure_cold_start(bench_config(make_model(), device="cpu"), 2)
    assert cold_start.processes == 2
    assert 0 < cold_start.first_record_s <= cold_start.whole_process_s
    if sys.platform != "win32":
        assert 20e6 < cold_start.peak_memory_bytes < 2e9


def test_the_first_process_is_not_counted(monkeypatch):
    seconds_of_runs = [9.0, 1.0, 3.0, 2.0]

    def run_process(_):
        first_record_s = seconds_of_runs.pop(0)
        return ColdStart(1, first_record_s, first_record_s + 1, 100 * int(first_record_s))

    monkeypatch.setattr(module, "run_process", run_process)
    cold_start = measure_cold_start(bench_config(), 3)
    assert cold_start.processes == 3
    assert cold_start.first_record_s == 2.0
    assert cold_start.whole_process_s == 3.0
    assert cold_start.peak_memory_bytes == 200


def test_a_model_that_cannot_be_used_fails_as_predict_does(tmp_path):
    path = tmp_path / "no.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(ModelError, match=r"no\.onnx") as caught:
        measure_cold_start(bench_config(path, device="cpu"), 5)
    assert caught.value.hint


def parsed(image, **options):
    """What Typer makes of the command's arguments."""
    command = predict_command(bench_config(**options), Path(image))
    assert command[1:4] == ["-m", "detcli", "predict"]
    predict = typer.main.get_command(app).get_command(None, "predict")  # type: ignore[attr-defined]
    params = predict.make_context("predict", command[4:], **HELP).params
    return {name: _single(name, value) for name, value in params.items()}


def _single(name, value):
    """What was typed for an option, which Typer lists."""
    return value[0] if name != "source" and isinstance(value, list | tuple) else value


def test_predict_runs_the_same_model_in_the_same_way():
    options = {
        "model": "a.onnx",
        "device": "cuda:1",
        "nms": 0.45,
        "imgsz": 320,
        "box_format": BoxFormat.CXCYWH,
        "preprocess": "stretch",
        "boxes_only": True,
        "cuda_graph": False,
        "half": False,
    }
    parsed_options = parsed("street.jpg", workers=3, gpu_mem_limit="1GiB", **options)
    options |= {"source": ("street.jpg",), "quiet": True, "gpu_mem_limit": str(1 << 30)}
    options |= {"nms": "0.45", "imgsz": "320"}
    for name, value in options.items():
        assert parsed_options[name] == value
    parsed_options = parsed("a.jpg", half=True, cuda_graph=True)
    assert parsed_options["half"] is parsed_options["cuda_graph"] is True


def test_what_was_not_asked_for_is_left_to_predict():
    parsed_options = parsed("-odd.jpg")
    assert parsed_options["imgsz"] is parsed_options["nms"] is parsed_options["cuda_graph"] is None
    assert parsed_options["source"] == ("-odd.jpg",)
