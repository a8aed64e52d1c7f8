"""Which images have records, and the stamps of their files, in about 37 bytes for each record."""

import hashlib
import re
import struct

import numpy as np

HASH_BYTES = 12
"""The length of the hash of a name: among a million names, two are alike once in 10**17 runs."""

FILE_STAMP = re.compile(r"(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18})", re.ASCII)
"""The stamp of a file: its size in bytes, and its time in us."""

NO_STAMP = 2**64 - 1
"""Stands for the time of a record that has no stamp of this form."""

ROW = np.dtype([("hash_start", "<u8"), ("hash_end", "<u4"), ("size", "<u8"), ("time_us", "<u8")])
"""A record: the hash of the image's name, in two parts, and the stamp of its file."""

ROW_FORMAT = struct.Struct("<QIQQ")
"""A row as `struct` packs it."""

HASH_FORMAT = struct.Struct("<QI")
"""The two parts of a hash, as `struct` unpacks them."""


class RecordedImages:
    """The records of images, in little memory, as there may be millions.

    Each record is a row of an array. The rows are sorted by hash before the first question, so that
    a binary search answers it. Many records can be added and many questions be asked, but not in
    turns: the first question after an addition sorts all rows again.
    """

    def __init__(self) -> None:
        self._added_rows = bytearray()  # since the last sorting, as bytes of `ROW`
        self._rows = np.zeros(0, ROW)  # sorted; those of an image are in the order of addition
        self._hash_starts = self._rows["hash_start"].copy()  # the column that is searched
        self._is_removed = np.zeros(0, np.bool_)  # for each sorted row
        # The stamps of another form, such as ETags, by hash.
        self._other_stamps: dict[tuple[int, int], str] = {}

        # What was answered last, as several questions about an image often follow one another.
        self._name = ""
        self._row_numbers: list[int] = []  # the rows of this image that are not removed
        self._stamp: str | None = None

    def add(self, name: str, file_stamp: str | None) -> None:
        """Add a record of an image.

        Args:
            name: The name of the image.
            file_stamp: The stamp of its file. None if the record has none; then the stamp of an
                earlier record of the image stays.
        """
        name_hash = _hash(name)
        size = 0
        time_us = NO_STAMP
        if file_stamp is not None:
            match = FILE_STAMP.fullmatch(file_stamp)
            if match is None:
                self._other_stamps[name_hash] = file_stamp
            else:
                self._other_stamps.pop(name_hash, None)
                size = int(match[1])
                time_us = int(match[2])
        self._added_rows += ROW_FORMAT.pack(*name_hash, size, time_us)

    def has(self, name: str) -> bool:
        """Tell whether an image has a record that is not removed."""
        self._look_up(name)
        return bool(self._row_numbers)

    def file_stamp(self, name: str) -> str | None:
        """Return the stamp in the last record of an image that has one.

        None if no record has one, or all are removed.
        """
        self._look_up(name)
        if not self._row_numbers:
            return None
        return self._stamp

    def remove(self, name: str) -> None:
        """Remove one record of an image that has one; its stamp stays while others are left."""
        self._look_up(name)
        row_number = self._row_numbers.pop()
        self._is_removed[row_number] = True

    def _look_up(self, name: str) -> None:
        """Find the rows and the stamp of an image, unless the last question was about it, too."""
        if self._added_rows:
            self._sort()
        elif name is self._name:
            return

        self._name = name
        self._row_numbers = []
        self._stamp = None
        hash_start, hash_end = _hash(name)
        first_row = int(np.searchsorted(self._hash_starts, np.uint64(hash_start)))
        for row_number in range(first_row, len(self._rows)):
            row = self._rows[row_number]
            if row["hash_start"] != hash_start:
                break
            if row["hash_end"] != hash_end:
                continue
            if not self._is_removed[row_number]:
                self._row_numbers.append(row_number)
            if row["time_us"] != NO_STAMP:
                self._stamp = f"{row['size']}-{row['time_us']}"
        self._stamp = self._other_stamps.get((hash_start, hash_end), self._stamp)

    def _sort(self) -> None:
        """Sort the added rows in among the others."""
        added_rows = np.frombuffer(self._added_rows, ROW)
        rows = np.concatenate([self._rows, added_rows])
        is_removed = np.concatenate([self._is_removed, np.zeros(len(added_rows), np.bool_)])

        order = np.argsort(rows["hash_start"], kind="stable")
        self._rows = rows[order]
        self._hash_starts = self._rows["hash_start"].copy()
        self._is_removed = is_removed[order]
        self._added_rows = bytearray()


def _hash(name: str) -> tuple[int, int]:
    """Return the hash of a name: its first 64 bits, and its last 32."""
    name_bytes = name.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(name_bytes, digest_size=HASH_BYTES).digest()
    hash_start, hash_end = HASH_FORMAT.unpack(digest)
    return hash_start, hash_end
