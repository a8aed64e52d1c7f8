"""PageFolder: the folder of a result page, which can be opened while it grows.

    index.html, files/         what shows any run
    data/runs.js               what made the records; written anew as a chunk begins, and at the end
    data/0.js, data/1.js       chunks: one line per record, added whole
    pictures/0/0/12.jpg        image 12 of run 0, with those of a pack of thumbnails in a folder
    thumbnails/0/0.js          the same, small, in packs: see page/thumbnails.py

Data are scripts, as a page from a disk may load those and nothing else. They call two functions of
files/data.js, with lists whose values are told apart by their position:

    runs(FORMAT, [run, ...])
        run = {chunks, packed, command, state, begun, ended, facts, kinds, palette, sides, floor,
               places, repeats, rerun, summary, tables, curves, agree}
            chunks      how many chunks of data the run has
            packed      whether its thumbnails are in packs; runs of format 1, which may be
                        continued, have each in a file of its own: thumbnails/0/0/12.jpg
            state       running, stopped or complete; begun and ended are times, ended null at first
            facts       [name, value] of each setting
            kinds       [name, colour, text colour, dashed, wrong, side] of each kind of box
            palette     [colour, text colour] of tracks, by their id
            sides       names of the two that are compared
            floor       the confidence, above which all scores are
            places      zones and lines: [name, colour, text colour, whether its points are
                        fractions, [x, y, x, y, ...]]
            ignored     polygons to ignore: [whether their corners are fractions,
                        [x, y, x, y, ...]]
            repeats     whether each record is a group of boxes that repeat
            rerun       words of a command that finds the same detections, without the inputs
            summary     sentences about a comparison; agree, its verdict, or null
            tables      [title, columns, rows, pictures]; pictures has for each row the indices of
                        the records that it is about
            curves      [title, [across, up], lines, marked], diagrams; a line is [name, boxes,
                        figure, heights], and marked a value on the first axis, or null

    add({source, width, height, frame, time_s, time, error, warnings, classes, found,
         tracks, zones, crossed, texts, corners, classified, repeated, repeat, ignored, picture,
         original, video,
         stride, film})
        the entry of a record; what it does not have is left out
            error       [type, message, hint]
            classes     [class id, name, colour, text colour] of those that come up with this entry
            found       a list for each box: [class, score, x1, y1, x2, y2], then its kind if the
                        run has kinds, then [score, x1, y1, x2, y2] of its counterpart if it has
                        one, without brackets; the class is a number among all `classes` of the
                        run so far, and the score of a label is null
            tracks, zones, crossed, texts, corners, classified, repeated
                        a value for each box, in this order: 0 without a track, zones, [line, side]
                        of each line, "" without a text, [x, y] of each corner, "" without a
                        class from another network, 0 or the id of the group of repeats that was
                        dropped
            repeat      the group that its only box stands for: [number, images, boxes, folder or
                        video, name of the first image, of the last, box in fractions]
            ignored     the indices of the polygons of the run that apply to this record
            picture   the name of the file below pictures/ and of the thumbnail in its pack;
                        original, if the page shows a file elsewhere in place of a copy, its
                        address
            video       the index of its video in the run; stride, starting with this frame:
                        one in how many frames of it has an image; film, the annotated video

FORMAT rises when this changes: a page of a format that is not in FORMATS is not continued.
"""

import contextlib
import json
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from importlib import resources
from io import FileIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

from detcli.core.errors import OutputError, UsageError
from detcli.page.thumbnails import ThumbnailPacks, keep_complete_lines, repair_last_pack
from detcli.sink.folder import mark_folder
from detcli.storage.files import AppendedFile, make_folder, write_all, write_file, writing
from detcli.storage.folder import NO_LINK, NO_WAIT, Folder, LockState, lock, sync

MARK = ".detcli-page"  # the file that marks a folder as ours; locked while a run writes
FORMAT = 2
FORMATS = (1, 2)  # of pages that can be continued
CHUNK_RECORDS = 500  # a chunk ends with this many records, or this many bytes
CHUNK_BYTES = 1 << 20
IMAGE_FOLDERS = ("pictures", "thumbnails")
FOLDERS = ("data", "files", *IMAGE_FOLDERS)
REVIEW_FILES = "review."  # prefix of the names of files that only the review page has

_OURS = re.compile(
    r"data/\d+\.js|thumbnails/\d+/\d+\.js|(pictures|thumbnails)/\d+/\d+/\d+\.jpg", re.ASCII
)
_IMAGE_FOLDER = re.compile(r"\d+", re.ASCII)


class PageFolder:
    """A folder that holds one page: its files, its data in chunks, and its images."""

    def __init__(self, path: Path, inputs: Container[Path] = (), *, resumed: bool = False) -> None:
        """Lock the folder against other runs; an existing page is kept until `begin`.

        Args:
            path: The folder, which is created if it does not exist.
            inputs: The files that the run reads, which are never removed.
            resumed: Whether this run continues the page of earlier runs. A later run may then
                continue it again, so `sync` puts copies of images on the disk, too.

        Raises:
            UsageError: The folder is not that of a page, another run is writing to it, its page has
                a different format, or inputs are among its files.
            OutputError: It cannot be written to, or parts of it are links to elsewhere.
        """
        self.path = path
        self._real = make_folder(path)
        self._lock = self._open_marker()
        try:
            # What `describe` was called with for each run, and how many chunks the run has.
            self._runs = self._lock_and_check(inputs, resumed=resumed)
        except BaseException:
            self._lock.close()
            raise

        self.run = len(self._runs)  # the index of this run
        self._is_resumed = resumed

        # Thumbnails go to packs, and copies of images to a folder for each pack.
        self._packs = ThumbnailPacks(self._real / "thumbnails" / str(self.run))
        self._folder_of_copies: Path | None = None  # the folder of the last copy, which exists
        self._unsynced_copies: list[Path] = []  # copies that are not on the disk yet

        # Entries of records go to chunks: data/0.js, data/1.js and so on.
        self._chunk_count = sum(run["chunks"] for run in self._runs)  # of all runs
        self._chunk: AppendedFile | None = None  # the current chunk; None to begin one
        self._chunk_records = 0
        self._chunk_bytes = 0

    def _lock_and_check(self, inputs: Container[Path], *, resumed: bool) -> list[dict[str, Any]]:
        """Lock the folder by its marker file, and check that this run may write the page.

        Args:
            inputs: The files that the run reads, which are never removed.
            resumed: Whether this run continues the page of earlier runs.

        Returns:
            The descriptions of the earlier runs that it continues; empty if it begins a page.

        Raises:
            UsageError: Another run is writing to the folder, the page has a different format, or
                inputs are among its files.
            OutputError: Parts of the page are links to elsewhere.
        """
        if lock(self._lock) is LockState.HELD_BY_OTHER:
            raise UsageError(f"another run is writing to {self.path}", "wait until it ends")
        self._require_no_links()

        earlier_runs: list[dict[str, Any]] = []
        if resumed:
            earlier_runs = self._earlier_runs()
        if not earlier_runs:
            self._require_no_inputs(inputs)
        return earlier_runs

    def _open_marker(self) -> FileIO:
        """Open the marker file of the page's folder, which is created if the folder is empty.

        The file shows that the folder is a page, and a run locks it while it writes to the page.

        Raises:
            UsageError: The folder has other files in it.
        """
        if not mark_folder(self._real, MARK):
            raise UsageError(
                f"{self.path} has other files in it, and is not a page of detcli",
                "name an empty folder, or one that does not exist",
            )
        marker = self._real / MARK
        with writing(marker):
            return FileIO(os.open(marker, os.O_RDWR | NO_WAIT | NO_LINK), "r+")

    def _require_no_links(self) -> None:
        """Refuse a page with a folder that is a link, through which files elsewhere would change.

        Raises:
            OutputError: One of them is.
        """
        for name in FOLDERS:
            if (self._real / name).is_symlink():
                raise OutputError(f"{self.path / name} is a link out of the page", "remove it")

    def _require_no_inputs(self, inputs: Container[Path]) -> None:
        """Refuse a page whose files, which are removed as it begins, are inputs of the run.

        Raises:
            UsageError: One of them is.
        """
        for file in self._data_and_images():
            if file in inputs:
                raise UsageError(f"{file} is one of the inputs", "name another folder")

    def begin(self) -> None:
        """Make the folder ready for the records of this run, which becomes the last of `_runs`.

        A page of earlier runs that this run continues is repaired: lines that a kill has left
        incomplete are removed. Any other page in the folder is removed. Until this is called, it is
        left as it was.
        """
        for name in FOLDERS:
            make_folder(self._real / name)
        if self._runs:
            self._repair()
        else:
            self._clear()
        self._write_page_files()
        self._runs.append({"chunks": 0})

    def _write_page_files(self) -> None:
        """Write index.html, and its styles and scripts in files/: the same ones for any run."""
        for file in resources.files(__package__).joinpath("files").iterdir():
            if file.name.startswith(REVIEW_FILES):  # only the review page has these
                continue
            if file.name == "index.html":
                target = self._real / file.name
            else:
                target = self._real / "files" / file.name
            write_file(target, file.read_bytes())

    def describe(self, run: Mapping[str, Any]) -> None:
        """Write what made the records of this run, replacing what was written before."""
        self._runs[-1] = {**run, "chunks": self._runs[-1]["chunks"], "packed": True}
        write_file(self._real / "data/runs.js", script_call("runs", FORMAT, self._runs))

    def add(self, entry: Mapping[str, Any]) -> bool:
        """Append the entry of a record to the current chunk, and end the chunk if it is full.

        A chunk is a file with the entries of up to 500 records. If there is no current chunk, a new
        one begins.

        Returns:
            Whether the entry began a chunk. The caller then has to call `describe`, as the
            description of the run, in runs.js, counts the chunks.
        """
        line = script_call("add", entry).decode()
        begins_chunk = self._chunk is None
        if self._chunk is None:
            self._chunk = AppendedFile(self._real / f"data/{self._chunk_count}.js")
            self._chunk_records = 0
            self._chunk_bytes = 0

            self._chunk_count += 1
            run_of_chunk = self._runs[-1]
            run_of_chunk["chunks"] += 1

        self._chunk.write(line)
        self._chunk_records += 1
        self._chunk_bytes += len(line)
        if self._chunk_records == CHUNK_RECORDS or self._chunk_bytes >= CHUNK_BYTES:
            self._end_chunk()
        return begins_chunk

    def write_image(self, number: int, thumbnail: bytes, copy: bytes | None = None) -> str:
        """Write the thumbnail of an image of this run, and a copy of the image if there is one.

        Args:
            number: The index of the image in the run.
            thumbnail: The JPEG of the thumbnail.
            copy: The JPEG of the copy; None if the page shows the image's file where it is.

        Returns:
            The name of the image, for `remove_image` and the entry of its record.
        """
        name = f"{self.run}/{self._packs.number}/{number}"
        if copy is not None:
            self._write_copy(self._real / f"pictures/{name}.jpg", copy)
        self._packs.add(name, thumbnail)
        return name

    def _write_copy(self, path: Path, jpeg: bytes) -> None:
        """Write the copy of an image, without a temporary file and without waiting for the disk.

        Nobody sees it half-written, since no page shows it before its record is added. On a page
        that may be continued, `sync` puts it on the disk.
        """
        if path.parent != self._folder_of_copies:
            make_folder(path.parent)
            self._folder_of_copies = path.parent
        with writing(path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_WAIT
            with FileIO(os.open(path, flags, 0o666), "w") as file:
                write_all(file, jpeg)

        if self._is_resumed:
            self._unsynced_copies.append(path)

    def sync(self) -> None:
        """Put everything that was added on the disk, where it survives a power cut.

        These are copies of images, thumbnails in their pack, and entries in their chunk. A run with
        --resume calls this before it puts records of the same inputs on the disk. So an input that
        a later run skips, since it has a record, is always on the page, too.

        Raises:
            OutputError: The disk has failed.
        """
        with writing(self.path):
            for path in self._unsynced_copies:
                # A long video drops images, and `remove_image` has then removed their copies.
                with contextlib.suppress(FileNotFoundError):
                    _sync_file(path)
            for parent in {path.parent for path in self._unsynced_copies}:
                with contextlib.closing(Folder(parent)) as folder:
                    folder.sync()
            self._unsynced_copies.clear()

            self._packs.sync()
            if self._chunk is not None:
                sync(self._chunk.file.fileno())

    def address_of(self, path: Path) -> str:
        """Return the address by which the page shows a file that is elsewhere.

        It is relative to the page, except on Windows for a file on another drive.
        """
        try:
            relative = os.path.relpath(path.resolve(), self._real)
        except ValueError:
            return path.resolve().as_uri()
        return quote(os.fsencode(relative.replace(os.sep, "/")))

    def remove_image(self, name: str) -> None:
        """Remove the copy of an image that the page no longer shows; its pack stays as it is."""
        with contextlib.suppress(OSError):
            (self._real / f"pictures/{name}.jpg").unlink()

    def close(self) -> None:
        """End the chunk and the pack, and unlock the folder for other runs.

        Raises:
            OutputError: The disk has failed; what could be written is on it all the same.
        """
        try:
            try:
                self._packs.end_pack()
            finally:
                self._end_chunk()
        finally:
            with writing(self.path):
                self._lock.close()

    def _end_chunk(self) -> None:
        """Close the file of the chunk, if one has begun; the next entry begins another."""
        chunk = self._chunk
        if chunk is not None:
            self._chunk = None
            chunk.commit()

    def _earlier_runs(self) -> list[dict[str, Any]]:
        """Read the descriptions of the runs on the existing page; none if there is no page.

        Raises:
            UsageError: They have a different format.
        """
        path = self._real / "data/runs.js"
        with writing(path):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                return []
        runs = _parse_runs(data)
        if runs is None:
            raise UsageError(
                f"{self.path} was not written by this version of detcli",
                "name another folder; detcli report makes a page of all records of a file",
            )
        return runs

    def _repair(self) -> None:
        """Remove incomplete lines from the last chunk and pack, which a kill may leave.

        A later chunk that had begun, but is not counted in runs.js yet, is removed.
        """
        last_chunk = self._real / f"data/{self._chunk_count - 1}.js"
        if self._chunk_count and last_chunk.exists():
            keep_complete_lines(last_chunk, b"add(")
        repair_last_pack(self._real / "thumbnails" / str(self.run - 1))
        uncounted_chunk = self._real / f"data/{self._chunk_count}.js"
        uncounted_chunk.unlink(missing_ok=True)

    def _clear(self) -> None:
        """Remove the existing page: only files and folders with names that a page uses."""
        write_file(self._real / "data/runs.js", script_call("runs", FORMAT, []))
        for path in self._data_and_images():
            path.unlink()
        for image_folder in IMAGE_FOLDERS:
            for folder, _, _ in os.walk(self._real / image_folder, topdown=False):
                if _IMAGE_FOLDER.fullmatch(Path(folder).name):
                    with contextlib.suppress(OSError):  # something else is in it
                        Path(folder).rmdir()

    def _data_and_images(self) -> Iterator[Path]:
        """Yield the chunks, images and thumbnails of the existing page."""
        for subfolder in ("data", *IMAGE_FOLDERS):
            for folder, _, names in os.walk(self._real / subfolder):
                for name in names:
                    path = Path(folder, name)
                    if _OURS.fullmatch(path.relative_to(self._real).as_posix()):
                        yield path


def _sync_file(path: Path) -> None:
    """Put a file on the disk."""
    with FileIO(os.open(path, os.O_RDWR | NO_LINK | NO_WAIT), "r+") as file:
        sync(file.fileno())


def require_apart(page: Path | None, outputs: Iterable[Path | None]) -> None:
    """Refuse outputs of a run that are in the folder of its page.

    Args:
        page: The folder of the page; None if there is no page.
        outputs: Other files and folders that the run writes; None for an output that it does not
            have.

    Raises:
        UsageError: An output is in the folder.
    """
    if page is None:
        return
    folder = os.path.realpath(page)  # accepts links that lead nowhere
    for path in outputs:
        if path is not None and Path(os.path.realpath(path)).is_relative_to(folder):
            raise UsageError(
                f"cannot write {path}: {page} is the folder of the page, which holds nothing else",
                "write to another folder",
            )


def script_call(function: str, *arguments: object) -> bytes:
    """Encode the call of a JavaScript function as a line of script.

    Args:
        function: The name of the function.
        arguments: Its arguments, as JSON. `<` is escaped, so that no string can end the script or
            begin a tag.

    Returns:
        The line, in ASCII.
    """
    json_texts = []
    for argument in arguments:
        json_text = json.dumps(argument, allow_nan=False, separators=(",", ":"))
        json_texts.append(json_text.replace("<", "\\u003c"))
    return f"{function}({', '.join(json_texts)});\n".encode("ascii")


def _parse_runs(script: bytes) -> list[dict[str, Any]] | None:
    """Read the descriptions of runs from a page's script; None if it has a different format.

    The script is the call of a function, runs(FORMAT, [...]), whose arguments are JSON.
    """
    arguments = script.replace(b"runs(", b"[", 1).replace(b");\n", b"]")
    try:
        page_format, runs = json.loads(arguments)
        are_chunks_counted = all(isinstance(run["chunks"], int) for run in runs)
        if page_format in FORMATS and are_chunks_counted:
            return list(runs)
    except (ValueError, TypeError, LookupError, RecursionError):
        pass
    return None
