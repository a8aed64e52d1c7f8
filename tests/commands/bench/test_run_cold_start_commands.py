"""The command lines are those that the program understands."""

from pathlib import Path

import typer.main
from commands.bench.requests import bench_request

from detcli.app import app
from detcli.commands.bench.run import predict_command
from detcli.model.contract import BoxFormat

EVERYTHING = bench_request(
    "a.onnx",
    "throughput",
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


def test_predict_runs_the_same_model_in_the_same_way():
    given = parsed(predict_command(EVERYTHING, Path("street.jpg")))
    wanted = {
        "source": ("street.jpg",),
        "quiet": True,
        "model": "a.onnx",
        "device": "cuda:1",
        "nms": 0.45,
        "imgsz": 320,
        "box_format": BoxFormat.CXCYWH,
        "preprocess": "stretch",
        "boxes_only": True,
        "cuda_graph": False,
        "gpu_mem_limit": str(1 << 30),
        "half": False,
    }
    assert {name: given[name] for name in wanted} == wanted


def test_what_was_not_asked_for_is_left_to_predict():
    given = parsed(predict_command(bench_request(), Path("-odd.jpg")))
    assert given["imgsz"] is given["nms"] is given["cuda_graph"] is None
    assert given["source"] == ("-odd.jpg",)


def test_flags():
    half = bench_request(half=True, cuda_graph=True)
    given = parsed(predict_command(half, Path("a.jpg")))
    assert given["half"] is given["cuda_graph"] is True
