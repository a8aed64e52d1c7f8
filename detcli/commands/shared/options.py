"""Options of the commands: names, types, help, and the parsers of their values."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from detcli.commands.shared.reports import ReportFormat as _ReportFormat
from detcli.errors import UsageError
from detcli.model.contract import BoxFormat


def option(metavar: str, text: str, *names: str, **more: Any) -> Any:  # noqa: ANN401 - as in Typer
    """An option with a value: what the help calls the value and says about the option."""
    return typer.Option(*names, metavar=metavar, help=text, **more)


RecursiveOption = Annotated[
    bool, typer.Option("--recursive", "-r", help="Search folders recursively.")
]
MaxPixelsOption = Annotated[int, option("N", "Refuse pictures with more pixels.", min=1)]

ModelOption = Annotated[
    str, option("FILE|NAME", "ONNX file, or a name from `detcli models list`.", "--model", "-m")
]
ModelFileOption = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="ONNX file, or a name from `detcli models list`.", show_default=False
    ),
]
DeviceOption = Annotated[
    str,
    option(
        "DEVICE",
        "Where to run: auto, cpu, cuda, cuda:N, tensorrt or tensorrt:N; a list uses them all.",
    ),
]
ImageSizeOption = Annotated[
    int | None, option("N", "Side length of the input in pixels, for dynamic graphs.")
]
RectOption = Annotated[
    bool,
    typer.Option("--rect", help="Feed a dynamic graph the smallest rectangle instead of a square."),
]
NamesOption = Annotated[
    Path | None, option("FILE", "Class names, one per line, instead of the model's own.")
]
BoxesOption = Annotated[
    BoxFormat | None,
    option("xyxy|cxcywh", "Box format of the head, if the graph does not show it."),
]
CudaGraphOption = Annotated[
    bool | None,
    typer.Option(
        "--cuda-graph/--no-cuda-graph",
        help="Replay the network as a CUDA graph; default: if its shapes are static.",
    ),
]
MemoryLimitOption = Annotated[
    str | None, option("SIZE", "Limit of the network's GPU memory, such as 2GiB or 512MiB.")
]
HalfOption = Annotated[
    bool,
    typer.Option(
        "--half",
        help="Build the TensorRT engine in float16; on other devices, use the float16 file of a "
        "model given by name.",
    ),
]
BatchOption = Annotated[
    int | None, option("N", "Pictures per batch; default: what suits the device.", min=1)
]
WorkersOption = Annotated[
    int | None,
    option(
        "N",
        "Detectors to run side by side on the CPU; default: one per core for many inputs.",
        min=1,
    ),
]

ConfidenceOption = Annotated[
    str, option("SCORE", "Keep scores above this; 0.25,person=0.5 sets single classes.")
]
NmsOption = Annotated[
    float | None,
    option("IOU", "Drop a box that overlaps a better one of its class by more than this."),
]
UniqueOption = Annotated[bool, typer.Option("--unique", help="Keep at most one class per anchor.")]

ReportFormatOption = Annotated[
    _ReportFormat | None,
    option("table|json", "Default: table on a terminal and json in a pipe.", "--format"),
]
SaveCocoOption = Annotated[Path | None, option("FILE", "Write COCO results to this file.")]

QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only fatal errors on stderr.")
]
VerboseOption = Annotated[
    int,
    typer.Option(
        *("--verbose", "-v"),
        count=True,
        show_default=False,
        help="Print more; -vv adds tracebacks.",
    ),
]


_BYTES = {"": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _BYTES |= {_letter: 2 ** (10 * _power), f"{_letter}ib": 2 ** (10 * _power)}
    _BYTES[f"{_letter}b"] = 10 ** (3 * _power)


def parse_size(text: str) -> int:
    """Read a number of bytes: `2GiB`, `512 MiB`, `1.5g`, `4000000000`.

    KiB or K and so on count in steps of 1024, KB and so on in steps of 1000.

    Raises:
        UsageError: The text is not a size.
    """
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip(), re.ASCII | re.IGNORECASE)
    if parts is None or parts[2].lower() not in _BYTES:
        raise UsageError(f"'{text}' is not a size", "write 2GiB, 512MiB, or a number of bytes")
    return int(float(parts[1]) * _BYTES[parts[2].lower()])


def parse_list(text: str) -> tuple[str, ...]:
    """Read the entries of a list: `person,car`.

    Raises:
        UsageError: The list is empty.
    """
    entries = tuple(entry.strip() for entry in text.split(",") if entry.strip())
    if not entries:
        raise UsageError(f"'{text}' is an empty list", "leave the option out")
    return entries


def parse_confidence(text: str) -> tuple[float, tuple[tuple[str, float], ...]]:
    """Read `0.25,person=0.5`: the confidence of all classes, and of single ones.

    Raises:
        UsageError: A confidence is not a number.
    """
    everything, single = 0.25, []
    for entry in parse_list(text):
        name, equals, number = entry.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            raise UsageError(
                f"--conf '{text}': '{number}' is not a number", "write 0.25, or 0.25,person=0.5"
            ) from None
        if equals:
            single.append((name.strip(), value))
        else:
            everything = value
    return everything, tuple(single)
