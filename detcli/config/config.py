"""Config: all options of a run, each declared once; checked when a Config is made, then frozen.

A field of a group is an option, see `Option`: the command line, its help, the variables, the file
of defaults, and what shards send to each other follow from it. A `Config` that exists is valid.
The groups InputOptions, Watched, Outputs and Shards have files of their own.
"""

# Not `from __future__ import annotations`: options read their types.
import os
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

from detcli.config.device import AUTO, MAX_WORKERS, Device, DeviceOptions
from detcli.config.inputs import InputOptions
from detcli.config.option import (
    changed_options,
    check_combination,
    option,
    options_of,
    panel,
    values_of,
)
from detcli.config.outputs import Outputs
from detcli.config.shapes import Region
from detcli.config.shards import Shards
from detcli.config.typed import convert_fields
from detcli.config.values import (
    BoxFormat,
    Format,
    Target,
    Tiling,
    parse_conf,
    parse_size,
)
from detcli.config.watched import Watched
from detcli.core import frozen
from detcli.core.errors import UsageError

INPUT = "Input"
MODEL = "Model"
SELECTION = "Selection"
SCENE = "Tracks and zones"
OUTPUT = "Output"
DEVICES = "Devices"
SHARDS = "Runs in shards"

PANELS = (INPUT, MODEL, SELECTION, SCENE, OUTPUT, DEVICES, SHARDS)
"""Titles of the help's panels, in order; options in none of them follow as Options."""

DEFAULT_CONF = 0.25  # the confidence for models that recommend none, as in Ultralytics' predict

DEFAULT_MODEL = "yolov10n"

ClassConfidences = (
    Mapping[str | int, float]
    | Mapping[str, float]
    | Mapping[int, float]
    | Iterable[tuple[str | int, float]]
)
"""Per-class confidences, as programs may give them: a mapping, or pairs."""


@frozen
class Runtime:
    """Which model runs, and on which device."""

    model: str = option(
        DEFAULT_MODEL,
        "-m, --model FILE|NAME",
        "ONNX file, or a name from `detcli models list`.",
        panel=MODEL,
        common=True,
        shared=True,
        other_names="weights",
    )
    device: tuple[Device, ...] = option(
        (AUTO,),
        "--device DEVICE",
        "Where to run: auto, cpu, cuda, cuda:N, tensorrt, tensorrt:N, openvino, openvino:GPU or "
        "openvino:NPU; a comma-separated list uses all of them.",
        affects_detections=False,
        common=True,
        shared=True,
        separator=",",
        other_names="gpu",
    )
    batch: int | None = option(
        None,
        "--batch N",
        "Images per batch; default: what suits the device.",
        affects_detections=False,
        range=(1, 1024),  # more would only wait in memory
    )
    workers: int | None = option(
        None,
        "--workers N",
        "Detectors to run side by side on the CPU; default: one per core for many inputs.",
        affects_detections=False,
        other_names="threads jobs",
        range=(1, MAX_WORKERS),
    )
    fast_cores: bool = option(
        False,
        "--fast-cores",
        "Run on the fastest kind of cores only, where the processor has several kinds (Linux).",
        affects_detections=False,
    )
    cuda_graph: bool | None = option(
        None,
        "--cuda-graph",
        "Replay the network as a CUDA graph; default: for shapes that repeat.",
        affects_detections=False,
    )
    gpu_mem_limit: int | None = option(
        None,
        "--gpu-mem-limit SIZE",
        "Limit of the network's GPU memory, such as 2GiB or 512MiB.",
        affects_detections=False,
        parse=parse_size,
    )
    half: bool = option(
        False,
        "--half",
        "Compute in float16 with TensorRT, in bfloat16 with OpenVINO (float16 on graphics); on "
        "other devices, use the float16 file of a model given by name.",
    )

    def options(
        self, workers: int = 1, cores: int | None = None, *, spins: bool = True
    ) -> DeviceOptions:
        """Return how this process uses the device.

        Args:
            workers: How many detectors run side by side, unless the user has set that.
            cores: As `DeviceOptions.cores`.
            spins: As `DeviceOptions.spins`.
        """
        return DeviceOptions(
            cuda_graph=self.cuda_graph,
            gpu_mem_limit=self.gpu_mem_limit,
            half=self.half,
            workers=self.workers or workers,
            cores=cores,
            spins=spins,
        )


def _parse_nms(text: str) -> str | float:
    if text == "none":
        return text
    return float(text)


def _parse_tile(text: str) -> str | Tiling:
    if text == "none":
        return text
    return Tiling.parse(text)


class SettingsValues(TypedDict, total=False):
    """What programs may give as the fields of `Settings`, which converts it to their types.

    Type checkers go by it: `Settings(tile=640)` has a `Tiling`, and `classes=["car"]` a tuple.
    """

    conf: float | None
    max_det: int
    classes: Iterable[int | str]
    nms: Literal["none"] | float | None
    imgsz: int | None
    names: str | Path | None
    box_format: BoxFormat | str | None
    class_conf: ClassConfidences
    unique: bool
    agnostic_nms: bool
    rect: bool
    preprocess: str | None
    boxes_only: bool
    region: Region | str | Iterable[float] | None
    tile: Tiling | str | int | None


@frozen
class Settings:
    """How to read a model and which detections to keep.

    Attributes:
        conf: Scores must be strictly above it. None means what the model recommends, or 0.25.
        max_det: Maximum number of detections in an image.
        classes: Only these classes, by name or id; empty means all.
        nms: IoU above which non-maximum suppression drops a box of the same class with a lower
            score; "none" for no suppression. None means what the model recommends, or what is
            usual in its family, where its head outputs several boxes for each object. Only the best
            class of each anchor takes part, as with `unique`, except in families that
            docs/models.md names.
        imgsz: Side length of the network's input, for graphs with dynamic axes.
        names: A file with class names, one per line, that replace the model's own.
        box_format: Format of the head's boxes, where the graph does not show it.
        class_conf: Per-class confidences, by name or id, that replace `conf`.
        unique: Keep at most one detection of each anchor, that of its best class.
        agnostic_nms: Let the suppression compare the boxes of all classes, not only of one.
        rect: Use the smallest input that holds an image, for graphs with dynamic axes.
        preprocess: How images become the input, where the model does not say, or to override it:
            "stretch,mean=0.485:0.456:0.406,std=0.229:0.224:0.225". What is not named stays as it
            is.
        boxes_only: Read the boxes of a model that also finds masks or keypoints, and leave out the
            rest.
        region: Look only there. Boxes are in pixels of the whole image. It may be a string as on
            the command line: "0,0.5,1,1" for the lower half.
        tile: Look at large images in tiles, and once whole. `max_det` is then that of a tile. It
            may be a string as on the command line, "640,overlap=0.3", or the side of a tile, 640.

    Raises:
        UsageError: A value has the wrong type or is out of range.
    """

    _: KW_ONLY
    conf: float | None = option(
        None,
        "--conf SCORE",
        "Keep scores above this; 0.25,person=0.5 sets single classes. Default: what the model "
        "recommends, or 0.25.",
        common=True,
        parse_fields=parse_conf,
        separator=",",
        other_names="confidence threshold score conf-thres",
    )
    max_det: int = option(300, "--max-det N", "Keep at most N detections per image, or tile.")
    classes: tuple[int | str, ...] = option(
        (),
        "--classes LIST",
        "Keep only these classes, by name or id: person,car or 0,2.",
        common=True,
        separator=",",
    )
    nms: Literal["none"] | float | None = option(
        None,
        "--nms IOU",
        "Drop a box that overlaps a better one of its class by more than this, or none; default: "
        "what suits the model. Of each anchor, only the best class takes part, as with --unique, "
        "except in the families that docs/models.md names.",
        parse=_parse_nms,
        other_names="iou iou-thres",
    )
    imgsz: int | None = option(
        None,
        "--imgsz N",
        "Side length of the input in pixels, for dynamic graphs.",
        panel=MODEL,
        other_names="size resolution",
    )
    names: str | Path | None = option(
        None,
        "--names FILE",
        "Class names, one per line, instead of the model's own.",
        panel=MODEL,
    )
    box_format: BoxFormat | None = option(
        None,
        f"--box-format {'|'.join(BoxFormat)}",
        "Box format of the head, if the graph does not show it.",
        panel=MODEL,
    )
    class_conf: tuple[tuple[str | int, float], ...] = option((), "")  # see --conf
    unique: bool = option(
        False, "--unique", "Keep at most one class per anchor, as --nms does in most families."
    )
    agnostic_nms: bool = option(
        False,
        "--agnostic-nms",
        "Keep one class where boxes of several overlap: --nms, or what the model has in its place, "
        "compares boxes of all classes.",
        other_names="agnostic class-agnostic",
    )
    rect: bool = option(
        False,
        "--rect",
        "Feed a dynamic graph the smallest rectangle instead of a square.",
        panel=MODEL,
    )
    preprocess: str | None = option(
        None,
        "--preprocess WAYS",
        "How images become the input: stretch,mean=0.485:0.456:0.406,std=0.229:0.224:0.225.",
        panel=MODEL,
        separator=",",
        other_names="try parts",
    )
    boxes_only: bool = option(
        False,
        "--boxes-only",
        "Read the boxes of a model that finds masks or keypoints too.",
        panel=MODEL,
    )
    region: Region | None = option(
        None,
        "--region X1,Y1,X2,Y2",
        "Look only within this rectangle: left, top, right, bottom, in fractions of the image, "
        "or in pixels.",
        panel=INPUT,
        parse=Region.parse,
        excludes={
            "blur": (
                "--blur with --region would leave what is outside it as it is",
                "leave out --region: --zone says what is where",
            )
        },
        other_names="roi crop area",
    )
    tile: Literal["none"] | Tiling | None = option(
        None,
        "--tile SIZE",
        "Look at large images in tiles of this side, and once whole; 640,overlap=0.2 says which "
        "part of its side a tile shares with the next, at least; with 640,crowd=10, only where the "
        "whole shows ten objects; none leaves out what the model recommends.",
        panel=INPUT,
        parse=_parse_tile,
    )

    if TYPE_CHECKING:

        def __init__(self, **values: Unpack[SettingsValues]) -> None: ...

    def __post_init__(self) -> None:
        """Convert the values to the types of the fields, and refuse those out of range."""
        convert_fields(self)
        class_confs = [conf for _, conf in self.class_conf]
        for conf in [self.conf, *class_confs]:
            if conf is not None and not 0 <= conf <= 1:
                raise UsageError(f"conf is {conf}", "use a confidence between 0 and 1")
        if self.max_det < 1:
            raise UsageError(f"max_det is {self.max_det}", "use 1 or more")
        iou = suppression_iou(self.nms, recommended=None)
        if iou is not None and not 0 < iou <= 1:
            raise UsageError(f"nms is {self.nms}", "use an IoU above 0 and at most 1, or none")
        if self.imgsz is not None and self.imgsz < 1:
            raise UsageError(f"imgsz is {self.imgsz}", "use 1 pixel or more")


def effective_conf(settings: Settings, recommended: float | None) -> float:
    """Return the confidence that applies: the user's, else the model's, else the default of 0.25.

    Args:
        settings: Their `conf` is what the user has set; None if they have not.
        recommended: What the model recommends; None if it recommends none.
    """
    if settings.conf is not None:
        return settings.conf
    if recommended is not None:
        return recommended
    return DEFAULT_CONF


def suppression_iou(nms: Literal["none"] | float | None, recommended: float | None) -> float | None:
    """Return the IoU of non-maximum suppression; None means that nothing is suppressed.

    Args:
        nms: What the user has set, as `Settings.nms`: an IoU; "none" for no suppression; None to go
            by the model.
        recommended: What the model recommends; None for no suppression.
    """
    if nms is None:
        return recommended
    if nms == "none":
        return None
    return nms


@frozen
class Verbosity:
    """How much is printed on stderr."""

    quiet: bool = option(
        False,
        "-q, --quiet",
        "Print only errors on stderr, also those of inputs: no progress, warnings or summaries.",
        common=True,
        excludes={"verbose": ("--quiet and --verbose are mutually exclusive", "leave one out")},
    )
    verbose: int = option(0, "-v, --verbose", "Print more; -vv adds tracebacks.")


@frozen
class Config:
    """All options of a run, by group."""

    inputs: InputOptions = panel(InputOptions(), INPUT, affects_detections=True)
    runtime: Runtime = panel(Runtime(), DEVICES, affects_detections=True)
    settings: Settings = panel(Settings(), SELECTION, affects_detections=True)
    watched: Watched = panel(Watched(), SCENE, affects_detections=True)
    outputs: Outputs = panel(Outputs(), OUTPUT, affects_detections=False)
    shards: Shards = panel(Shards(), SHARDS, affects_detections=False)
    verbosity: Verbosity = panel(Verbosity(), "Options", affects_detections=False)

    def __post_init__(self) -> None:
        """Refuse options that do not go together, and values that their options do not take."""
        changed_names = changed_options(self)  # raises an error for a value of a different type
        self.runtime.options()  # raises an error for a memory limit that is too small
        if self.outputs.in_shards:
            self._check_shards()
        elif self.shards != Shards():
            raise UsageError(
                "--on, --shards, --shard-size, --extend and --retry-failed are for runs in shards",
                "name a folder for its parts, with a / at the end: --output boxes/",
            )
        check_combination(options_of(Config), changed_names)
        self._check_outputs()

    def _check_outputs(self) -> None:
        """Refuse two outputs that would be one file, and a format that --resume cannot write."""
        outputs = self.outputs
        if outputs.resume is not None and outputs.format not in {None, Format.JSONL}:
            hint = "leave out --format"
            if outputs.format is Format.PARQUET:
                hint = (
                    "write JSON Lines in shards with -o boxes/, which the same command resumes, "
                    "then detcli merge boxes/ --format parquet -o boxes.parquet"
                )
            raise UsageError(f"--resume writes JSON Lines, not {outputs.format}", hint)
        if _are_same(outputs.save_mot, outputs.save_txt):
            raise UsageError(
                f"--save-mot and --save-txt would write files of the same names to "
                f"{outputs.save_mot}",
                "name two folders",
            )
        if _are_same(outputs.save_coco, outputs.target):
            raise UsageError(f"{outputs.save_coco} is given twice", "write to two files")

    def _check_shards(self) -> None:
        """Refuse options that a run in shards cannot have, and formats other than JSON Lines."""
        output = self.outputs.output
        options = options_of(Config)
        for name, value in values_of(self).items():
            if value and not options[name].sharded:
                raise UsageError(
                    f"{options[name].flag} does not go with a run in shards (--output {output})",
                    f"leave it out{self._later_command(name)}, or name a file with --output",
                )
        record_format = self.outputs.format
        if record_format not in {None, Format.JSONL}:
            raise UsageError(
                f"--format {record_format}: parts are JSON Lines",
                f"leave it out; detcli merge {output} --format {record_format} writes it from the "
                "parts",
            )

    def _later_command(self, option_name: str) -> str:
        """End a sentence with the command that does what an option cannot do in shards, if any."""
        folder = self.outputs.output
        if option_name == "report":
            return f"; then detcli report {folder} makes a page"
        if option_name == "burst":
            return f"; then detcli merge {folder} --burst TIME adds it"
        return ""

    @property
    def decodes_fast(self) -> bool:
        """Whether JPEGs may be decoded at reduced size: not where full pixels are needed."""
        return self.inputs.fast_decode and not (self.watched.read or self.outputs.need_pixels)


def _are_same(first: "Target | None", second: "Target | None") -> bool:
    """Whether two targets are the same file, with links followed."""
    if not isinstance(first, Path) or not isinstance(second, Path):
        return False
    return os.path.realpath(first) == os.path.realpath(second)
