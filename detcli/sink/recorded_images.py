"""Which images have records, and the stamps of their files, in about 42 bytes for each record."""

import hashlib
import re
import struct
from array import array

import numpy as np

HASH_BYTES = 12
"""The length of the hash of a name: among a million names, two are alike once in 10**17 runs."""

HASH_FORMAT = struct.Struct("<QI")
"""A hash as two numbers: the first 64 bits, which are sorted and searched, and the last 32."""

FILE_STAMP = re.compile(r"(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18})", re.ASCII)
"""The stamp of a file: its size in bytes, and its time in us."""

NO_STAMP = 2**64 - 1
"""Stands for the time of a record that has no stamp of this form."""

HASH_START_BITS = 64


class RecordedImages:
    """The records of images, in little memory, as there may be millions.

    An index sorts the records by the hashes of their names, and says where those of a bucket are:
    of all hashes that begin with the same bits. A bucket has about four records, which a question
    compares. The index is made at the first question. Many records can be added and many questions
    be asked, but not in turns: each addition makes the next question slow.
    """

    def __init__(self) -> None:
        # For each record, in the order of addition:
        self._hash_starts = array("Q")  # the first 64 bits of the hash
        self._hash_ends = array("I")  # the last 32 bits
        self._file_sizes = array("Q")
        self._file_times_us = array("Q")
        self._is_removed = bytearray()  # 1 if it is removed

        # The index. Views of arrays, as Python reads an element of these faster.
        self._sorted_hash_starts = memoryview(array("Q"))
        self._sorted_records = memoryview(array("I"))  # the record that has each sorted hash
        self._bucket_shift = HASH_START_BITS  # to the right, from a hash to its bucket
        self._bucket_starts = memoryview(array("I", [0, 0]))  # of bucket 0, and the end of it

        # The stamps of a different form, such as ETags, by hash.
        self._other_stamps: dict[tuple[int, int], str] = {}

        # What was looked up last, as several questions about an image often follow one another.
        self._name = ""
        self._records: list[int] = []

    def add(self, name: str, file_stamp: str | None) -> None:
        """Add a record of an image.

        Args:
            name: The name of the image.
            file_stamp: The stamp of its file. None if the record has none; then the stamp of an
                earlier record of the image stays.
        """
        hash_start, hash_end = _hash(name)
        size = 0
        time_us = NO_STAMP
        if file_stamp is not None:
            match = FILE_STAMP.fullmatch(file_stamp)
            if match is None:
                self._other_stamps[hash_start, hash_end] = file_stamp
            else:
                self._other_stamps.pop((hash_start, hash_end), None)
                size = int(match[1])
                time_us = int(match[2])
        self._hash_starts.append(hash_start)
        self._hash_ends.append(hash_end)
        self._file_sizes.append(size)
        self._file_times_us.append(time_us)
        self._is_removed.append(0)

    def has(self, name: str) -> bool:
        """Return whether an image has a record that is not removed."""
        return any(not self._is_removed[record] for record in self._records_of(name))

    def file_stamp(self, name: str) -> str | None:
        """Return the stamp in the last record of an image that has one.

        None if no record has one, or all are removed.
        """
        if not self.has(name):
            return None
        if self._other_stamps:
            other_stamp = self._other_stamps.get(_hash(name))
            if other_stamp is not None:
                return other_stamp
        for record in reversed(self._records_of(name)):
            if self._file_times_us[record] != NO_STAMP:
                return f"{self._file_sizes[record]}-{self._file_times_us[record]}"
        return None

    def remove(self, name: str) -> None:
        """Remove one record of an image that has one; its stamp stays while others are left."""
        for record in self._records_of(name):
            if not self._is_removed[record]:
                self._is_removed[record] = 1
                return

    def _records_of(self, name: str) -> list[int]:
        """Return the records of an image in the order of addition, with the removed ones."""
        if len(self._sorted_records) < len(self._hash_starts):
            self._make_index()
        elif name is self._name:
            return self._records

        records = []
        hash_start, hash_end = _hash(name)
        bucket = hash_start >> self._bucket_shift
        for position in range(self._bucket_starts[bucket], self._bucket_starts[bucket + 1]):
            if self._sorted_hash_starts[position] == hash_start:
                record = self._sorted_records[position]
                if self._hash_ends[record] == hash_end:
                    records.append(record)
        records.sort()
        self._name = name
        self._records = records
        return records

    def _make_index(self) -> None:
        """Sort all records by the first 64 bits of their hashes, and note where buckets start.

        Afterwards, `_records_of` finds the records in a bucket's range of the sorted arrays.
        """
        # A copy, as an array cannot grow while NumPy looks into it.
        hash_starts = np.array(self._hash_starts, np.uint64)
        self._sorted_records = np.argsort(hash_starts).astype(np.uint32).data
        hash_starts.sort()
        self._sorted_hash_starts = hash_starts.data

        bucket_bits = max(len(hash_starts).bit_length() - 2, 1)
        self._bucket_shift = HASH_START_BITS - bucket_bits
        first_hashes = np.arange(2**bucket_bits, dtype=np.uint64) << np.uint64(self._bucket_shift)
        bucket_starts = np.searchsorted(hash_starts, first_hashes)
        bucket_bounds = np.append(bucket_starts, len(hash_starts))
        self._bucket_starts = bucket_bounds.astype(np.uint32).data


def _hash(name: str) -> tuple[int, int]:
    """Return the hash of a name: its first 64 bits, and its last 32."""
    name_bytes = name.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(name_bytes, digest_size=HASH_BYTES).digest()
    hash_start, hash_end = HASH_FORMAT.unpack(digest)
    return hash_start, hash_end
