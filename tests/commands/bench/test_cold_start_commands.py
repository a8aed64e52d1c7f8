"""The command lines are those that the program understands."""

from pathlib import Path

import typer.main
from commands.bench.requests import bench_request

from detcli.app import app
from detcli.commands.bench.cold_start import bench_command, predict_command
from detcli.commands.bench.request import Mode
from detcli.model.contract import BoxFormat

EVERYTHING = bench_request(
    "a.onnx",
    Mode.THROUGHPUT,
    "cuda:1",
    sources=("-odd.jpg", "b c.jpg"),
    batch=2,
    workers=3,
    nms=0.45,
    imgsz=320,
    box_format=BoxFormat.CXCYWH,
    preprocess="stretch",
    boxes_only=True,
    cuda_graph=False,
    gpu_mem_limit="1GiB",
    seconds=1.5,
    cold_starts=0,
)


def parsed(command):
    """What Typer makes of the arguments behind `python -m detcli COMMAND`."""
    assert command[1:3] == ["-m", "detcli"]
    group = typer.main.get_command(app)
    found = group.get_command(None, command[3])
    return found.make_context(command[3], command[4:]).params


def test_everything_reaches_bench():
    given = parsed(bench_command(EVERYTHING))
    wanted = {
        "source": ("-odd.jpg", "b c.jpg"),
        "model": "a.onnx",
        "mode": Mode.THROUGHPUT,
        "device": "cuda:1",
        "batch": 2,
        "workers": 3,
        "nms": 0.45,
        "imgsz": 320,
        "box_format": BoxFormat.CXCYWH,
        "preprocess": "stretch",
        "boxes_only": True,
        "cuda_graph": False,
        "gpu_mem_limit": str(1 << 30),
        "half": False,
        "seconds": 1.5,
        "cold_starts": 0,
        "report_format": "json",
    }
    assert {name: given[name] for name in wanted} == wanted


def test_what_was_not_asked_for_is_left_to_bench():
    given = parsed(bench_command(bench_request()))
    assert given["batch"] is given["imgsz"] is given["nms"] is given["cuda_graph"] is None
    assert given["source"] in ([], None, ())


def test_predict_runs_the_same_model_in_the_same_way():
    given = parsed(predict_command(EVERYTHING, Path("street.jpg")))
    assert given["source"] == ("street.jpg",)
    assert given["quiet"] is True
    shared = (
        *("model", "device", "nms", "imgsz", "box_format", "preprocess", "boxes_only"),
        *("cuda_graph", "gpu_mem_limit"),
    )
    bench = parsed(bench_command(EVERYTHING))
    assert {name: given[name] for name in shared} == {name: bench[name] for name in shared}


def test_flags():
    half = bench_request(half=True, cuda_graph=True)
    assert parsed(bench_command(half))["half"] is True
    assert parsed(bench_command(half))["cuda_graph"] is True
