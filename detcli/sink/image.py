"""Images in a folder: annotated inputs, and crops; what they must not show is hidden."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from detcli.config.values import BLUR_MARGIN, CropMargin
from detcli.core.errors import OutputError
from detcli.core.opencv import cv2
from detcli.data.detections import Detections, without_repeated
from detcli.data.geometry import Boxes, Letterbox, Pixels, are_visible, clipped
from detcli.data.per_video import PerVideo
from detcli.data.record import Origin, Record
from detcli.sink.draw import DEFAULT_STYLE, Style, annotate
from detcli.sink.folder import FolderSink, OutputFolder
from detcli.sink.protocol import Sink
from detcli.sink.unique_names import UniqueNames
from detcli.storage.file_names import safe

SAVED_IMAGE_SUFFIXES = frozenset(
    {".avif", ".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
)


class ImageSink(FolderSink):
    """Writes each image with its detections drawn, under the input's name.

    Frames of videos are left to VideoSink.
    """

    def __init__(self, folder: OutputFolder, style: Style = DEFAULT_STYLE) -> None:
        super().__init__(folder)
        self._style = style

    def write(self, record: Record) -> None:
        """Write the annotated image of a record that has an image and is not a frame of a video."""
        if record.picture is None or record.detections is None or record.origin.video is not None:
            return
        image = annotate(record.picture.pixels, record.detections, self._style, record.overlay)
        data, suffix = encode(image, record)
        self._folder.write(record, self._folder.file_of(record, suffix), data)


class CropShape(NamedTuple):
    """What a crop shows besides the box of a detection."""

    margin: CropMargin | None = None  # how far it reaches beyond each side of the box
    is_square: bool = False  # whether it is as wide as high


ONLY_THE_BOX = CropShape()


class CropSink(FolderSink):
    """Writes each detection as an image: `person/bus_0.jpg` for class, input and index.

    A detection outside its image has none.
    """

    def __init__(self, folder: OutputFolder, shape: CropShape = ONLY_THE_BOX) -> None:
        super().__init__(folder)
        self._shape = shape
        self._class_names: tuple[str, ...] = ()
        self._class_folders: list[str] = []  # the name of each class's folder, by class id

    def write(self, record: Record) -> None:
        """Write a crop of each detection that is visible in the record's image.

        The crop of detection 3 in bus.jpg is `person/bus_3.jpg`.
        """
        if record.picture is None or record.detections is None:
            return

        self._name_class_folders(record.detections.names)
        prefix = self._folder.prefix_of(record)
        height, width = record.picture.pixels.shape[:2]
        visible = are_visible(record.detections.xyxy, (height, width))  # (N,), bool
        for number, (box, _, class_id, _) in enumerate(record.detections):
            if not visible[number]:
                continue
            pixels = crop(record.picture.pixels, box, self._shape)
            data, suffix = encode(pixels, record)

            class_folder = self._folder.path / self._class_folders[class_id]
            path = self._folder.path_of_numbered_file(
                record, class_folder, f"{prefix}_{number}", suffix
            )
            self._folder.write(record, path, data)

    def _name_class_folders(self, class_names: tuple[str, ...]) -> None:
        """Choose a name for the folder of each class, and set `_class_folders`.

        This is done once, and again if a record has different classes from the previous one. The
        names are the same in every run of a model.
        """
        if class_names == self._class_names:
            return
        self._class_names = class_names

        self._class_folders = []
        unique_names = UniqueNames()
        for class_name in class_names:
            folder_name = unique_names.choose_file_name(
                safe(class_name), suffix="", usable=self._folder.is_usable
            )
            self._class_folders.append(folder_name)


def crop(image: Pixels, box: Boxes, shape: CropShape = ONLY_THE_BOX) -> Pixels:
    """Return the part of an image that a box touches, as a view.

    Args:
        image: `(H, W, 3)`.
        box: `(4,)`, x1, y1, x2 and y2 in pixels, which may be fractions.
        shape: Whether the part has a margin around the box, and is a square.

    Returns:
        The whole pixels that the box with its margin touches, at least one, and none outside of
        the image. A square is not one where one side of the image is too short for it.
    """
    height, width = image.shape[:2]
    x1, y1, x2, y2 = box.tolist()
    margin_x, margin_y = _margins(x2 - x1, y2 - y1, shape.margin)
    left, right = _touched(x1 - margin_x, x2 + margin_x, width)
    top, bottom = _touched(y1 - margin_y, y2 + margin_y, height)
    if shape.is_square:
        side = max(right - left, bottom - top)
        left, right = _lengthened(left, right, side, width)
        top, bottom = _lengthened(top, bottom, side, height)
    return image[top:bottom, left:right]


def _margins(width: float, height: float, margin: CropMargin | None) -> tuple[float, float]:
    """Return the margin left and right of a box of the given size, and that above and below."""
    if margin is None:
        return 0.0, 0.0
    if margin.in_percent:
        return width * margin.size / 100, height * margin.size / 100
    return margin.size, margin.size


def _touched(start: float, end: float, limit: int) -> tuple[int, int]:
    """Return the first pixel that a part of an axis touches, and the one after the last.

    Args:
        start: Where the part begins, in pixels.
        end: Where it ends.
        limit: How many pixels the image has along the axis; at least one of them is returned.
    """
    first = max(0, min(math.floor(start), limit - 1))
    after_last = min(limit, max(math.ceil(end), first + 1))
    return first, after_last


def _lengthened(first: int, after_last: int, length: int, limit: int) -> tuple[int, int]:
    """Lengthen a range of pixels by the same number on both sides, or one more at its end.

    At the edge of the image it is moved back into the image.

    Args:
        first: The first pixel.
        after_last: The pixel after the last.
        length: How long the range becomes, unless the image is shorter.
        limit: How many pixels the image has along the axis.

    Returns:
        The first pixel, and the one after the last.
    """
    new_length = min(length, limit)
    missing_pixels = new_length - (after_last - first)
    new_first = first - missing_pixels // 2
    last_first = limit - new_length  # where a range that ends at the edge of the image begins
    new_first = max(0, min(new_first, last_first))
    return new_first, new_first + new_length


def encode(image: Pixels, record: Record) -> tuple[bytes, str]:
    """Encode an image, or a part of it, as a file that suits the input of its record.

    The format is the input's if possible; frames of videos become JPEG, all others PNG.

    Args:
        image: `(H, W, 3)`.
        record: The record, whose input decides the format.

    Returns:
        The bytes of the file, and its suffix.

    Raises:
        OutputError: Neither the format nor PNG takes an image of this size.
    """
    suffixes = [_preferred_suffix(record.origin)]
    if ".png" not in suffixes:  # formats limit the size: WebP takes up to 16383 pixels per side
        suffixes.append(".png")
    for suffix in suffixes:
        try:
            is_encoded, file_bytes = cv2.imencode(suffix, image)
        except cv2.error:
            continue
        if is_encoded:
            return file_bytes.tobytes(), suffix
    height, width = image.shape[:2]
    raise OutputError(
        f"cannot encode the image of {record.origin.source} ({width}x{height} pixels)",
        "leave out --save and --save-crops",
    )


def _preferred_suffix(origin: Origin) -> str:
    """Return the suffix of the format in which an image of an input is saved if possible."""
    if origin.frame is not None or origin.source == "-":
        return ".jpg"
    suffix = PurePath(origin.source).suffix
    if suffix.lower() in SAVED_IMAGE_SUFFIXES:
        return suffix
    return ".png"


SAMPLES = 4  # colours along the longer side of a box that blurring and pixelating leave
GREY = 114
REMEMBERED_TRACKS = 10_000
"""How many hidden tracks of a video are remembered, as a stream may never end."""


class Anonymizer:
    """Hides objects of the given classes in images, and the text of barcodes that are hidden.

    To be called before anything leaves out detections, such as marks: what the model found is
    hidden, whether records name it or not. Boxes stay as they are. It has to be called once for
    each record, in their order.

    The text of a barcode in a hidden box is removed from the record, whichever detection it
    belongs to, as the barcode is hidden in the image, too. So is that of every barcode on a track
    that had a hidden class in an earlier frame.

    The file of an image is not handed on, even if nothing is hidden: it may hold a thumbnail, a
    second image or a video that no model has looked at.
    """

    def __init__(self, classes: Iterable[int], method: str, margin: float = BLUR_MARGIN) -> None:
        """Hide the classes with these ids.

        Args:
            classes: The ids of the classes.
            method: How they are hidden: a key of WAYS.
            margin: Share of a box's width and height that is hidden beyond each of its edges.
        """
        self._hidden_classes = sorted(classes)
        self._method = method
        self._margin = margin
        self._tracks: PerVideo[HiddenTracks] = PerVideo(lambda _: HiddenTracks())

    def __call__(self, record: Record) -> Record:
        """Return a copy of a record with the hidden classes made unrecognizable in its image.

        Barcodes that are hidden lose their text. The record of an input that failed is returned
        unchanged.
        """
        image = record.picture
        detections = record.detections
        if image is None or detections is None:
            return record

        anonymous_image = replace(image, file=None)
        is_hidden = self._is_hidden(detections)
        if is_hidden.any():
            hidden_boxes = detections.xyxy[is_hidden]
            pixels = hidden(image.pixels, hidden_boxes, self._method, self._margin)
            anonymous_image = replace(anonymous_image, pixels=pixels)
        if detections.symbols is not None:
            detections = self._without_hidden_barcodes(record, detections, is_hidden)
        return replace(record, picture=anonymous_image, detections=detections)

    def count(self, detections: Detections | None) -> int:
        """Count the detections that have a hidden class."""
        if detections is None:
            return 0
        return int(self._is_hidden(detections).sum())

    def _is_hidden(self, detections: Detections) -> npt.NDArray[np.bool_]:
        """Return whether each detection has a hidden class, `(N,)`."""
        return np.isin(detections.class_id, self._hidden_classes)

    def _without_hidden_barcodes(
        self, record: Record, detections: Detections, is_hidden: npt.NDArray[np.bool_]
    ) -> Detections:
        """Return a copy of a record's detections without the barcodes that are hidden.

        A barcode is removed in three cases: its detection has a hidden class; the track of its
        detection had a hidden class in this or an earlier frame; or it lies in the box of another
        detection that is hidden.

        Args:
            record: The record, which names the video that it is a frame of.
            detections: Its N detections, with an array of barcodes or None in `symbols`.
            is_hidden: `(N,)`, whether each detection has a hidden class.
        """
        loses_barcode = is_hidden.copy()
        if record.origin.frame is not None and detections.track_id is not None:
            tracks = self._tracks.state_of(record)
            loses_barcode |= tracks.note_frame(detections.track_id.tolist(), is_hidden.tolist())

        hidden_boxes = detections.xyxy[is_hidden]
        barcodes = np.array(detections.symbols, np.object_)  # a copy, as others use the record
        for index, barcode in enumerate(barcodes):
            if barcode is not None and is_covered(barcode.corners, hidden_boxes):
                loses_barcode[index] = True
        barcodes[loses_barcode] = None
        return replace(detections, symbols=barcodes)


class HiddenTracks:
    """The tracks of one video that have had a hidden class, whatever their class is now."""

    def __init__(self) -> None:
        # The keys are the ids of the tracks, the one not seen for the longest time first.
        self._hidden_numbers: dict[int, None] = {}

    def note_frame(
        self, numbers: Sequence[int], is_hidden: Sequence[bool]
    ) -> npt.NDArray[np.bool_]:
        """Record the tracks that are hidden in the next frame, and return which ever were.

        Only the REMEMBERED_TRACKS hidden tracks that were seen last are remembered.

        Args:
            numbers: The id of each detection's track; 0 or less if it has none.
            is_hidden: Whether each detection has a hidden class in this frame.

        Returns:
            `(N,)`, whether the track of each detection had a hidden class in this frame or an
            earlier one.
        """
        of_hidden_track = np.zeros(len(numbers), bool)
        for index, number in enumerate(numbers):
            if number > 0 and (is_hidden[index] or number in self._hidden_numbers):
                # It is inserted again, so that the tracks seen last stay at the end.
                self._hidden_numbers.pop(number, None)
                self._hidden_numbers[number] = None
                of_hidden_track[index] = True
        while len(self._hidden_numbers) > REMEMBERED_TRACKS:
            oldest_number = next(iter(self._hidden_numbers))
            del self._hidden_numbers[oldest_number]
        return of_hidden_track


def is_covered(corners: npt.ArrayLike, boxes: Boxes) -> bool:
    """Return whether the middle of a barcode lies in at least one of the boxes.

    Args:
        corners: `(4, 2)`, the corners of the barcode; empty if it was read without its position,
            and then it counts as outside.
        boxes: `(N, 4)`.
    """
    points = np.asarray(corners, np.float64).reshape(-1, 2)
    if not len(points):
        return False
    middle = points.mean(axis=0)
    is_inside = (boxes[:, :2] <= middle) & (middle <= boxes[:, 2:])
    return bool(is_inside.all(axis=1).any())


class WithoutRepeats:
    """Hands records on to a sink without the detections of repeats that a person has dropped."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, record: Record) -> None:
        if record.detections is not None:
            record = replace(record, detections=without_repeated(record.detections))
        self._sink.write(record)

    def close(self) -> None:
        self._sink.close()


class OnlyDetections:
    """Hands only records with detections on to a sink, so that it keeps no image without any."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, record: Record) -> None:
        if record.detections:
            self._sink.write(record)

    def close(self) -> None:
        self._sink.close()


def hidden(image: Pixels, boxes: Boxes, method: str, margin: float = BLUR_MARGIN) -> Pixels:
    """Return a copy of an image in which nothing can be recognized in and around the boxes.

    Args:
        image: `(H, W, 3)` uint8 BGR.
        boxes: `(N, 4)` in pixels of the image, beyond which they may reach.
        method: A key of WAYS.
        margin: Share of a box's width and height that is hidden beyond each of its edges.
    """
    canvas = image.copy()
    height, width = image.shape[:2]
    visible_boxes = boxes[are_visible(boxes, (height, width))]
    widths_and_heights = visible_boxes[:, 2:] - visible_boxes[:, :2]  # (N, 2)
    outward = np.array([-margin, -margin, margin, margin], np.float32)  # of x1, y1, x2, y2
    margins = np.tile(widths_and_heights, 2) * outward  # (N, 4) in pixels
    wider_boxes = clipped(visible_boxes + margins, (height, width))

    # All pixels that a box touches are hidden, even if it covers only a part of them.
    left_top = np.floor(wider_boxes[:, :2])
    right_bottom = np.ceil(wider_boxes[:, 2:])
    whole_pixels = np.hstack([left_top, right_bottom]).astype(int)
    for left, top, right, bottom in whole_pixels.tolist():
        area = canvas[top:bottom, left:right]
        if area.size:
            _hide(area, WAYS[method])
    return canvas


def _hide(area: Pixels, interpolation: int | None) -> None:
    """Replace an area of an image, in place, by the mean colours of a few equal parts of it.

    Args:
        area: `(H, W, 3)`, a view of the image.
        interpolation: OpenCV's interpolation between the mean colours; None for plain grey.
    """
    if interpolation is None:
        area[:] = GREY
        return
    height, width = area.shape[:2]
    # The longer side has SAMPLES colours, and the shorter one fewer in the same proportion.
    small_size = Letterbox.fit((height, width), (SAMPLES, SAMPLES), enlarge=1).resized
    rows, columns = small_size
    mean_colours = cv2.resize(area, (columns, rows), interpolation=cv2.INTER_AREA)
    area[:] = cv2.resize(mean_colours, (width, height), interpolation=interpolation)


WAYS = {"blur": cv2.INTER_LINEAR, "pixelate": cv2.INTER_NEAREST, "fill": None}
"""OpenCV's interpolation for each method of --blur; None for plain grey.

The mean colours of an area's parts are enlarged with it to the size of the area.
"""
