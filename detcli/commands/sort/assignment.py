"""Which folder each image is sorted into, from the records of all images."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from detcli.commands.sort.rules import SortRules
from detcli.data.record import RecordJson, name_of

if TYPE_CHECKING:
    from detcli.core import Fields

BurstNumber = tuple[int, int]
"""The index of a file of records, and the id of a burst in it."""


class Assignment:
    """The folder of each image and video, by the best rule that any of its records meets.

    An image may have records in several files, and a video has one for each frame. The images of a
    burst, which were taken one after another, go to the folder of the best of them.
    """

    def __init__(self, rules: SortRules) -> None:
        self._rules = rules
        self._ranks: dict[str, int] = {}  # by the name of the image, in the order of records
        self._bursts: dict[str, BurstNumber] = {}  # by the name of the image
        self._burst_ranks: dict[BurstNumber, int] = {}  # the best rank in a burst

    def add(self, record: RecordJson, file_number: int) -> None:
        """Record the rank of a record for its image, and for the burst that the image is in.

        The rank of a record is the index of the first rule that it meets: 0 is the best. A record
        with an error ranks after all rules, and one that meets no rule after that. An image has the
        lowest rank of its records. A burst has the lowest rank of all its records except those with
        an error.

        Args:
            record: The record; the classes and scores of its detections were checked.
            file_number: The index of its file, as each file numbers its bursts from 0.

        Raises:
            ValueError: The record's burst is not a number.
        """
        name = name_of(record)
        is_failed = "error" in record
        if is_failed:
            rank = self._rules.failed_rank
        else:
            rank = self._rules.rank(record.get("detections", []))
        lowest_rank = self._ranks.get(name, rank)
        self._ranks[name] = min(rank, lowest_rank)
        if is_failed:
            return

        burst_index = _burst_index(record)
        if burst_index is not None:
            burst = (file_number, burst_index)
            self._bursts[name] = burst
            lowest_rank_of_burst = self._burst_ranks.get(burst, rank)
            self._burst_ranks[burst] = min(rank, lowest_rank_of_burst)

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each image or video and its folder, in the order of the records."""
        for name, rank in self._ranks.items():
            burst = self._bursts.get(name)
            best_rank = rank
            is_failed = rank == self._rules.failed_rank
            if burst is not None and not is_failed:
                best_rank = min(rank, self._burst_ranks[burst])
            yield name, self._rules.folders[best_rank]


def _burst_index(record: RecordJson) -> int | None:
    """Return the id of a record's burst in its file; None if it is in none.

    Raises:
        ValueError: It is not a number.
    """
    fields = cast("Fields", record)
    if "burst" not in fields:
        return None
    burst = fields["burst"]
    if type(burst) is not int:
        raise ValueError(f"burst is {str(burst)[:40]!r}, not a whole number")
    return burst
