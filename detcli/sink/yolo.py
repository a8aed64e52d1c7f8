"""YOLO labels: a text file per picture, a line per box."""

from detcli.detections import Detections
from detcli.geometry import Picture
from detcli.record import Record
from detcli.sink.folder import FolderSink, OutputFolder


class LabelSink(FolderSink):
    """Writes `class cx cy w h` for each detection, in fractions of the picture's width and height.

    Boxes end at the edges of the picture; those outside are left out, as trainers refuse them.

    A picture without detections gets an empty file, which trainers take as background; an input
    that failed gets none. With `scores`, the score is a sixth column, which trainers do not accept.
    """

    def __init__(self, folder: OutputFolder, *, scores: bool = False) -> None:
        super().__init__(folder)
        self._scores = scores

    def write(self, record: Record) -> None:
        """Write the labels of one picture or frame."""
        if record.picture is None or record.detections is None:
            return
        text = label_text(record.picture, record.detections, scores=self._scores)
        self._folder.write(record, self._folder.file_of(record, ".txt"), text.encode())


def label_text(picture: Picture, detections: Detections, *, scores: bool = False) -> str:
    """The labels of a picture: `class cx cy w h` and a line feed for each detection."""
    height, width = picture.size
    lines = []
    for box, score, class_id, _ in detections.within(picture.size):
        left, top, right, bottom = map(float, box)
        numbers = [
            *((left + right) / 2 / width, (top + bottom) / 2 / height),
            *((right - left) / width, (bottom - top) / height),
            *([score] if scores else []),
        ]
        lines.append(" ".join([str(class_id), *(f"{number:.6f}" for number in numbers)]))
    return "".join(f"{line}\n" for line in lines)
