"""Finds the images and frames that records are about, for a page or a comparison."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath

from detcli.config.inputs import InputOptions
from detcli.core.errors import InputError
from detcli.core.text import is_object
from detcli.data.geometry import Image, Pixels, Size
from detcli.data.record import Origin, RecordJson, name_of
from detcli.page.page import PageImage
from detcli.source.decode import DecodeOptions
from detcli.source.jpeg_header import read_header
from detcli.source.loading import STDIN, Item, load_in_time
from detcli.source.names import is_address, is_archive, is_camera, is_video
from detcli.source.reading import load_file
from detcli.source.sources import Sources
from detcli.storage.files import sha256

HEADER_BYTES = 1 << 18
"""The part of a JPEG that is searched for its size: thumbnails and profiles come before it."""


@dataclass(slots=True)
class Finder:
    """Finds the current files of the images of records."""

    folder: Path | None  # where to look first; None to look only where the records say
    inputs: InputOptions  # how images are read
    lost: int = 0  # records whose image was not found, or is a different one
    unproven: int = 0  # images that may be different ones of this size, as records have no hash
    # the folder of a file whose names are relative to it, as MegaDetector's are; tried last
    records_folder: Path | None = None
    existing_only: bool = False  # whether records whose image is gone are left out
    gone: int = 0  # records that were left out for that
    _open_reader: "_FrameReader | None" = field(default=None, init=False)  # of a video

    def shown(
        self, record: RecordJson, edit: Callable[[Pixels], Pixels] | None = None
    ) -> PageImage | None:
        """Return the image that an HTML report shows for a record, or None if it is not found.

        Images that are not found are counted in `lost`.

        Args:
            record: The record of an image, or of a frame of a video.
            edit: Turns the pixels of the image into those that the report shows, such as blurred
                ones. None to show the image itself.

        Returns:
            The pixels, and the path of the file that the report links to. A frame of a video has no
            such file.
        """
        image = self.read_image(record)
        if image is None:
            self.lost += 1
            return None
        pixels = image.pixels
        if edit is not None:
            pixels = edit(pixels)
        if "frame" in record:
            return PageImage(pixels)
        return PageImage(pixels, self.path_of(name_of(record)))

    def close(self) -> None:
        """Close the video that was read last."""
        if self._open_reader is not None:
            self._open_reader.close()
            self._open_reader = None

    def read_image(self, record: RecordJson) -> Image | None:
        """Read the image or frame that a record is about, if its file is found and has not changed.

        An image whose record has no hash is counted as unproven, since it may be a different one of
        the same size.

        Returns:
            The image. None if its file is not found or cannot be read, if it is a frame of a live
            stream, which is in no file, or if its size in pixels or its file's hash is not that of
            the record.
        """
        path = self.path_of(name_of(record))
        is_of_stream = {"frame", "time"} <= record.keys()
        if path is None or is_of_stream:
            return None

        try:
            image = self._read(path, record)
        except InputError:
            return None
        if image is None or image.size != (record["height"], record["width"]):
            return None

        if "sha256" not in record:
            self.unproven += 1
            return image
        if record["sha256"] != self._digest(image, record):
            return None
        return image

    def _read(self, path: Path, record: RecordJson) -> Image | None:
        """Read the image in a file, or the frame of a video that a record is about.

        Raises:
            InputError: It cannot be read.
        """
        if "frame" in record:
            frame_number = record["frame"]
            return self._reader_before(path, frame_number).read_frame(frame_number)
        return self._load(path, name_of(record))

    def _digest(self, image: Image, record: RecordJson) -> str:
        """Return the SHA-256 of the file that `_read` last read an image from."""
        if "frame" in record and self._open_reader is not None:
            return self._open_reader.digest
        return hashlib.sha256(image.file or b"").hexdigest()

    def size_of(self, source: str) -> Size | None:
        """Find an image or video, and return the height and width of its upright pixels.

        The beginning of a JPEG is enough for that; other files are decoded.

        Returns:
            The size; None if there is no file of this name, or it is damaged.
        """
        path = self.path_of(source)
        if path is None:
            return None
        try:
            if is_video(source):
                return self._size_of_video(path)
            with path.open("rb") as file:
                header = read_header(file.read(HEADER_BYTES))
            if header is not None and header.orientation is not None:
                return header.size
            return self._load(path, source).size
        except (InputError, OSError):
            return None

    def _size_of_video(self, path: Path) -> Size | None:
        """Read the first frame of a video, and return its height and width."""
        reader = _FrameReader(path, self.inputs)
        try:
            image = reader.read_frame(0)
        finally:
            reader.close()
        if image is None:
            return None
        return image.size

    def is_gone(self, source: str) -> bool:
        """Return whether an input was a file, or in an archive, that is not found any more."""
        if not _may_be_file(source) or self.path_of(source) is not None:
            return False
        for parent in PurePath(source).parents:  # a member is named as in pics.tar/a.jpg
            if is_archive(parent.name) and self.path_of(str(parent)) is not None:
                return False
        return True

    def _load(self, path: Path, source: str) -> Image:
        """Read an image from a file, whose bytes it keeps; raises InputError if it cannot.

        The source is the name of the input in messages.
        """

        def load() -> Image:
            return load_file(path, DecodeOptions(self.inputs, keep=True))

        item = Item(Origin(source, path), load)
        return load_in_time(item, self.inputs.input_timeout)

    def _reader_before(self, path: Path, frame_number: int) -> "_FrameReader":
        """Return a reader of a video that has not reached a frame yet.

        Records usually come in the order of frames, so the open reader can go on. A reader cannot
        go back, though. If it has already reached the frame, or reads another video, it is closed,
        and a new one begins with the first frame.
        """
        reader = self._open_reader
        if reader is not None and reader.path == path and reader.last_number < frame_number:
            return reader

        self.close()
        new_reader = _FrameReader(path, self.inputs)
        self._open_reader = new_reader
        return new_reader

    def path_of(self, source: str) -> Path | None:
        """Find the current file of an input.

        It is looked up in the folder first, if there is one: for the input `a/b/bus.jpg`, as
        `a/b/bus.jpg`, `b/bus.jpg` and `bus.jpg` in the folder. Then its own path is tried, and
        finally the folder of the records, if their names are relative to that.

        Args:
            source: How the input is named in its record.

        Returns:
            The path; None if there is no file, or if the input never was a file.
        """
        if not _may_be_file(source):
            return None
        candidates = []
        if self.folder is not None:
            path_parts = [name for name in PurePath(source).parts if name not in {"/", "\\", ".."}]
            for start in range(len(path_parts)):
                candidates.append(self.folder.joinpath(*path_parts[start:]))
        candidates.append(Path(source))
        if self.records_folder is not None:
            candidates.append(self.records_folder / source)
        for path in candidates:
            if os.path.isfile(path):  # noqa: PTH113 - raises nothing
                return path
        return None


def _may_be_file(source: str) -> bool:
    """Return whether the name of an input is one of a file, and not of a camera or an address."""
    is_elsewhere = is_address(source) or is_camera(source) or is_object(source)
    return source != STDIN and not is_elsewhere


class _FrameReader:
    """The frames of a video, one after the other."""

    def __init__(self, path: Path, inputs: InputOptions) -> None:
        self.path = path
        self.last_number = -1  # of the frame that was reached last; -1 before the first one
        self._sources = Sources([str(path)], inputs)
        self._items = iter(self._sources)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the video's file; empty if that cannot be read."""
        try:
            return sha256(self.path)
        except OSError:
            return ""

    def read_frame(self, number: int) -> Image | None:
        """Read on to the frame with this number, and return it; None if the video lacks it.

        The reader cannot go back; `last_number` says how far it has come.

        Raises:
            InputError: The frame cannot be read.
        """
        for item in self._items:
            frame_number = item.origin.frame
            if frame_number is None:  # an error in place of more frames
                return None
            self.last_number = frame_number
            if frame_number == number:
                return load_in_time(item)
            if frame_number > number:  # so this one is missing
                return None
        return None

    def close(self) -> None:
        """Close the video."""
        self._sources.close()
