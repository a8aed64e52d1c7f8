"""What is to be done, the right answer, and whether another one agrees with it.

Only detcli says what happens among equals. So its own answer has to be right in every row, and
others in their values, and in everything else where a value occurs once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

Answer = Sequence[npt.NDArray[Any]]
"""What comes out, best first: what it is sorted by, then what belongs to it, row by row."""

Do = Callable[[], Answer]
"""Does the whole work and returns when the answer is on the host."""

CLASSES = 80
CONFIDENCE = 0.25
OBJECTS, NEIGHBOURS = 6, 4


class MissingError(Exception):
    """A way cannot be gone here; the message says why."""


class DisagreementError(Exception):
    """An answer is not the right one; the message says in what."""


@dataclass(frozen=True, slots=True)
class Task:
    """Something to be done with an array of random numbers.

    Attributes:
        name: "top_k" or "selection".
        values: A row `(N,)`, or a head `(4 + C, N)`.
        k: How many are wanted.
    """

    name: str
    values: Floats
    k: int

    @property
    def n(self) -> int:
        """The length of the row, or the number of anchors."""
        return int(self.values.shape[-1])


def top_k_task(n: int, k: int) -> Task:
    """The k best of a row of uniform noise."""
    return Task("top_k", np.random.default_rng(0).random(n, np.float32), k)


def selection_task(n: int, k: int) -> Task:
    """Detections of a head like a detector's: low scores everywhere, high ones at few places."""
    generator = np.random.default_rng(0)
    head = generator.random((4 + CLASSES, n), np.float32)
    scores = head[4:]
    np.power(scores, 24, out=scores)
    scores *= np.float32(0.2)
    width = min(NEIGHBOURS, n)
    for _ in range(OBJECTS):
        place = generator.integers(0, n - width + 1)
        scores[generator.integers(CLASSES), place : place + width] = generator.uniform(
            0.3, 0.95, width
        )
    return Task("selection", head, k)


def compare(answer: Answer, expected: Answer, *, exactly: bool) -> None:
    """Hold an answer against the right one.

    Args:
        answer: Values, then what belongs to them.
        expected: The same, of a stable sort.
        exactly: Equals have to be in the right order too.

    Raises:
        DisagreementError: It is another one.
    """
    values, wanted = answer[0], expected[0]
    if not np.array_equal(values, wanted):
        raise DisagreementError("its values are not those of a stable sort")
    if not len(wanted):
        return
    # In a sorted row a value occurs once where it differs from both neighbours; whether the last
    # one does, nobody knows.
    rising = np.diff(wanted) != 0
    certain = np.append(True, rising) & np.append(rising, False)
    rows = np.full(len(wanted), True) if exactly else certain  # noqa: FBT003
    for part, right in zip(answer[1:], expected[1:], strict=True):
        if not np.array_equal(part[rows], right[rows]):
            raise DisagreementError("what belongs to its values is not what a stable sort finds")
