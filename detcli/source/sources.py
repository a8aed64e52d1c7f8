"""Sources: from what a user names to the inputs it stands for.

A name is a picture or video file, a folder, a glob pattern, `-` for standard input, `camera:N`, the
address of a network stream, or that of a folder or picture in an object store. Everything is read
lazily, in the order of the names, but cameras and streams come last, all at once: they may never
end. What does not exist becomes an item with an error, and the others go on.
"""

import contextlib
import glob
import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from detcli.backend.device import available_cores
from detcli.errors import InputError, SourceError, StoreError, UsageError
from detcli.object_store import Address, is_object
from detcli.record import Origin
from detcli.source.fetch import load_file
from detcli.source.loading import STDIN, Item, SourceOptions, SourceProgress, failed
from detcli.source.names import (
    FileIdentity,
    check_address,
    identity,
    is_address,
    is_camera,
    is_live,
    is_media,
    is_stream,
    is_video,
    match,
    path_of,
    search,
)
from detcli.text import public_name

if TYPE_CHECKING:
    from detcli.source.fetch import Fetches, ObjectReader
    from detcli.source.video import Capture

CLOSE_TIMEOUT_S = 7.0
"""How long `close` waits for another thread, which checks every few seconds whether to stop."""

DEFAULTS = SourceOptions()

SourceEntry = str | Item
"""The name or address of a picture or a video; or the item with the error for what is neither."""


class Sources(contextlib.AbstractContextManager["Sources"]):
    """The inputs that names stand for; iterated over once, by one thread.

    Attributes:
        progress: How many inputs are known so far.

    Raises:
        UsageError: Standard input is named twice, a number is out of range, or the list cannot be
            read.
        DeviceError: What reads object stores is not installed.
    """

    def __init__(self, names: Sequence[str], options: SourceOptions = DEFAULTS) -> None:
        _check(names, options)
        self._names = names
        self._options = options
        self.progress = SourceProgress(len(names) if options.files_from is None else None)
        self._ended = Event()
        self._items = self._iterate()

    def __iter__(self) -> Iterator[Item]:
        return self._items

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration, whichever thread runs it, and close what is open."""
        self.progress.stop.set()
        try:
            self._items.close()
        except ValueError:  # another thread runs it, and checks `stop` regularly
            self._ended.wait(CLOSE_TIMEOUT_S)

    def _iterate(self) -> Generator[Item]:
        try:
            with contextlib.closing(self._expand()) as items:
                yield from itertools.takewhile(lambda _: not self.progress.stop.is_set(), items)
        finally:
            self._ended.set()

    def entries(self) -> Iterator[SourceEntry]:
        """The pictures and videos that the names stand for, which are not opened.

        Live sources and standard input stay the names that they are.

        Raises:
            StoreError: A folder on a server cannot be listed, perhaps only for now.
        """
        for name in self._names:
            if _is_remote_folder(name):
                try:
                    yield from self._search_remote(name)
                except SourceError as error:
                    raise StoreError(f"{public_name(name)}: {error}", error.hint) from error
            else:
                yield from self._find(name)
        if self._options.files_from is not None:
            yield from self._read_list(self._options.files_from)

    def open(self, entry: SourceEntry) -> Iterator[Item]:
        """The inputs that an entry stands for: one, or the frames of a video."""
        if isinstance(entry, Item):
            yield entry
            return
        try:
            if is_stream(entry) or (is_camera(entry) and not os.path.lexists(entry)):  # in a list
                raise SourceError(
                    "a camera or stream cannot be in a list",
                    "name it as an argument: for all lines of a file, detcli predict $(cat FILE)",
                )
            if is_object(entry):
                yield from self._object(entry)
            else:
                yield from self._fetch(entry) if is_address(entry) else self._file(entry)
        except InputError as error:
            yield failed(public_name(entry), error)

    def _expand(self) -> Generator[Item]:
        for name in itertools.filterfalse(is_live, self._names):
            if name == STDIN:
                from detcli.source.stdin import read_stdin

                yield from read_stdin(self._options.decode, self.progress, self._options.stride)
                continue
            for entry in self._find(name):
                yield from self.open(entry)
        if self._options.files_from is not None:
            for entry in self._read_list(self._options.files_from):
                yield from self.open(entry)
        if live := list(filter(is_live, self._names)):
            yield from self._watch(live)

    def _find(self, name: str) -> Iterator[SourceEntry]:
        """The pictures and videos that a name stands for."""
        try:
            if _is_remote_folder(name):
                yield from self._search_remote(name)
            elif name == STDIN or is_address(name) or is_camera(name) or is_object(name):
                yield name
            elif os.path.isdir(name):
                yield from self._search(name)
            elif os.path.exists(name):
                yield name
            elif os.path.lexists(name) or not glob.has_magic(name):
                raise SourceError("no such file", "check the path")  # noqa: TRY301
            else:
                yield from self._match(name)
        except SourceError as error:
            yield failed(public_name(name), error)

    def _file(self, name: str) -> Iterator[Item]:
        if not is_video(name):
            path = Path(name)
            load = partial(load_file, path, self._options.decode)
            yield Item(Origin(public_name(name), path), load)
            return
        from detcli.source.video import open_file

        yield from self._video(name, partial(open_file, name), os.path.abspath(name))

    def _video(
        self, name: str, reopen: "Callable[[], Capture]", address: str | None = None
    ) -> Iterator[Item]:
        from detcli.source.loading import read_in_time
        from detcli.source.video import read_video

        options = self._options
        read = partial(read_video, name, reopen, options, address=address)
        yield from read_in_time(name, read, self.progress, options.decode.timeout_s)

    def _search(self, folder: str) -> Iterator[SourceEntry]:
        omit = {identity(path) for path in self._options.written}
        recursive = self._options.recursive
        self.progress.expect(-1)
        found = False
        for part in search(folder, recursive=recursive, omit=omit):
            if self.progress.stop.is_set():
                return
            found = found or bool(part)
            if isinstance(part, Item):
                self.progress.expect(1)
                yield part
            else:
                self.progress.expect(len(part))
                yield from part
        if not found:
            self.progress.expect(1)
            raise _nothing_in_folder(recursive=recursive)

    @cached_property
    def _fetches(self) -> "Fetches":
        from detcli.source.fetch import Fetches

        return Fetches(self._options.decode, self.progress.stop)

    @cached_property
    def _objects(self) -> "ObjectReader":
        from detcli.source.fetch import ObjectReader

        return ObjectReader(self._fetches)

    def _object(self, url: str) -> Iterator[Item]:
        """Read the picture or video in an object store."""
        if is_video(url):
            from detcli.source.video import open_address

            yield from self._video(url, lambda: open_address(self._objects.video(url)))
        else:
            yield self._objects.picture(url)

    def _search_remote(self, url: str) -> Iterator[SourceEntry]:
        """Search a bucket's folder; what has no files may be an object without a suffix."""
        recursive = self._options.recursive
        listed = found = False
        self.progress.expect(-1)
        try:
            for page in self._objects.search(url):
                if self.progress.stop.is_set():
                    return
                names = [
                    address
                    for address, name in page
                    if is_media(name)
                    and (recursive or "/" not in name)
                    and not name.startswith(".")
                    and "/." not in name
                ]
                listed, found = True, found or bool(names)
                self.progress.expect(len(names))
                yield from names
        except SourceError:
            self.progress.expect(1)
            raise
        if found:
            return
        self.progress.expect(1)
        if listed or url.endswith("/"):
            raise _nothing_in_folder(recursive=recursive)
        yield url

    def _match(self, pattern: str) -> Iterator[SourceEntry]:
        names = match(pattern)
        self.progress.expect(len(names) - 1)
        found = False
        for name in names:
            if os.path.isfile(name):
                found = True
                yield name
            else:
                self.progress.expect(-1)
        if not found:
            self.progress.expect(1)
            raise SourceError("no file matches", "check the pattern")

    def _read_list(self, name: str) -> Iterator[SourceEntry]:
        from detcli.source.names import read_list

        null_separated = self._options.null_separated
        for entry in read_list(name, self.progress.stop, null_separated=null_separated):
            if isinstance(entry, SourceError):
                yield failed(name, entry)
            else:
                yield entry

    def _fetch(self, url: str) -> Iterator[Item]:
        """Read the picture or video file at an address."""
        check_address(url)
        public = public_name(url)
        if is_video(path_of(url)):
            from detcli.source.video import open_address

            yield from self._video(public, partial(open_address, url), url)
        else:
            from detcli.source.http import request

            yield self._fetches.item(public, partial(request, url))

    def _watch(self, names: Sequence[str]) -> Iterator[Item]:
        """Watch cameras and streams at the same time."""
        from detcli.source.live import LiveSource, watch

        self.progress.expect(None)
        # Each thread of a decoder holds frames, and delays the newest one by one of them.
        threads = 0 if len(names) == 1 else max(1, available_cores() // len(names))
        sources: list[LiveSource] = []
        known: Counter[str] = Counter()
        for name in names:
            try:
                source = LiveSource.named(name, threads)
            except SourceError as error:
                yield failed(public_name(name), error)
                continue
            known[source.name] += 1
            if (number := known[source.name]) > 1:  # they may differ in what is not shown
                source = replace(source, name=f"{source.name} ({number})")
            sources.append(source)
        yield from watch(sources, self._options, self.progress)


def _is_remote_folder(name: str) -> bool:
    """Whether a name may be that of a folder in an object store."""
    return is_object(name) and not is_media(name)


def _nothing_in_folder(*, recursive: bool) -> SourceError:
    hint = "check the files' suffixes" if recursive else "search its folders with --recursive"
    return SourceError("no pictures or videos in this folder", hint)


def _check(names: Sequence[str], options: SourceOptions) -> None:
    if any(map(is_object, names)):
        from detcli.object_store import require_obstore

        require_obstore()
    if [*names, options.files_from].count(STDIN) > 1:
        raise UsageError("standard input can be read only once", "name - once")
    if options.stride < 1:
        raise UsageError(f"the stride is {options.stride} frames", "use 1 or more")
    if not 0 <= options.start_s < math.inf:
        raise UsageError(f"a video cannot start at {options.start_s} s", "use 0 or more")
    if options.end_s is not None and not options.start_s < options.end_s:
        raise UsageError(
            f"a video cannot end at {options.end_s} s and start at {options.start_s} s",
            "choose an end after the start",
        )
    if options.files_from is not None:
        from detcli.source.names import check_list

        check_list(options.files_from)


class InputGuard:
    """Tells whether a path or link leads to an input, so that none is overwritten.

    The inputs are looked up when the guard is first asked about a file that exists, since only
    such a file can be lost. The names in a list are not known in advance.
    """

    def __init__(self, names: Sequence[str], options: SourceOptions = DEFAULTS) -> None:
        self._names = [
            name
            for name in names
            if not (name == STDIN or is_address(name) or is_camera(name) or is_object(name))
        ]
        self._objects = frozenset(filter(is_object, names))
        self._options = options

    def __contains__(self, path: object) -> bool:
        if isinstance(path, Address):
            return str(path) in self._objects
        if not isinstance(path, Path) or (found := identity(path)) is None:
            return False
        return found in self._named or (_is_media_file(path) and found in self._in_folders)

    def refuse(self, outputs: Iterable[Path | Address | None]) -> None:
        """Refuse to write over an input; None stands for no output.

        With a list, any existing picture or video may be one.

        Raises:
            UsageError: An output is one of the inputs.
        """
        has_list = self._options.files_from is not None
        for path in outputs:
            listed = has_list and isinstance(path, Path) and _is_media_file(path)
            if path in self or listed:
                raise UsageError(f"{path} is one of the inputs", "write to another file")

    @cached_property
    def _named(self) -> frozenset[FileIdentity | None]:
        """Files that are named or match a pattern."""
        names = [name for name in self._names if not os.path.isdir(name)]
        if self._options.files_from not in {None, STDIN}:
            names.append(str(self._options.files_from))
        files = ([name] if os.path.lexists(name) else match(name) for name in names)
        return frozenset(identity(file) for part in files for file in part)

    @cached_property
    def _in_folders(self) -> frozenset[FileIdentity | None]:
        """Pictures and videos in folders."""
        omit = {identity(path) for path in self._options.written}
        parts = (
            part
            for folder in filter(os.path.isdir, self._names)
            for part in search(folder, recursive=self._options.recursive, omit=omit)
            if not isinstance(part, Item)
        )
        return frozenset(identity(file) for part in parts for file in part)


def _is_media_file(path: Path) -> bool:
    """Whether a path leads to a file with the suffix of a picture or video."""
    target = os.path.realpath(path)
    return is_media(target) and os.path.isfile(target)
