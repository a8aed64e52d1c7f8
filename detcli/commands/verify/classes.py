"""The classes of two models: which class of the second is which of the first."""

import warnings
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from detcli.core.errors import DetcliWarning
from detcli.core.text import escape_unprintable
from detcli.data.detections import Detections

MAX_EXAMPLES = 5  # names that a warning lists


@dataclass(frozen=True, eq=False, slots=True)
class ClassPairs:
    """The classes of a second model as those of a first one.

    They are paired by name, regardless of case. A class whose name the first model does not have
    is that of its own id, if that one has no counterpart by name: it was renamed.
    Any other class of the second model gets an id that the first one does not have.
    """

    ids: npt.NDArray[np.int64]  # `(C,)` by class id of the second model: id among `names`
    names: tuple[str, ...]  # those of the first model, then those that only the second has
    moved: tuple[str, ...]  # names that have another id in the second model
    renamed: tuple[int, ...]  # ids that are paired although their names differ
    added: tuple[str, ...]  # names that only the second model has

    def as_first(self, detections: Detections) -> Detections:
        """Detections of the second model with the ids of the first."""
        names = list(self.names)
        for index in self.renamed:  # each side keeps its own word
            names[index] = detections.names[index]
        class_id = self.ids[detections.class_id]
        return replace(detections, class_id=class_id, names=tuple(names))


def pair_classes(first: Sequence[str], second: Sequence[str]) -> ClassPairs:
    """Pair the classes of two models; the second class of a name is that of the second such.

    Examples:
        >>> pair_classes(("cat", "dog"), ("dog", "bird", "cat")).ids.tolist()
        [1, 2, 0]
        >>> pair_classes(("cat", "dog"), ("cat", "hound")).ids.tolist()
        [0, 1]
    """
    unpaired: defaultdict[str, deque[int]] = defaultdict(deque)
    for index, name in enumerate(first):
        unpaired[_plain(name)].append(index)
    ids: dict[int, int] = {}
    for index, name in enumerate(second):
        if unpaired[_plain(name)]:
            ids[index] = unpaired[_plain(name)].popleft()
    free = {index for queue in unpaired.values() for index in queue}
    names = list(first)
    renamed = []
    added = []
    for index, name in enumerate(second):
        if index in ids:
            continue
        if index in free:
            ids[index] = index
            renamed.append(index)
        else:
            ids[index] = len(names)
            names.append(name)
            added.append(name)
    moved = [second[index] for index in ids if ids[index] != index and ids[index] < len(first)]
    every_id = np.array([ids[index] for index in range(len(second))], np.int64)
    return ClassPairs(every_id, tuple(names), tuple(moved), tuple(renamed), tuple(added))


def _plain(name: str) -> str:
    return name.strip().casefold()


def warn_about(pairs: ClassPairs, first: Sequence[str], second: Sequence[str]) -> None:
    """Say which classes have other ids or other names, or are in one model only."""
    for sentence in _differences(pairs, first, second):
        warnings.warn(sentence, DetcliWarning, stacklevel=3)


def _differences(pairs: ClassPairs, first: Sequence[str], second: Sequence[str]) -> Iterator[str]:
    if pairs.moved:
        name = pairs.moved[0]
        second_id = second.index(name)
        first_id = int(pairs.ids[second_id])
        yield (
            f"classes are compared by name, and {len(pairs.moved)} have different ids: "
            f"'{escape_unprintable(name)}' is {first_id} and {second_id}"
        )
    if pairs.renamed:
        index = pairs.renamed[0]
        first_name = escape_unprintable(first[index])
        second_name = escape_unprintable(second[index])
        yield (
            f"classes are compared by id, and {len(pairs.renamed)} have different names: "
            f"{index} is '{first_name}' and '{second_name}'"
        )
    if pairs.added:
        yield f"{_listed(pairs.added)} only in the second model"
    paired = Counter(pairs.ids.tolist())
    lacking = [name for index, name in enumerate(first) if not paired[index]]
    if lacking:
        yield f"{_listed(lacking)} only in the first model"


def _listed(names: Sequence[str]) -> str:
    shown = [escape_unprintable(name) for name in names[:MAX_EXAMPLES]]
    if len(names) > MAX_EXAMPLES:
        shown.append("...")
    verb = "is" if len(names) == 1 else "are"
    classes = f"{len(names)} classes" if len(names) > 1 else "1 class"
    return f"{classes} ({', '.join(shown)}) {verb}"
