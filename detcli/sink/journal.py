"""A journal: JSON Lines that a later run continues.

Each record is appended at once, so a run that is killed loses at most its last record, and put on
the disk about once a second, for power cuts. The next run drops damaged lines, skips inputs with a
record, and tries failed ones again.

Each record has the size and time of its file, as far as it has one. An input whose file has changed
since is worked again; its new records say which ones they replace, and those go when the run ends,
or when the next one begins after a kill.

The first record of a run carries its settings. A later run with other settings is refused, since
half of the file would answer another question.
"""

import contextlib
import os
import stat
import sys
import time
import warnings
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from functools import cache
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Any, cast

from detcli.config.differences import differences
from detcli.core import Fields
from detcli.core.errors import DetcliWarning, OutputError, UsageError
from detcli.core.lines import bounded_lines
from detcli.core.text import escape_surrogates, escape_unprintable, pluralize
from detcli.data.record import Origin, Record, SettingsJson, name_of, parse_record
from detcli.sink.text import encode
from detcli.source.fetch import present_stamp
from detcli.storage.files import AtomicFile, unwritable, write_all
from detcli.storage.folder import NO_WAIT, Folder, lock, sync

START = b'{"schema_version"'  # start of every record, and of a torn line as far as it goes

OLD = b'{"schema_version": 1,'
"""Start of a record of version 1, which is written again in the form of this one."""

OTHER_FORMATS = (".csv", ".parquet", ".json")
"""Suffixes of what --output writes in other formats."""

OTHER_BEGINNINGS = (b"source,", b"PAR1", b"[")
"""Beginnings of what --output writes in other formats."""

SYNC_INTERVAL_S = 1.0  # the time between two syncs, while records come

HEAD = ("settings", "provenance")
"""Fields of the first record of a run, which the next one gets if it is dropped."""

EXAMPLES = 3  # changed inputs that a message names

InputKey = tuple[str, int | None]  # identifies a record: source, and frame for a video


class Journal:
    """Appends records to a file, and knows those already in it."""

    def __init__(
        self,
        path: Path,
        settings: SettingsJson | None = None,
        *,
        implied: Container[str] = (),
        force: bool = False,
        videos: Path | None = None,
    ) -> None:
        """Read a journal and open it for appending; a missing one begins empty.

        `settings` are what the detections of this run depend on, but for those `implied` by the
        others; a journal of others is continued with `force`. A video that a kill cut off is not in
        the folder `videos`: its frames are detected again, so that it becomes whole.

        Raises UsageError if the file is not a journal, has other settings, or is in use by another
        run, and OutputError if it cannot be read or written.
        """
        self._path = path
        self._target = Path(os.path.realpath(path))
        self._settings = settings
        self._implied = implied
        self._videos = videos
        self._done: Counter[InputKey] = Counter()
        self._continues = False  # whether the last record was made with these settings
        self._cut: set[str] = set()  # sources of which all records are worked again
        self._synced_s = 0.0  # on the monotonic clock
        self._exists = cache(os.path.lexists)
        self._there: set[str] = set()  # videos, by their names in records
        # Of each source: the stamp of its last record that was there when the run began.
        self._stamps: dict[str, str] = {}
        self._changed: dict[str, str] = {}  # the same of those whose file is another one now
        self._replaced: dict[str, str] = {}  # the same of those that have new records by now
        self._not_compared: set[str] = set()  # skipped, as their records have no stamp
        try:
            if videos is not None and videos.is_dir():
                self._there = {escape_surrogates(video.as_posix()) for video in videos.iterdir()}
            self._file = self._open()
            try:
                self._begin(force=force)
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise self._failure(error) from error

    def _begin(self, *, force: bool) -> None:
        """Read the open file, and write it again until all of its records stay."""
        has_tracks = self._settings is not None and self._settings.get("track") is not None
        if has_tracks:
            self._find_cut()
        while not self._read(force=force):
            self._rewrite()  # as a new file, which has no lock yet
            self._file.close()
            self._file = self._open()
        if has_tracks and self._continues:  # what is left is whole, so no run ends there
            self._settings = None
        with contextlib.closing(Folder(self._target.parent)) as folder:
            folder.sync()  # of a new file's name

    def skip(self, origin: Origin) -> bool:
        """Tell whether an input is done, once for each of its records; a new one never is."""
        if origin.is_new:
            return False
        key = (origin.source, origin.frame)
        if self._done[key] == 0:
            del self._done[key]
            return False
        if self._has_changed(origin):
            return False
        self._done[key] -= 1
        return True

    def _has_changed(self, origin: Origin) -> bool:
        """Whether the file of a recorded input is another one now; one without a stamp is not."""
        source = origin.source
        present = present_stamp(origin)
        if present is None:
            return False
        recorded = self._stamps.get(source)
        if recorded is None:
            self._not_compared.add(source)
            return False
        if present == recorded:
            return False
        self._changed[source] = recorded
        return True

    def write(self, record: Record) -> None:
        """Append a line."""
        source = record.origin.source
        fields = record.to_json()
        if record.file_stamp is not None:
            fields["file_stamp"] = record.file_stamp
        if source in self._changed:
            self._replaced[source] = self._changed[source]
            fields["replaces"] = self._changed[source]
        if self._settings is not None:
            fields["settings"] = self._settings
        try:
            write_all(self._file, _line(fields))
            self._settings = None
            if time.monotonic() - self._synced_s >= SYNC_INTERVAL_S:
                self._sync()
        except OSError as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Put all lines on the disk, without those that were replaced, and close the file."""
        try:
            try:
                self._sync()
                if self._replaced:
                    self._write_those(self._is_current)
            finally:
                self._file.close()
        except OSError as error:
            raise self._failure(error) from error
        self._say_changes()

    def _say_changes(self) -> None:
        """Say which inputs were worked again as their files had changed, and which may have."""
        if self._replaced:
            names = [escape_unprintable(source) for source in islice(self._replaced, EXAMPLES)]
            if len(self._replaced) > EXAMPLES:
                names.append("...")
            inputs = pluralize(len(self._replaced), "input")
            self._warn(f"{inputs} worked again, as their files have changed: {', '.join(names)}")
        if self._not_compared:
            inputs = pluralize(len(self._not_compared), "input")
            self._warn(
                f"{inputs} skipped unseen: their records lack the size and time of the file, as "
                "those of --output and of earlier versions do, so a change would not be noticed"
            )

    def _warn(self, sentence: str) -> None:
        warnings.warn(f"{self._path}: {sentence}", DetcliWarning, stacklevel=3)

    def _sync(self) -> None:
        """Put what was written on the disk."""
        sync(self._file.fileno())
        self._synced_s = time.monotonic()

    def _open(self) -> FileIO:
        """Open the file, and lock it against other runs."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | NO_WAIT
        while True:
            file = FileIO(os.open(self._target, flags, 0o666), "r+")
            try:
                self._require_usable(file)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(file.fileno()), self._target.stat()):
                        return file
            except BaseException:
                file.close()
                raise
            file.close()  # another run wrote it anew before the lock was taken

    def _require_usable(self, file: FileIO) -> None:
        """Lock a file, which stays locked until it is closed."""
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UsageError(f"--resume {self._path}: not a regular file", "name a file")
        if lock(file) is False:
            raise UsageError(
                f"--resume {self._path}: another run is writing to it", "wait until it ends"
            )

    def _lines(self) -> Iterator[tuple[bytes, Fields]]:
        """All lines and their records, which are empty for damaged lines."""
        begun = False
        number = 1
        line = b""
        with open(self._file.fileno(), "rb", closefd=False) as reader:
            reader.seek(0)
            try:
                for line in bounded_lines(reader):
                    record = _parse(line, begun=begun)
                    begun = begun or bool(record)
                    yield line, record
                    number += 1
            except (ValueError, RecursionError) as error:
                raise UsageError(
                    f"--resume {self._path}: line {number} is not a record of detcli: {error}",
                    self._other_format_hint(line),
                ) from error

    def _other_format_hint(self, line: bytes) -> str:
        """What to do instead of going on with a file that has this line."""
        suffix = self._path.suffix.lower()
        is_other = suffix in OTHER_FORMATS or line.startswith(OTHER_BEGINNINGS)
        if is_other:
            return (
                "a run into CSV, Parquet or an array cannot be continued: start a new one with "
                "--resume NEW.jsonl"
            )
        return "name a file that detcli wrote as JSON Lines"

    def _find_cut(self) -> None:
        """Find the videos whose tracks may end in the middle: they are worked again as a whole.

        These are those with which a run ended, as nobody knows how long they go on, and those with
        a frame that needs a second attempt.
        """
        last = None
        for _, record in self._lines():
            if last is not None and "settings" in record:  # the next run begins
                self._cut.add(last)
            if record:
                of_file = "frame" in record and "time" not in record
                last = name_of(record) if of_file else None
                if last is not None and not self._stays(record):
                    self._cut.add(last)
        if last is not None:
            self._cut.add(last)

    def _stays(self, record: Fields) -> bool:
        """Whether a record needs no second attempt."""
        source = name_of(record) if record else ""
        if source in self._cut and ("://" in source or self._exists(source)):
            return False
        if "detections" not in record or "frame" not in record:
            return "detections" in record
        folder = escape_surrogates(str(self._videos))
        saved_videos = []
        for name in record.get("saved", ()):
            if str(Path(name).parent) == folder:
                saved_videos.append(name)
        if self._there.issuperset(saved_videos):
            return True
        return not self._exists(source)  # then it cannot be detected on again

    def _stays_now(self, record: Fields) -> bool:
        """Whether a record is still true when the run begins."""
        return self._stays(record) and self._is_current(record)

    def _is_current(self, record: Fields) -> bool:
        """Whether this is a record that no later one replaces."""
        if not record:
            return False
        if "replaces" in record or "file_stamp" not in record:
            return True
        stamp: str = record["file_stamp"]
        return stamp != self._replaced.get(name_of(record))

    def _read(self, *, force: bool) -> bool:
        """Read what was done; return whether all records stay."""
        self._done.clear()
        self._stamps.clear()
        self._replaced.clear()
        all_stay = True
        settings: Fields | None = None  # of the run that made a record
        last: Fields | None = None  # of the last record that stays
        for line, record in self._lines():
            settings = record.get("settings", settings)
            if line.startswith(OLD):
                all_stay = False
            if "replaces" in record:  # a run was killed before it could remove what that replaces
                self._replaced[name_of(record)] = record["replaces"]
                all_stay = False
            if self._stays(record):
                self._done[name_of(record), record.get("frame")] += 1
                if "file_stamp" in record:
                    self._stamps[name_of(record)] = record["file_stamp"]
                last = settings or {"model": record.get("model")}  # which is all that 0.1.0 wrote
            else:
                all_stay = False
                # Addresses may differ in what is not shown: which of them failed is unknown.
                if "***" in record.get("source", ""):
                    self._cut.add(name_of(record))
        if self._settings is not None and last is not None:
            self._continues = self._has_same_settings(self._settings, last, force=force)
        return all_stay

    def _has_same_settings(self, settings: SettingsJson, recorded: Fields, *, force: bool) -> bool:
        """Whether records were made with these settings, all of which they name.

        Raises:
            UsageError: They were made with others, and are not to be mixed by `force`.
        """
        names_all = recorded.keys() != {"model"}
        compared: Mapping[str, Any] = settings
        if not names_all:
            compared = {"model": settings.get("model")}
        different = differences(recorded, compared, self._implied)
        if different and not force:
            raise UsageError(
                f"--resume {self._path}: its records were made with {', '.join(different)}",
                "use the same settings, name another file, or mix them with --force",
            )
        return names_all and not different

    def _rewrite(self) -> None:
        """Write the file again without damaged lines, failures and what was replaced."""
        self._write_those(self._stays_now)

    def _write_those(self, stays: Callable[[Fields], bool]) -> None:
        """Write the file again with the records that stay; damaged lines are empty ones."""
        target = AtomicFile(self._target)
        head: Fields = {}  # of a record that was dropped
        try:
            for line, record in self._lines():
                for name in HEAD:
                    if name in record:
                        head[name] = record[name]
                if stays(record):
                    is_replacement = record.pop("replaces", None) is not None
                    if head or is_replacement or line.startswith(OLD):
                        line = _line(record | head)  # noqa: PLW2901
                        head = {}
                    target.write(line)
        except BaseException:
            target.discard()
            raise
        if sys.platform == "win32":  # which replaces no open file
            self._file.close()
        target.commit()

    def _failure(self, error: OSError) -> OutputError:
        consequence = "; nothing is lost: the same command continues where this run stopped"
        return unwritable(self._path, error, consequence)


def _line(fields: Mapping[str, Any]) -> bytes:
    """A record as a line of the file."""
    return f"{encode(fields)}\n".encode()


def _parse(line: bytes, *, begun: bool) -> Fields:
    """A record; empty for a damaged line; raises an error as `parse_record` for anything else.

    A killed run leaves the beginning of a line. A power cut leaves zeros in place of pages that
    were not on the disk; text after them is taken for a record's only after whole records.
    """
    if line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise ValueError("it is UTF-16, as PowerShell's > writes, and cannot be continued")
    if b"\0" in line or not line.endswith(b"\n"):
        beginning = line.partition(b"\0")[0]
        if beginning:
            may_be_torn = beginning.startswith(START) or START.startswith(beginning)
        else:
            may_be_torn = begun or not line.strip(b"\0\n")
        if not may_be_torn:
            raise ValueError("it has zeros in it, or no end")
        return {}
    return cast("Fields", parse_record(line))
