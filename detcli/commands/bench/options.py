"""The options that only `detcli bench` has."""

from pathlib import Path
from typing import Annotated

import typer

from detcli.commands.bench.modes import Mode as _Mode

SourcesOption = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SOURCE]...",
        help="Pictures, folders or videos; default: a built-in picture. After --sweep, more axes.",
        show_default=False,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        *("--model", "-m"),
        metavar="FILE|NAME",
        help="ONNX file, or a name that `detcli models list` shows; default: yolov10n.",
        show_default=False,
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        metavar="DEVICE", help="Where to run: auto, cpu, cuda, cuda:N, tensorrt or tensorrt:N."
    ),
]
ModeOption = Annotated[
    _Mode | None,
    typer.Option(
        metavar="latency|throughput|topk",
        help="One batch after the other by stage, all at once, or top-k beside other libraries' "
        "ways. Default: latency; with --sweep, throughput.",
    ),
]
SweepOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="AXIS=A,B...",
        help="Measure all combinations, as in --sweep batch=1,2,4,8 device=cpu,cuda; the axes are "
        "batch, device, workers, imgsz and model.",
    ),
]
SecondsOption = Annotated[
    float, typer.Option(metavar="S", help="How long to measure, after the warm-up.")
]
ColdStartsOption = Annotated[
    int, typer.Option(metavar="N", min=0, help="Time so many whole processes before.")
]
LengthsOption = Annotated[
    str, typer.Option("--n", metavar="LIST", help="Lengths of rows, for --mode topk.")
]
WantedOption = Annotated[
    int, typer.Option("--k", metavar="N", min=1, help="How many are wanted, for --mode topk.")
]
PlotOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw a sweep, or --mode topk, as PNG or SVG."),
]
SaveBaselineOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Keep the samples for a later --baseline.")
]
BaselineOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Compare with this; exit with 6 if it has become slower for certain."
    ),
]
MaxRegressOption = Annotated[
    str, typer.Option(metavar="PERCENT", help="How much slower than the baseline it may be.")
]
