"""`detcli predict`: boxes from pictures."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detcli.cli.formats import Format, choose_format
from detcli.cli.messages import report, say, set_verbosity
from detcli.cli.sizes import parse_size
from detcli.errors import InputError, UsageError
from detcli.model.contract import BoxFormat

if TYPE_CHECKING:
    from detcli.record import Record


def predict(  # noqa: PLR0913 - one parameter an option; they become two objects at once
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Picture, folder, quoted glob pattern, or - for the bytes of a picture on stdin.",
            show_default=False,
        ),
    ],
    *,
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="FILE", help="ONNX file.", show_default=False)
    ],
    device: Annotated[
        str,
        typer.Option(
            metavar="DEVICE",
            help="Where to run: auto, cpu, cuda, cuda:N, tensorrt or tensorrt:N.",
        ),
    ] = "auto",
    conf: Annotated[float, typer.Option(metavar="SCORE", help="Keep scores above this.")] = 0.25,
    max_det: Annotated[
        int, typer.Option(metavar="N", help="Keep at most so many in a picture.")
    ] = 300,
    classes: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Only these: names or ids, as in person,car or 0,2."),
    ] = None,
    nms: Annotated[
        float | None,
        typer.Option(metavar="IOU", help="Drop boxes of a class that overlap more than this."),
    ] = None,
    imgsz: Annotated[
        int | None,
        typer.Option(metavar="N", help="Input side length in pixels, for dynamic graphs."),
    ] = None,
    names: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Class names, one a line, in place of the model's."),
    ] = None,
    box_format: Annotated[
        BoxFormat | None,
        typer.Option(
            metavar="xyxy|cxcywh",
            help="What the head's boxes are, where the graph does not show it.",
        ),
    ] = None,
    cuda_graph: Annotated[
        bool | None,
        typer.Option(
            "--cuda-graph/--no-cuda-graph",
            help="Replay the network as a CUDA graph; default: where its shapes are static.",
        ),
    ] = None,
    gpu_mem_limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="GPU memory that the network may take, as in 2GiB or 512MiB."
        ),
    ] = None,
    half: Annotated[
        bool, typer.Option("--half", help="Let TensorRT build its engine in float16.")
    ] = False,
    output_format: Annotated[
        Format | None,
        typer.Option(
            "--format",
            metavar="table|jsonl|json|csv",
            help="Default: by FILE's suffix, else table on a terminal, jsonl in a pipe.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write records to this file."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write annotated pictures to this folder.")
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only fatal errors on stderr.")
    ] = False,
    verbose: Annotated[
        int,
        typer.Option(
            *("--verbose", "-v"),
            count=True,
            show_default=False,
            help="Say more; -vv for tracebacks.",
        ),
    ] = 0,
) -> None:
    """Detect objects in pictures.

    Records go to stdout, everything else to stderr. An input that fails becomes a record with an
    error, the others are completed, and the exit code is 3.
    """
    set_verbosity(quiet=quiet, verbose=verbose)
    # What follows loads OpenCV and ONNX Runtime, which --help does not need.
    from detcli.backend.options import DeviceOptions
    from detcli.cli.sinks import open_sinks
    from detcli.detector import Detector
    from detcli.opencv import silence_opencv
    from detcli.settings import Settings
    from detcli.stream.pipeline import detect
    from detcli.stream.source import expand

    silence_opencv()
    settings = Settings(
        conf=conf,
        max_det=max_det,
        classes=_split(classes),
        nms=nms,
        imgsz=imgsz,
        names=names,
        box_format=box_format,
    )
    limit = None if gpu_mem_limit is None else parse_size(gpu_mem_limit)
    options = DeviceOptions(cuda_graph=cuda_graph, gpu_mem_limit=limit, half=half)
    form = choose_format(output_format, output)
    read = [*source, model, *([str(names)] if names else [])]
    tally = Tally(quiet=quiet, errors_shown=form is Format.TABLE and output is None)
    with (
        Detector(model, device, settings, options) as detector,
        open_sinks(read, form, output, save) as sinks,
    ):
        for record in detect(expand(source), detector):
            for sink in sinks:
                sink.write(record)
            tally.add(record)
    tally.summarise()
    if tally.failed:
        raise typer.Exit(InputError.exit_code)


def _split(classes: str | None) -> tuple[str, ...]:
    """Entries of a list such as "person,car"."""
    wanted = tuple(entry.strip() for entry in (classes or "").split(",") if entry.strip())
    if classes is not None and not wanted:
        raise UsageError(f"--classes '{classes}' names no class", "leave it out to keep all")
    return wanted


class Tally:
    """Counts what was done, and says on stderr what failed and how much it was in the end."""

    def __init__(self, *, quiet: bool, errors_shown: bool) -> None:
        self._quiet = quiet
        self._errors_shown = errors_shown
        self._start = time.perf_counter()
        self.pictures = self.found = self.failed = 0

    def add(self, record: "Record") -> None:
        """Count a record."""
        if record.error is not None:
            self.failed += 1
            if not self._quiet and not self._errors_shown:
                report(record.error, record.source)
        else:
            self.pictures += 1
            self.found += len(record.detections or ())

    def summarise(self) -> None:
        """Say how much was done."""
        if not self._quiet:
            seconds = time.perf_counter() - self._start
            failed = f", {self.failed} failed" if self.failed else ""
            pictures = "picture" if self.pictures == 1 else "pictures"
            say(f"{self.pictures} {pictures}, {self.found} detections{failed}, {seconds:.2f} s")
