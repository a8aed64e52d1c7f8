"""What was found, each as a picture of its own, in a folder a class."""

import math

from detcli.files import make_folder, write_file
from detcli.geometry import Boxes, Image
from detcli.record import Record
from detcli.sink.folder import Names, OutputFolder
from detcli.sink.image import encode


class CropSink:
    """Writes `person/bus_0.jpg`: the class, the input and the place among its detections."""

    def __init__(self, folder: OutputFolder) -> None:
        self._folder = folder
        self._names: tuple[str, ...] = ()
        self._folders: list[str] = []  # by class id

    def write(self, record: Record) -> None:
        """Write the detections of one picture or frame."""
        if record.picture is None or record.detections is None:
            return
        family = self._folder.family_of(record)
        folders = self._folder_names(record.detections.names)
        for number, (box, _, class_id, _) in enumerate(record.detections):
            below = self._folder.path / folders[class_id]
            make_folder(below)
            data, suffix = encode(cut(record.picture.pixels, box), record)
            write_file(self._folder.member(below, family, number, suffix), data)

    def close(self) -> None:
        """Nothing is left to do: each picture was complete when it was written."""

    def _folder_names(self, names: tuple[str, ...]) -> list[str]:
        """A folder for each class, the same in every run of a model."""
        if names != self._names:
            given = Names()
            self._names = names
            self._folders = [given.single(name, "", lambda _: True) for name in names]
        return self._folders


def cut(image: Image, box: Boxes) -> Image:
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
