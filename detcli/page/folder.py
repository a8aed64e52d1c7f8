"""PageFolder: the folder of a result page, which can be opened while it grows.

    index.html, files/         what shows any run
    data/runs.js               what made the records; written anew as a chunk begins, and at the end
    data/0.js, data/1.js       chunks: one line a record, added whole
    pictures/0/0/12.jpg        of run 0, a thousand to a folder
    thumbnails/0/0/12.jpg      the same, small

Data are scripts, as a page from a disk may load those and nothing else. They call two functions of
files/data.js, with lists whose values are told apart by their position:

    runs(FORMAT, [run, ...])
        run = {chunks, command, state, begun, ended, facts, kinds, palette, sides, floor, places,
               summary, tables, curves, agree}
            chunks      how many chunks of data the run has
            state       running, stopped or complete; begun and ended are times, ended null at first
            facts       [name, value] of each setting
            kinds       [name, colour, text colour, dashed, wrong, side] of each kind of box
            palette     [colour, text colour] of tracks, by their number
            sides       names of the two that are compared
            floor       the confidence, above which all scores are
            places      zones and lines: [name, colour, text colour, whether its points are
                        fractions, [x, y, x, y, ...]]
            summary, tables, curves, agree
                        the fields of `Conclusion`; a table and a diagram are lists of the fields of
                        `PageTable` and `Curves`

    add({source, width, height, frame, time_s, time, error, warnings, classes, found,
         tracks, zones, crossed, texts, corners, picture, original, video, stride, film})
        the entry of a record; what it does not have is left out
            error       [type, message, hint]
            classes     [class id, name, colour, text colour] of those that come up with this entry
            found       a list for each box: [class, score, x1, y1, x2, y2], then its kind if the
                        run has kinds, then [score, x1, y1, x2, y2] of its counterpart if it has
                        one, without brackets; the class is a number among all `classes` of the
                        run so far, and the score of a label is null
            tracks, zones, crossed, texts, corners
                        a value for each box, in this order: 0 without a track, zones, [line, side]
                        of each line, "" without a text, [x, y] of each corner
            picture     the name of the files below pictures/ and thumbnails/; original, if the
                        page shows a file elsewhere in place of a copy, its address
            video       the number of its video in the run; stride, from this frame on: every
                        how many frames of it have a picture; film, the annotated video

FORMAT rises when this changes: a page of another format is not continued.
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
from detcli.sink.folder import mark_folder
from detcli.storage.files import AppendedFile, make_folder, write_file, writing
from detcli.storage.folder import NO_LINK, NO_WAIT, lock

MARK = ".detcli-page"  # the file by which a folder is known to be ours; locked while a run writes
FORMAT = 1
CHUNK_RECORDS = 500  # a chunk ends with as many records, or as many bytes
CHUNK_BYTES = 1 << 20
PICTURE_FOLDERS = ("pictures", "thumbnails")
FOLDERS = ("data", "files", *PICTURE_FOLDERS)

_OURS = re.compile(r"data/\d+\.js|(pictures|thumbnails)/\d+/\d+/\d+\.jpg", re.ASCII)
_PICTURE_FOLDER = re.compile(r"\d+", re.ASCII)


class PageFolder:
    """A folder that holds one page."""

    def __init__(self, path: Path, inputs: Container[Path] = (), *, resumed: bool = False) -> None:
        self.path = path
        self._real = make_folder(path)
        mark = self._real / MARK
        if not mark_folder(self._real, MARK):
            raise UsageError(
                f"{path} has other files in it, and is not a page of detcli",
                "name an empty folder, or one that does not exist",
            )
        flags = os.O_RDWR | NO_WAIT | NO_LINK
        with writing(mark):
            self._lock = FileIO(os.open(mark, flags), "r+")
        with contextlib.ExitStack() as stack:
            stack.callback(self._lock.close)
            if lock(self._lock) is False:
                raise UsageError(f"another run is writing to {path}", "wait until it ends")
            for name in FOLDERS:
                if (self._real / name).is_symlink():
                    raise OutputError(f"{path / name} is a link out of the page", "remove it")
            self._runs = self._earlier_runs() if resumed else []
            if not self._runs:
                self._require_no_inputs(inputs)
            stack.pop_all()
        self._chunks = sum(run["chunks"] for run in self._runs)
        self.run = len(self._runs)
        self._chunk: AppendedFile | None = None
        self._records = 0  # in the chunk
        self._bytes = 0

    def _require_no_inputs(self, inputs: Container[Path]) -> None:
        """Refuse a page whose files, which are removed as it begins, are inputs."""
        for file in self._pages_files():
            if file in inputs:
                raise UsageError(f"{file} is one of the inputs", "name another folder")

    def begin(self) -> None:
        """Make the folder ready for records; until then, what was there stays as it was."""
        for name in FOLDERS:
            make_folder(self._real / name)
        if self._runs:
            self._repair()
        else:
            self._clear()
        for file in resources.files(__package__).joinpath("files").iterdir():
            parent = self._real if file.name == "index.html" else self._real / "files"
            write_file(parent / file.name, file.read_bytes())
        self._runs.append({"chunks": 0})

    def describe(self, run: Mapping[str, Any]) -> None:
        """Write what made the records of this run, in place of what was written before."""
        self._runs[-1] = {**run, "chunks": self._runs[-1]["chunks"]}
        write_file(self._real / "data/runs.js", _call("runs", FORMAT, self._runs))

    def add(self, entry: Mapping[str, Any]) -> bool:
        """Add a line; returns whether it begins a chunk, which runs.js does not count yet."""
        line = _call("add", entry).decode()
        begins_chunk = self._chunk is None
        if self._chunk is None:
            self._chunk = AppendedFile(self._real / f"data/{self._chunks}.js")
            self._records = 0
            self._bytes = 0
            self._chunks += 1
            self._runs[-1]["chunks"] += 1
        self._chunk.write(line)
        self._records += 1
        self._bytes += len(line)
        if self._records == CHUNK_RECORDS or self._bytes >= CHUNK_BYTES:
            self._end_chunk()
        return begins_chunk

    def write_picture(self, number: int, *sizes: bytes) -> str:
        """Write a picture of this run: a copy, if there is one, and then the thumbnail.

        Returns its name, for `remove_picture` and the page.
        """
        name = f"{self.run}/{number // 1000}/{number}"
        folders = PICTURE_FOLDERS[-len(sizes) :]
        for kind, data in zip(folders, sizes, strict=True):
            path = self._real / kind / f"{name}.jpg"
            if not path.parent.exists():
                make_folder(path.parent)
            write_file(path, data)
        return name

    def address_of(self, path: Path) -> str:
        """The address of a file elsewhere on the page: relative, unless on another drive."""
        try:
            relative = os.path.relpath(path.resolve(), self._real)
        except ValueError:
            return path.resolve().as_uri()
        return quote(os.fsencode(relative.replace(os.sep, "/")))

    def remove_picture(self, name: str) -> None:
        """Remove a picture that the page no longer shows."""
        for kind in PICTURE_FOLDERS:
            with contextlib.suppress(OSError):
                (self._real / kind / f"{name}.jpg").unlink()

    def close(self) -> None:
        try:
            self._end_chunk()
        finally:
            with writing(self.path):
                self._lock.close()

    def _end_chunk(self) -> None:
        chunk = self._chunk
        if chunk is not None:
            self._chunk = None
            chunk.commit()

    def _earlier_runs(self) -> list[dict[str, Any]]:
        """The runs of the page that is there; none if there is no page."""
        path = self._real / "data/runs.js"
        with writing(path):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                return []
        try:
            arguments = data.replace(b"runs(", b"[", 1).replace(b");\n", b"]")
            page_format, runs = json.loads(arguments)
            if page_format == FORMAT and all(isinstance(run["chunks"], int) for run in runs):
                return list(runs)
        except (ValueError, TypeError, LookupError, RecursionError):
            pass
        raise UsageError(
            f"{self.path} was not written by this version of detcli",
            "name another folder; detcli report makes a page of all records of a file",
        )

    def _repair(self) -> None:
        """Cut off what a kill or a power cut has left behind the last whole line."""
        path = self._real / f"data/{self._chunks - 1}.js"
        if self._chunks and path.exists():
            lines = path.read_bytes().splitlines(keepends=True)
            whole_lines = []
            for line in lines:
                if line.startswith(b"add(") and line.endswith(b");\n"):
                    whole_lines.append(line)
            if whole_lines != lines:
                write_file(path, b"".join(whole_lines))
        (self._real / f"data/{self._chunks}.js").unlink(missing_ok=True)  # begun, never counted

    def _clear(self) -> None:
        """Remove the page of an earlier run: what has names of ours, and nothing else."""
        write_file(self._real / "data/runs.js", _call("runs", FORMAT, []))
        for path in self._pages_files():
            path.unlink()
        for kind in PICTURE_FOLDERS:
            for folder, _, _ in os.walk(self._real / kind, topdown=False):
                if _PICTURE_FOLDER.fullmatch(Path(folder).name):
                    with contextlib.suppress(OSError):  # something else is in it
                        Path(folder).rmdir()

    def _pages_files(self) -> Iterator[Path]:
        """The data, pictures and thumbnails of the page that is there."""
        for kind in ("data", *PICTURE_FOLDERS):
            for folder, _, names in os.walk(self._real / kind):
                for name in names:
                    path = Path(folder, name)
                    if _OURS.fullmatch(path.relative_to(self._real).as_posix()):
                        yield path


def require_apart(page: Path | None, outputs: Iterable[Path | None]) -> None:
    """Refuse to write anything else into the folder of a page; None stands for no output."""
    if page is None:
        return
    folder = os.path.realpath(page)  # which takes links that lead nowhere
    for path in outputs:
        if path is not None and Path(os.path.realpath(path)).is_relative_to(folder):
            raise UsageError(
                f"cannot write {path}: {page} is the folder of the page, which holds nothing else",
                "write to another folder",
            )


def _call(function: str, *arguments: object) -> bytes:
    """Write a call as a line of script.

    It is ASCII, and has nothing in it that could end a script or begin a tag.
    """
    texts = []
    for argument in arguments:
        text = json.dumps(argument, allow_nan=False, separators=(",", ":"))
        texts.append(text.replace("<", "\\u003c"))
    return f"{function}({', '.join(texts)});\n".encode("ascii")
