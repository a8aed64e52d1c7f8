"""Sources: from what a user names to the inputs it stands for.

A name is an image or video file, a folder, a glob pattern, `-` for standard input, `camera:N`, the
address of a network stream, or that of a folder or image in an object store. Everything is read
lazily, in the order of the names, but cameras and streams come last, all at once: they may never
end. What does not exist becomes an item with an error, and the others go on.
"""

import base64
import contextlib
import itertools
import os
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from detcli.config.config import Inputs
from detcli.config.device import available_cores
from detcli.core.errors import (
    DecodeError,
    DetcliError,
    InputError,
    PlaceError,
    SourceError,
    StoreError,
)
from detcli.core.text import is_object, public_name
from detcli.data.geometry import Image
from detcli.data.record import Origin
from detcli.source.checks import check_followed, check_inputs
from detcli.source.decode import DecodeOptions, load_bytes
from detcli.source.fetch import Fetches, http_request
from detcli.source.loading import (
    STDIN,
    Item,
    SourceProgress,
    failed,
    load_in_time,
    of_input,
    read_in_time,
    stamped,
)
from detcli.source.names import (
    BRACES,
    JSON_LINE,
    ListedInput,
    check_address,
    check_list,
    identity,
    is_address,
    is_archive,
    is_camera,
    is_live,
    is_media,
    is_missing,
    is_path,
    is_single_file,
    is_stream,
    is_video,
    match,
    path_of,
    read_list,
    search,
    without_copies,
)
from detcli.source.reading import (
    VersionedPath,
    file_chunks,
    file_stamp,
    load_file,
    require_unchanged,
    stamp_in_listing,
    stamp_of,
    unreadable,
)
from detcli.storage.objects import require_obstore

if TYPE_CHECKING:
    from cv2 import VideoCapture

# `close` waits this long for another thread, which checks regularly whether to stop.
CLOSE_TIMEOUT_S = 7.0
FOLLOW_S = 0.5  # between two listings of folders that are followed
FOLLOW_SHARE = 0.1  # of the time at most, in which folders are listed
STABLE_AFTER_S = 10.0  # a file that has not changed for so long counts, whatever is in it
DEFAULTS = Inputs()

# The name or address of an image or a video, or a line with more; or the item with the error for
# what is neither.
SourceEntry = str | ListedInput | Item

# The size of a file and the time of its last change, and since when they have been so.
FileState = tuple[tuple[int, ...], float]


class Sources(contextlib.AbstractContextManager["Sources"]):
    """The inputs that names stand for; iterated over once, by one thread.

    `written` are folders that this run writes into, which a search leaves out. `decode` is how
    images are decoded, if not only `inputs` says it.

    Raises:
        UsageError: Standard input is named twice, a number is out of range, or the list cannot be
            read.
        DeviceError: What reads object stores is not installed.
    """

    def __init__(
        self,
        names: Sequence[str],
        inputs: Inputs = DEFAULTS,
        written: Sequence[Path] = (),
        decode: DecodeOptions | None = None,
    ) -> None:
        if any(is_object(name) for name in names):
            require_obstore()
        check_inputs(names, inputs)
        if inputs.follow:
            check_followed(names, written)
        if inputs.files_from is not None:
            check_list(inputs.files_from)

        self._names = names
        self._inputs = inputs
        self._written = written
        self._decode = decode or DecodeOptions(inputs)
        total = None  # unknown until the list has been read
        if inputs.files_from is None:
            total = len(names)
        self.progress = SourceProgress(total)
        self._fetches = Fetches(self._decode, self.progress.stop)
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
            with contextlib.closing(self._all_items()) as items:
                for item in items:
                    if self.progress.stop.is_set():
                        return
                    yield item
        finally:
            self._ended.set()

    def _all_items(self) -> Generator[Item]:
        """Yield all inputs of the run, each with the number of the name or file that it is from.

        The order is that of the names, then of the list, then cameras and streams: these are read
        all at once and may never end, so nothing can come after them.
        """
        if self._inputs.follow:
            yield from self._follow()
            return
        input_numbers = itertools.count()
        for name in self._names:
            if is_live(name):
                continue  # these come last
            if name == STDIN:
                from detcli.source.stdin import read_stdin

                yield from of_input(read_stdin(self._decode, self.progress), next(input_numbers))
                continue
            try:
                for entry in self._find_entries(name):
                    yield from of_input(self._open_present_version(entry), next(input_numbers))
            except SourceError as error:
                yield from of_input([failed(public_name(name), error)], next(input_numbers))
        for entry in self._read_list_entries():
            yield from of_input(self.open(entry), next(input_numbers))
        live_names = [name for name in self._names if is_live(name)]
        if live_names:
            yield from self._watch(live_names, input_numbers)

    def entries(self) -> Iterator[SourceEntry]:
        """Yield the paths and addresses of the images and videos that the names stand for.

        Nothing is opened. Names of live sources and of standard input are yielded as they are.

        Raises:
            StoreError: A folder on a server cannot be listed, perhaps only for now.
        """
        for name in self._names:
            try:
                yield from self._find_entries(name)
            except SourceError as error:
                if is_object(name):
                    raise StoreError(f"{public_name(name)}: {error}", error.hint) from error
                yield failed(public_name(name), error)
        yield from self._read_list_entries()

    def _follow(self) -> Iterator[Item]:
        """Yield the files in the named folders, and each new file as soon as it is complete.

        The folders are listed again and again until the run is stopped, because no event of the
        system tells of objects in a store, of files on a network drive, or of the moment when a
        file is complete. A file that is deleted and comes back is yielded again.
        """
        self.progress.expect(None)
        yielded: set[str] = set()  # names whose inputs were yielded, and still count
        waiting: dict[str, FileState] = {}
        pause_s = 0.0
        number = 0
        while not self.progress.stop.wait(pause_s):
            begin_s = time.monotonic()
            entries = self._entries_by_name()
            listing_s = time.monotonic() - begin_s
            pause_s = max(FOLLOW_S, listing_s / FOLLOW_SHARE)

            has_errors = any(isinstance(entry, Item) for entry in entries.values())
            if not has_errors:  # else a folder could not be listed, perhaps only for now
                yielded &= entries.keys()
            for name in list(waiting):
                if name in yielded or name not in entries:
                    del waiting[name]

            for name, entry in entries.items():
                if name in yielded:
                    continue
                for item in of_input(self._open_if_complete(entry, waiting), number):
                    yielded.add(name)
                    yield item
                if name in yielded:
                    number += 1

    def _entries_by_name(self) -> dict[str, str | Item]:
        """Return the files in the followed folders by name, and errors by that of the folder."""
        entries: dict[str, str | Item] = {}
        for entry in self._present_entries():
            if isinstance(entry, Item):
                entries[entry.origin.source] = entry
            else:
                entries[entry] = entry
        return entries

    def _present_entries(self) -> Iterator[str | Item]:
        """Yield the files in the followed folders, and an error for each folder without a list."""
        for name in self._names:
            try:
                for page in self._folder_pages(name):
                    if isinstance(page, Item):
                        yield page
                    else:
                        yield from page
            except SourceError as error:
                yield failed(public_name(name), error)

    def _open_if_complete(self, entry: str | Item, waiting: dict[str, FileState]) -> Iterator[Item]:
        """Yield the inputs of a file in a followed folder, or nothing while it is being written.

        Objects in a store appear whole, so they are complete at once. A file is complete if its
        size and time are the same in two listings and it is a sound image, or if it has not
        changed for `STABLE_AFTER_S`, whatever is in it.

        Args:
            entry: A path or address, or the item with the error of a folder.
            waiting: The state of each file that is not complete, updated here.
        """
        if isinstance(entry, Item):
            yield entry
            return
        if is_object(entry):
            yield from stamped(self.open(entry), stamp_in_listing(entry))
            return
        try:
            status = os.stat(entry)
        except OSError:  # deleted again
            return
        now_s = time.monotonic()
        state = (status.st_size, status.st_mtime_ns)
        state_before, since_s = waiting.get(entry, ((), now_s))
        if state != state_before:
            waiting[entry] = (state, now_s)
            return
        unchanged_s = max(now_s - since_s, time.time() - status.st_mtime)
        if unchanged_s >= STABLE_AFTER_S:
            yield from self.open(entry)
        elif not is_video(entry):
            item = self._image_item(entry, entry)
            try:
                image = load_in_time(item)
            except DetcliError:  # not all of it is there yet
                return
            if not image.warnings:
                yield Item(item.origin, lambda: image)

    def _open_present_version(self, entry: SourceEntry) -> Iterator[Item]:
        """Yield the inputs of an entry, even if its file has changed since it was listed."""
        if isinstance(entry, VersionedPath):
            return stamped(self.open(str(entry)), stamp_in_listing(entry))
        return self.open(entry)

    def open(self, entry: SourceEntry) -> Iterator[Item]:
        """Yield the inputs of one file or address: an image, or what a video or archive holds.

        Args:
            entry: A path or address; a line of a list, whose metadata its inputs get; or an item,
                which is yielded as it is.

        Yields:
            Items that are loaded only later. What cannot be opened is an item with the error.
        """
        if isinstance(entry, Item):
            yield entry
            return
        if isinstance(entry, ListedInput):
            items: Iterable[Item]
            if entry.image is None:
                items = self.open(entry.name)
            else:
                items = [self._image_in_line(entry)]
            yield from of_input(items, 0, entry.meta)
            return
        public = public_name(entry)
        try:
            if is_stream(entry) or (is_camera(entry) and not os.path.lexists(entry)):
                raise SourceError(
                    "a camera or stream cannot be in a list",
                    "name it as an argument: for all lines of a file, detcli predict $(cat FILE)",
                )
            path = entry
            if is_address(entry):
                check_address(entry)
                path = path_of(entry)
            if is_archive(path):
                yield from self._archive(public, entry)
            elif is_video(path):
                yield from self._video(public, entry)
            else:
                yield self._image_item(public, entry)
        except InputError as error:
            yield failed(public, error)

    def _image_item(self, public: str, entry: str) -> Item:
        if is_object(entry):
            return self._fetches.object(entry)
        if is_address(entry):
            return self._fetches.item(public, lambda: http_request(entry))
        origin = Origin(public, Path(entry))
        return Item(origin, lambda: load_file(entry, self._decode))

    def _image_in_line(self, entry: ListedInput) -> Item:
        """Return the item of an image that a line of a list contains in base64."""

        def load() -> Image:
            try:
                data = base64.b64decode(entry.image or "", validate=True)
            except ValueError as error:
                raise DecodeError(f"no base64: {error}", "encode it as base64 does") from error
            return load_bytes(data, self._decode)

        return Item(Origin(entry.name), load)

    def _video(self, public: str, entry: str) -> Iterator[Item]:
        """Yield the frames of a video file, which is read on a thread with a time limit.

        `public` is the name of the path or address `entry` in records, without passwords.
        """
        from detcli.source import capture, video, video_frames

        def readable_address() -> str:
            # The address of an object is signed anew each time, because signatures expire.
            if is_object(entry):
                return self._fetches.video(entry)
            return entry

        def reopen() -> "VideoCapture":
            return capture.open_video(readable_address())

        def read_part(start: int, size: int) -> bytes:
            return capture.read_part(readable_address(), start, size)

        address: str | None  # what a viewer of the results may open
        if is_object(entry):
            address = None
        elif is_address(entry):
            address = entry
        else:
            address = os.path.abspath(entry)
        source = video_frames.VideoSource(public, reopen, address, read_part, file_stamp(entry))
        read = partial(video.read_video, source, self._inputs)
        yield from read_in_time(public, read, self.progress, self._inputs.input_timeout)

    def _archive(self, public: str, entry: str) -> Iterator[Item]:
        """Yield the images in a tar or Parquet file, read on a thread with a time limit.

        `public` is the name of the path or address `entry` in records, without passwords.
        """
        from detcli.source.archives import read_archive

        read = partial(
            read_archive,
            public,
            lambda: self._archive_chunks(entry),
            self._decode,
            stamp=file_stamp(entry),
        )
        yield from read_in_time(public, read, self.progress, self._inputs.input_timeout)

    def _archive_chunks(self, entry: str) -> Iterator[bytes]:
        """Yield the bytes of an archive as they come: from a store, a server or a local file.

        Raises:
            SourceError: It cannot be read.
            AlteredError: It has changed since it was listed.
        """
        if is_object(entry):
            yield from self._fetches.chunks(entry)
        elif is_address(entry):
            _, chunks = http_request(entry)
            yield from chunks
        else:
            try:
                require_unchanged(entry, stamp_of(os.stat(entry)))
                yield from file_chunks(entry, self.progress.stop)
            except OSError as error:
                raise unreadable(entry, error) from error

    def _numbered(self, before: str, first: str, last: str, after: str) -> Iterator[SourceEntry]:
        """Expand a range of numbers in a name, and yield the files of each name.

        "a{08..10}.tar" is a08.tar, a09.tar and a10.tar: `before` is "a", `first` is "08", whose
        length is that of all numbers at least, `last` is "10", and `after` is ".tar".
        """
        numbers = range(int(first), int(last) + 1)
        self.progress.expect(len(numbers) - 1)
        for number in numbers:
            digits = str(number).zfill(len(first))
            name = f"{before}{digits}{after}"
            try:
                yield from self._find_entries(name)
            except SourceError as error:
                yield failed(public_name(name), error)

    def _find_entries(self, name: str) -> Iterator[SourceEntry]:
        """Yield the paths and addresses of the images and videos that a name stands for.

        The name may be a file, a folder, a glob pattern, a range of numbers in braces, an address,
        or a folder in an object store. The files are counted in the progress, but not opened.

        Raises:
            SourceError: A folder or pattern has no images or videos.
        """
        braces = BRACES.fullmatch(name)
        if braces is not None and not os.path.lexists(name):
            before, first_number, last_number, after = braces.groups()
            yield from self._numbered(before, first_number, last_number, after)
            return
        hint = "search its folders with --recursive"
        if self._inputs.recursive:
            hint = "check the files' suffixes"
        nothing = SourceError("no images or videos in this folder", hint)
        if is_object(name) and not (is_media(name) or is_archive(name)):
            pages = self._object_pages(name)
            first_page = next(pages, None)
            if first_page is None and not name.endswith("/"):
                yield name  # perhaps an object without a suffix
            else:
                yield from self._count_entries(itertools.chain([first_page or []], pages), nothing)
        elif not is_path(name):
            yield name
        elif os.path.isdir(name):
            yield from self._count_entries(self._folder_pages(name), nothing)
        elif is_missing(name) and not is_media(name):  # a folder, whose drive is gone
            raise PlaceError("no such file", "check the path")
        elif is_single_file(name):
            yield name  # a missing file too: it may come, and is the same input then
        else:
            files = without_copies([path for path in match(name) if os.path.isfile(path)])
            no_match = SourceError("no file matches", "check the pattern")
            yield from self._count_entries([files], no_match)

    def _folder_pages(self, folder: str) -> Iterator[list[str] | Item]:
        """Yield lists of images and videos in a folder, on the disk or in an object store."""
        if is_object(folder):
            return self._object_pages(folder)
        omit = {identity(path) for path in self._written}
        return search(folder, recursive=self._inputs.recursive, omit=omit)

    def _object_pages(self, url: str) -> Iterator[list[str]]:
        """Yield the images and videos of an object store's folder, a page of its list at a time."""
        for page in self._fetches.search(url):
            yield [address for address, name in page if self._is_searched(name)]

    def _is_searched(self, name: str) -> bool:
        """Whether a search takes the object of this name, which is relative to the folder."""
        if not is_media(name):
            return False
        if name.startswith(".") or "/." in name:
            return False
        return self._inputs.recursive or "/" not in name

    def _count_entries(
        self, pages: Iterable[list[str] | Item], nothing: SourceError
    ) -> Iterator[SourceEntry]:
        """Yield the entries of a name's pages, and count them in the progress of the run.

        A name counts as one input before it is expanded; here its entries replace that one.

        Args:
            pages: Lists of paths or addresses, and items with the errors of folders.
            nothing: The error to raise if all pages are empty.
        """
        self.progress.expect(-1)
        is_empty = True
        try:
            for page in pages:
                if self.progress.stop.is_set():
                    return
                entries: Sequence[str | Item]
                if isinstance(page, list):
                    entries = page
                else:
                    entries = [page]
                if entries:
                    is_empty = False
                self.progress.expect(len(entries))
                yield from entries
            if is_empty:
                raise nothing
        except SourceError:
            self.progress.expect(1)
            raise

    def _read_list_entries(self) -> Iterator[SourceEntry]:
        """Yield the entries of the list that --files-from names; nothing without this option.

        A line is a name, or a JSON object with more; with --null, names end with NUL and JSON is
        not looked for. A bad line becomes an item with the error, and the others go on.
        """
        name = self._inputs.files_from
        if name is None:
            return
        null_separated = self._inputs.null
        entries = read_list(name, self.progress.stop, null_separated=null_separated)
        for number, entry in enumerate(entries, start=1):
            try:
                if isinstance(entry, SourceError):
                    raise entry
                if JSON_LINE.match(entry) and not null_separated:
                    yield ListedInput.parse(entry, f"{name}:{number}")
                else:
                    yield entry
            except SourceError as error:
                yield failed(name, error)

    def _watch(self, names: Sequence[str], input_numbers: Iterator[int]) -> Iterator[Item]:
        """Yield frames of all cameras and streams, which are read at the same time.

        Streams whose public names are equal, as with different passwords, are told apart by a
        count: "rtsp://host/a (2)".

        Args:
            names: The cameras and streams, as the user named them.
            input_numbers: Gives each of them its number among the inputs of the run.
        """
        from detcli.source.live import LiveSource, watch

        self.progress.expect(None)
        # Each thread of a decoder holds frames, and delays the newest one by one of them.
        threads = 0
        if len(names) > 1:
            threads = max(1, available_cores() // len(names))
        sources: list[LiveSource] = []
        name_counts: Counter[str] = Counter()
        numbers_by_name: dict[str, int] = {}
        for name in names:
            input_number = next(input_numbers)
            try:
                source = LiveSource.named(name, threads)
            except SourceError as error:
                yield from of_input([failed(public_name(name), error)], input_number)
                continue
            name_counts[source.name] += 1
            count = name_counts[source.name]
            if count > 1:  # they may differ in what is not shown
                source = replace(source, name=f"{source.name} ({count})")
            numbers_by_name[source.name] = input_number
            sources.append(source)
        for item in watch(sources, self._inputs, self.progress):
            yield from of_input([item], numbers_by_name[item.origin.source])
