"""Record: the result for one input, detections or an error; what every sink writes."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from detcli.core.detections import Detections, Symbol
from detcli.core.errors import DetcliError
from detcli.core.geometry import Picture
from detcli.core.places import Scene

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Clip:
    """What the frames of one video have in common.

    Attributes:
        frames_per_second: Rate of the frames that are used; 0 if unknown.
        live: Whether it is a camera or a network stream, which may never end.
        address: Where it can be opened again, for its sound: a file's absolute path, or a URL with
            its credentials, which is never shown.
    """

    frames_per_second: float
    live: bool = False
    address: str | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a picture comes from.

    Attributes:
        source: The input as its user named it, without credentials.
        path: The file, for a picture in a file.
        frame: Number of the frame in its video, from 0.
        time_s: Seconds from the start of the video.
        clip: The video that the frame belongs to.
        time: When it came, for a live source.
    """

    source: str
    path: Path | None = None
    frame: int | None = None
    time_s: float | None = None
    clip: Clip | None = None
    time: datetime | None = None

    @property
    def is_new(self) -> bool:
        """Whether it is another input in every run: standard input, or a live source."""
        if self.clip is not None and self.clip.live:
            return True
        return self.source == "-" and self.path is None


class CrossingJson(TypedDict):
    """A line that was crossed.

    Attributes:
        line: Its name.
        to: The side, left or right as one goes from its first point to its second.
    """

    line: str
    to: str


class DetectionJson(TypedDict):
    """A detection.

    Attributes:
        score: To 4 decimals.
        box: x1, y1, x2, y2 in pixels of the upright picture, to 2 decimals.
        track_id: Number of the object in its video; with --track, once the tracker is sure.
        zones: Names of the zones that the middle of its lower side is in; with --zone.
        crossed: Lines that it has crossed since the frame before; with --line.
        text: The decoded text; null if the symbol could not be read or is binary; with --read.
        symbology: Of a symbol that was read: QR Code, EAN-13; of a marker its dictionary.
        bytes: Binary content, in base64.
        corners: x and y of the symbol's corners in pixels, to 1 decimal: top left, top right,
            bottom right and bottom left, were it upright.
    """

    class_id: int
    class_name: str
    score: float
    box: list[float]
    track_id: NotRequired[int]
    zones: NotRequired[list[str]]
    crossed: NotRequired[list[CrossingJson]]
    text: NotRequired[str | None]
    symbology: NotRequired[str]
    bytes: NotRequired[str]
    corners: NotRequired[list[list[float]]]


OPTIONAL_FIELDS = {
    "track_id": "track",
    "zones": "zones",
    "crossed": "lines",
    **dict.fromkeys(("text", "symbology", "bytes", "corners"), "read"),
}
"""Fields of a detection that only an option adds, and the setting that this option makes."""


class FailureJson(TypedDict):
    """Why an input has no detections.

    Attributes:
        type: SourceError, DecodeError, InferenceError or another.
        hint: What to do next; may be empty.
    """

    type: str
    message: str
    hint: str


class SettingsJson(TypedDict):
    """What the detections of a run depend on.

    Attributes:
        model_sha256: Of the model's file.
        conf: Scores are above it.
        class_conf: Confidences of single classes, by class id.
        classes: Ids of the classes that are kept; empty for all.
        nms: IoU of the non-maximum suppression; null without one.
        unique: Whether each anchor gives one detection at most.
        imgsz: Side of the network's input that was asked for; null for the model's own.
        rect: Whether the input is as small as the picture allows.
        box_format: Format of the boxes that was asked for; null for the model's own.
        preprocess: How pictures became the network's input.
        names: Names of the classes that replace the model's own; null without.
        half: Whether the float16 file was asked for.
        fast_decode: Whether large JPEGs are decoded at reduced size.
        vid_stride: Every which frame of a video is used.
        tile: Side of the tiles and their overlap, as in `640,overlap=0.2`; null without tiles.
        zones: Named polygons; null without.
        lines: Named lines; null without.
        track: How objects are followed; null if they are not.
        read: Whether symbols were read.
    """

    model: str
    model_sha256: str
    conf: float
    class_conf: dict[str, float]
    max_det: int
    classes: list[int]
    nms: float | None
    unique: bool
    imgsz: int | None
    rect: bool
    box_format: str | None
    preprocess: str
    names: list[str] | None
    half: bool
    fast_decode: bool
    vid_stride: int
    tile: str | None
    zones: list[str] | None
    lines: list[str] | None
    track: str | None
    read: bool


class ProvenanceJson(TypedDict):
    """What a run was made with; null is unknown, or was not used.

    Attributes:
        begun: When the run began, UTC in ISO 8601 with milliseconds.
        detcli: Its version.
        python: Its version.
        system: The operating system, its release and the architecture.
        processor: Name of the CPU.
        onnxruntime: Version of ONNX Runtime.
        runtime_cuda: The CUDA that this ONNX Runtime was built for.
        openvino: Version of OpenVINO, where it ran the network.
        opencv: Version of OpenCV.
        numpy: Version of NumPy.
        gpu: Names of the GPUs that ran the network.
        driver: Version of NVIDIA's driver.
        driver_cuda: The newest CUDA that the driver supports.
        precision: The lowest precision that the network computes in.
    """

    begun: str
    detcli: str
    python: str
    system: str
    processor: str | None
    onnxruntime: str | None
    runtime_cuda: str | None
    openvino: str | None
    opencv: str | None
    numpy: str | None
    gpu: str | None
    driver: str | None
    driver_cuda: str | None
    precision: str | None


class AddedJson(TypedDict, total=False):
    """Fields of a record that --provenance adds, see `RecordJson`."""

    sha256: str
    settings: SettingsJson
    provenance: ProvenanceJson


class PartJson(TypedDict):
    """By which a part of a run in shards is known to be whole.

    Attributes:
        shard: Its number.
        run: The hash of the manifest that it belongs to.
        records: How many it has.
        sha256: Of its lines, without this field.
    """

    shard: int
    run: str
    records: int
    sha256: str


class RecordJson(TypedDict):
    """What one input gave: detections, or an error.

    Attributes:
        source: The input as its user named it; - is standard input.
        index: Its place among the inputs, from 0.
        frame: The number of the frame in its video, from 0.
        time_s: Seconds from the start of the video.
        time: When the frame of a camera or stream came, UTC in ISO 8601 with milliseconds.
        width: Of the upright picture, in pixels.
        height: Of the upright picture, in pixels.
        detections: Best first.
        model: The model's name.
        device: Where it ran.
        warnings: What is wrong with the input, although there are detections.
        error: Why there are no detections.
        saved: Files that were made for it: pictures, videos, labels, crops.
        sha256: Of the file of the picture or video; with --provenance.
        settings: What the detections depend on; in the first record of a run with --resume or
            --provenance.
        provenance: What the run was made with; in the first record of a run with --provenance.
        part: What the part is; in the last record of each part of a run in shards.
    """

    schema_version: int
    source: str
    index: int
    frame: NotRequired[int]
    time_s: NotRequired[float]
    time: NotRequired[str]
    width: NotRequired[int]
    height: NotRequired[int]
    detections: NotRequired[list[DetectionJson]]
    model: NotRequired[str]
    device: NotRequired[str]
    warnings: NotRequired[list[str]]
    error: NotRequired[FailureJson]
    saved: NotRequired[list[str]]
    sha256: NotRequired[str]
    settings: NotRequired[SettingsJson]
    provenance: NotRequired[ProvenanceJson]
    part: NotRequired[PartJson]


@dataclass(frozen=True, eq=False, slots=True)
class Record:
    """The result for one input.

    Attributes:
        origin: Where the input comes from.
        index: Its place among the inputs, from 0.
        model: Name of the model.
        device: Where the model ran, with the precision if the device chooses it: "cpu", "cuda:0",
            "openvino:CPU (bf16)".
        picture: The picture; None in case of an error.
        detections: What was found; None in case of an error.
        error: Why there are no detections; None if there are.
        saved: Files that were made for it; each sink that makes some adds them.
        scene: What pictures show besides its detections.
        added: Fields that say what made it.
    """

    origin: Origin
    index: int
    model: str
    device: str
    picture: Picture | None = None
    detections: Detections | None = None
    error: DetcliError | None = None
    saved: list[Path] = field(default_factory=list)
    scene: Scene = field(default_factory=Scene)
    added: AddedJson = field(default_factory=AddedJson)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the picture, although it could be decoded."""
        return () if self.picture is None else self.picture.warnings

    def to_json(self) -> RecordJson:
        """JSON-ready form; boxes are rounded to 1/100 pixel, scores to 4 decimals."""
        head: RecordJson = {
            "schema_version": SCHEMA_VERSION,
            "source": self.origin.source,
            "index": self.index,
        }
        if self.origin.frame is not None:
            head["frame"] = self.origin.frame
        if self.origin.time_s is not None:
            head["time_s"] = round(self.origin.time_s, 3)
        if self.origin.time is not None:
            head["time"] = iso_time(self.origin.time)
        if self.picture is None or self.detections is None:
            error = error_to_json(self.error or DetcliError("no result"))
            return {**head, "error": error, **self.added}
        height, width = self.picture.size
        record: RecordJson = {
            **head,
            "width": width,
            "height": height,
            "detections": [*_detections_to_json(self.detections)],
            "model": self.model,
            "device": self.device,
        }
        if self.warnings:
            record["warnings"] = list(self.warnings)
        if self.saved:
            record["saved"] = list(map(str, self.saved))
        return {**record, **self.added}


def _detections_to_json(found: Detections) -> Iterator[DetectionJson]:
    for number, (box, score, class_id, name) in enumerate(found):
        row: DetectionJson = {
            "class_id": class_id,
            "class_name": name,
            "score": round(score, 4),
            "box": [round(float(side), 2) for side in box],
        }
        if found.track_id is not None and found.track_id[number] > 0:
            row["track_id"] = int(found.track_id[number])
        if found.zones is not None:
            row["zones"] = list(found.zones[number])
        if found.crossed is not None:
            row["crossed"] = [{"line": line, "to": side} for line, side in found.crossed[number]]
        if found.symbols is not None:
            row["text"] = None
            if (symbol := found.symbols[number]) is not None:
                row |= _symbol_to_json(symbol)
        yield row


def _symbol_to_json(symbol: Symbol) -> DetectionJson:
    row: Any = {"text": symbol.text, "symbology": symbol.symbology}
    if symbol.text is None:
        row["bytes"] = base64.b64encode(symbol.content).decode("ascii")
    row["corners"] = np.round(symbol.corners, 1).tolist()
    fields: DetectionJson = row
    return fields


def iso_time(time: datetime) -> str:
    """A moment in ISO 8601, UTC, with milliseconds."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def error_to_json(error: DetcliError) -> FailureJson:
    """Type, message and hint of an error."""
    return {"type": type(error).__name__, "message": str(error), "hint": error.hint}
