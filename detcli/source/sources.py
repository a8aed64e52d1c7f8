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
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from detcli.config.device import available_cores
from detcli.config.inputs import InputOptions
from detcli.core.errors import (
    DecodeError,
    DetcliError,
    InputError,
    SourceError,
    StoreError,
)
from detcli.core.text import is_object, public_name
from detcli.data.geometry import Image
from detcli.data.record import Origin
from detcli.source.checks import check_followed, check_inputs
from detcli.source.decode import DecodeOptions, load_bytes
from detcli.source.fetch import Fetches, http_request
from detcli.source.follow import FOLLOW_S, FOLLOW_SHARE, STABLE_AFTER_S, FollowedFiles
from detcli.source.loading import (
    RECORDED,
    STDIN,
    Item,
    SourceProgress,
    failed_item,
    load_in_time,
    of_input,
    read_in_time,
    stamped,
)
from detcli.source.names import (
    JSON_LINE,
    ListedInput,
    check_address,
    check_list,
    is_address,
    is_archive,
    is_camera,
    is_image_path,
    is_live,
    is_stream,
    is_video,
    path_of,
    read_list,
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
from detcli.source.search import NameSearch
from detcli.storage.objects import require_obstore

if TYPE_CHECKING:
    from cv2 import VideoCapture

    from detcli.source.live import LiveSource

# `close` waits this long for another thread, which checks regularly whether to stop.
CLOSE_TIMEOUT_S = 7.0
DEFAULTS = InputOptions()

# The name or address of an image or a video, or a line with more; or the item with the error for
# anything else.
SourceEntry = str | ListedInput | Item


class Sources(contextlib.AbstractContextManager["Sources"]):
    """The inputs that names stand for; iterated over once, by one thread.

    Attributes:
        progress: How many inputs there are, as far as this is known.
        skip_file: Whether an earlier run already has the record of an image file, by the path of
            the file; None if there is no earlier run. A run that resumes one sets this. `RECORDED`
            is then yielded in place of such a file.
    """

    def __init__(
        self,
        names: Sequence[str],
        inputs: InputOptions = DEFAULTS,
        written: Sequence[Path] = (),
        decode: DecodeOptions | None = None,
    ) -> None:
        """Check the names; inputs are read when this is iterated over.

        Args:
            names: Files, folders, patterns, addresses, cameras, or `-` for standard input.
            inputs: How names are searched for, and which frames of videos are used.
            written: Folders that this run writes into, which a search leaves out.
            decode: How images are decoded; None to decode them as `inputs` says.

        Raises:
            UsageError: The names and options cannot be used together, a number is out of range, or
                a list cannot be read.
            DeviceError: A name is in an object store, and the library for these is missing.
        """
        if any(is_object(name) for name in names):
            require_obstore()
        check_inputs(names, inputs)
        if inputs.follow:
            check_followed(names, written)
        if inputs.files_from is not None:
            check_list(inputs.files_from)

        total = None  # unknown until the list has been read
        if inputs.files_from is None:
            total = len(names)
        self.progress = SourceProgress(total)
        self.skip_file: Callable[[str], bool] | None = None
        self._names = names
        self._inputs = inputs
        self._decode = decode or DecodeOptions(inputs)
        self._fetches = Fetches(self._decode, self.progress.stop)  # of addresses
        self._search = NameSearch(inputs, written, self.progress, self._fetches)
        self._ended = Event()
        self._items = self._iterate()  # the generator that is iterated over

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
        """Yield all inputs of the run, each with the index of its name or file.

        The order is that of the names, then of the list, then cameras and streams: these are read
        all at once and may never end, so nothing can come after them.
        """
        if self._inputs.follow:
            yield from self._follow()
            return
        input_indices = itertools.count()
        for name in self._names:
            if not is_live(name):  # these come last
                yield from self._items_of_name(name, input_indices)
        for entry in self._read_list_entries():
            input_index = next(input_indices)
            if self._has_record(entry):
                yield RECORDED
            else:
                yield from of_input(self.open(entry), input_index)
        live_names = [name for name in self._names if is_live(name)]
        if live_names:
            yield from self._frames_of_live_sources(live_names, input_indices)

    def _items_of_name(self, name: str, input_indices: Iterator[int]) -> Iterator[Item]:
        """Yield the items of all inputs that one name stands for.

        A SourceError, such as that of an empty folder, becomes the last item. A file that has a
        record from an earlier run is not opened: `RECORDED` is yielded in its place.

        Args:
            name: Standard input, or a name as `NameSearch.entries` takes it.
            input_indices: Counts the inputs of the run. Each file takes the next index.
        """
        if name == STDIN:
            from detcli.source.stdin import read_stdin

            yield from of_input(read_stdin(self._decode, self.progress), next(input_indices))
            return
        try:
            for entry in self._search.entries(name):
                input_index = next(input_indices)
                if self._has_record(entry):
                    yield RECORDED
                else:
                    yield from of_input(self._open_present_version(entry), input_index)
        except SourceError as error:
            yield from of_input([failed_item(public_name(name), error)], next(input_indices))

    def _has_record(self, entry: SourceEntry) -> bool:
        """Return whether an entry is the path of an image file that already has a record.

        False may be wrong: the item of such an input then shows it.
        """
        if self.skip_file is None or not isinstance(entry, str):
            return False
        return is_image_path(entry) and self.skip_file(entry)

    def entries(self) -> Iterator[SourceEntry]:
        """Yield the paths and addresses of the images and videos that the names stand for.

        Nothing is opened. Names of live sources and of standard input are yielded as they are.

        Raises:
            StoreError: A folder on a server cannot be listed, perhaps only for now.
        """
        for name in self._names:
            try:
                yield from self._search.entries(name)
            except SourceError as error:
                if is_object(name):
                    raise StoreError(f"{public_name(name)}: {error}", error.hint) from error
                yield failed_item(public_name(name), error)
        yield from self._read_list_entries()

    def _follow(self) -> Iterator[Item]:
        """Yield the files in the named folders, and each new file as soon as it is complete.

        The folders are listed again and again until the run is stopped, because no system event
        reports objects in a store, files on a network drive, or the moment when a file is complete.
        A file that is deleted and comes back is yielded again.
        """
        self.progress.expect(None)
        followed = FollowedFiles()
        pause_s = 0.0
        while not self.progress.stop.wait(pause_s):
            begin_s = time.monotonic()
            entries = self._entries_by_name()
            listing_s = time.monotonic() - begin_s
            pause_s = max(FOLLOW_S, listing_s / FOLLOW_SHARE)

            followed.update(entries)
            for name in followed.new_names(entries):
                items = self._open_if_complete(entries[name], followed)
                for item in of_input(items, followed.input_count):
                    followed.mark_yielded(name)
                    yield item

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
        """Yield the files in the followed folders, and an error for each that cannot be listed."""
        for name in self._names:
            try:
                for page in self._search.pages_of_folder(name):
                    if isinstance(page, Item):
                        yield page
                    else:
                        yield from page
            except SourceError as error:
                yield failed_item(public_name(name), error)

    def _open_if_complete(self, entry: str | Item, followed: FollowedFiles) -> Iterator[Item]:
        """Yield the inputs of a file in a followed folder, or nothing while it is being written.

        A file is complete in one of three ways:

        - It is an object in a store, where objects appear whole.
        - It has not changed for `STABLE_AFTER_S`.
        - It is an image that has not changed since the last listing, and loads without a warning.

        Args:
            entry: A path or address, or the item with the error of a folder.
            followed: Remembers since when each file has not changed.
        """
        if isinstance(entry, Item):
            yield entry
            return
        if is_object(entry):
            yield from stamped(self.open(entry), stamp_in_listing(entry))
            return
        unchanged_s = followed.unchanged_s(entry)
        if unchanged_s is None:  # it has changed since the last listing
            return
        if unchanged_s >= STABLE_AFTER_S:
            yield from self.open(entry)
            return
        if is_video(entry):  # nothing shows early whether a video is complete
            return
        item = self._image_item(public=entry, entry=entry)
        try:
            image = load_in_time(item)
        except DetcliError:  # not all of it has arrived yet
            return
        if not image.warnings:
            yield Item(item.origin, load=lambda: image)  # it is already loaded

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
            yield from of_input(self._open_listed(entry), 0, entry.meta)
            return
        public = public_name(entry)
        try:
            yield from self._open_named(public, entry)
        except InputError as error:
            yield failed_item(public, error)

    def _open_listed(self, entry: ListedInput) -> Iterable[Item]:
        """Return the inputs of a line of a list, which names a file or contains an image."""
        if entry.image is None:
            return self.open(entry.name)
        return [self._image_in_line(entry)]

    def _open_named(self, public: str, entry: str) -> Iterator[Item]:
        """Yield the inputs of a path or address; its suffix says what it is.

        Args:
            public: Its name in records, without passwords.
            entry: The path or address.

        Raises:
            SourceError: It is a camera or stream, or the address is malformed.
        """
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
            yield from self._images_in_archive(public, entry)
        elif is_video(path):
            yield from self._frames_of_video(public, entry)
        else:
            yield self._image_item(public, entry)

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
                raise DecodeError(f"not base64: {error}", "encode it as base64 does") from error
            return load_bytes(data, self._decode)

        return Item(Origin(entry.name), load)

    def _frames_of_video(self, public: str, entry: str) -> Iterator[Item]:
        """Yield the frames of a video file, which is read on a thread with a time limit.

        Args:
            public: The name of the video in records, without passwords.
            entry: Its path or address.
        """
        from detcli.source import capture, video, video_frames

        # A video may be opened again much later, and the address of an object in a store is signed
        # for a day only. So both functions ask for the address each time.
        def reopen() -> "VideoCapture":
            return capture.open_video(self._readable_address(entry))

        def read_range(start: int, size: int) -> bytes:
            return capture.read_part(self._readable_address(entry), start, size)

        source = video_frames.VideoSource(
            public,
            open=reopen,
            address=_address_for_viewers(entry),
            read_range=read_range,
            stamp=file_stamp(entry),
        )
        read = partial(video.read_video, source, self._inputs)
        yield from read_in_time(public, read, self.progress, self._inputs.input_timeout)

    def _readable_address(self, entry: str) -> str:
        """Return the path or address from which a video can be read now.

        The address of an object is signed again each time, because signatures expire.
        """
        if is_object(entry):
            return self._fetches.video(entry)
        return entry

    def _images_in_archive(self, public: str, entry: str) -> Iterator[Item]:
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
            yield from http_request(entry).chunks
        else:
            try:
                require_unchanged(entry, stamp_of(os.stat(entry)))
                yield from file_chunks(entry, self.progress.stop)
            except OSError as error:
                raise unreadable(entry, error) from error

    def _read_list_entries(self) -> Iterator[SourceEntry]:
        """Yield the entries of the list that --files-from names; nothing if the option is not set.

        A line is a name, or a JSON object with more; with --null, names end with NUL and are never
        JSON. A bad line becomes an item with the error, and the others go on.
        """
        name = self._inputs.files_from
        if name is None:
            return
        null_separated = self._inputs.null
        entries = read_list(name, self.progress.stop, null_separated=null_separated)
        for number, entry in enumerate(entries, start=1):
            if isinstance(entry, SourceError):
                yield failed_item(name, entry)
                continue
            is_json = JSON_LINE.match(entry) is not None and not null_separated
            if not is_json:
                yield entry
                continue
            try:
                listed = ListedInput.parse(entry, f"{name}:{number}")
            except SourceError as error:
                yield failed_item(name, error)
            else:
                yield listed

    def _frames_of_live_sources(
        self, names: Sequence[str], input_indices: Iterator[int]
    ) -> Iterator[Item]:
        """Yield frames of all cameras and streams, which are read at the same time.

        A source that cannot be read is an item with the error.

        Args:
            names: The cameras and streams, as the user named them.
            input_indices: Counts the inputs of the run. Each source takes the next index.
        """
        from detcli.source.live import LiveSource, watch

        self.progress.expect(None)  # they may never end
        threads = _decoder_threads(source_count=len(names))
        sources: list[LiveSource] = []
        name_counts: Counter[str] = Counter()
        numbers_by_name: dict[str, int] = {}
        for name in names:
            input_index = next(input_indices)
            try:
                source = LiveSource.named(name, threads)
            except SourceError as error:
                yield from of_input([failed_item(public_name(name), error)], input_index)
                continue
            source = _with_unique_name(source, name_counts)
            numbers_by_name[source.name] = input_index
            sources.append(source)

        for item in watch(sources, self._inputs, self.progress):
            yield from of_input([item], numbers_by_name[item.origin.source])


def _decoder_threads(source_count: int) -> int:
    """Return how many threads decode each live source; 0 for OpenCV's default.

    Several sources share the cores. More threads would do harm: each thread of a decoder holds
    frames, and delays the newest one by one frame.
    """
    if source_count == 1:
        return 0
    return max(1, available_cores() // source_count)


def _address_for_viewers(entry: str) -> str | None:
    """Return where a viewer of the results may open a video; None for an object in a store.

    An object can only be read at an address that is signed for a day.
    """
    if is_object(entry):
        return None
    if is_address(entry):
        return entry
    return os.path.abspath(entry)


def _with_unique_name(source: "LiveSource", name_counts: Counter[str]) -> "LiveSource":
    """Return a live source with a unique name in records.

    Public names may be equal, as for streams with different passwords. Such a source gets a count:
    "rtsp://host/a (2)".

    Args:
        source: The camera or stream.
        name_counts: How often each name has occurred, updated here.
    """
    name_counts[source.name] += 1
    count = name_counts[source.name]
    if count == 1:
        return source
    return replace(source, name=f"{source.name} ({count})")
