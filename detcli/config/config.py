"""Config: all that a run is told, each option once, checked where it is made, then frozen.

A field of a group is an option, see `Option`: the command line, its help, the variables, the file
of defaults, and what shards send to each other follow from it. A `Config` that exists is valid.
"""

# Not `from __future__ import annotations`: options read their types.
import math
import os
from collections import Counter
from collections.abc import Container, Mapping
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Literal

from detcli.config.device import AUTO, Device, DeviceOptions
from detcli.config.option import (
    changed_options,
    check_combination,
    option,
    options_of,
    panel,
    values_of,
)
from detcli.config.typed import settle_fields
from detcli.config.values import (
    BLUR_MARGIN,
    SUFFIXES,
    Actors,
    BoxFormat,
    Format,
    Hiding,
    Shape,
    ShardEngine,
    ShardSelection,
    Target,
    Tiling,
    Tracking,
    is_folder,
    parse_conf,
    parse_duration,
    parse_labels,
    parse_size,
    parse_writable,
    read_shapes,
    read_target,
)
from detcli.core import frozen
from detcli.core.errors import UsageError
from detcli.core.opencv import MAX_PIXELS

INPUT, MODEL, SELECTION = "Input", "Model", "Selection"
SCENE, OUTPUT, DEVICES, SHARDS = "Tracks and zones", "Output", "Devices", "Runs in shards"

PANELS = (INPUT, MODEL, SELECTION, SCENE, OUTPUT, DEVICES, SHARDS)
"""Titles of the help's panels, in its order; what is in none of them follows as Options."""

DEFAULT_CONF = 0.25  # the confidence for models that recommend none, as in Ultralytics' predict

DEFAULT_MODEL = "yolov10n"

EPSILON_S = 1e-6  # times of frames are not more exact
MAX_SHOWN = 80  # characters of a value that an error shows


@frozen
class Inputs:
    """Which inputs, and how they are read."""

    source: tuple[str, ...] = option(
        (),
        "SOURCE...",
        "Pictures, videos, folders, quoted glob patterns, s3:// gs:// az:// objects, camera:N, "
        "rtsp:// or http:// streams; - reads pictures from stdin.",
        affects_detections=False,
    )
    recursive: bool = option(
        False,
        "-r, --recursive",
        "Search folders recursively.",
        affects_detections=False,
        common=True,
    )
    follow: bool = option(
        False,
        "--follow",
        "Keep watching folders for new pictures and videos, until Ctrl-C.",
        affects_detections=False,
        sharded=False,
        excludes={
            "files_from": ("--follow and --files-from are mutually exclusive", "name folders"),
            "fail_if": (
                "--fail-if with --follow would never be checked: such a run does not end by itself",
                "count in the records with jq",
            ),
        },
        other_names="watch monitor",
    )
    files_from: str | None = option(
        None,
        "--files-from FILE|-",
        "Read names of pictures and videos from this file, one per line, or JSON Lines.",
        affects_detections=False,
    )
    null: bool = option(
        False,
        "-0, --null",
        "Names in --files-from end with NUL instead of a newline.",
        affects_detections=False,
        needs={"files_from": "name a list, or leave it out"},
    )
    column: str | None = option(
        None,
        "--column NAME",
        "The column of Parquet files that has the pictures, where several have some.",
    )
    vid_stride: int = option(
        1,
        "--vid-stride N",
        "Process every Nth frame of a video.",
        range=(1, None),
        overridden_by={"every": bool},
        other_names="stride skip",
    )
    every: float | None = option(
        None,
        "--every TIME",
        "Process a frame each 1s, 0.5s or 2min of a video or stream, whatever its rate.",
        range=(0.001, 3600),
        parse=parse_duration,
        excludes={
            "vid_stride": ("--every and --vid-stride are mutually exclusive", "leave one out")
        },
        other_names="interval",
    )
    fps: float | None = option(
        None,
        "--fps RATE",
        "Frames per second on stdin, which give each its time.",
        affects_detections=False,
        range=(0.001, None),
    )
    start: float = option(
        0, "--start SECONDS", "Start with the frame at this time in a video.", range=(0, None)
    )
    end: float | None = option(
        None,
        "--end SECONDS",
        "Stop before this time in a video: a frame at it is left out.",
        range=(0, None),
    )
    max_pixels: int = option(
        MAX_PIXELS,
        "--max-pixels N",
        "Refuse pictures with more pixels.",
        range=(1, None),
    )
    input_timeout: float = option(
        60,
        "--input-timeout SECONDS",
        "Give up on an input that takes longer to read; 0 waits forever.",
        affects_detections=False,
        range=(0, None),
    )
    strict: bool = option(
        False, "--strict", "Make a damaged picture an error, even if it can be decoded."
    )
    lenient: bool = option(
        False,
        "--lenient",
        "Take what can be decoded of a JPEG without its last bytes, with a warning.",
        excludes={"strict": ("--strict and --lenient are mutually exclusive", "leave one out")},
    )
    fast_decode: bool = option(
        False,
        "--fast-decode",
        "Decode large JPEGs at reduced size; boxes may differ slightly.",
    )

    def __post_init__(self) -> None:
        settle_fields(self)
        for name in self.source:
            if name.lower().endswith(".onnx"):
                raise UsageError(f"{name} is a model, and not an input", f"name it with -m {name}")

    @property
    def end_s(self) -> float:
        """From this time on, a video's frames are left out."""
        return math.inf if self.end is None else self.end

    def step(self, number: int, time_s: float) -> int:
        """The step that a frame of a video belongs to; the first frame of each is used.

        Its number counts from the first frame that may be used, its time from the video's start.
        """
        if self.every is None:
            return number // self.vid_stride
        return math.floor((time_s - self.start + EPSILON_S) / self.every)


@frozen
class Runtime:
    """Which model runs where."""

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
        "Pictures per batch; default: what suits the device.",
        affects_detections=False,
        range=(1, 1024),  # more would only wait in memory
    )
    workers: int | None = option(
        None,
        "--workers N",
        "Detectors to run side by side on the CPU; default: one per core for many inputs.",
        affects_detections=False,
        other_names="threads jobs",
        range=(1, None),
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

    def options(self, workers: int = 1, cores: int | None = None) -> DeviceOptions:
        """How to use the device, with the detectors and cores of this process."""
        return DeviceOptions(
            cuda_graph=self.cuda_graph,
            gpu_mem_limit=self.gpu_mem_limit,
            half=self.half,
            workers=self.workers or workers,
            cores=cores,
        )


@frozen
class Settings:
    """How to read a model and which detections to keep.

    Attributes:
        conf: Scores must be strictly above it. None means what the model recommends, or 0.25.
        max_det: Maximum number of detections in a picture.
        classes: Only these classes, by name or id; empty means all.
        nms: IoU above which non-maximum suppression drops a box of the same class with a lower
            score; "none" for no suppression. None means what the model recommends, or what is
            usual in its family, where its head gives several boxes for each object. Of each anchor
            only the best class takes part, as with `unique`, but in families that docs/models.md
            names.
        imgsz: Side length of the network's input, for graphs with dynamic axes.
        names: A file with class names, one per line, that replace the model's own.
        box_format: Format of the head's boxes, where the graph does not show it.
        class_conf: Confidences of single classes, by name or id, that replace `conf`.
        unique: Keep at most one detection of each anchor, that of its best class.
        rect: Use the smallest input that holds a picture, for graphs with dynamic axes.
        preprocess: How pictures become the input, where the model does not say, or to say it
            otherwise: "stretch,mean=0.485:0.456:0.406,std=0.229:0.224:0.225". What is not named
            stays as it is.
        boxes_only: Read the boxes of a model that finds masks or keypoints too, and leave out the
            rest.
        region: Look only there. Boxes are in pixels of the whole picture.
        tile: Look at large pictures in tiles, and once whole. `max_det` is then that of a tile.

    Raises:
        UsageError: A value is out of range.
    """

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
    max_det: int = option(300, "--max-det N", "Keep at most N detections per picture, or tile.")
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
        "but in families that docs/models.md names.",
        parse=lambda text: text if text == "none" else float(text),
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
    rect: bool = option(
        False,
        "--rect",
        "Feed a dynamic graph the smallest rectangle instead of a square.",
        panel=MODEL,
    )
    preprocess: str | None = option(
        None,
        "--preprocess WAYS",
        "How pictures become the input: stretch,mean=0.485:0.456:0.406,std=0.229:0.224:0.225.",
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
    region: Shape | None = option(
        None,
        "--region X1,Y1,X2,Y2",
        "Look only within this rectangle: left, top, right, bottom, in fractions of the picture, "
        "or in pixels.",
        panel=INPUT,
        parse=Shape.region,
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
        "Look at large pictures in tiles of this side, and once whole; 640,overlap=0.2 says which "
        "part of its side a tile shares with the next, at least; with 640,crowd=10, only where the "
        "whole shows ten objects; none leaves out what the model recommends.",
        panel=INPUT,
        parse=lambda text: text if text == "none" else Tiling.parse(text),
    )

    def __post_init__(self) -> None:
        settle_fields(self)
        confs = [conf for _, conf in self.class_conf]
        if self.conf is not None:
            confs.insert(0, self.conf)
        for conf in confs:
            if not 0 <= conf <= 1:
                raise UsageError(f"conf is {conf}", "use a confidence between 0 and 1")
        if self.max_det < 1:
            raise UsageError(f"max_det is {self.max_det}", "use 1 or more")
        if (iou := self.suppression(None)) is not None and not 0 < iou <= 1:
            raise UsageError(f"nms is {self.nms}", "use an IoU above 0 and at most 1, or none")
        if self.imgsz is not None and self.imgsz < 1:
            raise UsageError(f"imgsz is {self.imgsz}", "use 1 pixel or more")

    def effective_conf(self, recommended: float | None) -> float:
        """`conf` where it is given, else what the model recommends, else the default."""
        if self.conf is not None:
            return self.conf
        return DEFAULT_CONF if recommended is None else recommended

    confidence = effective_conf  # its name up to this version

    def suppression(self, recommended: float | None) -> float | None:
        """The IoU that counts: `nms` where it is given, else what suits the model; or None."""
        if self.nms is None:
            return recommended
        return None if self.nms == "none" else self.nms


@frozen
class Watched:
    """What is found out about detections."""

    read: bool = option(
        False,
        "--read",
        "Read the text of QR Codes, bar codes and other symbols; best with --model codes.",
    )
    zone: tuple[Shape, ...] = option(
        (),
        "--zone NAME=X,Y,...|@FILE",
        "Report which detections lie in a polygon: door=0.1,0.4,0.5,0.4,0.5,1 in fractions of the "
        "picture, or in pixels; @FILE has one a line.",
        parse=partial(read_shapes, Shape.zone, "--zone"),
    )
    track: Tracking | None = option(
        None,
        "--track TRACKER",
        "Follow objects through videos and streams, with bytetrack, botsort or ocsort; "
        "bytetrack,conf=0.5 begins tracks from this score on; default: that of --conf.",
        common=True,
    )
    line: tuple[Shape, ...] = option(
        (),
        "--line NAME=X1,Y1,X2,Y2|@FILE",
        "Report which tracks cross a line, and towards which side.",
        parse=partial(read_shapes, Shape.line, "--line"),
        needs={"track": "add --track bytetrack: what crosses a line moves"},
    )

    def __post_init__(self) -> None:
        settle_fields(self)
        names = Counter(shape.name for shape in (*self.zone, *self.line))
        if twice := [name for name, number in names.items() if number > 1]:
            raise UsageError(
                f"the zone or line {twice[0]} is given twice", "give each another name"
            )

    @property
    def zones_and_lines(self) -> list[str]:
        """The names of zones, of lines, and of both directions across these."""
        zones = [zone.name for zone in self.zone]
        lines = [line.name for line in self.line]
        crossings = [f"{line} {side}" for line in lines for side in ("left", "right")]
        return zones + lines + crossings

    @property
    def places(self) -> list[str]:
        """The same as `zones_and_lines`, by the name that it had before."""
        return self.zones_and_lines


output_option = partial(option, None, sharded=False, parse=parse_writable)
"""Declare an option that names an output, which a run in shards cannot have."""

HIDDEN = {"blur": "name what to hide: --blur person,car"}
WHERE = "name a folder for pictures, as with --save DIR"
ANNOTATED = {"save show": WHERE}
"""What options need that say how pictures are annotated, and the hint."""


@frozen
class Outputs:
    """What is written, and where."""

    format: Format | None = option(
        None,
        f"--format {'|'.join(Format)}",
        "Default: by the suffix of --output, else table on a terminal and jsonl in a pipe.",
        common=True,
        overridden_by={
            "resume": bool,
            "output": lambda name: PurePath(name).suffix.lower() in SUFFIXES,
        },
    )
    output: str | None = option(
        None,
        "-o, --output FILE|FOLDER/",
        "Write records to this file or s3:// object; - is standard output. With a / at the end it "
        "is a folder for a run in shards.",
        common=True,
        overridden_by={"resume": bool},
    )
    resume: Path | None = output_option(
        "--resume FILE",
        "Append JSON Lines to this file, and skip inputs already in it.",
        common=True,
        excludes={
            "fail_if": (
                "--fail-if with --resume would count this run only",
                "count in the file with jq",
            ),
            "output": ("--resume and --output are mutually exclusive", "leave out --output"),
            "save_coco": (
                "--save-coco with --resume would hold the results of this run only",
                "write COCO results in a separate run",
            ),
            "save_mot": (
                "--save-mot with --resume would hold the tracks of this run only",
                "write them in a separate run",
            ),
        },
    )
    force: bool = option(
        False,
        "--force",
        "Let --resume continue a file made with other settings.",
        sharded=False,
        needs={"resume": "leave it out: -o replaces its file"},
    )
    save: Path | None = output_option(
        "--save DIR",
        "Write annotated pictures and videos to this folder.",
        common=True,
        other_names="out out-dir draw annotate visualize",
    )
    line_width: int | None = option(
        None,
        "--line-width N",
        "Width of lines in annotated pictures, in pixels; default: by the picture's size.",
        range=(1, None),
        needs=ANNOTATED,
    )
    labels: str = option(
        "name,score",
        "--labels LIST|none",
        "What labels in annotated pictures say: name, score.",
        parse=parse_labels,
        separator=",",
        needs=ANNOTATED,
    )
    save_txt: Path | None = output_option("--save-txt DIR", "Write YOLO labels to this folder.")
    save_conf: bool = option(
        False,
        "--save-conf",
        "Add the score to each label as a sixth column.",
        needs={"save_txt": "name a folder for labels"},
    )
    save_coco: Path | None = output_option("--save-coco FILE", "Write COCO results to this file.")
    coco_images: Path | None = option(
        None,
        "--coco-images FILE",
        "COCO instances.json with the ids of pictures and categories.",
        needs={"save_coco": "name a file for results"},
    )
    save_crops: Path | None = output_option(
        "--save-crops DIR", "Write each detection as a picture, in one folder per class."
    )
    save_dataset: Path | None = output_option(
        "--save-dataset DIR", "Add pictures and labels to a dataset that trainers read."
    )
    report: Path | None = output_option(
        "--report DIR",
        "Write a page to look at to this folder: open its index.html.",
        common=True,
        other_names="save",
    )
    apply: Path | None = option(
        None,
        "--apply FILE",
        "Leave out what these marks drop, which a page has saved: pictures and boxes.",
        sharded=False,
        excludes={
            "resume": (
                "--apply would leave out pictures that --resume then does again",
                "apply the marks in a separate run",
            ),
        },
    )
    report_link: bool = option(
        False,
        "--report-link",
        "Show picture files on the page where they are, in full size, in place of copies.",
        needs={"report": "name a folder for the page"},
        excludes={  # and not the other way: --blur as a default never gives way
            "blur": (
                "--blur would hide nothing in the files that --report-link shows",
                "leave out --report-link: copies are blurred",
            )
        },
    )
    provenance: bool = option(
        False,
        "--provenance",
        "Say in the records what made them: settings, versions, processor and GPU in the first, "
        "the SHA-256 of its file in each.",
        sharded=False,
    )
    show: bool = option(False, "--show", "Show annotated pictures in a window.", sharded=False)
    blur: tuple[str, ...] = option(
        (),
        "--blur LIST",
        "Hide these classes, where they are found above --conf, in all pictures that are written "
        "or shown: person,car. Records keep their boxes.",
        separator=",",
        needs={"save save_crops save_dataset report show read": WHERE},
        other_names="anonymize hide",
    )
    blur_with: Hiding = option(
        Hiding.BLUR,
        f"--blur-with {'|'.join(Hiding)}",
        "How to hide them; fill leaves nothing at all.",
        needs=HIDDEN,
    )
    blur_margin: float = option(
        BLUR_MARGIN,
        "--blur-margin FRACTION",
        "Hide this part of a box's width and height beyond each of its sides, too.",
        range=(0, 10),
        needs=HIDDEN,
    )
    only_detections: bool = option(
        False,
        "--only-detections",
        "Keep no picture or frame without detections; records stay.",
        needs={"save save_dataset report": WHERE},
    )
    save_mot: Path | None = output_option(
        "--save-mot DIR",
        "Write tracks of each video in MOTChallenge's format.",
        needs={"track": "add --track bytetrack"},
    )
    fail_if: tuple[str, ...] = option(
        (),
        "--fail-if CONDITION",
        "Exit with 6 if this holds at the end: 'person>0', 'any==0', 'ZONE.person>0'.",
        sharded=False,
    )

    @property
    def in_shards(self) -> bool:
        """Whether the output is a folder of parts."""
        return is_folder(self.output)

    @property
    def target(self) -> "Target | None":
        """What records are written to; None for standard output, where a hyphen sends them too."""
        return None if self.in_shards else read_target(self.output)

    @property
    def files(self) -> "tuple[Target | None, ...]":
        """Files of results; None for those that are not wanted."""
        return (self.target, self.resume, self.save_coco)

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders of files that records name."""
        folders = (self.save, self.save_txt, self.save_crops, self.save_dataset, self.save_mot)
        return tuple(folder for folder in folders if folder)

    @property
    def written(self) -> tuple[Path, ...]:
        """All folders that the run writes to."""
        return (*self.folders, *filter(None, [self.report]))

    @property
    def need_pixels(self) -> bool:
        """Whether pictures are shown or written, which then have to be decoded in full size."""
        return self.show or any((self.save, self.save_crops, self.save_dataset, self.report))

    @property
    def need_identity(self) -> bool:
        """Whether something that is written says what the detections depend on."""
        return self.provenance or self.resume is not None or self.report is not None


@frozen
class Shards:
    """What works a run in shards, which has a folder as --output."""

    on: ShardEngine | None = option(
        None,
        "--on ENGINE",
        "What runs the shards: local:N, for N processes here; ray, for actors of a Ray cluster "
        "started here or named by RAY_ADDRESS; ray://HOST:PORT; default: local:1.",
    )
    actors: Actors | None = option(
        None,
        "--actors N..M",
        "Start with N Ray actors and grow to M; default: as many as there is room for.",
    )
    shards: ShardSelection | None = option(
        None,
        "--shards K/N",
        "Work every Nth shard, from the Kth on: 3/8 of eight tasks.",
    )
    shard_size: int | None = option(
        None,
        "--shard-size N",
        "Inputs per shard; default: 1000, fewer for short lists.",
        range=(1, 10**9),
    )
    extend: bool = option(
        False,
        "--extend",
        "Add inputs that are new since the run began as further shards.",
    )
    worker_timeout: float = option(
        0,
        "--worker-timeout SECONDS",
        "Replace a worker that has been silent for longer; 0, the default, only names it.",
        range=(0, None),
    )
    retry_failed: bool = option(
        False,
        "--retry-failed",
        "Work inputs again whose record is an error.",
    )


@frozen
class Verbosity:
    """What is said on stderr."""

    quiet: bool = option(
        False,
        "-q, --quiet",
        "Print only fatal errors, and inputs that cannot be read, on stderr.",
        common=True,
        excludes={"verbose": ("--quiet and --verbose are mutually exclusive", "leave one out")},
    )
    verbose: int = option(0, "-v, --verbose", "Print more; -vv adds tracebacks.")


@frozen
class Config:
    """All that a run is told."""

    inputs: Inputs = panel(Inputs(), INPUT, affects_detections=True)
    runtime: Runtime = panel(Runtime(), DEVICES, affects_detections=True)
    settings: Settings = panel(Settings(), SELECTION, affects_detections=True)
    watched: Watched = panel(Watched(), SCENE, affects_detections=True)
    outputs: Outputs = panel(Outputs(), OUTPUT, affects_detections=False)
    shards: Shards = panel(Shards(), SHARDS, affects_detections=False)
    verbosity: Verbosity = panel(Verbosity(), "Options", affects_detections=False)

    def __post_init__(self) -> None:
        changed = changed_options(self)
        self.runtime.options()  # which refuses a limit that is too small
        if self.outputs.in_shards:
            self._check_shards()
        elif self.shards != Shards():
            raise UsageError(
                "--on, --actors, --shards, --shard-size, --extend, --retry-failed and "
                "--worker-timeout are for runs in shards",
                "name a folder for its parts, with a / at the end: --output boxes/",
            )
        check_combination(options_of(Config), changed)
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
        """Refuse what a run in shards cannot do."""
        output, record_format = self.outputs.output, self.outputs.format
        engine = self.shards.on
        options = options_of(Config)
        for name, value in values_of(self).items():
            if value and not options[name].sharded:
                later = f"; then detcli report {output} makes a page" if name == "report" else ""
                raise UsageError(
                    f"{options[name].flag} does not go with a run in shards (--output {output})",
                    f"leave it out{later}, or name a file with --output",
                )
        if record_format not in {None, Format.JSONL}:
            raise UsageError(
                f"--format {record_format}: parts are JSON Lines",
                f"leave it out; detcli merge {output} --format {record_format} writes it from the "
                "parts",
            )
        if self.shards.actors is not None and (engine is None or engine.count):
            raise UsageError("--actors without Ray", "use --on ray, or leave it out")

    @property
    def decodes_fast(self) -> bool:
        """Whether JPEGs may be decoded at reduced size: not where full pixels are needed."""
        return self.inputs.fast_decode and not (self.watched.read or self.outputs.need_pixels)


def _are_same(first: "Target | None", second: "Target | None") -> bool:
    """Whether two paths lead to the same place."""
    if not isinstance(first, Path) or not isinstance(second, Path):
        return False
    return os.path.realpath(first) == os.path.realpath(second)


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], implied: Container[str] = ()
) -> list[str]:
    """How what detections depended on differs from what they depend on now, in a sentence each.

    An option that one side does not have yet has its default there; other names that only one side
    has are left out, as an earlier version did not note them. So are those that are `implied` by
    the others now: where these are equal, detections do not depend on them.
    """
    import json  # `--help` does without

    defaults = {}
    options = options_of(Config)
    for name in options:
        if options[name].default is not None:
            defaults[name] = options[name].default
    sentences = []
    for name in {**now, **before}:
        is_in_both = all(name in values or name in defaults for values in (before, now))
        if name in implied or not is_in_both:
            continue
        earlier = before.get(name, defaults.get(name))
        value = now.get(name, defaults.get(name))
        if earlier == value:
            continue
        if name == "model_sha256":
            sentences.append("another file of the model")
        elif max(len(str(earlier)), len(str(value))) > MAX_SHOWN:
            sentences.append(f"another {name}")
        else:
            sentences.append(f"{name} {json.dumps(earlier)} instead of {json.dumps(value)}")
    return sentences
