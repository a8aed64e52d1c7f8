"""Finds the pictures that records are about, and makes what the page shows of them."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath

from detcli.core.config import Inputs
from detcli.core.errors import InputError
from detcli.core.geometry import Image, Picture
from detcli.core.record import Origin, RecordJson, name_of
from detcli.core.text import is_object
from detcli.sink.page import Shown
from detcli.source.decode import DecodeOptions
from detcli.source.fetch import load_file
from detcli.source.loading import STDIN, Item, load_in_time
from detcli.source.names import is_address, is_camera
from detcli.source.sources import Sources


@dataclass(slots=True)
class Finder:
    """Where pictures are now."""

    folder: Path | None  # where to look first; None to look only where the records say
    inputs: Inputs  # how pictures are read
    edit: Callable[[RecordJson, Image], Image] | None = None  # changes the pixels of a picture
    lost: int = 0  # records whose picture was not found, or is another one
    _video: "_FrameReader | None" = field(default=None, init=False)

    def shown(self, record: RecordJson) -> Shown | None:
        """The picture of a record, for a page; None, and counted, if it is lost."""
        picture = self.picture(record)
        if picture is None:
            self.lost += 1
            return None
        pixels = picture.pixels if self.edit is None else self.edit(record, picture.pixels)
        return Shown(pixels, None if "frame" in record else self.path_of(name_of(record)))

    def close(self) -> None:
        """Close the video that was read last."""
        if self._video is not None:
            self._video.close()
            self._video = None

    def _frame(self, record: RecordJson) -> Picture | None:
        """A frame of a video, whose frames are asked for in their order."""
        path = self.path_of(name_of(record)) if "time" not in record else None
        if path is None:
            return None
        if self._video is None or self._video.path != path or self._video.number > record["frame"]:
            self.close()
            self._video = _FrameReader(path, self.inputs)
        picture = self._video.at(record["frame"])
        return None if picture is None else _same(record, picture)

    def picture(self, record: RecordJson) -> Picture | None:
        """The picture of a record, as long as it has the size that the record says."""
        if "frame" in record:
            return self._frame(record)
        path = self.path_of(source := name_of(record))
        if path is None:
            return None
        load = partial(load_file, path, DecodeOptions(self.inputs))
        item = Item(Origin(source, path), load)
        try:
            return _same(record, load_in_time(item, self.inputs.input_timeout))
        except InputError:
            return None

    def path_of(self, source: str) -> Path | None:
        """The file that an input is now; None if there is none.

        In the folder that was named, a file has the name of the input, with as much of its path
        before it as there is.
        """
        if source == STDIN or is_address(source) or is_camera(source) or is_object(source):
            return None
        places = [Path(source)]
        if self.folder is not None:
            parts = [part for part in PurePath(source).parts if part not in {"/", "\\", ".."}]
            places[:0] = [self.folder.joinpath(*parts[start:]) for start in range(len(parts))]
        return next(filter(os.path.isfile, places), None)


def _same(record: RecordJson, picture: Picture) -> Picture | None:
    """The picture; None if it is another one than the record's."""
    return picture if picture.size == (record["height"], record["width"]) else None


class _FrameReader:
    """The frames of a video, one after the other."""

    def __init__(self, path: Path, inputs: Inputs) -> None:
        self.path = path
        self.number = -1  # of the frame read last
        self._sources = Sources([str(path)], inputs)
        self._items = iter(self._sources)

    def at(self, number: int) -> Picture | None:
        """The frame of this number; None if it cannot be read."""
        for item in self._items:
            self.number = -1 if item.origin.frame is None else item.origin.frame
            if self.number >= number or item.origin.frame is None:
                try:
                    return load_in_time(item) if self.number == number else None
                except InputError:
                    return None
        return None

    def close(self) -> None:
        """Close the video."""
        self._sources.close()
