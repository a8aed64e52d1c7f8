"""The options of the commands, each once: its type, its names, its line of help; and parsers."""

import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from detcli.commands.shared.reports import ReportFormat as _ReportFormat
from detcli.errors import UsageError
from detcli.model.contract import BoxFormat


class Format(StrEnum):
    """How records are written."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"


def choose_format(wanted: Format | None, output: Path | None) -> Format:
    """The format asked for, or that of the file's suffix, or what suits standard output."""
    if wanted is not None:
        return wanted
    if output is not None:
        suffix = output.suffix.lower().removeprefix(".")
        return Format(suffix) if suffix in list(Format) else Format.JSONL
    return Format.TABLE if sys.stdout and sys.stdout.isatty() else Format.JSONL


SourcesOption = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SOURCE...",
        help="Picture, video, folder, quoted glob pattern, camera:N, rtsp:// or http:// stream, or "
        "- for a picture or a stream of JPEGs on stdin.",
        show_default=False,
    ),
]
FilesFromOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|-", help="Read names of pictures and videos from here, a line each."
    ),
]
NullOption = Annotated[
    bool, typer.Option("--null", "-0", help="Names in --files-from end with NUL, not a newline.")
]
RecursiveOption = Annotated[
    bool, typer.Option("--recursive", "-r", help="Search folders of folders.")
]
VideoStrideOption = Annotated[
    int,
    typer.Option("--vid-stride", metavar="N", min=1, help="Look at every Nth frame of a video."),
]
StartOption = Annotated[
    float, typer.Option(metavar="SECONDS", min=0, help="Where to begin in a video.")
]
EndOption = Annotated[
    float | None, typer.Option(metavar="SECONDS", min=0, help="Where to stop in a video.")
]
MaxPixelsOption = Annotated[
    int, typer.Option(metavar="N", min=1, help="Refuse pictures of more pixels.")
]
FastDecodeOption = Annotated[
    bool,
    typer.Option(
        "--fast-decode", help="Decode large JPEGs at reduced size; boxes may differ slightly."
    ),
]

ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        metavar="FILE|NAME",
        help="ONNX file, or a name that `detcli models list` shows.",
    ),
]
ModelFileOption = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="ONNX file, or a name that `detcli models list` shows.",
        show_default=False,
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        metavar="DEVICE",
        help="Where to run: auto, cpu, cuda, cuda:N, tensorrt or tensorrt:N; several with commas.",
    ),
]
ImageSizeOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Input side length in pixels, for dynamic graphs."),
]
RectOption = Annotated[
    bool,
    typer.Option("--rect", help="Feed the smallest rectangle, not a square, to a dynamic graph."),
]
NamesOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Class names, one a line, in place of the model's."),
]
BoxesOption = Annotated[
    BoxFormat | None,
    typer.Option(
        metavar="xyxy|cxcywh", help="What the head's boxes are, where the graph does not show it."
    ),
]
CudaGraphOption = Annotated[
    bool | None,
    typer.Option(
        "--cuda-graph/--no-cuda-graph",
        help="Replay the network as a CUDA graph; default: where its shapes are static.",
    ),
]
MemoryLimitOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="GPU memory that the network may take, as in 2GiB or 512MiB."
    ),
]
HalfOption = Annotated[
    bool,
    typer.Option(
        "--half",
        help="Let TensorRT build its engine in float16; elsewhere, take the float16 file of a "
        "model that goes by name.",
    ),
]
BatchOption = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Pictures in a batch; default: what suits the device."),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Detectors that share the CPU; default: one a core for many inputs.",
    ),
]

ConfidenceOption = Annotated[
    str,
    typer.Option(
        metavar="SCORE", help="Keep scores above this; for single classes as in 0.25,person=0.5."
    ),
]
MaxDetOption = Annotated[
    int, typer.Option("--max-det", metavar="N", help="Keep at most so many in a picture.")
]
ClassesOption = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="Only these: names or ids, as in person,car or 0,2."),
]
NmsOption = Annotated[
    float | None,
    typer.Option(metavar="IOU", help="Drop boxes of a class that overlap more than this."),
]
UniqueOption = Annotated[
    bool, typer.Option("--unique", help="At most one class for each place (anchor).")
]

OutputFormatOption = Annotated[
    Format | None,
    typer.Option(
        "--format",
        metavar="table|jsonl|json|csv",
        help="Default: by FILE's suffix, else table on a terminal, jsonl in a pipe.",
    ),
]
ReportFormatOption = Annotated[
    _ReportFormat | None,
    typer.Option(
        "--format",
        metavar="table|json",
        help="Default: table on a terminal, json in a pipe.",
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write records to this file."),
]
ResumeOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Append JSON Lines to this file, and skip what is already in it."
    ),
]
SaveOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write annotated pictures and videos to this folder."),
]
SaveTextOption = Annotated[
    Path | None, typer.Option("--save-txt", metavar="DIR", help="Write YOLO labels to this folder.")
]
SaveConfidenceOption = Annotated[
    bool, typer.Option("--save-conf", help="Labels with a sixth column, the score.")
]
SaveCocoOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write COCO results to this file.")
]
CocoImagesOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="COCO instances.json that has the ids of the pictures."),
]
SaveCropsOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write each detection as a picture, a folder a class."),
]
ShowOption = Annotated[bool, typer.Option("--show", help="Show annotated pictures in a window.")]
FailIfOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CONDITION", help="Exit with 6 if it holds in the end: 'person>0', 'any==0'."
    ),
]

NeededDeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="Exit with 5 unless this one can be used: cpu, cuda, cuda:N, tensorrt or tensorrt:N.",
    ),
]
ClearCacheOption = Annotated[
    bool, typer.Option("--clear-cache", help="First remove what detcli has cached.")
]

QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Only fatal errors on stderr.")]
VerboseOption = Annotated[
    int,
    typer.Option(
        *("--verbose", "-v"), count=True, show_default=False, help="Say more; -vv for tracebacks."
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
        raise UsageError(f"'{text}' is no size", "write 2GiB, 512MiB, or a number of bytes")
    return int(float(parts[1]) * _BYTES[parts[2].lower()])


def parse_list(text: str) -> tuple[str, ...]:
    """Read the entries of a list: `person,car`.

    Raises:
        UsageError: The list is empty.
    """
    entries = tuple(entry.strip() for entry in text.split(",") if entry.strip())
    if not entries:
        raise UsageError(f"'{text}' lists nothing", "leave the option out")
    return entries


def parse_confidence(text: str) -> tuple[float, tuple[tuple[str, float], ...]]:
    """Read `0.25,person=0.5`: the confidence of all classes, and those of single ones.

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
                f"--conf '{text}': '{number}' is no number", "write 0.25, or 0.25,person=0.5"
            ) from None
        if equals:
            single.append((name.strip(), value))
        else:
            everything = value
    return everything, tuple(single)
