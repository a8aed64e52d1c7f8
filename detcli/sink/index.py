"""FolderIndex: which file of an output folder was made from which input, across runs."""

import contextlib
import hashlib
import os
import stat
import time
import weakref
from pathlib import Path

import numpy as np
import numpy.typing as npt

from detcli.errors import OutputError
from detcli.files import NO_WAIT, sync, unwritable

NAME = ".detcli-index"

ENTRY = np.dtype([("input", "<u8"), ("file", "<u8"), ("number", "<u4"), ("check", "<u4")])
"""Hashes of an input and of a file's name, the number in that name, and a checksum.

An entry is appended by one system call before its file appears, so a killed run leaves whole
entries, at worst for a file that does not exist. A million files take 24 MB.
"""

SYNC_INTERVAL_S = 1.0
"""The time between two syncs, while files come."""

Entries = npt.NDArray[np.void]


class FolderIndex:
    """Remembers the inputs of the files that earlier runs made.

    The files of this run are only written down: its names are unique anyway.

    Raises:
        OutputError: The index cannot be read or written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._descriptor: int | None = None  # no folder gets an index before it gets a file
        self._synced_s = 0.0  # on the monotonic clock
        data = b""
        try:
            with contextlib.suppress(FileNotFoundError):
                _, data = self._open(0)
        except OSError as error:
            raise unwritable(self._path, error) from error
        entries = np.frombuffer(data[: len(data) - len(data) % ENTRY.itemsize], ENTRY)
        entries = entries[entries["check"] == _checksums(entries)]
        entries = entries[np.argsort(entries["file"], kind="stable")]
        last = np.append(entries["file"][1:] != entries["file"][:-1], True)[: len(entries)]
        self._by_file = entries[last]
        self._by_input = self._by_file[np.argsort(self._by_file["input"], kind="stable")]

    def _open(self, flags: int) -> tuple[int, bytes]:
        """Open the index, and read it."""
        flags |= os.O_RDWR | os.O_APPEND | NO_WAIT
        flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        self._descriptor = descriptor = os.open(self._path, flags, 0o666)
        weakref.finalize(self, os.close, descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OutputError(f"{self._path} is not a regular file", "remove it")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read()
        if torn := len(data) % ENTRY.itemsize:  # by a full disk or a power cut
            os.ftruncate(descriptor, len(data) - torn)
        return descriptor, data

    def numbers(self, source: str) -> list[int]:
        """The numbers in the names of an input's files."""
        inputs, key = self._by_input["input"], _hash(source)
        first, end = (int(np.searchsorted(inputs, key, side)) for side in ("left", "right"))
        return sorted(self._by_input["number"][first:end].tolist())

    def owner_is(self, name: str, source: str, *, unknown: bool) -> bool:
        """Whether a file was made from an input; `unknown` if it is not known."""
        files, key = self._by_file["file"], _hash(name)
        place = int(np.searchsorted(files, key))
        if place == len(files) or files[place] != key:
            return unknown
        return bool(self._by_file["input"][place] == _hash(source))

    def add(self, name: str, source: str, number: int) -> None:
        """Write down that a file is about to be made from an input.

        Raises:
            OutputError: It cannot be written.
        """
        if self.owner_is(name, source, unknown=False):
            return
        entry = np.array([(_hash(source), _hash(name), number, 0)], ENTRY)
        entry["check"] = _checksums(entry)
        try:
            descriptor = self._descriptor
            if descriptor is None:
                descriptor, _ = self._open(os.O_CREAT)
            os.write(descriptor, entry.tobytes())
            if time.monotonic() - self._synced_s >= SYNC_INTERVAL_S:
                self.sync()
        except OSError as error:
            raise unwritable(self._path, error) from error

    def sync(self) -> None:
        """Put the index on the disk.

        Raises:
            OutputError: The disk is full or broken.
        """
        if self._descriptor is None:
            return
        try:
            sync(self._descriptor)
        except OSError as error:
            raise unwritable(self._path, error) from error
        self._synced_s = time.monotonic()


def _hash(text: str) -> np.uint64:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8)
    hashed: np.uint64 = np.frombuffer(digest.digest(), "<u8")[0]
    return hashed


def _checksums(entries: Entries) -> npt.NDArray[np.uint32]:
    """Checksums of entries; that of zeros, which a power cut leaves, is not zero."""
    mixed = entries["input"] * np.uint64(0x9E3779B97F4A7C15) + entries["file"]
    mixed = (mixed ^ entries["number"]) * np.uint64(0xC2B2AE3D27D4EB4F) + np.uint64(1 << 32)
    found: npt.NDArray[np.uint32] = (mixed >> np.uint64(32)).astype(np.uint32)
    return found
