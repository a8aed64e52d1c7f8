"""A journal: JSON Lines that a later run continues.

Each record is appended at once, so a run that is killed loses at most its last record, and put on
the disk about once a second, for power cuts. The next run drops damaged lines, skips inputs with a
record, and tries failed ones again.

Each record has the size and time of its file, as far as it has one. An input whose file has changed
since is processed again; its new records say which ones they replace, and those go when the run
ends, or when the next one begins after a kill.

The first record of a run carries its settings. A later run with different settings is refused,
since half of the file would answer a different question.
"""

import contextlib
import os
import stat
import sys
import time
import warnings
from collections.abc import Callable, Container, Iterator, Mapping
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from detcli.config.differences import differences
from detcli.core import Fields
from detcli.core.errors import DetcliWarning, OutputError, UsageError
from detcli.core.lines import bounded_lines
from detcli.core.text import escape_unprintable, pluralize
from detcli.data.record import Origin, Record, SettingsJson, name_of
from detcli.sink.inputs_to_repeat import InputsToRepeat
from detcli.sink.journal_lines import encode_line, parse_line
from detcli.sink.recorded_inputs import RecordedInputs
from detcli.source.reading import file_stamp, present_stamp
from detcli.storage.files import AtomicFile, unwritable, write_all
from detcli.storage.folder import NO_WAIT, Folder, LockState, lock, sync

VERSION_1_START = b'{"schema_version": 1,'
"""How a record of version 1 begins, which is written again in the form of this version."""

SUFFIXES_WITHOUT_RESUME = (".csv", ".parquet", ".json")
"""Suffixes of what --output writes in other formats."""

BEGINNINGS_WITHOUT_RESUME = (b"source,", b"PAR1", b"[", b'{"images"')
"""Beginnings of what --output writes in other formats."""

SYNC_INTERVAL_S = 1.0  # the time between two syncs, while records come

FIELDS_OF_FIRST_RECORD = ("settings", "provenance")
"""Fields of the first record of a run, which the next record gets if that one is removed."""

EXAMPLES = 3  # changed inputs that a message names


class _Contents(NamedTuple):
    """What a reading of all records has shown."""

    can_be_continued: bool
    """Whether records can be appended to the file as it is. If not, some have to be removed first,
    or written in a different form."""

    settings: Fields | None
    """Those of the run that made the last record; None if none is left."""


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
        before_sync: Callable[[], None] | None = None,
    ) -> None:
        """Read a journal and open it for appending; a missing one begins empty.

        Args:
            path: The file of the journal.
            settings: The settings that the detections of this run depend on. They are written with
                the first record, unless the journal has the same already.
            implied: The names of settings that follow from others, so that they are not compared.
            force: Whether a journal of a run with different settings is continued.
            videos: The folder of the annotated videos. A video that was cut off by a kill is not in
                it; its frames are detected again, so that it becomes whole.
            show: Shows the progress of reading a large file.
            before_sync: Is called before the records are put on the disk, so that what other
                outputs have of them gets there first; None if there are no such outputs.

        Raises:
            UsageError: The file is not a journal, has different settings, or is in use by another
                run.
            OutputError: It cannot be read or written.
        """
        self._path = path
        self._target = Path(os.path.realpath(path))
        self._settings = settings  # None as soon as they are written
        self._implied = implied
        self._show = show
        self._before_sync = before_sync
        # those that need no work, and have not been skipped yet
        self._recorded_inputs = RecordedInputs()
        self._last_sync_s = 0.0  # on the monotonic clock
        # A stamp is size and time of an input's file, as it was when its record was made.
        self._changed: dict[str, str] = {}  # stamps of sources whose file has changed since
        self._replaced: dict[str, str] = {}  # the same, for changed sources with new records
        self._not_compared: set[str] = set()  # skipped sources whose records have no stamp
        try:
            self._inputs_to_repeat = InputsToRepeat(videos)
            self._file = self._open()
            try:
                self._begin(force=force)
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise self._failure(error) from error

    def _begin(self, *, force: bool) -> None:
        """Remove the records of inputs that this run has to process again.

        Then decide whether this run writes its settings with its first record, as runs usually do.
        To a later run with tracking, settings in the middle of the file show where a new run began.
        The previous run may have been killed within a video, so its last video is tracked again.
        That is not needed for this file: after the removal, all of its videos are complete. So if
        this run tracks with the same settings, it does not write them: `_settings` becomes None.

        Args:
            force: Whether records that were made with other settings may stay.
        """
        is_tracking = self._settings is not None and self._settings.get("track") is not None
        if is_tracking:
            records = (record for _, record in self._lines())
            self._inputs_to_repeat.add_incomplete_videos(records)
        has_these_settings = self._remove_records_to_repeat(force=force)
        # Now, before the other workers open their networks, which reuse the memory of sorting.
        self._recorded_inputs.sort()
        if is_tracking and has_these_settings:
            self._settings = None

        with contextlib.closing(Folder(self._target.parent)) as folder:
            folder.sync()  # so that the name of a new file survives a power cut

    def _remove_records_to_repeat(self, *, force: bool) -> bool:
        """Read the records, and remove those whose inputs have to be processed again.

        Such an input has failed, for instance. Lines that a kill has damaged are removed, too. The
        other records are written to a new file, which is then opened and locked in place of the old
        one. Each reading may show that more records of a source have to go. So this is repeated
        until all records can stay.

        Args:
            force: Whether records that were made with other settings may stay.

        Returns:
            Whether the remaining records were made with the settings of this run. False if none
            of them has settings.

        Raises:
            UsageError: The records were made with different settings.
        """
        while True:
            has_these_settings = False
            contents = self._read_records()
            if self._settings is not None and contents.settings is not None:
                has_these_settings = self._compare_settings(
                    self._settings, contents.settings, force=force
                )
            if contents.can_be_continued:
                return has_these_settings

            self._keep_only(self._is_done_and_current)
            self._file.close()
            self._file = self._open()

    def skip(self, origin: Origin) -> bool:
        """Return whether to skip an input, because the journal has its record already.

        Each call that returns True uses up one record. So it is called once for each time that an
        input is named, and an input that is named twice is skipped twice if it has two records. A
        camera or standard input is new in every run, and never skipped.
        """
        if origin.is_new:
            return False
        if not self._recorded_inputs.has(origin.source, origin.frame):
            return False
        if self._notice_change(origin.source, present_stamp(origin)):
            return False
        self._recorded_inputs.remove(origin.source, origin.frame)
        return True

    def skip_file(self, path: str) -> bool:
        """Return for the path of an image file what `skip` returns for its origin, but faster.

        It counts as a call of `skip`, unless the answer is False; then `skip` may be asked, too.
        """
        if not self._recorded_inputs.has(path, frame=None):
            return False
        if self._notice_change(path, file_stamp(path)):
            return False
        self._recorded_inputs.remove(path, frame=None)
        return True

    def _notice_change(self, source: str, stamp_now: str | None) -> bool:
        """Return whether an input's file has changed since its record was made, and store that.

        The stamp of the file, a string with its size and time, is compared with the one in the
        record. A changed input is stored in `_changed`. If the record has no stamp, the input
        counts as unchanged, and is stored in `_not_compared`.

        Args:
            source: The name of the input in records.
            stamp_now: The stamp that its file has now; None if there is no file.
        """
        if stamp_now is None:
            return False
        recorded_stamp = self._recorded_inputs.file_stamp(source)
        if recorded_stamp is None:
            self._not_compared.add(source)
            return False
        if stamp_now == recorded_stamp:
            return False
        self._changed[source] = recorded_stamp
        return True

    def write(self, record: Record) -> None:
        """Append a record as a line, which is on the disk within about a second.

        The first record of the run carries its settings, and the others do not. If the file of the
        input has changed since an older record of it, that is noted, for `close` to remove the
        older record.

        Raises:
            OutputError: It could not be written.
        """
        source = record.origin.source
        if source in self._changed:
            self._replaced[source] = self._changed[source]

        fields = {**record.to_json(), **self._journal_fields(record)}
        try:
            write_all(self._file, encode_line(fields))
            self._settings = None  # so that later records do not carry them
            if time.monotonic() - self._last_sync_s >= SYNC_INTERVAL_S:
                self._sync()
        except OSError as error:
            raise self._failure(error) from error

    def _journal_fields(self, record: Record) -> Fields:
        """Return the fields that a record has in a journal only, in the order of the file.

        They are the stamp of the input's file; the stamp in the older record that this one
        replaces, as the file has changed; and in the first record of a run, the settings.
        """
        source = record.origin.source
        fields: Fields = {}
        if record.file_stamp is not None:
            fields["file_stamp"] = record.file_stamp
        if source in self._changed:
            fields["replaces"] = self._changed[source]
        if self._settings is not None:
            fields["settings"] = self._settings
        return fields

    def close(self) -> None:
        """Put the journal on the disk, remove the records that newer ones replace, and close it.

        Warnings then say which inputs were processed again, as their files have changed.

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
        self._warn_about_changes()

    def _warn_about_changes(self) -> None:
        """Warn about inputs that were processed again, because their files have changed.

        Another warning counts the inputs that were skipped although they may have changed, as their
        records have no stamp to compare.
        """
        if self._replaced:
            names = [escape_unprintable(source) for source in islice(self._replaced, EXAMPLES)]
            if len(self._replaced) > EXAMPLES:
                names.append("...")
            inputs = pluralize(len(self._replaced), "input")
            self._warn(f"{inputs} processed again, as their files have changed: {', '.join(names)}")
        if self._not_compared:
            inputs = pluralize(len(self._not_compared), "input")
            self._warn(
                f"{inputs} skipped without a check for changes: their records lack the size and "
                "time of the file, as records of --output and of earlier versions do"
            )

    def _warn(self, sentence: str) -> None:
        """Warn the user with a sentence about this journal."""
        warnings.warn(f"{self._path}: {sentence}", DetcliWarning, stacklevel=3)

    def _sync(self) -> None:
        """Make sure that what was written is on the disk, where it survives a power cut."""
        if self._before_sync is not None:
            self._before_sync()
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
                was_replaced = not self._is_target(file)
            except BaseException:
                file.close()
                raise
            if not was_replaced:
                return file
            file.close()

    def _is_target(self, file: FileIO) -> bool:
        """Return whether an open file is the one that has the journal's name now."""
        try:
            status = self._target.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(file.fileno()), status)

    def _lock(self, file: FileIO) -> None:
        """Lock a file against other runs until it is closed.

        Raises:
            UsageError: The file is locked by another run, or is not a regular file.
        """
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UsageError(f"--resume {self._path}: not a regular file", "name a file")
        if lock(file) is LockState.HELD_BY_OTHER:
            raise UsageError(
                f"--resume {self._path}: another run is writing to it", "wait until it ends"
            )

    def _lines(self) -> Iterator[tuple[bytes, Fields]]:
        """Yield each line of the journal with its record.

        The record is empty for a line that a kill or a power cut has damaged. Any other line that
        is not a record is an error.

        Raises:
            UsageError: A line is neither a record nor one that a kill or a power cut has damaged,
                so the file is not a journal.
        """
        has_record = False  # whether an undamaged record has come
        line_number = 1
        line = b""  # the line that was read last, for the hint of an error
        with open(self._file.fileno(), "rb", closefd=False) as reader:
            reader.seek(0)
            try:
                for line in bounded_lines(reader):
                    record = parse_line(line, after_record=has_record)
                    has_record = has_record or bool(record)
                    yield line, record
                    if line_number % RECORDS_A_STEP == 0:
                        self._show_progress(line_number, reader)
                    line_number += 1
            except (ValueError, RecursionError) as error:
                raise UsageError(
                    f"--resume {self._path}: line {line_number} is not a record of detcli: {error}",
                    self._other_format_hint(line),
                ) from error

    def _show_progress(self, line_count: int, reader: BinaryIO) -> None:
        """Show how many lines were read, and which share of the file's bytes they are."""
        if self._show is not None:
            file_bytes = os.fstat(reader.fileno()).st_size
            self._show(line_count, reader.tell() / file_bytes)

    def _other_format_hint(self, line: bytes) -> str:
        """Return advice for a file that is not a journal, as this line of it shows."""
        suffix = self._path.suffix.lower()
        is_other_format = suffix in SUFFIXES_WITHOUT_RESUME or line.startswith(
            BEGINNINGS_WITHOUT_RESUME
        )
        if is_other_format:
            return (
                "a run into CSV, Parquet or an array cannot be continued: start a new one with "
                "--resume NEW.jsonl"
            )
        return "name a file that detcli wrote as JSON Lines"

    def _is_done_and_current(self, record: Fields) -> bool:
        """Return whether a record can stay when the run begins."""
        return self._inputs_to_repeat.is_done(record) and self._is_current(record)

    def _is_current(self, record: Fields) -> bool:
        """Return whether no newer record replaces this one.

        If an image has changed between two runs, the journal has an old record of it and, further
        down, a new one. The field `replaces` of the new record is the `file_stamp` of the old one:
        the size and time of the image's file before the change. `_replaced` has these stamps of old
        records, by the name of the image.

        Args:
            record: The fields of the record; empty for a damaged line, which is ignored.
        """
        if not record:
            return False
        is_newest_record = "replaces" in record
        if is_newest_record:
            return True
        if "file_stamp" not in record:  # then no record can name it as replaced
            return True
        stamp_of_old_record = self._replaced.get(name_of(record))  # None if there is no new one
        is_old_record: bool = record["file_stamp"] == stamp_of_old_record
        return not is_old_record

    def _read_records(self) -> "_Contents":
        """Read all records of earlier runs, and store what each says about its input.

        For that, `_note_record` fills `_recorded_inputs` and `_replaced`, and adds sources to
        `_inputs_to_repeat`.

        Returns:
            Whether the file can be continued as it is, and the settings of the last record that
            needs no work. It cannot be continued as it is if a record has to be made again, has
            been replaced by a newer one, or has the form of an earlier version.
        """
        self._recorded_inputs.clear()
        self._replaced.clear()
        can_be_continued = True
        run_settings: Fields | None = None  # of the run that made the record
        last_settings: Fields | None = None  # of the run that made the last record that is done
        for line, record in self._lines():
            run_settings = record.get("settings", run_settings)
            is_done = self._inputs_to_repeat.is_done(record)
            if is_done:
                # Version 0.1.0 wrote no settings but the model.
                last_settings = run_settings or {"model": record.get("model")}
            self._note_record(record, is_done=is_done)

            # A record keeps `replaces` if a run was killed before it removed the old one.
            is_replacement = "replaces" in record
            has_old_form = line.startswith(VERSION_1_START)
            if not is_done or is_replacement or has_old_form:
                can_be_continued = False
        return _Contents(can_be_continued, last_settings)

    def _note_record(self, record: Fields, *, is_done: bool) -> None:
        """Store what a record says about its input: that it is done, or has to be repeated.

        If it replaces an older record, the stamp of that one is stored in `_replaced`.

        Args:
            record: The fields of the record; empty for a damaged line.
            is_done: Whether its input need not be detected again.
        """
        if is_done:
            self._recorded_inputs.add(
                name_of(record), record.get("frame"), record.get("file_stamp")
            )
        elif "***" in record.get("source", ""):
            # Passwords in addresses are written as ***, so several sources may have this name. It
            # is unknown which of them failed: all are repeated.
            self._inputs_to_repeat.add_source(name_of(record))

        if "replaces" in record:
            self._replaced[name_of(record)] = record["replaces"]

    def _compare_settings(
        self, settings: SettingsJson, recorded_settings: Fields, *, force: bool
    ) -> bool:
        """Compare the settings of this run with those that records were made with.

        Version 0.1.0 recorded no setting but the model. Then only the model is compared.

        Args:
            settings: The settings of this run, by name.
            recorded_settings: Those that the records were made with.
            force: Whether records that were made with other settings may stay.

        Returns:
            Whether the journal has all settings of this run. It is False if some differ, which
            `force` allows, or if the records have only the model. This run then writes its settings
            with its first record.

        Raises:
            UsageError: The settings differ, without `force`.
        """
        comparable_settings: Mapping[str, Any] = settings
        has_only_model = recorded_settings.keys() == {"model"}
        if has_only_model:
            comparable_settings = {"model": settings.get("model")}

        # Each is a string such as "conf 0.25 instead of 0.4".
        different_settings = differences(recorded_settings, comparable_settings, self._implied)
        if different_settings and not force:
            raise UsageError(
                f"--resume {self._path}: its records were made with "
                f"{', '.join(different_settings)}",
                "use the same settings, name another file, or mix them with --force",
            )
        return not different_settings and not has_only_model

    def _keep_only(self, can_stay: Callable[[Fields], bool]) -> None:
        """Replace the journal by a new file with only some of its records.

        `_file` stays the old file: the caller has to close it, and to open the new one if more is
        to be written. On Windows it is closed here, as an open file cannot be replaced there.

        Args:
            can_stay: Returns whether a record stays, by its fields, which are empty for a damaged
                line.
        """
        new_file = AtomicFile(self._target)
        try:
            for line in self._remaining_lines(can_stay):
                new_file.write(line)
        except BaseException:
            new_file.discard()
            raise
        if sys.platform == "win32":
            self._file.close()
        new_file.commit()

    def _remaining_lines(self, can_stay: Callable[[Fields], bool]) -> Iterator[bytes]:
        """Yield the lines of the records that stay, as written to the new file.

        The first record of a run carries what is true of all its records, such as the settings. If
        it is removed, the next record that stays gets them. A record that replaces another one no
        longer says so.

        Args:
            can_stay: Returns whether a record stays, by its fields.
        """
        fields_to_add: Fields = {}  # of the first record of a run, for the next one that stays
        for line, record in self._lines():
            for name in FIELDS_OF_FIRST_RECORD:
                if name in record:
                    fields_to_add[name] = record[name]
            if not can_stay(record):
                continue

            was_replacement = record.pop("replaces", None) is not None
            has_old_form = line.startswith(VERSION_1_START)
            if fields_to_add or was_replacement or has_old_form:
                yield encode_line(record | fields_to_add)
                fields_to_add = {}
            else:
                yield line

    def _failure(self, error: OSError) -> OutputError:
        """Return the error to raise for one of the system, which says how the run continues."""
        consequence = "; nothing is lost: the same command continues where this run stopped"
        return unwritable(self._path, error, consequence)
