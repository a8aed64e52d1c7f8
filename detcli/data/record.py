"""Record: the result for one input, detections or an error; what every sink writes."""

import base64
import json
import os
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import (
    Any,
    NotRequired,
    TypedDict,
    cast,
)

from detcli.core import Fields, frozen
from detcli.core.errors import DetcliError
from detcli.core.text import escape_surrogates
from detcli.data.columns import DetectionJson
from detcli.data.detections import Detections
from detcli.data.geometry import Image, Points
from detcli.data.json_text import encode, encode_detections

SCHEMA_VERSION = 2

BOX = ("x1", "y1", "x2", "y2")  # fields of a detection that are its box


@frozen
class Video:
    """What the frames of one video have in common."""

    frames_per_second: float  # rate of the frames that are used; 0 if unknown
    live: bool = False  # whether it is a camera or a network stream, which may never end
    # where it can be opened again, for its sound: a file's absolute path, or a URL with its
    # credentials, which is never shown
    address: str | None = field(default=None, repr=False, compare=False)
    pixel_aspect: tuple[int, int] = (1, 1)  # width and height of a pixel as it is shown


@frozen
class Origin:
    """Where an image comes from.

    Attributes:
        source: The input as its user named it, without credentials.
        path: The file of an image that has one of its own; None for frames of videos, images in
            archives, objects in buckets, and standard input.
        frame: The number of the frame in its video, from 0, where those that are not used count,
            too; None for an image.
        time_s: Seconds from the start of the video; None for an image, and where it is unknown.
        time: When the frame of a camera or stream came, with a time zone; None for other inputs.
        input: The index of the input, from 0, which the frames of a video share.
        meta: What a list in JSON Lines says about it, as a string of JSON; None if there is none.
        video: What the frames of a video have in common; None for an image.
        file_stamp: Size and time of its video or archive when that was opened, or the ETag of an
            object when its folder was listed; see `Record.file_stamp`.
    """

    source: str
    path: Path | None = None
    _: KW_ONLY
    frame: int | None = None
    time_s: float | None = None
    video: Video | None = None
    time: datetime | None = None
    input: int = 0
    meta: str | None = None
    file_stamp: str | None = None

    def __post_init__(self) -> None:
        if os.sep != "/" and "://" not in self.source:  # records are the same on every system
            object.__setattr__(self, "source", self.source.replace(os.sep, "/"))

    @property
    def is_new(self) -> bool:
        """Whether it is a different input in every run: standard input, or a live source."""
        if self.video is not None and self.video.live:
            return True
        return self.path is None and (self.source == "-" or self.source.startswith("-:"))


class FailureJson(TypedDict):
    """Why an input has no detections."""

    type: str  # SourceError, PlaceError, AlteredError, DecodeError, InferenceError or another
    message: str
    hint: str  # what to do next; may be empty


class SettingsJson(TypedDict):
    """What the detections of a run depend on."""

    model: str
    # of the model's file, with external weights and what was read beside it where there are any
    model_sha256: str
    conf: float  # scores are above it
    class_conf: dict[str, float]  # confidences of individual classes, by class id
    max_det: int
    classes: list[int]  # ids of the classes that are kept; empty for all
    nms: float | None  # IoU of the non-maximum suppression; null if there is none
    # whether each anchor gives one detection at most: asked for, or part of the suppression
    unique: bool
    # true if the suppression was asked to compare boxes of all classes; absent otherwise
    agnostic_nms: NotRequired[bool]
    imgsz: int | None  # side of the network's input that was asked for; null for the model's own
    rect: bool  # whether the input is as small as the image allows
    box_format: str | None  # format of the boxes that was asked for; null for the model's own
    preprocess: str  # how images became the network's input
    names: list[str] | None  # names of the classes that replace the model's own; null if none do
    half: bool  # whether the float16 file was asked for
    fast_decode: bool  # whether large JPEGs are decoded at reduced size
    vid_stride: int  # N, where every N-th frame of a video is used
    every: float | None  # seconds between the frames of a video that are used; null for all
    # the column of Parquet files that was asked for; null for the only one
    column: str | None
    # the rectangle of images that was looked at, as in `0,0.5,1,1`; null for all of them
    region: str | None
    # side of the tiles and their overlap, as in `640,overlap=0.2`; null if there are no tiles
    tile: str | None
    zones: list[str] | None  # named polygons; null if there are none
    lines: list[str] | None  # named lines; null if there are none
    # polygons whose detections are ignored, with the pattern of their sources; absent if none
    ignore: NotRequired[list[str]]
    # the share of a box's area that has to be in one of them; null where the middle of its lower
    # side decides; absent if there is no ignore
    ignore_share: NotRequired[float | None]
    track: str | None  # how objects are followed; null if they are not
    read: bool  # whether symbols were read
    # ids of the classes whose text is hidden; absent unless symbols were read and some classes are
    # hidden
    blur: NotRequired[list[int]]


class ProvenanceJson(TypedDict):
    """What a run was made with; null is unknown, or was not used."""

    begun: str  # when the run began, UTC in ISO 8601 with milliseconds
    detcli: str  # its version
    python: str  # its version
    system: str  # the operating system, its release and the architecture
    processor: str | None  # name of the CPU
    onnxruntime: str | None  # version of ONNX Runtime
    runtime_cuda: str | None  # the CUDA that this ONNX Runtime was built for
    openvino: str | None  # version of OpenVINO, where it ran the network
    opencv: str | None  # version of OpenCV
    numpy: str | None  # version of NumPy
    gpu: str | None  # names of the GPUs that ran the network
    driver: str | None  # version of NVIDIA's driver
    driver_cuda: str | None  # the newest CUDA that the driver supports
    precision: str | None  # the lowest precision that the network computes in


class AddedJson(TypedDict, total=False):
    """Fields of a record that --provenance adds, see `RecordJson`."""

    sha256: str
    file_stamp: str
    settings: SettingsJson
    provenance: ProvenanceJson


class PartJson(TypedDict):
    """What shows that a part of a run in shards is complete."""

    shard: int  # index of the shard, from 0
    run: str  # the hash of the manifest that it belongs to
    records: int  # how many records it has
    sha256: str  # of its lines, without this field
    failed: NotRequired[dict[str, int]]  # how many records have an error, by its kind
    made_by: NotRequired[str]  # the version, model and settings that made it


class RecordJson(TypedDict):
    """What one input gave: detections, or an error."""

    schema_version: int
    # the input as its user named it, with bytes that are not UTF-8 as in \\xe9; - is standard input
    source: str
    index: int  # index of the record, from 0
    # index of the input, from 0, which the frames of a video share; absent from records of
    # version 1 that a later run has taken over
    input: NotRequired[int]
    source_bytes: NotRequired[str]  # the bytes of a name that is not UTF-8, in base64
    meta: NotRequired[Any]  # what the list in JSON Lines said about the input
    frame: NotRequired[int]  # the number of the frame in its video, from 0
    time_s: NotRequired[float]  # seconds from the start of the video
    # when the frame of a camera or stream came, UTC in ISO 8601 with milliseconds
    time: NotRequired[str]
    # when an image was photographed, as its EXIF says (DateTimeOriginal): local time of the camera
    # in ISO 8601, without a zone, with decimals of the second if the camera stored them, at most 6
    taken: NotRequired[str]
    # how far that local time is ahead of UTC, as in +01:00, if the EXIF says so; with taken
    taken_offset: NotRequired[str]
    # id of the group of images of the same folder that were taken shortly after one another, from 0
    # in the whole file; in records with taken, with --burst
    burst: NotRequired[int]
    burst_score: NotRequired[float]  # the best score in its burst, 0 if that has no detections
    width: NotRequired[int]  # of the upright image, in pixels
    height: NotRequired[int]  # of the upright image, in pixels
    detections: NotRequired[list[DetectionJson]]  # best first
    model: NotRequired[str]  # the model's name
    device: NotRequired[str]  # where it ran, as --device names it
    precision: NotRequired[str]  # what the network computed in, where the device chooses that
    warnings: NotRequired[list[str]]  # what is wrong with the input, although there are detections
    error: NotRequired[FailureJson]  # why the input failed
    saved: NotRequired[list[str]]  # files that were made for it: images, videos, labels, crops
    sha256: NotRequired[str]  # of the file of the image or video; with --provenance
    # size in bytes and time of the last change, in microseconds since 1970, of the file that was
    # read, as in 163-1764351309123456, or the ETag of an object; with --resume or --provenance
    file_stamp: NotRequired[str]
    # the file_stamp of the records of this input that this one replaces; with --resume, until the
    # run has ended and they are gone
    replaces: NotRequired[str]
    # what the detections depend on; in the first record of a run with --resume or --provenance
    settings: NotRequired[SettingsJson]
    # what the run was made with; in the first record of a run with --provenance
    provenance: NotRequired[ProvenanceJson]
    # what the part is; in the last record of each part of a run in shards
    part: NotRequired[PartJson]


BURST_COLUMNS = ("burst", "burst_score")
"""The fields of a record that --burst adds, which are columns of CSV and Parquet then."""


class MarkJson(TypedDict):
    """What somebody says about an image on a page, or about one of its boxes."""

    mark: str  # keep or drop
    # source of the record, printable; so is the class. For a group of repeats: the folder of its
    # images, or the source of its video or camera.
    source: str
    frame: NotRequired[int]
    time: NotRequired[str]
    # index of the record's detection, if the page shows detections; the rest is only for boxes
    detection: NotRequired[int]
    class_name: NotRequired[str]
    score: NotRequired[float | None]  # null for an object of a label
    box: NotRequired[list[float]]  # x1, y1, x2, y2 in pixels, to 1 decimal
    # id of the group of repeats that the mark is about; class_name and box_fractions are then set
    repeated: NotRequired[int]
    box_fractions: NotRequired[list[float]]  # its box in fractions of the image, x1, y1, x2, y2


@dataclass(slots=True)
class RecordNotes:
    """What the command line notes about a record, which its JSON lists after the detections."""

    # files that were made for it; each sink that makes some adds them
    saved: list[Path] = field(default_factory=list)
    added: AddedJson = field(default_factory=AddedJson)  # fields that say what made the record


@frozen
class Overlay:
    """What images show besides boxes, in pixels of the image."""

    zones: tuple[tuple[str, Points], ...] = ()  # a caption and the `(K, 2)` corners of each
    lines: tuple[tuple[str, Points], ...] = ()  # a caption and the `(2, 2)` ends of each
    # the `(K, 2)` corners of polygons whose detections are ignored
    ignored: tuple[Points, ...] = ()
    # where each track was, `(K, 2)`, the newest last, by its id
    traces: dict[int, Points] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, slots=True)  # not `frozen`, which pprint does not lay out
class Record:
    """The result for one input: detections, or an error.

    Attributes:
        origin: Which input it is: its name, the number of a frame, and its time in seconds.
        index: The index of the record in its run, from 0.
        model: The name of the model.
        device: Where it ran, as in "cpu" or "cuda:0".
        picture: The image: `picture.pixels` is `(H, W, 3)` uint8 in the order blue, green, red,
            upright, and `picture.size` is height and width of the image in pixels, even where
            `Inputs(fast_decode=True)` leaves fewer in the array. None if there is an error.
        detections: What was found, with corners in pixels of the upright image at its full size;
            None if there is an error.
        error: Why the input failed, a `DetcliError` with a hint; None if there are detections.
        overlay: What the command line draws besides boxes, in pixels of the image.
        precision: What the network computed in, as in "bf16", where the device chooses that; else
            empty.
    """

    origin: Origin
    index: int  # index of the record, from 0
    model: str  # name of the model
    device: str  # where it ran
    _: KW_ONLY
    picture: Image | None = None  # like detections, None in case of an error
    detections: Detections | None = None
    error: DetcliError | None = None  # why the input failed
    overlay: Overlay = field(default_factory=Overlay)  # what images show besides its detections
    precision: str = ""  # what the network computed in, where the device chooses that
    _notes: RecordNotes = field(default_factory=RecordNotes, repr=False)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the image, although it could be decoded."""
        return () if self.picture is None else self.picture.warnings

    @property
    def file_stamp(self) -> str | None:
        """What the file was when it was read, see `Origin`; None for what has no file."""
        if self.picture is not None and self.picture.file_stamp is not None:
            return self.picture.file_stamp
        return self.origin.file_stamp

    def to_json(self) -> RecordJson:
        """Return the fields of the record in JSON: detections, or the error of a failed input.

        Boxes are rounded to 1/100 pixel, scores to 6 decimals.
        """
        if self.picture is None or self.detections is None:
            return self._failure_json()
        fields = {
            **self._input_fields(),
            **_image_fields(self.picture),
            "detections": self.detections.to_dict(),
            **self._run_fields(),
        }
        return cast("RecordJson", fields)

    def _failure_json(self) -> RecordJson:
        """Return the fields of the record of an input that could not be read or detected."""
        error = self.error or DetcliError("no result")
        failure: FailureJson = {
            "type": type(error).__name__,
            "message": escape_surrogates(str(error)),
            "hint": escape_surrogates(error.hint),
        }
        fields = {**self._input_fields(), "error": failure, **self._notes.added}
        return cast("RecordJson", fields)

    def to_json_text(self) -> str:
        """Return the record as JSON in one line: the text of `to_json`, which takes much longer."""
        if self.picture is None or self.detections is None:
            return encode(self.to_json())
        text_before = encode({**self._input_fields(), **_image_fields(self.picture)})
        detections_text = encode_detections(self.detections)
        text_after = encode(self._run_fields())
        beginning = text_before.removesuffix("}")
        end = text_after.removeprefix("{")
        return f'{beginning}, "detections": {detections_text}, {end}'

    def _input_fields(self) -> Fields:
        """Return the fields that say which input it is, and what a list said about it."""
        fields: RecordJson = {
            "schema_version": SCHEMA_VERSION,
            "source": "",
            "index": self.index,
            "input": self.origin.input,
        }
        set_source(fields, self.origin.source)
        if self.origin.meta is not None:
            fields["meta"] = json.loads(self.origin.meta)
        if self.origin.frame is not None:
            fields["frame"] = self.origin.frame
        if self.origin.time_s is not None:
            fields["time_s"] = round(self.origin.time_s, 3)
        if self.origin.time is not None:
            fields["time"] = iso_time(self.origin.time)
        return {**fields}

    def _run_fields(self) -> Fields:
        """Return the fields after the detections, which say how they were made."""
        fields: Fields = {"model": escape_surrogates(self.model), "device": self.device}
        if self.precision:
            fields["precision"] = self.precision
        if self.warnings:
            fields["warnings"] = escape_surrogates([*self.warnings])
        if self._notes.saved:
            fields["saved"] = escape_surrogates([path.as_posix() for path in self._notes.saved])
        return {**fields, **self._notes.added}


def notes_of(record: Record) -> RecordNotes:
    """Return what the command line notes about a record; sinks add the files that they make."""
    return record._notes  # noqa: SLF001 - it is not part of what programs see


def with_added_fields(record: Record, fields: AddedJson) -> Record:
    """Return a record whose JSON has these fields, which say what made it, at its end."""
    return replace(record, _notes=RecordNotes(notes_of(record).saved, fields))


def _image_fields(image: Image) -> Fields:
    """Return the fields of a record that say when its image was taken, and its size in pixels."""
    fields: Fields = {}
    if image.capture_time is not None:
        fields["taken"] = image.capture_time.local
        if image.capture_time.offset is not None:
            fields["taken_offset"] = image.capture_time.offset
    height, width = image.size
    return {**fields, "width": width, "height": height}


def iso_time(time: datetime) -> str:
    """Format a moment in ISO 8601, UTC, with milliseconds, as in 2026-01-31T12:00:00.000Z."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def set_source(record: RecordJson, source: str) -> None:
    """Set the fields of a record that name its input.

    JSON is Unicode, so the bytes of a file name that is not are escaped in `source`, and all its
    bytes are in `source_bytes`.
    """
    record["source"] = escape_surrogates(source)
    if record["source"] != source:
        with suppress(UnicodeEncodeError):  # no file has such a name
            record["source_bytes"] = base64.b64encode(os.fsencode(source)).decode("ascii")


def box_of(fields: DetectionJson) -> tuple[float, float, float, float]:
    """Return the box of a detection: x1, y1, x2 and y2."""
    return fields["x1"], fields["y1"], fields["x2"], fields["y2"]


def name_of(fields: RecordJson | Fields) -> str:
    """Return the name of a record's input as the file system spells it, to open its file by."""
    if "source_bytes" in fields:
        return os.fsdecode(base64.b64decode(fields["source_bytes"]))
    return str(fields["source"])
