"""Annotated pictures in a folder."""

from collections.abc import Container
from pathlib import Path

from detcli.draw import annotate
from detcli.errors import OutputError
from detcli.files import make_folder, write_file
from detcli.opencv import cv2, quiet
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
        self._taken: set[str] = set()

    def write(self, record: Record) -> None:
        """Write one picture; an error has none."""
        if record.image is None or record.detections is None:
            return
        path = self._free_name(record.source)
        try:
            with quiet():
                encoded, data = cv2.imencode(path.suffix, annotate(record.image, record.detections))
        except cv2.error as error:
            raise OutputError(f"cannot encode {path}: {error.err}", "save fewer pixels") from error
        if not encoded:
            raise OutputError(f"cannot encode {path}", "name the input .jpg or .png")
        write_file(path, data.tobytes())

    def close(self) -> None:
        """Nothing is left to do: each picture was complete when it was written."""

    def _free_name(self, source: str) -> Path:
        name = Path("stdin.jpg" if source == "-" else source)
        suffix = name.suffix if name.suffix.lower() in SUFFIXES else ".png"
        path, number = self._folder / (name.stem + suffix), 1
        while path.name.lower() in self._taken or path in self._inputs:
            number += 1
            path = self._folder / f"{name.stem}-{number}{suffix}"
        self._taken.add(path.name.lower())
        return path
