"""Annotated pictures in a folder."""

from pathlib import PurePath

from detcli.errors import OutputError
from detcli.files import write_file
from detcli.geometry import Image
from detcli.opencv import cv2
from detcli.record import Record
from detcli.sink.draw import annotate
from detcli.sink.folder import OutputFolder

SUFFIXES = frozenset({".avif", ".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})


def encode(picture: Image, record: Record) -> tuple[bytes, str]:
    """Encode a picture: as the input is, if that can be written, JPEG for frames, else PNG.

    Returns:
        The bytes and the suffix of such files.

    Raises:
        OutputError: Not even PNG takes it.
    """
    if record.origin.frame is not None or record.origin.source == "-":
        wanted = ".jpg"
    else:
        wanted = PurePath(record.origin.source).suffix
        wanted = wanted if wanted.lower() in SUFFIXES else ".png"
    # No format takes pictures of every size: WebP none that are wider than 16383 pixels.
    for suffix in dict.fromkeys((wanted, ".png")):
        data = _encode(picture, suffix)
        if data is not None:
            return data, suffix
    height, width = picture.shape[:2]
    raise OutputError(
        f"cannot encode the picture of {record.origin.source} ({width}x{height} pixels)",
        "leave out --save and --save-crops",
    )


def _encode(picture: Image, suffix: str) -> bytes | None:
    """Bytes of a picture file; None if the format does not take the picture."""
    try:
        encoded, data = cv2.imencode(suffix, picture)
    except cv2.error:
        return None
    return data.tobytes() if encoded else None


class ImageSink:
    """Writes each picture with its detections drawn, under the input's own name.

    Frames of a video are left to VideoSink.
    """

    def __init__(self, folder: OutputFolder) -> None:
        self._folder = folder

    def write(self, record: Record) -> None:
        """Write one picture; an error has none."""
        if record.picture is None or record.detections is None or record.origin.clip is not None:
            return
        data, suffix = encode(annotate(record.picture.pixels, record.detections), record)
        write_file(self._folder.file_of(record, suffix), data)

    def close(self) -> None:
        """Nothing is left to do: each picture was complete when it was written."""
