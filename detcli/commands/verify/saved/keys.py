"""Which names of two runs mean the same input, though their folders may differ."""

import re
import unicodedata
from array import array
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt

from detcli.record import RecordJson

DEPTHS = 8
"""Folders of a name that are looked at, with the name itself; deeper ones tell nothing apart."""

Keys = npt.NDArray[np.int64]


def _parts(source: str) -> tuple[str, ...]:
    """Folders and name, by either system's separators; macOS decomposes letters."""
    return tuple(filter(None, re.split(r"[\\/]+", unicodedata.normalize("NFC", source))))


@dataclass(frozen=True, slots=True)
class Keying:
    """How a name becomes a key: its last parts, or all but the first.

    Attributes:
        last: How many of the last parts count; None for all.
        skipped: How many of the first parts, on the left and on the right, do not.
    """

    last: int | None = None
    skipped: tuple[int, int] = (0, 0)

    def key(self, side: int, fields: RecordJson) -> int:
        """The key of a record of the left side, 0, or of the right one, 1."""
        parts = _parts(fields["source"])
        if self.last is not None:
            parts = parts[-self.last :]
        elif self.skipped != (0, 0):
            parts = parts[self.skipped[side] :][-DEPTHS:]
        return _hash(parts, fields.get("frame"))


def _hash(parts: tuple[str, ...], frame: int | None) -> int:
    return hash((parts, frame))


class InputNames:
    """The names of a run: hashes of their last parts, 80 bytes for each."""

    def __init__(self) -> None:
        self._hashes = [array("q") for _ in range(DEPTHS + 1)]  # of 1 part, 2, ..., and all
        self._lengths = array("q")
        self._common: tuple[str, ...] | None = None  # folders of all of them

    def add(self, fields: RecordJson) -> None:
        """Add the name of a record."""
        parts, frame = _parts(fields["source"]), fields.get("frame")
        for depth, hashes in enumerate(self._hashes[:-1], start=1):
            hashes.append(_hash(parts[-depth:], frame))
        self._hashes[-1].append(_hash(parts, frame))
        self._lengths.append(len(parts))
        folders = parts[:-1]
        if self._common is None:
            self._common = folders
        elif self._common != folders[: len(self._common)]:
            pairs = zip(self._common, folders, strict=False)
            same = next((n for n, (a, b) in enumerate(pairs) if a != b), None)
            self._common = folders[: min(len(self._common), len(folders)) if same is None else same]

    @property
    def common(self) -> int:
        """How many folders all names begin with."""
        return len(self._common or ())

    def keys(self, keying: Keying, side: int) -> Keys:
        """The keys of all names, sorted, each once."""
        if keying.skipped == (0, 0):
            return np.unique(self._array((keying.last or 0) - 1))
        rest = np.minimum(np.asarray(self._lengths) - keying.skipped[side], DEPTHS)
        keys = self._array(-1).copy()
        for depth in range(1, DEPTHS + 1):
            chosen = rest == depth
            keys[chosen] = self._array(depth - 1)[chosen]
        return np.unique(keys)

    def least_depth(self) -> int:
        """How many last parts tell all names apart."""
        whole = len(np.unique(self._array(-1)))
        return next(
            depth
            for depth in count(1)
            if depth == DEPTHS or len(np.unique(self._array(depth - 1))) == whole
        )

    def _array(self, depth: int) -> Keys:
        return np.asarray(self._hashes[depth], np.int64)


def choose_keying(left: InputNames, right: InputNames) -> Keying:
    """The way of comparing names by which most are the same.

    That is by whole names; by their last parts, as many as tell the names of each run apart; or
    without the folders that all names of a run begin with.
    """
    deepest = max(left.least_depth(), right.least_depth())
    ways = (Keying(), Keying(last=deepest), Keying(skipped=(left.common, right.common)))
    return max(ways, key=lambda way: len(np.intersect1d(left.keys(way, 0), right.keys(way, 1))))
