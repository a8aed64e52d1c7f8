"""Class totals: how the boxes of two sides compare in each class, as a table of the page."""

from collections import defaultdict
from dataclasses import dataclass

from detcli.compare.detections import Comparison, Match
from detcli.data.detections import Detections
from detcli.page.page import PageTable


@dataclass(slots=True)
class _ClassTotal:
    """The boxes of a class on both sides."""

    alike: int = 0  # pairs within the tolerance
    moved: int = 0  # pairs beyond it
    left_only: int = 0
    right_only: int = 0
    left_score: float = 0.0  # sums over pairs
    right_score: float = 0.0
    distance: float = 0.0  # sum over pairs of the largest move of an edge, in pixels


class ClassTotals:
    """Adds up how many boxes of each class two sides share, and how far these differ."""

    def __init__(self) -> None:
        """Create empty totals."""
        self._totals: defaultdict[str, _ClassTotal] = defaultdict(_ClassTotal)

    def add(self, comparison: Comparison) -> None:
        """Add the boxes of an image."""
        for index in comparison.missing:
            self._totals[_class_name(comparison.left, index)].left_only += 1
        for index in comparison.extra:
            self._totals[_class_name(comparison.right, index)].right_only += 1
        for match in comparison.disagreeing_pairs:
            self._add_pair(comparison, match).moved += 1
        for match in comparison.agreeing_pairs:
            self._add_pair(comparison, match).alike += 1

    def _add_pair(self, comparison: Comparison, match: Match) -> _ClassTotal:
        """Add the scores and the distance of a pair to the total of its class, and return that."""
        left = comparison.left
        right = comparison.right
        total = self._totals[_class_name(left, match.left)]
        total.left_score += float(left.score[match.left])
        total.right_score += float(right.score[match.right])
        moves = abs(left.xyxy[match.left] - right.xyxy[match.right])
        total.distance += float(moves.max())
        return total

    def tables(self, left_name: str, right_name: str) -> list[PageTable]:
        """Make the table of the page, most differences first; none if there are no boxes.

        Args:
            left_name: The name of the first side on the page.
            right_name: The name of the second.
        """
        if not self._totals:
            return []
        columns = [
            "Class",
            "on both",
            "moved",
            f"only {left_name}",
            f"only {right_name}",
            f"mean score, {left_name}",
            f"mean score, {right_name}",
            "pixels apart, mean",
        ]
        rows = []
        for class_name, total in sorted(self._totals.items(), key=_difference_rank):
            pair_count = total.alike + total.moved
            means: list[float | None] = [None, None, None]
            if pair_count:
                sums = (total.left_score, total.right_score, total.distance)
                means = [round(value / pair_count, 4) for value in sums]
            counts = [total.alike, total.moved, total.left_only, total.right_only]
            rows.append([class_name, *counts, *means])
        return [PageTable("Classes of pairs and of single boxes", columns, rows)]


def _class_name(detections: Detections, index: int) -> str:
    """Return the name of a detection's class."""
    return detections.names[int(detections.class_id[index])]


def _difference_rank(item: tuple[str, _ClassTotal]) -> tuple[int, str]:
    """A key that is lowest for the class with most differences."""
    class_name, total = item
    return -(total.moved + total.left_only + total.right_only), class_name
