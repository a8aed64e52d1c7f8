"""Inputs: what a run reads, and how."""

# Not `from __future__ import annotations`: options read their types.
import math
from dataclasses import KW_ONLY

from detcli.config.option import option
from detcli.config.typed import convert_fields
from detcli.config.values import parse_duration
from detcli.core import frozen
from detcli.core.errors import UsageError
from detcli.core.opencv import MAX_PIXELS

EPSILON_S = 1e-6  # times of frames are not more exact


@frozen
class Inputs:
    """How inputs are read.

    Attributes:
        recursive: Whether folders within folders are searched.
        follow: Whether folders are watched for new files; the run has no end then.
        column: The column of Parquet files that has the images; None for the only one.
        vid_stride: Every Nth frame of a video is used, for this N; 1 for all.
        every: Seconds between the frames of a video that are used; None goes by `vid_stride`.
        fps: Frames per second on standard input; None if they have no times.
        start: Seconds from the start of a video at which its frames begin to be used.
        end: Seconds from the start of a video at which its frames cease to be used; None for all.
        max_pixels: Images of more pixels, height times width, are errors.
        input_timeout: Seconds that reading an input may take; 0 for any time.
        lenient: Whether a JPEG without its last bytes is used as far as it goes.
        fast_decode: Whether large JPEGs are decoded at a reduced size, which is faster; boxes are
            in pixels of the full size nevertheless.

    Raises:
        UsageError: A value has the wrong type or is out of range.
    """

    _: KW_ONLY
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
        "Keep watching folders for new images and videos, until Ctrl-C.",
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
    column: str | None = option(
        None,
        "--column NAME",
        "The column of Parquet files that has the images, where several columns have images.",
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
        "Process one frame every 1s, 0.5s or 2min of a video or stream, whatever its rate.",
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
        "Frames per second on stdin, from which each frame gets its time.",
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
        "Refuse images with more pixels.",
        range=(1, None),
    )
    input_timeout: float = option(
        60,
        "--input-timeout SECONDS",
        "Give up on an input that takes longer to read; 0 waits forever.",
        affects_detections=False,
        range=(0, None),
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
        """Convert the values to the types of the fields, and refuse those out of range."""
        convert_fields(self)


@frozen
class InputOptions(Inputs):
    """Which inputs, and how they are read, including what only the command line has.

    Attributes:
        source: Names of the inputs.
        files_from: The path of a list of names, or "-" for standard input.
        null: Whether names in that list end with NUL instead of a newline.
        strict: Whether a damaged image is an error even if it can be decoded.

    Raises:
        UsageError: A value has the wrong type or is out of range, or an input is a model.
    """

    _: KW_ONLY
    source: tuple[str, ...] = option(
        (),
        "SOURCE...",
        "Images, videos, folders, quoted glob patterns, s3:// gs:// az:// objects, camera:N, "
        "rtsp:// or http:// streams; - reads images from stdin.",
        affects_detections=False,
    )
    files_from: str | None = option(
        None,
        "--files-from FILE|-",
        "Read names of images and videos from this file, one per line, or JSON Lines.",
        affects_detections=False,
    )
    null: bool = option(
        False,
        "-0, --null",
        "Names in --files-from end with NUL instead of a newline.",
        affects_detections=False,
        needs={"files_from": "name a list, or leave it out"},
    )
    strict: bool = option(
        False, "--strict", "Make a damaged image an error, even if it can be decoded."
    )

    def __post_init__(self) -> None:
        """Convert and check the values, and refuse a model among the inputs."""
        Inputs.__post_init__(self)
        for name in self.source:
            if name.lower().endswith(".onnx"):
                raise UsageError(f"{name} is a model, not an input", f"name it with -m {name}")

    @property
    def end_s(self) -> float:
        """The time at which a video's frames begin to be left out; infinity if none are."""
        if self.end is None:
            return math.inf
        return self.end

    def step(self, number: int, time_s: float) -> int:
        """Number the interval that a frame falls into; the first frame of each interval is used.

        `number` counts frames from --start; `time_s` is the frame's time in the whole video.
        """
        if self.every is None:
            return number // self.vid_stride
        return math.floor((time_s - self.start + EPSILON_S) / self.every)
