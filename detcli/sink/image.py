"""Pictures in a folder: annotated inputs, and crops; with what they must not show hidden."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath

import numpy as np
import numpy.typing as npt

from detcli.config.values import BLUR_MARGIN
from detcli.core.errors import OutputError
from detcli.core.opencv import cv2
from detcli.data.detections import Detections
from detcli.data.geometry import Boxes, Image, Letterbox, clipped, shown
from detcli.data.per_video import PerVideo
from detcli.data.record import Record
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
        if record.picture is None or record.detections is None or record.origin.video is not None:
            return
        picture = annotate(record.picture.pixels, record.detections, self._style, record.overlay)
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
        if record.detections.names != self._names:
            self._names = record.detections.names
            self._folders = self._folders_of(self._names)
        height, width = record.picture.pixels.shape[:2]
        is_shown = shown(record.detections.xyxy, (height, width))
        for number, (box, _, class_id, _) in enumerate(record.detections):
            if not is_shown[number]:
                continue
            folder = self._folder.path / self._folders[class_id]
            data, suffix = encode(crop(record.picture.pixels, box), record)
            path = self._folder.member(record, folder, f"{prefix}_{number}", suffix)
            self._folder.write(record, path, data)

    def _folders_of(self, class_names: Sequence[str]) -> list[str]:
        """The name of each class's folder; the same in every run of a model."""
        unique_names = UniqueNames()
        folders = []
        for name in class_names:
            folders.append(unique_names.file(safe(name), "", self._folder.is_usable))
        return folders


def crop(image: Image, box: Boxes) -> Image:
    """The part of a picture that a box `(4,)` touches: whole pixels, at least one, none outside."""
    height, width = image.shape[:2]
    x1, y1, x2, y2 = box.tolist()
    left = max(0, min(math.floor(x1), width - 1))
    top = max(0, min(math.floor(y1), height - 1))
    right = min(width, max(math.ceil(x2), left + 1))
    bottom = min(height, max(math.ceil(y2), top + 1))
    return image[top:bottom, left:right]


def encode(picture: Image, record: Record) -> tuple[bytes, str]:
    """Encode the picture of a record; returns the bytes and the suffix of a file.

    The format is the input's if possible; frames become JPEG, all others PNG.

    Raises:
        OutputError: Neither the format nor PNG takes a picture of this size.
    """
    origin = record.origin
    if origin.frame is not None or origin.source == "-":
        input_suffix = ".jpg"
    else:
        input_suffix = PurePath(origin.source).suffix
        if input_suffix.lower() not in SUFFIXES:
            input_suffix = ".png"
    suffixes = [input_suffix]
    if input_suffix != ".png":  # formats limit the size: WebP takes up to 16383 pixels a side
        suffixes.append(".png")
    for suffix in suffixes:
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
REMEMBERED_TRACKS = 10_000
"""Hidden tracks of a video that are known, as a stream may never end."""


class Anonymizer:
    """Hides some classes in the pictures of records, and what the symbols of these classes say.

    To be called before anything leaves out detections, such as marks: what the model found is
    hidden, whether records name it or not. Boxes stay as they are. It has to be called once for
    each record, in their order.

    A symbol in a hidden box says nothing, whichever detection has read it: it is hidden in the
    picture, too. Nor does any symbol of a track that was of a hidden class in an earlier frame.

    The file of a picture is not handed on, even if nothing is hidden: it may hold a thumbnail, a
    second picture or a video that no model has looked at.
    """

    def __init__(self, classes: Iterable[int], method: str, margin: float = BLUR_MARGIN) -> None:
        """Hide the classes of some ids; `method` is one of WAYS, `margin` as in `hidden`."""
        self._classes = sorted(classes)
        self._method = method
        self._margin = margin
        self._tracks: PerVideo[HiddenTracks] = PerVideo(lambda _: HiddenTracks())

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
        if detections.symbols is not None:
            detections = self._without_symbols(record, detections, is_hidden)
        return replace(record, picture=picture, detections=detections)

    def count(self, detections: Detections | None) -> int:
        """How many detections are of the classes that are hidden."""
        if detections is None:
            return 0
        return int(self._hides(detections).sum())

    def _hides(self, detections: Detections) -> npt.NDArray[np.bool_]:
        """Which detections are hidden, `(N,)`."""
        return np.isin(detections.class_id, self._classes)

    def _without_symbols(
        self, record: Record, detections: Detections, is_hidden: npt.NDArray[np.bool_]
    ) -> Detections:
        """The detections without what hidden symbols say, given which boxes are hidden, `(N,)`."""
        boxes = detections.xyxy[is_hidden]
        is_silent = is_hidden.copy()
        if record.origin.frame is not None and detections.track_id is not None:
            tracks = self._tracks.of(record)
            is_silent |= tracks.add(detections.track_id.tolist(), is_hidden.tolist())
        symbols = np.array(detections.symbols, np.object_)  # a copy: the record is others', too
        for row, symbol in enumerate(symbols):
            if is_silent[row] or (symbol is not None and is_covered(symbol.corners, boxes)):
                symbols[row] = None
        return replace(detections, symbols=symbols)


class HiddenTracks:
    """The tracks of one video that were of a hidden class, whatever their class is now."""

    def __init__(self) -> None:
        self._numbers: dict[int, None] = {}  # those not seen for long come first

    def add(self, numbers: Sequence[int], is_hidden: Sequence[bool]) -> npt.NDArray[np.bool_]:
        """Which detections of a frame are of hidden tracks, given which are hidden themselves."""
        of_hidden_track = np.zeros(len(numbers), bool)
        for row, number in enumerate(numbers):
            if number > 0 and (is_hidden[row] or number in self._numbers):
                self._numbers.pop(number, None)
                self._numbers[number] = None
                of_hidden_track[row] = True
        while len(self._numbers) > REMEMBERED_TRACKS:
            del self._numbers[next(iter(self._numbers))]
        return of_hidden_track


def is_covered(corners: npt.ArrayLike, boxes: Boxes) -> bool:
    """Whether the middle of a symbol with these corners, `(4, 2)`, lies in one of some boxes.

    Of a symbol without corners nobody knows.
    """
    points = np.asarray(corners, np.float64).reshape(-1, 2)
    if not len(points):
        return False
    middle = points.mean(axis=0)
    is_inside = (boxes[:, :2] <= middle) & (middle <= boxes[:, 2:])
    return bool(is_inside.all(axis=1).any())


class OnlyDetections:
    """Hands records with detections on to a sink, which so keeps no picture without any."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, record: Record) -> None:
        if record.detections:
            self._sink.write(record)

    def close(self) -> None:
        self._sink.close()


def hidden(image: Image, boxes: Boxes, method: str, margin: float = BLUR_MARGIN) -> Image:
    """Return a copy of a picture in which nothing can be made out in some boxes and around them.

    Args:
        image: `(H, W, 3)` uint8 BGR.
        boxes: `(N, 4)` in pixels of the picture, beyond which they may reach.
        method: One of WAYS.
        margin: Part of a box's width and height that is hidden beyond each of its edges.
    """
    canvas = image.copy()
    height, width = image.shape[:2]
    boxes = boxes[shown(boxes, (height, width))]
    extent = np.tile(boxes[:, 2:] - boxes[:, :2], 2)  # (N, 4)
    margins = extent * np.array([-margin, -margin, margin, margin], np.float32)
    wider = clipped(boxes + margins, (height, width))
    corners = np.hstack([np.floor(wider[:, :2]), np.ceil(wider[:, 2:])]).astype(int)
    for left, top, right, bottom in corners.tolist():
        area = canvas[top:bottom, left:right]
        if area.size:
            _hide(area, WAYS[method])
    return canvas


def _hide(area: Image, interpolation: int | None) -> None:
    """Hide an area of a picture in place: grey without an `interpolation`, see WAYS."""
    if interpolation is None:
        area[:] = GREY
        return
    # The mean colours of a few equal parts are all that is left of it.
    height, width = area.shape[:2]
    rows, columns = Letterbox.fit((height, width), (SAMPLES, SAMPLES), enlarge=1).resized
    means = cv2.resize(area, (columns, rows), interpolation=cv2.INTER_AREA)
    area[:] = cv2.resize(means, (width, height), interpolation=interpolation)


WAYS = {"blur": cv2.INTER_LINEAR, "pixelate": cv2.INTER_NEAREST, "fill": None}
"""How an area is hidden: means of its parts are enlarged in this way, or it becomes grey."""
