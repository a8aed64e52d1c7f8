"""Records of a run that is in progress, which can be closed at any time and from any thread."""

import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import NoReturn, Self

from detcli.backend.protocol import closed_error
from detcli.core.errors import DetcliError
from detcli.data.record import Record


class Records(Iterator[Record]):
    """The records that `predict` yields, one after the other; closing it ends what reads ahead.

    A context manager. It is closed by leaving its `with` block, by `close`, after the last record,
    when nothing refers to it any more, by closing its detector, and by the end of the interpreter.
    Any thread may take records or close it, but each record goes to one thread only.

        with predict("street.mp4", detector) as records:
            first = next(records)
    """

    def __init__(self, records: Generator[Record], stop: Callable[[], None]) -> None:
        """Prepare to yield records.

        Args:
            records: Makes the records; closing it waits for the threads that work for it.
            stop: Tells these threads to end, without waiting for them. If another thread waits for
                a record then, `records` raises a DetcliError there.
        """
        self._records = records
        self._stop = stop
        self._process_id = os.getpid()  # to notice a fork, which lacks the threads

        # Only the thread that holds the lock uses `_records`. While one takes a record, its id is
        # stored: a signal handler that interrupts it runs on the same thread, and would wait for
        # the lock forever.
        self._lock = threading.Lock()
        self._thread_with_lock: int | None = None

        self._is_over = False  # whether it was closed, or has yielded the last record
        self._has_lost_detector = False  # whether it was closed because its detector was

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        """Return the next record.

        Raises:
            StopIteration: There are no more, or it was closed.
            InferenceError: Its detector was closed before the last record.
            DetcliError: A device cannot be used, or hangs.
        """
        with self._lock:
            self._thread_with_lock = threading.get_ident()  # so that `close` need not wait on it
            try:
                record = self._take_record()
            finally:
                self._thread_with_lock = None
        if record is not None:
            return record
        if self._has_lost_detector:
            raise closed_error()
        raise StopIteration

    def _take_record(self) -> Record | None:
        """Take a record from the run; None if there is none left, or if the run was ended.

        Another thread, or a signal handler, may end the run while this waits for a record. What
        arrives then is dropped, whether a record or an error: it may only say that the run was
        interrupted.

        Raises:
            DetcliError: A device cannot be used, or hangs.
        """
        if self._is_over:
            return None

        try:
            record = next(self._records)
        except StopIteration:
            self._is_over = True
            return None
        except DetcliError:
            was_ended_meanwhile = self._is_over
            if was_ended_meanwhile:
                return None
            raise

        was_ended_meanwhile = self._is_over
        if was_ended_meanwhile:
            return None
        return record

    def close(self) -> None:
        """End the run early: tell its threads to end, and wait for them. It may be called again.

        If another thread waits for a record, it gets none.
        """
        self._is_over = True
        is_fork = os.getpid() != self._process_id
        if is_fork:  # it has none of the threads
            return

        self._stop()
        # Usually this waits for the lock, until no thread takes a record. But a signal handler may
        # have interrupted the thread that holds the lock, and call this on the same thread. It
        # would wait for itself forever. Nor does it need to wait: the call that takes a record
        # continues when the handler returns, and then ends the run.
        is_taking_record = self._thread_with_lock == threading.get_ident()
        if not is_taking_record:
            with self._lock:
                self._records.close()

    def _close_with_detector(self) -> None:
        """End the run because its detector is closed; taking another record is an error then."""
        if not self._is_over:
            self._has_lost_detector = True
        self.close()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: the threads belong to this process.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "Records cannot be pickled or copied: pass the names of the inputs to another process, "
            "or single records, which can be pickled"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class OpenRecords:
    """The `Records` that use one detector, so that closing the detector closes them first."""

    def __init__(self) -> None:
        """Create an empty collection for a detector that is open."""
        self._lock = threading.Lock()  # guards the following
        # Those that nothing refers to any more end by themselves.
        self._records: weakref.WeakSet[Records] = weakref.WeakSet()
        self._is_closed = False  # whether the detector is

    def add(self, records: Records) -> None:
        """Add the records of a run that uses the detector.

        Raises:
            InferenceError: The detector is closed.
        """
        with self._lock:
            self.require_open()
            self._records.add(records)

    def require_open(self) -> None:
        """Require that the detector is not closed.

        Raises:
            InferenceError: It is.
        """
        if self._is_closed:
            raise closed_error()

    def close(self) -> None:
        """Close all records, and refuse new ones, as the detector is about to be closed."""
        with self._lock:
            self._is_closed = True
            open_records = list(self._records)
        for records in open_records:
            records._close_with_detector()  # noqa: SLF001 - not for programs
