"""A sample of records that has as many of each score as it can: to look at, not to count by."""

import hashlib
import heapq
from collections import defaultdict

from detcli.core import frozen
from detcli.data.record import RecordJson, name_of

ERRORS = -2  # the stratum of records with an error
EMPTY = -1  # the stratum of records without detections
SCORE_STRATA = 10  # number of strata for the others: best scores below 0.1, below 0.2 and so on


@frozen
class SampledRecord:
    """A record that may be in the sample, in the order of `draw`, highest first."""

    draw: int  # the lower, the sooner it is in the sample
    position: int  # among all records
    record: RecordJson

    def __lt__(self, other: "SampledRecord") -> bool:
        return (self.draw, self.position) > (other.draw, other.position)


class StratifiedSample:
    """A sample of `size` records, from records that come one after the other.

    Records are sorted into strata by their best score, with a stratum of those without detections
    and of those with an error. Each stratum has the same share of the sample, or all its records
    if they are fewer. Within a stratum, the hash of its name and of the seed decides whether a
    record is in the sample: it is the same in every order of the records, on every machine.

    Memory holds as many records of each stratum as the sample has at most.
    """

    def __init__(self, size: int, seed: int) -> None:
        """Start with no records.

        Args:
            size: The number of records in the sample.
            seed: A different seed gives a different sample.
        """
        self.record_count = 0  # of all that were added
        self._size = size
        self._seed = seed
        self._strata: defaultdict[int, list[SampledRecord]] = defaultdict(list)

    def add(self, record: RecordJson, best_score: float | None) -> None:
        """Add a record, which may be in the sample.

        Args:
            record: The record.
            best_score: The highest score of its detections; None if it has none.
        """
        candidate = SampledRecord(self._draw(record), self.record_count, record)
        self.record_count += 1
        stratum = self._strata[stratum_of(record, best_score)]
        if len(stratum) < self._size:
            heapq.heappush(stratum, candidate)
        else:  # the highest draw goes
            heapq.heappushpop(stratum, candidate)

    def _draw(self, record: RecordJson) -> int:
        """Return the number that decides whether a record is in the sample."""
        text = f"{self._seed}\0{name_of(record)}\0{record.get('frame', '')}"
        digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
        return int.from_bytes(digest[:8], "big")

    def records(self) -> list[RecordJson]:
        """Return the records of the sample, in the order in which they were added."""
        sampled: list[SampledRecord] = []
        for stratum, share in self._shares().items():
            by_draw = sorted(self._strata[stratum], reverse=True)  # the lowest draw first
            sampled += by_draw[:share]
        sampled.sort(key=lambda candidate: candidate.position)
        return [candidate.record for candidate in sampled]

    def _shares(self) -> dict[int, int]:
        """Compute how many records of each stratum are in the sample.

        Each stratum gets an equal part of what is left; a smaller one gets all that it has. The
        smallest come first, so that what they leave goes to the larger ones.
        """
        sizes = sorted((len(stratum), number) for number, stratum in self._strata.items())
        shares = {}
        remaining = self._size
        for index, (size, number) in enumerate(sizes):
            strata_left = len(sizes) - index
            shares[number] = min(size, remaining // strata_left)
            remaining -= shares[number]
        return shares


def stratum_of(record: RecordJson, best_score: float | None) -> int:
    """Return the stratum of a record: a tenth of the scores, or that of errors or of no detections.

    Args:
        record: The record.
        best_score: The highest score of its detections; None if it has none.

    Examples:
        >>> stratum_of({"detections": []}, 0.37)
        3
    """
    if "error" in record:
        return ERRORS
    if best_score is None:
        return EMPTY
    return min(max(int(best_score * SCORE_STRATA), 0), SCORE_STRATA - 1)
