"""Search: the paths and addresses of the images and videos that a name stands for."""

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from detcli.config.inputs import InputOptions
from detcli.core.errors import PlaceError, SourceError
from detcli.core.text import is_object, public_name
from detcli.source.fetch import Fetches
from detcli.source.loading import Item, SourceProgress, failed_item
from detcli.source.names import (
    BRACES,
    identity,
    is_archive,
    is_media,
    is_missing,
    is_path,
    is_single_file,
    match,
    search,
    without_copies,
)


class NameSearch:
    """Finds the files and objects of a name, and counts them in the progress of the run.

    Paths and addresses are yielded, and an item with the error for what cannot be listed. Nothing
    is opened.
    """

    def __init__(
        self,
        inputs: InputOptions,
        written: Sequence[Path],
        progress: SourceProgress,
        fetches: Fetches,
    ) -> None:
        """Prepare to search; nothing is searched before `entries` is called.

        Args:
            inputs: The options, which say whether folders in folders are searched.
            written: Folders that the run writes into, which are left out.
            progress: Counts what is yielded.
            fetches: Lists the folders of object stores.
        """
        self._inputs = inputs
        self._written = written
        self._progress = progress
        self._fetches = fetches

    def entries(self, name: str) -> Iterator[str | Item]:
        """Yield the paths and addresses of the images and videos that a name stands for.

        The name may be a file, a folder, a glob pattern, a range of numbers in braces, an address,
        or a folder in an object store. The files are counted in the progress, but not opened. A
        missing image or video is yielded all the same.

        Raises:
            SourceError: A folder or pattern has no images or videos.
            PlaceError: Nothing has this name, and its suffix is not that of an image or video.
        """
        braces = BRACES.fullmatch(name)  # shards/{000..009}.tar
        if braces is not None and not os.path.lexists(name):
            before, first_number, last_number, after = braces.groups()
            yield from self._numbered(before, first_number, last_number, after)
            return
        has_suffix_of_file = is_media(name) or is_archive(name)
        if not is_path(name):
            if is_object(name) and not has_suffix_of_file:  # a folder in an object store
                yield from self._find_objects(name)
            else:  # an address or a camera
                yield name
        elif os.path.isdir(name):
            pages = self.pages_of_folder(name)
            yield from self._count_entries(pages, error_if_empty=self._empty_folder(name))
        elif is_missing(name) and not is_media(name):
            # It may be a folder on a drive that is gone, so the error is a PlaceError.
            raise PlaceError("no such file", "check the path")
        elif is_single_file(name):
            # Even if it is missing: the file may come later, and is then the same input.
            yield name
        else:  # a pattern
            files = without_copies([path for path in match(name) if os.path.isfile(path)])
            no_match = SourceError("no file matches", "check the pattern")
            yield from self._count_entries([files], error_if_empty=no_match)

    def _numbered(self, before: str, first: str, last: str, after: str) -> Iterator[str | Item]:
        """Expand a range of numbers in a name, and yield the files of each name.

        "a{08..10}.tar" is a08.tar, a09.tar and a10.tar: `before` is "a", `first` is "08", `last` is
        "10", and `after` is ".tar". All numbers are padded with zeros to the width of `first`.
        """
        numbers = range(int(first), int(last) + 1)
        self._progress.expect(len(numbers) - 1)  # the name itself counts as one input already
        for number in numbers:
            digits = str(number).zfill(len(first))
            name = f"{before}{digits}{after}"
            try:
                yield from self.entries(name)
            except SourceError as error:
                yield failed_item(public_name(name), error)

    def _find_objects(self, url: str) -> Iterator[str | Item]:
        """Yield the images and videos in a folder of an object store.

        If the store lists nothing below an address without a slash at its end, the address itself
        is yielded: it may be that of an object without a suffix.

        Raises:
            SourceError: The folder has no images or videos.
        """
        pages = self._object_pages(url)
        first_page = next(pages, None)
        is_empty = first_page is None
        if is_empty and not url.endswith("/"):
            yield url
            return
        all_pages = itertools.chain([first_page or []], pages)
        yield from self._count_entries(all_pages, error_if_empty=self._empty_folder(url))

    def _empty_folder(self, folder: str) -> SourceError:
        """Make the error for a folder that has no images or videos.

        Its hint is to search the folders in it, unless they are searched or there are none.
        """
        hint = "-r also looks into the folders in it"
        if self._inputs.recursive or not _may_have_folders(folder):
            hint = "check the name, and the files' suffixes"
        return SourceError("no images or videos in this folder", hint)

    def pages_of_folder(self, folder: str) -> Iterator[list[str] | Item]:
        """Yield lists of images and videos in a folder, on the disk or in an object store."""
        if is_object(folder):
            return self._object_pages(folder)
        omit = {identity(path) for path in self._written}
        return search(folder, recursive=self._inputs.recursive, omit=omit)

    def _object_pages(self, url: str) -> Iterator[list[str]]:
        """Yield the images and videos of an object store's folder, a page of its list at a time."""
        for page in self._fetches.search(url):
            yield [listed.address for listed in page if self._is_searched(listed.name)]

    def _is_searched(self, name: str) -> bool:
        """Whether a search takes the object with this name, which is relative to the folder."""
        if not is_media(name):
            return False
        if name.startswith(".") or "/." in name:
            return False
        return self._inputs.recursive or "/" not in name

    def _count_entries(
        self, pages: Iterable[list[str] | Item], error_if_empty: SourceError
    ) -> Iterator[str | Item]:
        """Yield the entries of a name's pages, and count them in the progress of the run.

        Until now the name itself was counted as one input of the run. Its entries are counted in
        its place: one is subtracted, and the entries of each page are added. If this raises an
        error, one is added again, because the caller yields an item with the error.

        Args:
            pages: Lists of paths or addresses, and items with the errors of folders.
            error_if_empty: What is raised if all pages are empty.

        Raises:
            SourceError: All pages are empty, or a page cannot be listed.
        """
        self._progress.expect(-1)
        is_empty = True
        try:
            for page in pages:
                if self._progress.stop.is_set():
                    return
                entries: Sequence[str | Item]
                if isinstance(page, Item):
                    entries = [page]
                else:
                    entries = page
                if entries:
                    is_empty = False
                self._progress.expect(len(entries))
                yield from entries
            if is_empty:
                raise error_if_empty
        except SourceError:
            self._progress.expect(1)
            raise


def _may_have_folders(folder: str) -> bool:
    """Return whether a folder has subfolders; in an object store, there may always be some."""
    if is_object(folder):
        return True
    try:
        with os.scandir(folder) as entries:
            return any(entry.is_dir() for entry in entries)
    except OSError:
        return False
