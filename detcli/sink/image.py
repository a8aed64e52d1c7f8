"""Pictures in a folder: annotated inputs, and crops; with what they must not show hidden."""

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePath

import numpy as np
import numpy.typing as npt

from detcli.core.detections import Detections
from detcli.core.errors import OutputError
from detcli.core.geometry import Boxes, Image, Letterbox, clipped, shown
from detcli.core.opencv import cv2
from detcli.core.record import Record
from detcli.core.values import BLUR_MARGIN
from detcli.sink.draw import DEFAULT_STYLE, Style, annotate
from detcli.sink.folder import FolderSink, OutputFolder, UniqueNames, safe
from detcli.sink.protocol import Sink

SUFFIXES = frozenset({".avif", ".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})


class ImageSink(FolderSink):
    """Writes each picture with its detections drawn, under the input's name.

    Frames of videos are left to VideoSink.
    """

    def __init__(self, folder: OutputFolder, style: Style = DEFAULT_STYLE) -> None:
        super().__init__(folder)
        self._style = style

    def write(self, record: Record) -> None:
        if record.picture is None or record.detections is None or record.origin.clip is not None:
            return
        picture = annotate(record.picture.pixels, record.detections, self._style, record.scene)
        data, suffix = encode(picture, record)
        self._folder.write(record, self._folder.file_of(record, suffix), data)


class CropSink(FolderSink):
    """Writes each detection as a picture: `person/bus_0.jpg` for class, input and number.

    A detection outside its picture has none.
    """

    def __init__(self, folder: OutputFolder) -> None:
        super().__init__(folder)
        self._names: tuple[str, ...] = ()
        self._folders: list[str] = []  # by class id

    def write(self, record: Record) -> None:
        if record.picture is None or record.detections is None:
            return
        prefix = self._folder.prefix_of(record)
        if record.detections.names != self._names:  # the same folders in every run of a model
            unique, self._names = UniqueNames(), record.detections.names
            usable = self._folder.is_usable
            self._folders = [unique.file(safe(name), "", usable) for name in self._names]
        showing = shown(record.detections.xyxy, record.picture.pixels.shape[:2])
        for number, (box, _, class_id, _) in enumerate(record.detections):
            if not showing[number]:
                continue
            folder = self._folder.path / self._folders[class_id]
            data, suffix = encode(crop(record.picture.pixels, box), record)
            path = self._folder.member(record, folder, f"{prefix}_{number}", suffix)
            self._folder.write(record, path, data)


def crop(image: Image, box: Boxes) -> Image:
    """The part of a picture that a box `(4,)` touches: whole pixels, at least one, none outside."""
    height, width = image.shape[:2]
    left, top = (math.floor(side) for side in box[:2].tolist())
    right, bottom = (math.ceil(side) for side in box[2:].tolist())
    left, top = max(0, min(left, width - 1)), max(0, min(top, height - 1))
    right, bottom = min(width, max(right, left + 1)), min(height, max(bottom, top + 1))
    return image[top:bottom, left:right]


def encode(picture: Image, record: Record) -> tuple[bytes, str]:
    """Encode the picture of a record; returns the bytes and the suffix of a file.

    The format is the input's if possible; frames become JPEG, all others PNG.

    Raises:
        OutputError: Neither the format nor PNG takes a picture of this size.
    """
    origin = record.origin
    if origin.frame is not None or origin.source == "-":
        wanted = ".jpg"
    else:
        wanted = PurePath(origin.source).suffix
        wanted = wanted if wanted.lower() in SUFFIXES else ".png"
    # Formats limit the size: WebP takes up to 16383 pixels a side.
    for suffix in dict.fromkeys((wanted, ".png")):
        try:
            encoded, data = cv2.imencode(suffix, picture)
        except cv2.error:
            continue
        if encoded:
            return data.tobytes(), suffix
    height, width = picture.shape[:2]
    raise OutputError(
        f"cannot encode the picture of {origin.source} ({width}x{height} pixels)",
        "leave out --save and --save-crops",
    )


SAMPLES = 4  # colours along the longer side of a box that blurring and pixelating leave
GREY = 114


class Anonymizer:
    """Hides some classes in the pictures of records, and what the symbols of these classes say.

    To be called before anything leaves out detections, such as marks: what the model found is
    hidden, whether records name it or not. Boxes stay as they are.

    The file of a picture is not handed on, even if nothing is hidden: it may hold a thumbnail, a
    second picture or a video that no model has looked at.
    """

    def __init__(self, classes: Iterable[int], method: str, margin: float = BLUR_MARGIN) -> None:
        """Hide the classes of some ids; `method` is one of WAYS, `margin` as in `hidden`."""
        self._classes = sorted(classes)
        self._method = method
        self._margin = margin

    def __call__(self, record: Record) -> Record:
        """The record with another picture; one of an input that failed as it is."""
        picture, detections = record.picture, record.detections
        if picture is None or detections is None:
            return record

        picture = replace(picture, file=None)
        is_hidden = self._hides(detections)
        if is_hidden.any():
            boxes = detections.xyxy[is_hidden]
            pixels = hidden(picture.pixels, boxes, self._method, self._margin)
            picture = replace(picture, pixels=pixels)
            detections = _without_symbols(detections, is_hidden)
        return replace(record, picture=picture, detections=detections)

    def count(self, detections: Detections | None) -> int:
        """How many detections are of the classes that are hidden."""
        if detections is None:
            return 0
        return int(self._hides(detections).sum())

    def _hides(self, detections: Detections) -> npt.NDArray[np.bool_]:
        """Which detections are hidden, `(N,)`."""
        return np.isin(detections.class_id, self._classes)


def _without_symbols(detections: Detections, is_hidden: npt.NDArray[np.bool_]) -> Detections:
    """The detections without what some of them, `(N,)`, say."""
    if detections.symbols is None:
        return detections
    symbols = detections.symbols.copy()
    symbols[is_hidden] = None
    return replace(detections, symbols=symbols)


class OnlyDetections:
    """Hands records with detections on to a sink, which so keeps no picture without any."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, record: Record) -> None:
        if record.detections:
            self._sink.write(record)

    def close(self) -> None:
        self._sink.close()


def hidden(image: Image, boxes: Boxes, way: str, margin: float = BLUR_MARGIN) -> Image:
    """Return a copy of a picture in which nothing can be made out in some boxes and around them.

    Args:
        image: `(H, W, 3)` uint8 BGR.
        boxes: `(N, 4)` in pixels of the picture, beyond which they may reach.
        way: One of WAYS.
        margin: Part of a box's width and height that is hidden beyond each of its sides.
    """
    canvas, size = image.copy(), image.shape[:2]
    boxes = boxes[shown(boxes, size)]
    extent = np.tile(boxes[:, 2:] - boxes[:, :2], 2)  # (N, 4)
    wider = clipped(boxes + extent * np.array([-margin, -margin, margin, margin], np.float32), size)
    whole = np.hstack([np.floor(wider[:, :2]), np.ceil(wider[:, 2:])]).astype(int)
    for left, top, right, bottom in whole.tolist():
        area = canvas[top:bottom, left:right]
        if not area.size:
            continue
        if (interpolation := WAYS[way]) is None:
            area[:] = GREY
            continue
        # The mean colours of a few equal parts are all that is left of it.
        sides = area.shape[0], area.shape[1]
        few = Letterbox.fit(sides, (SAMPLES, SAMPLES), enlarge=1).resized
        means = cv2.resize(area, few[::-1], interpolation=cv2.INTER_AREA)
        area[:] = cv2.resize(means, sides[::-1], interpolation=interpolation)
    return canvas


WAYS = {"blur": cv2.INTER_LINEAR, "pixelate": cv2.INTER_NEAREST, "fill": None}
"""How an area is hidden: means of its parts are enlarged in this way, or it becomes grey."""
