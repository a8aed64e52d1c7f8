"""Pictures in a folder: annotated inputs, and crops of what was detected."""

import math
from pathlib import PurePath

from detcli.errors import OutputError
from detcli.geometry import Boxes, Image, shown
from detcli.opencv import cv2
from detcli.record import Record
from detcli.sink.draw import DEFAULT_STYLE, Style, annotate
from detcli.sink.folder import FolderSink, OutputFolder, UniqueNames, safe

SUFFIXES = frozenset({".avif", ".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})


class ImageSink(FolderSink):
    """Writes each picture with its detections drawn, under the input's name.

    Frames of videos are left to VideoSink.
    """

    def __init__(self, folder: OutputFolder, style: Style = DEFAULT_STYLE) -> None:
        super().__init__(folder)
        self._style = style

    def write(self, record: Record) -> None:
        """Write one picture."""
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
        """Write the detections of one picture or frame."""
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
    """The part of a picture that a box touches: whole pixels, at least one, none outside.

    Args:
        image: `(H, W, 3)` uint8.
        box: `(4,)`, x1, y1, x2, y2 in pixels.
    """
    height, width = image.shape[:2]
    left, top = (math.floor(side) for side in box[:2].tolist())
    right, bottom = (math.ceil(side) for side in box[2:].tolist())
    left, top = max(0, min(left, width - 1)), max(0, min(top, height - 1))
    right, bottom = min(width, max(right, left + 1)), min(height, max(bottom, top + 1))
    return image[top:bottom, left:right]


def encode(picture: Image, record: Record) -> tuple[bytes, str]:
    """Encode a picture in the input's format if possible, frames as JPEG, all others as PNG.

    Args:
        picture: `(H, W, 3)` uint8 BGR.
        record: The record that the picture belongs to.

    Returns:
        The bytes of the file, and its suffix.

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
