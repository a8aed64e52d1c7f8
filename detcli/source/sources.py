"""Sources: from what a user names to the inputs it stands for.

A name is a picture or video file, a folder, a glob pattern, `-` for standard input, `camera:N`, or
the address of a network stream. All is read lazily, in the order of the names; what is not there
becomes an item with an error, so that the others go on.
"""

import contextlib
import glob
import math
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING, Self

from detcli.errors import SourceError, UsageError
from detcli.record import Origin
from detcli.source.address import check_address, is_address, is_live, path_of, public_name
from detcli.source.decode import DecodeOptions, load_file
from detcli.source.folders import identity, is_video, match, search
from detcli.source.item import Intake, Item, failed

if TYPE_CHECKING:
    from detcli.source.video import FrameOptions

STDIN = "-"

CLOSE_S = 7.0
"""How long `close` waits for a thread that is amid something; a little more than that can take."""

_DEEPER = "folders in it are searched with --recursive"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How sources are read.

    Attributes:
        recursive: Whether folders are searched for the folders in them.
        stride: Every so many frames of a video are looked at.
        start_s: Seconds from the start of a video; frames before it are not looked at.
        end_s: Those from here on neither.
        files_from: A file with names of pictures and videos, `-` for standard input.
        null_separated: Whether names in it end with NUL instead of a newline.
        decode: How pictures are decoded.
        written: Folders that this run writes into, which a search leaves out.
        reconnect_s: How long a live source that is lost is tried again.
    """

    recursive: bool = False
    stride: int = 1
    start_s: float = 0.0
    end_s: float | None = None
    files_from: str | None = None
    null_separated: bool = False
    decode: DecodeOptions = field(default_factory=DecodeOptions)
    written: tuple[Path, ...] = ()
    reconnect_s: float = 300.0

    @property
    def frames(self) -> "FrameOptions":
        """Which frames of a video are looked at."""
        from detcli.source.video import FrameOptions

        return FrameOptions(self.stride, self.start_s, self.end_s, self.decode.max_pixels)


DEFAULTS = SourceOptions()


class Sources:
    """The inputs that names stand for; iterated over once, by one thread.

    Raises:
        UsageError: Standard input is named twice, a number makes no sense, there is no list.
    """

    def __init__(self, names: Sequence[str], options: SourceOptions = DEFAULTS) -> None:
        _check(names, options)
        self._names = names
        self._options = options
        self._intake = Intake(len(names) if options.files_from is None else None)
        self._ended = Event()
        self._items = self._iterate()

    @property
    def total(self) -> int | None:
        """Inputs that are known so far; None once there is one without a known end."""
        return self._intake.total

    @property
    def dropped(self) -> int:
        """Frames of live sources that were overtaken by newer ones."""
        return self._intake.dropped

    def __iter__(self) -> Iterator[Item]:
        return self._items

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration, whichever thread is in it, and close what is open."""
        self._intake.stop.set()
        try:
            self._items.close()
        except ValueError:  # another thread is in it, and looks at `stop` every now and then
            self._ended.wait(CLOSE_S)

    def _iterate(self) -> Generator[Item]:
        try:
            with contextlib.closing(self._expand()) as items:
                for item in items:
                    if self._intake.stop.is_set():
                        return
                    yield item
        finally:
            self._ended.set()

    def _expand(self) -> Generator[Item]:
        for live, names in groupby(self._names, is_live):
            if live:
                yield from self._watch(names)
            else:
                for name in names:
                    yield from self._open(name)
        if self._options.files_from is not None:
            yield from self._read_list(self._options.files_from)

    def _open(self, name: str) -> Iterator[Item]:
        if name == STDIN:
            from detcli.source.stdin import read_stdin

            return read_stdin(self._options.decode, self._intake)
        if is_address(name):
            return self._fetch(name)
        if os.path.isdir(name):
            return self._search(name)
        if os.path.exists(name):
            return self._file(name)
        if os.path.lexists(name) or not glob.has_magic(name):
            return iter([failed(public_name(name), SourceError("no such file", "check the path"))])
        return self._match(name)

    def _file(self, name: str) -> Iterator[Item]:
        if not is_video(name):
            path = Path(name)
            load = partial(load_file, path, self._options.decode)
            yield Item(Origin(public_name(name), path), load)
            return
        from detcli.source.capture import open_file
        from detcli.source.video import read_video

        yield from read_video(name, partial(open_file, name), self._options.frames, self._intake)

    def _search(self, folder: str) -> Iterator[Item]:
        omit = {identity(path) for path in self._options.written}
        recursive = self._options.recursive
        self._intake.expect(-1)
        found = False
        for part in search(folder, recursive=recursive, omit=omit):
            if self._intake.stop.is_set():
                return
            found = found or bool(part)
            if isinstance(part, Item):
                self._intake.expect(1)
                yield part
            else:
                self._intake.expect(len(part))
                for name in part:
                    yield from self._file(name)
        if not found:
            self._intake.expect(1)
            hint = "see whether the suffixes are those of pictures" if recursive else _DEEPER
            yield failed(folder, SourceError("no pictures or videos in this folder", hint))

    def _match(self, pattern: str) -> Iterator[Item]:
        names = match(pattern)
        self._intake.expect(len(names) - 1)
        found = False
        for name in names:
            if os.path.isfile(name):
                found = True
                yield from self._file(name)
            else:
                self._intake.expect(-1)
        if not found:
            self._intake.expect(1)
            yield failed(pattern, SourceError("no file matches", "check the pattern"))

    def _read_list(self, name: str) -> Iterator[Item]:
        from detcli.source.lists import read_list

        null_separated = self._options.null_separated
        for entry in read_list(name, self._intake.stop, null_separated=null_separated):
            if isinstance(entry, SourceError):
                yield failed(name, entry)
            else:
                yield from self._file(entry)

    def _fetch(self, url: str) -> Iterator[Item]:
        """What is at an address that names a picture or a video file."""
        public = public_name(url)
        try:
            check_address(url)
        except SourceError as error:
            yield failed(public, error)
            return
        if is_video(path_of(url)):
            from detcli.source.capture import open_address
            from detcli.source.video import read_video

            reopen = partial(open_address, url)
            yield from read_video(public, reopen, self._options.frames, self._intake)
        else:
            from detcli.source.http import load_address

            load = partial(load_address, url, self._options.decode, self._intake.stop)
            yield Item(Origin(public), load)

    def _watch(self, names: Iterable[str]) -> Iterator[Item]:
        """Cameras and streams that are named one after the other: watched at the same time."""
        from detcli.source.live import LiveSource, watch

        self._intake.expect(None)
        sources = []
        for name in names:
            try:
                sources.append(LiveSource.named(name))
            except SourceError as error:
                yield failed(public_name(name), error)
        yield from watch(sources, self._options.frames, self._options.reconnect_s, self._intake)


def _check(names: Sequence[str], options: SourceOptions) -> None:
    """Look whether the request makes sense.

    Raises:
        UsageError: It does not.
    """
    if [*names, options.files_from].count(STDIN) > 1:
        raise UsageError("standard input can be read once", "name - only once")
    if options.stride < 1:
        raise UsageError(f"a stride of {options.stride} frames", "use 1 or more")
    if not 0 <= options.start_s < math.inf:
        raise UsageError(f"a video cannot start at {options.start_s} s", "use 0 or more")
    if options.end_s is not None and not options.start_s < options.end_s:
        raise UsageError(
            f"a video cannot end at {options.end_s} s and start at {options.start_s} s",
            "choose an end after the start",
        )
    if options.files_from is not None:
        from detcli.source.lists import check_list

        check_list(options.files_from)
