"""Which images have records, and the stamps of their files, in about 30 bytes for each image."""

import hashlib
import re
import struct
from array import array

import numpy as np
from numpy.typing import NDArray

HASH_BYTES = 12
"""The length of the hash of a name: among a million names, two are alike once in 10**17 runs."""

HASH_FORMAT = struct.Struct("<QI")
"""A hash as two numbers: the first 64 bits, which choose a bucket, and the last 32."""

FILE_STAMP = re.compile(r"(0|[1-9][0-9]{0,8})-(0|[1-9][0-9]{0,18})", re.ASCII)
"""The usual stamp of an image file: its size in bytes, below 1 GB, and its time in us."""

NO_STAMP = 2**64 - 1
"""Stands for the time in a record without a stamp."""

OTHER_STAMP = 2**64 - 2
"""Stands for the time in a record with a stamp of another form, such as an ETag."""


class RecordedImages:
    """The images that have records, in little memory, as there may be millions.

    All records are added, then `sort` is called once, then questions are asked. It makes an index:
    a row for each image, sorted by the hashes of their names. The rows are divided into buckets of
    two to four on average, by the first bits of the hash, so that a question compares few rows.
    """

    def __init__(self) -> None:
        self._records = _Records()
        # Stamps of another form, by the position of the record. The record has this position in
        # place of a size, and OTHER_STAMP in place of a time.
        self._other_stamps: dict[int, str] = {}

        self._index: _Index | None = None  # made by `sort`
        # The image that was looked up last, as several questions about it often follow one another.
        self._last_name: str | None = None
        self._last_row: int | None = None

    def add(self, name: str, file_stamp: str | None) -> None:
        """Add a record of an image.

        Args:
            name: The name of the image.
            file_stamp: The stamp of its file. None if the record has none; then the stamp of an
                earlier record of the image stays.

        Raises:
            ValueError: The records are sorted already.
        """
        if self._index is not None:
            raise ValueError("records are added before they are sorted")
        size = 0
        time_us = NO_STAMP
        if file_stamp is not None:
            match = FILE_STAMP.fullmatch(file_stamp)
            if match is not None:
                size = int(match[1])
                time_us = int(match[2])
            else:
                size = len(self._records.hash_starts)
                time_us = OTHER_STAMP
                self._other_stamps[size] = file_stamp

        hash_start, hash_end = _hash(name)
        self._records.hash_starts.append(hash_start)
        self._records.hash_ends.append(hash_end)
        self._records.file_sizes.append(size)
        self._records.file_times_us.append(time_us)

    def sort(self) -> None:
        """Sort the records by their images, after which questions can be asked.

        Raises:
            ValueError: They are sorted already.
        """
        if self._index is not None:
            raise ValueError("records are sorted once")
        self._index = _Index(self._records)

    def has(self, name: str) -> bool:
        """Return whether an image has a record that is not removed."""
        index, row = self._look_up(name)
        return row is not None and index.record_counts[row] > 0

    def file_stamp(self, name: str) -> str | None:
        """Return the last stamp in the records of an image.

        None if no record has a stamp, or all records are removed.
        """
        index, row = self._look_up(name)
        if row is None or index.record_counts[row] == 0:
            return None
        size = index.file_sizes[row]
        time_us = index.file_times_us[row]
        if time_us == NO_STAMP:
            return None
        if time_us == OTHER_STAMP:
            return self._other_stamps[size]
        return f"{size}-{time_us}"

    def remove(self, name: str) -> None:
        """Remove one record of an image; its stamp stays while others are left.

        Raises:
            KeyError: The image has no record.
        """
        index, row = self._look_up(name)
        if row is None or index.record_counts[row] == 0:
            raise KeyError(name)
        index.record_counts[row] -= 1

    def _look_up(self, name: str) -> "tuple[_Index, int | None]":
        """Return the index, and the row of an image in it; None if it has no record.

        Raises:
            ValueError: The records are not sorted yet.
        """
        if self._index is None:
            raise ValueError("questions are asked after the records are sorted")
        if name != self._last_name:
            hash_start, hash_end = _hash(name)
            self._last_row = self._index.row_of(hash_start, hash_end)
            self._last_name = name
        return self._index, self._last_row


class _Records:
    """The records of images in the order of addition, with a column for each of their values."""

    def __init__(self) -> None:
        self.hash_starts = array("Q")  # the first 64 bits of the hash of the image's name
        self.hash_ends = array("I")  # the last 32 bits
        self.file_sizes = array("I")  # in bytes
        self.file_times_us = array("Q")


class _Index:
    """The images that have records: one row for each, sorted by the hashes of their names.

    The columns are those of the records, sorted in place: with sorted copies, the memory of both
    would stay with the process. Rows of images come first, and what follows them is left over.
    """

    def __init__(self, records: _Records) -> None:
        """Sort records by image, and keep for each image how many it has, and its last stamp.

        Args:
            records: The records, R of N images. Their columns become those of the index.
        """
        self.hash_starts = records.hash_starts
        self.hash_ends = records.hash_ends
        self.file_sizes = records.file_sizes
        self.file_times_us = records.file_times_us
        hash_starts = np.frombuffer(self.hash_starts, np.uint64)  # (R,), views of the same memory
        hash_ends = np.frombuffer(self.hash_ends, np.uint32)
        file_sizes = np.frombuffer(self.file_sizes, np.uint32)
        file_times_us = np.frombuffer(self.file_times_us, np.uint64)

        # The records of an image lie together after this, in the order in which they were added.
        order = np.lexsort((hash_ends, hash_starts))  # (R,), stable
        for column in (hash_starts, hash_ends, file_sizes, file_times_us):
            column[:] = column[order]
        del order

        is_first_of_image = np.ones(len(hash_starts), np.bool_)
        is_first_of_image[1:] = hash_starts[1:] != hash_starts[:-1]
        is_first_of_image[1:] |= hash_ends[1:] != hash_ends[:-1]
        first_positions = np.flatnonzero(is_first_of_image).astype(np.uint32)  # (N,)
        image_count = len(first_positions)
        self.record_counts = np.diff(first_positions, append=np.uint32(len(hash_starts))).data

        last_positions = _last_stamped(first_positions, file_times_us != NO_STAMP)  # (N,)
        for column in (file_sizes, file_times_us):
            column[:image_count] = column[last_positions]
        for column in (hash_starts, hash_ends):
            column[:image_count] = column[first_positions]

        # From the first 64 bits of a hash, a shift to the right leaves the number of its bucket.
        bucket_bits = max(image_count.bit_length() - 2, 1)
        self._bucket_shift = 64 - bucket_bits
        first_hashes = np.arange(2**bucket_bits, dtype=np.uint64) << np.uint64(self._bucket_shift)
        bucket_starts = np.searchsorted(hash_starts[:image_count], first_hashes)
        self._bucket_bounds = np.append(bucket_starts, image_count).astype(np.uint32).data

    def row_of(self, hash_start: int, hash_end: int) -> int | None:
        """Return the row of the image whose name has a hash; None if there is none."""
        bucket = hash_start >> self._bucket_shift
        for row in range(self._bucket_bounds[bucket], self._bucket_bounds[bucket + 1]):
            if self.hash_starts[row] == hash_start and self.hash_ends[row] == hash_end:
                return row
        return None


def _last_stamped(
    first_positions: NDArray[np.uint32], has_stamp: NDArray[np.bool_]
) -> NDArray[np.uint32]:
    """Find the last record with a stamp of each image.

    Args:
        first_positions: `(N,)`, where the records of each image begin among the sorted ones.
        has_stamp: `(R,)`, for each sorted record.

    Returns:
        `(N,)`, its position among the sorted records; that of the image's first record if none of
        them has a stamp.
    """
    stamped_positions = np.arange(len(has_stamp), dtype=np.uint32)
    stamped_positions[~has_stamp] = 0
    last_positions = np.maximum.reduceat(stamped_positions, first_positions)
    return np.maximum(first_positions, last_positions)


def _hash(name: str) -> tuple[int, int]:
    """Return the hash of a name: its first 64 bits, and its last 32."""
    name_bytes = name.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(name_bytes, digest_size=HASH_BYTES).digest()
    hash_start, hash_end = HASH_FORMAT.unpack(digest)
    return hash_start, hash_end
