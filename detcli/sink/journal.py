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
from detcli.data.json_text import encode
from detcli.data.record import Origin, Record, SettingsJson, name_of
from detcli.data.saved_record import RECORD_START, parse_outline
from detcli.sink.recorded_inputs import RecordedInputs
from detcli.source.reading import present_stamp
from detcli.storage.files import AtomicFile, unwritable, write_all
from detcli.storage.folder import NO_WAIT, Folder, lock, sync

VERSION_1_START = b'{"schema_version": 1,'
"""How a record of version 1 begins, which is written again in the form of this version."""

OTHER_FORMATS = (".csv", ".parquet", ".json")
"""Suffixes of what --output writes in other formats."""

OTHER_BEGINNINGS = (b"source,", b"PAR1", b"[", b'{"images"')
"""Beginnings of what --output writes in other formats."""

SYNC_INTERVAL_S = 1.0  # the time between two syncs, while records come

FIELDS_OF_FIRST_RECORD = ("settings", "provenance")
"""Fields of the first record of a run, which the next record gets if that one is removed."""

EXAMPLES = 3  # changed inputs that a message names

ShowReading = Callable[[int, float], None]
"""Shows how many records were read, and which part of the file they are, from 0 to 1."""

RECORDS_A_STEP = 20_000
"""After how many records the progress of reading is shown again, which is about 0.1 s."""


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
        show: ShowReading | None = None,
    ) -> None:
        """Read a journal and open it for appending; a missing one begins empty.

        Args:
            path: The file of the journal.
            settings: The settings that the detections of this run depend on. They are written with
                the first record, unless the journal has the same already.
            implied: Names of settings that follow from others, so that they are not compared.
            force: Whether a journal of a run with other settings is continued.
            videos: The folder of the annotated videos. A video that was cut off by a kill is not in
                it; its frames are detected again, so that it becomes whole.
            show: Shows the progress of reading a large file.

        Raises:
            UsageError: The file is not a journal, has other settings, or is in use by another run.
            OutputError: It cannot be read or written.
        """
        self._path = path
        self._target = Path(os.path.realpath(path))
        self._settings = settings  # None as soon as they are written
        self._implied = implied
        self._video_folder = videos
        self._show = show
        self._recorded_inputs = RecordedInputs()  # that need no work, and were not skipped yet
        self._has_these_settings = False  # whether the last record was made with `settings`
        self._sources_to_repeat: set[str] = set()  # all their records are made again
        self._last_sync_s = 0.0  # on the monotonic clock
        self._exists = cache(os.path.lexists)
        self._present_videos: set[str] = set()  # annotated videos, by their names in records
        # A stamp is size and time of an input's file, as it was when its record was made.
        self._changed: dict[str, str] = {}  # stamps of sources whose file has changed since
        self._replaced: dict[str, str] = {}  # the same, of changed sources with new records
        self._not_compared: set[str] = set()  # skipped sources whose records have no stamp
        try:
            if videos is not None and videos.is_dir():
                for video in videos.iterdir():
                    self._present_videos.add(escape_surrogates(video.as_posix()))
            self._file = self._open()
            try:
                self._begin(force=force)
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise self._failure(error) from error

    def _begin(self, *, force: bool) -> None:
        """Read the records of the open resume file, and remove those that have to be made again.

        Records of failed images have to, for instance, and lines that a kill has damaged. They are
        removed by writing the file anew. That may show more records that have to go, so it is
        repeated until all records can stay.

        Args:
            force: Whether records that were made with other settings may stay.
        """
        has_tracks = self._settings is not None and self._settings.get("track") is not None
        if has_tracks:
            self._find_incomplete_videos()
        while not self._read_records(force=force):
            self._remove_records_to_repeat()
            self._file.close()
            self._file = self._open()  # the new file, which is not locked yet
        if has_tracks and self._has_these_settings:
            # The first record of this run would get the settings. They would tell the next run that
            # the run before this one was killed in a video, which then is tracked again; but the
            # videos that are left are complete. So the settings are not written again.
            self._settings = None
        with contextlib.closing(Folder(self._target.parent)) as folder:
            folder.sync()  # so that the name of a new file survives a power cut

    def skip(self, origin: Origin) -> bool:
        """Tell whether an input needs no work, as the journal has its record already.

        To be called once for each time that an input is named. Of an input that was named twice,
        two records are skipped. A camera or standard input is new in every run, and never skipped.
        """
        if origin.is_new:
            return False
        if not self._recorded_inputs.has(origin.source, origin.frame):
            return False
        if self._has_changed(origin):
            return False
        self._recorded_inputs.remove(origin.source, origin.frame)
        return True

    def _has_changed(self, origin: Origin) -> bool:
        """Tell whether the file of an input has changed since its record was made.

        Size and time of the file are compared, its stamp. Without a recorded stamp nobody knows;
        then the file counts as unchanged, and is noted for a warning.
        """
        source = origin.source
        present_file_stamp = present_stamp(origin)
        if present_file_stamp is None:
            return False
        recorded_stamp = self._recorded_inputs.file_stamp(source)
        if recorded_stamp is None:
            self._not_compared.add(source)
            return False
        if present_file_stamp == recorded_stamp:
            return False
        self._changed[source] = recorded_stamp
        return True

    def write(self, record: Record) -> None:
        """Append a record as a line, which is on the disk within about a second.

        Raises:
            OutputError: It could not be written.
        """
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
            if time.monotonic() - self._last_sync_s >= SYNC_INTERVAL_S:
                self._sync()
        except OSError as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Finish the journal: without the records that newer ones replace, and all on the disk.

        Raises:
            OutputError: It could not be written.
        """
        try:
            try:
                self._sync()
                if self._replaced:
                    self._keep_only(self._is_current)
            finally:
                self._file.close()
        except OSError as error:
            raise self._failure(error) from error
        self._warn_of_changed_inputs()

    def _warn_of_changed_inputs(self) -> None:
        """Warn of inputs that were worked again, as their files have changed.

        Another warning counts the skipped inputs of which nobody knows whether they have changed.
        """
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
        """Warn the user with a sentence about this journal."""
        warnings.warn(f"{self._path}: {sentence}", DetcliWarning, stacklevel=3)

    def _sync(self) -> None:
        """Make sure that what was written is on the disk, where it survives a power cut."""
        sync(self._file.fileno())
        self._last_sync_s = time.monotonic()

    def _open(self) -> FileIO:
        """Open the file for reading and appending, and lock it against other runs.

        Another run may replace the file between opening and locking; then the new one is opened.

        Raises:
            UsageError: The file is locked by another run, or is not a regular file.
        """
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | NO_WAIT
        while True:
            file = FileIO(os.open(self._target, flags, 0o666), "r+")
            try:
                self._lock(file)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(file.fileno()), self._target.stat()):
                        return file
            except BaseException:
                file.close()
                raise
            file.close()

    def _lock(self, file: FileIO) -> None:
        """Lock a file against other runs until it is closed.

        Raises:
            UsageError: The file is locked by another run, or is not a regular file.
        """
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UsageError(f"--resume {self._path}: not a regular file", "name a file")
        if lock(file) is False:
            raise UsageError(
                f"--resume {self._path}: another run is writing to it", "wait until it ends"
            )

    def _lines(self) -> Iterator[tuple[bytes, Fields]]:
        """Yield each line of the journal with its record, which is empty for a damaged line.

        Raises:
            UsageError: A line is neither a record nor one that a kill or a power cut has damaged,
                so the file is not a journal.
        """
        has_record = False
        line_number = 1
        line = b""
        file_bytes = os.fstat(self._file.fileno()).st_size
        with open(self._file.fileno(), "rb", closefd=False) as reader:
            reader.seek(0)
            try:
                for line in bounded_lines(reader):
                    record = _parse(line, after_record=has_record)
                    has_record = has_record or bool(record)
                    yield line, record
                    if self._show is not None and line_number % RECORDS_A_STEP == 0:
                        self._show(line_number, reader.tell() / file_bytes)
                    line_number += 1
            except (ValueError, RecursionError) as error:
                raise UsageError(
                    f"--resume {self._path}: line {line_number} is not a record of detcli: {error}",
                    self._other_format_hint(line),
                ) from error

    def _other_format_hint(self, line: bytes) -> str:
        """Return advice for a file that is not a journal, as this line of it shows."""
        suffix = self._path.suffix.lower()
        is_other_format = suffix in OTHER_FORMATS or line.startswith(OTHER_BEGINNINGS)
        if is_other_format:
            return (
                "a run into CSV, Parquet or an array cannot be continued: start a new one with "
                "--resume NEW.jsonl"
            )
        return "name a file that detcli wrote as JSON Lines"

    def _find_incomplete_videos(self) -> None:
        """Find the videos that have to be tracked again from their first frame.

        Tracks cannot be continued in the middle of a video. So a video is tracked again if it was
        the last input of a run, which may have been killed before its end, or if one of its frames
        has to be detected again.
        """
        last_video = None
        for _, record in self._lines():
            if last_video is not None and "settings" in record:  # the next run begins
                self._sources_to_repeat.add(last_video)
            if record:
                is_frame_of_file = "frame" in record and "time" not in record
                last_video = name_of(record) if is_frame_of_file else None
                if last_video is not None and not self._is_done(record):
                    self._sources_to_repeat.add(last_video)
        if last_video is not None:
            self._sources_to_repeat.add(last_video)

    def _is_done(self, record: Fields) -> bool:
        """Tell whether the input of a record need not be detected again.

        It has to be if it failed, if all of its source is repeated, or if it is a frame whose
        annotated video is missing. A source that does not exist any more cannot be repeated; then
        its records stay.

        Args:
            record: The fields of the record; empty for a damaged line, which is not done.
        """
        source = name_of(record) if record else ""
        if source in self._sources_to_repeat and ("://" in source or self._exists(source)):
            return False
        if "detections" not in record:
            return False
        if "frame" not in record:
            return True
        video_folder = escape_surrogates(str(self._video_folder))
        annotated_videos = []
        for saved_name in record.get("saved", ()):
            if str(Path(saved_name).parent) == video_folder:
                annotated_videos.append(saved_name)
        if self._present_videos.issuperset(annotated_videos):
            return True
        return not self._exists(source)

    def _is_done_and_current(self, record: Fields) -> bool:
        """Tell whether a record can stay when the run begins."""
        return self._is_done(record) and self._is_current(record)

    def _is_current(self, record: Fields) -> bool:
        """Tell whether a record of the resume file still describes its image.

        Where an image has changed between two runs, the resume file has a record of the image
        before the change and, further down, a new one that replaces it. Only the new one counts.

        Args:
            record: The fields of the record; empty for a damaged line, which does not count.
        """
        if not record:
            return False
        is_new_record = "replaces" in record
        can_be_replaced = "file_stamp" in record  # the size and time of the image's file
        if is_new_record or not can_be_replaced:
            return True
        replaced_stamp = self._replaced.get(name_of(record))  # None if the image has not changed
        file_stamp: str = record["file_stamp"]
        return file_stamp != replaced_stamp

    def _read_records(self, *, force: bool) -> bool:
        """Read which inputs are done, and with which settings.

        Args:
            force: Whether the records may have been made with other settings.

        Returns:
            Whether the journal can be continued as it is. If not, records have to be removed from
            it, or written in another form.

        Raises:
            UsageError: The records were made with other settings.
        """
        self._recorded_inputs.clear()
        self._replaced.clear()
        can_stay_unchanged = True
        run_settings: Fields | None = None  # of the run that made the record
        last_settings: Fields | None = None  # of the run that made the last record that stays
        for line, record in self._lines():
            run_settings = record.get("settings", run_settings)
            if line.startswith(VERSION_1_START):
                can_stay_unchanged = False
            if "replaces" in record:  # a run was killed before it removed the replaced records
                self._replaced[name_of(record)] = record["replaces"]
                can_stay_unchanged = False
            if self._is_done(record):
                self._recorded_inputs.add(
                    name_of(record), record.get("frame"), record.get("file_stamp")
                )
                # Version 0.1.0 wrote no other settings than the model.
                last_settings = run_settings or {"model": record.get("model")}
            else:
                can_stay_unchanged = False
                # Passwords in addresses are shown as ***, so several may look the same, and which
                # of them failed is unknown: all are repeated.
                if "***" in record.get("source", ""):
                    self._sources_to_repeat.add(name_of(record))
        if self._settings is not None and last_settings is not None:
            self._has_these_settings = self._compare_settings(
                self._settings, last_settings, force=force
            )
        return can_stay_unchanged

    def _compare_settings(self, settings: SettingsJson, recorded: Fields, *, force: bool) -> bool:
        """Compare the settings of this run with those that the records were made with.

        Args:
            settings: Those of this run.
            recorded: Those of the records; only the model, if version 0.1.0 wrote them.
            force: Whether the records may have been made with other settings.

        Returns:
            Whether all settings are recorded and the same.

        Raises:
            UsageError: The records were made with other settings, without `force`.
        """
        are_all_recorded = recorded.keys() != {"model"}
        compared: Mapping[str, Any] = settings
        if not are_all_recorded:
            compared = {"model": settings.get("model")}
        different = differences(recorded, compared, self._implied)
        if different and not force:
            raise UsageError(
                f"--resume {self._path}: its records were made with {', '.join(different)}",
                "use the same settings, name another file, or mix them with --force",
            )
        return are_all_recorded and not different

    def _remove_records_to_repeat(self) -> None:
        """Write the file anew without damaged lines, failed inputs and replaced records."""
        self._keep_only(self._is_done_and_current)

    def _keep_only(self, can_stay: Callable[[Fields], bool]) -> None:
        """Write the file anew with only some of its records.

        If the first record of a run is removed, the next one that stays gets the settings that it
        carried.

        Args:
            can_stay: Tells of a record's fields whether it stays; they are empty for a damaged
                line.
        """
        new_file = AtomicFile(self._target)
        fields_to_add: Fields = {}  # of the first record of the run
        try:
            for line, record in self._lines():
                for name in FIELDS_OF_FIRST_RECORD:
                    if name in record:
                        fields_to_add[name] = record[name]
                if not can_stay(record):
                    continue
                is_replacement = record.pop("replaces", None) is not None
                if fields_to_add or is_replacement or line.startswith(VERSION_1_START):
                    new_file.write(_line(record | fields_to_add))
                    fields_to_add = {}
                else:
                    new_file.write(line)
        except BaseException:
            new_file.discard()
            raise
        if sys.platform == "win32":  # which replaces no open file
            self._file.close()
        new_file.commit()

    def _failure(self, error: OSError) -> OutputError:
        """Return the error to raise for one of the system, which says how the run continues."""
        consequence = "; nothing is lost: the same command continues where this run stopped"
        return unwritable(self._path, error, consequence)


def _line(fields: Mapping[str, Any]) -> bytes:
    """Encode a record as a line of the file."""
    return f"{encode(fields)}\n".encode()


def _parse(line: bytes, *, after_record: bool) -> Fields:
    """Parse a line of the journal.

    A killed run leaves the beginning of a line. A power cut leaves zeros in place of disk pages
    that were not written, and perhaps the rest of a line after them.

    Args:
        line: The line, with its line feed if it has one.
        after_record: Whether an undamaged record comes before it, so that the file is a journal
            even if this line does not look like part of a record.

    Returns:
        The fields of the record; empty for a line that a kill or a power cut has damaged.

    Raises:
        ValueError: It is anything else, as in `parse_record`.
    """
    if line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise ValueError("it is UTF-16, as PowerShell's > writes, and cannot be continued")
    is_complete = b"\0" not in line and line.endswith(b"\n")
    if is_complete:
        return cast("Fields", parse_outline(line))

    text_before_zeros = line.partition(b"\0")[0]
    if text_before_zeros:
        is_longer_beginning = text_before_zeros.startswith(RECORD_START)
        is_shorter_beginning = RECORD_START.startswith(text_before_zeros)
        is_part_of_record = is_longer_beginning or is_shorter_beginning
    else:
        has_only_zeros = not line.strip(b"\0\n")
        is_part_of_record = after_record or has_only_zeros
    if not is_part_of_record:
        raise ValueError("it has zeros in it, or no end")
    return {}
