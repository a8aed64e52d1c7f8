"""The units of a review, with their scores: images, bursts, folders or others."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from detcli.commands.promise.inputs import NAME_ERRORS, InputColumns
from detcli.commands.promise.unit_kind import Grouping, UnitKind
from detcli.core.errors import UsageError
from detcli.data.bursts import NO_BURST

Integers = npt.NDArray[np.int32]
UnitScores = npt.NDArray[np.float64]

NO_UNIT = -1
"""In place of a unit index, for an input that failed."""


@dataclass(frozen=True, eq=False)
class Units:
    """All units that can be put aside: those of inputs without an error.

    Attributes:
        scores: `(U,)`, the best score of the wanted classes in each unit, 0 if it has no box.
        order: `(U,)`, the units in the order of the draw.
        scores_sha256: The hash of all names and scores, in this order, and of what is in the units.
        failed: The names of the inputs that failed, which are always to be looked at.
    """

    scores: UnitScores
    order: Integers
    scores_sha256: str
    failed: list[str]
    _inputs: InputColumns
    _unit_by_input: Integers
    _first_inputs: Integers  # of each unit

    def __len__(self) -> int:
        return len(self.scores)

    def name(self, unit: int) -> str:
        """Return the name of a unit: of its image, of the first image of its burst, or its value.

        Args:
            unit: The index of the unit.
        """
        return _unit_name(self._inputs, int(self._first_inputs[unit]))

    def names(self, units: Iterable[int]) -> list[str]:
        """Return the names of units."""
        return [self.name(unit) for unit in units]

    def in_order(self, *, from_score: float, below_score: float) -> Integers:
        """Return the units with scores in a range, in the order of the draw.

        Args:
            from_score: The lowest score that is in the range.
            below_score: The score that ends the range, and is not in it.
        """
        scores = self.scores[self.order]
        is_in_range = (scores >= from_score) & (scores < below_score)
        return self.order[is_in_range]

    def count_below(self, threshold: float) -> int:
        """Return how many units have a score below a threshold."""
        return int(np.count_nonzero(self.scores < threshold))

    def unit_by_record(self) -> Integers:
        """Return the unit of each record, or `NO_UNIT` for a record of an input that failed."""
        return self._unit_by_input[np.frombuffer(self._inputs.input_by_record, np.int32)]

    def files(self) -> Iterable[tuple[str, int]]:
        """Yield the name of the file of each input, and its unit or `NO_UNIT`."""
        for input_index, unit in enumerate(self._unit_by_input):
            yield self._inputs.file_name(input_index), int(unit)


def make_units(inputs: InputColumns, kind: UnitKind, seed: int) -> Units:
    """Put images and videos that are looked at together into units, and draw the units' order.

    A unit has the best score of its inputs. Inputs that could not be read are in no unit.

    Args:
        inputs: The N images and videos of the records.
        kind: Whether a unit is a single input, a burst, a folder, or all inputs with the same value
            of `meta`.
        seed: Decides the order, with the names of the units.

    Returns:
        U units, numbered from 0.

    Raises:
        UsageError: Units are bursts, and no image has a time.
    """
    unit_by_input, first_inputs = _number_units(inputs, kind)
    is_in_unit = unit_by_input != NO_UNIT  # (N,)
    input_scores = np.frombuffer(inputs.scores)  # (N,)
    scores = np.zeros(len(first_inputs))  # (U,)
    # A unit may occur several times among these, and `at` takes all of its scores into account.
    np.maximum.at(scores, unit_by_input[is_in_unit], input_scores[is_in_unit])

    order = _draw_order(inputs, first_inputs, seed)
    failed_names = [inputs.file_name(int(number)) for number in np.flatnonzero(~is_in_unit)]
    scores_sha256 = _hash_of_scores(
        inputs,
        kind,
        scores=scores[order],
        first_inputs=first_inputs[order],
        failed_names=failed_names,
        unit_by_input=unit_by_input,
    )
    return Units(
        scores=scores,
        order=order,
        scores_sha256=scores_sha256,
        failed=failed_names,
        _inputs=inputs,
        _unit_by_input=unit_by_input,
        _first_inputs=first_inputs,
    )


class _UnitNumbers(NamedTuple):
    """Which of N inputs are in which of U units."""

    unit_by_input: Integers  # (N,), `NO_UNIT` for an input that could not be read
    first_inputs: Integers  # (U,), the index of the first input of each unit


def _number_units(inputs: InputColumns, kind: UnitKind) -> _UnitNumbers:
    """Number the units from 0, and return which unit each input is in.

    Args:
        inputs: The N images and videos of the records, R of which could be read.
        kind: What the inputs of a unit have in common, if a unit may have several.

    Raises:
        UsageError: Units are bursts, and no image has a time.
    """
    is_failed = np.frombuffer(inputs.is_failed, np.bool_)  # (N,)
    readable_inputs = np.flatnonzero(~is_failed).astype(np.int32)  # (R,)
    if kind.grouping is Grouping.IMAGE:  # each readable input is a unit
        unit_indices = np.arange(len(readable_inputs), dtype=np.int32)  # (R,)
        first_inputs = readable_inputs
    else:
        # Group ids may have gaps: of the groups 5, 9 and 5, `np.unique` makes the units 0, 1 and 0,
        # and it says that they occur first at the positions 0 and 1.
        group_numbers = _group_by_input(inputs, kind)[readable_inputs]  # (R,)
        _, first_positions, numbers_without_gaps = np.unique(
            group_numbers, return_index=True, return_inverse=True
        )
        unit_indices = numbers_without_gaps.astype(np.int32)  # (R,)
        first_inputs = readable_inputs[first_positions]  # (U,)

    unit_by_input = np.full(len(inputs), NO_UNIT, np.int32)  # (N,)
    unit_by_input[readable_inputs] = unit_indices
    return _UnitNumbers(unit_by_input, first_inputs)


def _draw_order(inputs: InputColumns, first_inputs: Integers, seed: int) -> Integers:
    """Put U units into a random order, which anybody can repeat who knows the seed and the names.

    A unit is an image, or a group of images.

    Args:
        inputs: Has the names of the units.
        first_inputs: `(U,)`, the index of the first image or video of each unit.
        seed: Decides the order, with the names of the units.

    Returns:
        `(U,)`, the indices of the units, beginning with the unit that is drawn first.
    """
    keys = np.empty(len(first_inputs), np.uint64)
    # `data` gives Python's numbers one by one. That is faster than NumPy's numbers, and takes less
    # memory than `tolist`.
    for unit, first_input in enumerate(first_inputs.data):
        keys[unit] = draw_key(seed, _unit_name(inputs, first_input))
    return np.argsort(keys, kind="stable").astype(np.int32)


def draw_key(seed: int, name: str) -> int:
    """Return the number by which a unit is drawn: the lower, the earlier.

    It is the first 8 bytes of the SHA-256 of the seed, a NUL and the name of the unit, so that
    everybody can check the draw.
    """
    digest = hashlib.sha256(f"{seed}\0{name}".encode(errors=NAME_ERRORS)).digest()
    return int.from_bytes(digest[:8], "big")


def _unit_name(inputs: InputColumns, first_input: int) -> str:
    """Return the name of the unit whose first input has this index."""
    if inputs.has_groups:
        return inputs.group_names[inputs.group_by_input[first_input]]
    return inputs.name(first_input)


def _hash_of_scores(
    inputs: InputColumns,
    kind: UnitKind,
    *,
    scores: UnitScores,
    first_inputs: Integers,
    failed_names: list[str],
    unit_by_input: Integers,
) -> str:
    """Hash all that a promise depends on in the records, so that a change is noticed.

    It is the SHA-256 of these lines, where NUL is one byte. A unit is an image, or a group of
    images with one score:

        a.jpg NUL 0.93      the name and the score of each unit, in the order of the draw
        b.jpg NUL failed    the name of each input that failed, sorted
        c.jpg NUL a.jpg     if units are groups: each image and the name of its unit, sorted

    Args:
        inputs: Has the names of N images and videos.
        kind: What a unit is.
        scores: `(U,)`, the score of each unit, in the order of the draw.
        first_inputs: `(U,)`, the index of the first input of each unit, in the same order.
        failed_names: The names of the inputs that failed.
        unit_by_input: `(N,)`, the index of the unit of each input, or `NO_UNIT`.
    """
    digest = hashlib.sha256()
    # `data` gives Python's numbers one by one. That is faster than NumPy's numbers, and takes less
    # memory than `tolist`.
    for score, first_input in zip(scores.data, first_inputs.data, strict=True):
        name = _unit_name(inputs, first_input)
        line = f"{name}\0{score!r}\n"
        digest.update(line.encode(errors=NAME_ERRORS))

    for name in sorted(failed_names):
        digest.update(f"{name}\0failed\n".encode(errors=NAME_ERRORS))

    if kind.grouping is not Grouping.IMAGE:
        for line in _lines_of_members(inputs, unit_by_input):
            digest.update(line.encode(errors=NAME_ERRORS))
    return digest.hexdigest()


def _lines_of_members(inputs: InputColumns, unit_by_input: Integers) -> list[str]:
    """Return a line for each image that is in a unit, sorted: its name, a NUL and the unit's name.

    Args:
        inputs: Has the names of N images and videos.
        unit_by_input: `(N,)`, the index of the unit of each input, or `NO_UNIT`.
    """
    # A unit has the name of its first input, or of the group that this input is in.
    first_input_of_unit: dict[int, int] = {}
    lines = []
    for input_index, unit in enumerate(unit_by_input.tolist()):
        if unit == NO_UNIT:
            continue
        if unit not in first_input_of_unit:
            first_input_of_unit[unit] = input_index
        unit_name = _unit_name(inputs, first_input_of_unit[unit])
        lines.append(f"{inputs.name(input_index)}\0{unit_name}\n")
    return sorted(lines)


def _group_by_input(inputs: InputColumns, kind: UnitKind) -> npt.NDArray[np.int64]:
    """Return the group id of each input. Reviewers look at the inputs of a group together.

    Args:
        inputs: The N images and videos of all records.
        kind: What the inputs of a group have in common: a burst, a folder, or a value of `meta`.

    Returns:
        `(N,)`, in which ids may have gaps. An image that is in no burst is alone in a group.

    Raises:
        UsageError: Groups are bursts, and no image has a time.
    """
    if kind.grouping is not Grouping.BURST:
        return np.frombuffer(inputs.group_by_input, np.int64)

    burst_by_record = inputs.bursts.find(kind.gap_s).number_by_record
    if len(inputs) and np.all(burst_by_record == NO_BURST):
        raise UsageError(
            "no record says when its image was taken, so there are no bursts",
            "use --unit image, or predict again from files that have EXIF",
        )
    group_by_input = np.full(len(inputs), NO_BURST)
    input_by_record = np.frombuffer(inputs.input_by_record, np.int32)
    group_by_input[input_by_record] = burst_by_record

    # Bursts are numbered from 0, and there are at most N. So N plus the index of an input is
    # neither the id of a burst nor that of any other group.
    is_alone = group_by_input == NO_BURST
    group_by_input[is_alone] = len(inputs) + np.flatnonzero(is_alone)
    return group_by_input
