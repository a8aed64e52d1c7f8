"""Options of the commands: names, types, help, and the parsers of their values."""

from pathlib import Path
from typing import Annotated, Any

import typer

from detcli.commands.shared.completion import complete_device, complete_model
from detcli.commands.shared.defaults_file import DEVICE_VARIABLE, MODEL_VARIABLE
from detcli.commands.shared.layout import DEVICES, INPUT, MODEL, OUTPUT, SELECTION
from detcli.commands.shared.reports import ReportFormat as _ReportFormat
from detcli.core import values
from detcli.core.values import BoxFormat
from detcli.core.values import Hiding as Hiding
from detcli.core.values import parse_list as parse_list
from detcli.core.values import parse_size as parse_size
from detcli.opencv import limit_pixels


def option(
    metavar: str,
    text: str,
    *names: str,
    panel: str | None = None,
    **more: Any,  # noqa: ANN401 - as in Typer
) -> Any:  # noqa: ANN401 - as in Typer
    """An option with a value: what the help calls the value, says about the option, and where."""
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel, **more)


def flag(text: str, *names: str, panel: str | None = None) -> Any:  # noqa: ANN401 - as in Typer
    """An option without a value."""
    return typer.Option(*names, help=text, rich_help_panel=panel)


def is_typed(context: typer.Context, name: str) -> bool:
    """Whether a parameter is on the command line: not a default, also not the user's own."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


TileOption = Annotated[
    str | None,
    option(
        "SIZE",
        "Look at large pictures in tiles of this side, and once whole; 640,overlap=0.2 says which "
        "part of its side a tile shares with the next, at least.",
        panel=INPUT,
    ),
]
RecursiveOption = Annotated[
    bool, flag("Search folders recursively.", "--recursive", "-r", panel=INPUT)
]
MaxPixelsOption = Annotated[
    int,
    option("N", "Refuse pictures with more pixels.", min=1, panel=INPUT, callback=limit_pixels),
]
InputTimeoutOption = Annotated[
    float,
    option(
        "SECONDS",
        "Give up on an input that takes longer to read; 0 waits forever.",
        min=0,
        panel=INPUT,
    ),
]
DataOption = Annotated[
    Path,
    option(
        "DATA",
        "Labelled pictures: COCO's instances.json; YOLO's data.yaml, a list (.txt) or a folder.",
        "--data",
        show_default=False,
        panel=INPUT,
    ),
]
ImagesOption = Annotated[
    Path | None,
    option("FOLDER", "Pictures of an instances.json; default: images beside it.", panel=INPUT),
]
SplitOption = Annotated[
    str | None,
    option(
        "train|val|test",
        "Part of a data.yaml; default: val.",
        show_default=False,
        panel=INPUT,
    ),
]

ModelOption = Annotated[
    str,
    option(
        "FILE|NAME",
        "ONNX file, or a name from `detcli models list`.",
        *("--model", "-m"),
        panel=MODEL,
        envvar=MODEL_VARIABLE,
        autocompletion=complete_model,
    ),
]
ModelFileOption = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="ONNX file, or a name from `detcli models list`.",
        show_default=False,
        envvar=MODEL_VARIABLE,
        autocompletion=complete_model,
    ),
]
DeviceOption = Annotated[
    str,
    option(
        "DEVICE",
        "Where to run: auto, cpu, cuda, cuda:N, tensorrt, tensorrt:N, openvino, openvino:GPU or "
        "openvino:NPU; a comma-separated list uses all of them.",
        panel=DEVICES,
        envvar=DEVICE_VARIABLE,
        autocompletion=complete_device,
    ),
]
ImageSizeOption = Annotated[
    int | None,
    option("N", "Side length of the input in pixels, for dynamic graphs.", panel=MODEL),
]
RectOption = Annotated[
    bool,
    flag("Feed a dynamic graph the smallest rectangle instead of a square.", "--rect", panel=MODEL),
]
NamesOption = Annotated[
    Path | None,
    option("FILE", "Class names, one per line, instead of the model's own.", panel=MODEL),
]
BoxesOption = Annotated[
    BoxFormat | None,
    option("xyxy|cxcywh", "Box format of the head, if the graph does not show it.", panel=MODEL),
]
PreprocessOption = Annotated[
    str | None,
    option(
        "WAYS",
        "How pictures become the input: stretch,mean=0.485:0.456:0.406,std=0.229:0.224:0.225.",
        panel=MODEL,
    ),
]
BoxesOnlyOption = Annotated[
    bool,
    flag(
        "Read the boxes of a model that finds masks or keypoints too.", "--boxes-only", panel=MODEL
    ),
]
CudaGraphOption = Annotated[
    bool | None,
    flag(
        "Replay the network as a CUDA graph; default: for shapes that repeat.",
        "--cuda-graph/--no-cuda-graph",
        panel=DEVICES,
    ),
]
MemoryLimitOption = Annotated[
    str | None,
    option("SIZE", "Limit of the network's GPU memory, such as 2GiB or 512MiB.", panel=DEVICES),
]
HalfOption = Annotated[
    bool,
    flag(
        "Compute in float16 with TensorRT, in bfloat16 with OpenVINO (float16 on graphics); on "
        "other devices, use the float16 file of a model given by name.",
        "--half",
        panel=DEVICES,
    ),
]
BatchOption = Annotated[
    int | None,
    option("N", "Pictures per batch; default: what suits the device.", min=1, panel=DEVICES),
]
WorkersOption = Annotated[
    int | None,
    option(
        "N",
        "Detectors to run side by side on the CPU; default: one per core for many inputs.",
        min=1,
        panel=DEVICES,
    ),
]


BlurWithOption = Annotated[
    Hiding, option("|".join(Hiding), "How to hide them; fill leaves nothing at all.", panel=OUTPUT)
]
ConfidenceOption = Annotated[
    str | None,
    option(
        "SCORE",
        "Keep scores above this; 0.25,person=0.5 sets single classes. Default: what the model "
        "recommends, or 0.25.",
        panel=SELECTION,
    ),
]
NmsOption = Annotated[
    float | None,
    option(
        "IOU",
        "Drop a box that overlaps a better one of its class by more than this; default: what the "
        "model recommends, or none.",
        panel=SELECTION,
    ),
]
UniqueOption = Annotated[
    bool, flag("Keep at most one class per anchor.", "--unique", panel=SELECTION)
]

ReportFormatOption = Annotated[
    _ReportFormat | None,
    option(
        "table|json", "Default: table on a terminal and json in a pipe.", "--format", panel=OUTPUT
    ),
]
SaveCocoOption = Annotated[
    Path | None, option("FILE", "Write COCO results to this file.", panel=OUTPUT)
]

QuietOption = Annotated[bool, flag("Print only fatal errors on stderr.", "--quiet", "-q")]
VerboseOption = Annotated[
    int,
    typer.Option(
        *("--verbose", "-v"),
        count=True,
        show_default=False,
        help="Print more; -vv adds tracebacks.",
    ),
]


def parse_confidence(text: str | None) -> tuple[float | None, tuple[tuple[str, float], ...]]:
    """Read `0.25,person=0.5`: the confidence of all classes, if given, and of single ones."""
    found = {} if text is None else values.parse_confidence(text)
    return found.get("conf"), found.get("class_conf", ())
