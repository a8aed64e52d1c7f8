"""Annotated pictures in a folder."""

from collections import Counter
from collections.abc import Container
from pathlib import Path

from detcli.draw import annotate
from detcli.errors import OutputError
from detcli.files import make_folder, write_file
from detcli.geometry import Image
from detcli.opencv import cv2
from detcli.record import Record

SUFFIXES = frozenset({".avif", ".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})


class ImageSink:
    """Writes each picture with its detections drawn, under the input's own name.

    A name that this run has given already, or that is one of the inputs, gets a number. What an
    earlier run wrote is written over.
    """

    def __init__(self, folder: Path, inputs: Container[Path]) -> None:
        make_folder(folder)
        self._folder = folder
        self._inputs = inputs
        self._given: Counter[tuple[str, str]] = Counter()
        self._taken: set[str] = set()

    def write(self, record: Record) -> None:
        """Write one picture; an error has none."""
        if record.image is None or record.detections is None:
            return
        name = Path("stdin.jpg" if record.source == "-" else record.source)
        picture = annotate(record.image, record.detections)
        # The input's own format, unless it cannot be written or takes no picture of that size.
        wanted = name.suffix if name.suffix.lower() in SUFFIXES else ".png"
        for suffix in dict.fromkeys((wanted, ".png")):
            data = _encode(picture, suffix)
            if data is not None:
                write_file(self._free_name(name.stem, suffix), data)
                return
        raise OutputError(f"cannot encode the picture of {record.source}", "leave out --save")

    def close(self) -> None:
        """Nothing is left to do: each picture was complete when it was written."""

    def _free_name(self, stem: str, suffix: str) -> Path:
        key = (stem.lower(), suffix.lower())
        while True:
            self._given[key] += 1
            number = "" if self._given[key] == 1 else f"-{self._given[key]}"
            path = self._folder / f"{stem}{number}{suffix}"
            if path.name.lower() not in self._taken and path not in self._inputs:
                self._taken.add(path.name.lower())
                return path


def _encode(picture: Image, suffix: str) -> bytes | None:
    """Bytes of a picture file; None if the format does not take the picture."""
    try:
        encoded, data = cv2.imencode(suffix, picture)
    except cv2.error:
        return None
    return data.tobytes() if encoded else None
