"""A file object for OpenCV, whose bytes come from a function instead of the disk."""

import io

from detcli.source.mp4 import ReadRange

BLOCK = 1 << 20  # bytes that are read at once from a file with replaced bytes


class PartFile(io.BufferedIOBase):
    """A file whose bytes are read by a function, as OpenCV takes it in place of a name."""

    def __init__(self, read_range: ReadRange, size: int) -> None:
        """`size` is the length of the file in bytes."""
        super().__init__()
        self._read_range = read_range
        self._size = size
        self._position = 0
        self._block = b""  # the bytes that were read last
        self._block_start = 0

    def read(self, size: int | None = -1, /) -> bytes:
        """Read bytes at the current position, from the block of the file that has them.

        A read does not cross the end of the block, so it may return fewer than `size` bytes. It
        is empty only at the end of the file.
        """
        max_bytes = size
        if max_bytes is None or max_bytes < 0:
            max_bytes = self._size - self._position
        block_end = self._block_start + len(self._block)
        is_in_block = self._block_start <= self._position < block_end
        if not is_in_block:
            self._block_start = self._position
            self._block = self._read_range(self._position, BLOCK)
        start = self._position - self._block_start
        data = self._block[start : start + max_bytes]
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Set the position, by an offset in bytes from where `whence` says, and return it."""
        origins = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
        self._position = max(0, origins[whence] + offset)
        return self._position

    def tell(self) -> int:
        """The offset of the next byte."""
        return self._position

    def readable(self) -> bool:
        """It is read only."""
        return True

    def seekable(self) -> bool:
        """Any byte can be read next."""
        return True


def file_length(read_range: ReadRange) -> int:
    """Return the length of a file in bytes, found only by reading single bytes of it.

    The end is first passed by doubling an offset until no byte is found there, and then found by
    halving the range between the last byte that was read and the first that was missing.
    """
    end = 1
    while read_range(end, 1):
        end *= 2
    start = end // 2  # the last byte lies at or after this offset, and before the end
    while start + 1 < end:
        middle = (start + end) // 2
        if read_range(middle, 1):
            start = middle
        else:
            end = middle
    return end
