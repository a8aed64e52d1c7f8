"""The classes of two models: which class of the second is which of the first."""

import warnings
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from detcli.core import frozen
from detcli.core.errors import DetcliWarning
from detcli.core.text import escape_unprintable
from detcli.data.detections import Detections

MAX_EXAMPLES = 5  # names that a warning lists


@frozen(eq=False)
class ClassPairs:
    """Which class of a second model stands for which class of a first model.

    Two classes are paired if they have the same name, regardless of case. A class of the second
    model that has no such partner is paired with the class of the same id, if that one has no
    partner either: the class was renamed. Any other class of the second model gets a new id, after
    those of the first model.
    """

    ids: npt.NDArray[np.int64]  # `(C,)` by class id of the second model: its index in `names`
    names: tuple[str, ...]  # those of the first model, then those that only the second has
    moved: tuple[str, ...]  # names that have a different id in the second model
    renamed: tuple[int, ...]  # ids that are paired although their names differ
    added: tuple[str, ...]  # names that only the second model has

    def with_first_ids(self, detections: Detections) -> Detections:
        """Translate detections of the second model to the class ids of the first model.

        The names of renamed classes stay those of the second model, so that a report shows each
        detection under the name that its own model gave it.
        """
        names = list(self.names)
        for class_id in self.renamed:
            names[class_id] = detections.names[class_id]
        class_ids = self.ids[detections.class_id]
        return replace(detections, class_id=class_ids, names=tuple(names))


def pair_classes(first: Sequence[str], second: Sequence[str]) -> ClassPairs:
    """Find for each class of a second model the same class of a first model.

    Classes are paired by name, regardless of case. Classes of the second model without a partner
    are then paired by id, if the first model's class with this id has no partner either: they were
    renamed. The rest are classes that only the second model has, and get new ids after those of the
    first model.

    Args:
        first: Class names of the first model, by class id.
        second: Class names of the second model, by class id.

    Examples:
        >>> pair_classes(("cat", "dog"), ("dog", "bird", "cat")).ids.tolist()
        [1, 2, 0]
        >>> pair_classes(("cat", "dog"), ("cat", "hound")).ids.tolist()
        [0, 1]
    """
    first_id_by_second_id = _pair_by_name(first, second)
    moved = []
    for second_id, first_id in first_id_by_second_id.items():
        if first_id != second_id:
            moved.append(second[second_id])

    unpaired_first_ids = set(range(len(first))) - set(first_id_by_second_id.values())
    renamed = []
    added: list[str] = []
    for second_id, name in enumerate(second):
        if second_id in first_id_by_second_id:
            continue
        if second_id in unpaired_first_ids:  # the first model has a different name for this id
            first_id_by_second_id[second_id] = second_id
            renamed.append(second_id)
        else:
            first_id_by_second_id[second_id] = len(first) + len(added)
            added.append(name)

    ids = [first_id_by_second_id[second_id] for second_id in range(len(second))]
    return ClassPairs(
        ids=np.array(ids, np.int64),
        names=(*first, *added),
        moved=tuple(moved),
        renamed=tuple(renamed),
        added=tuple(added),
    )


def _pair_by_name(first: Sequence[str], second: Sequence[str]) -> dict[int, int]:
    """Pair the classes of two models that have the same name, regardless of case.

    If several classes share a name, they are paired in the order of their ids: the first of that
    name with the first, the second with the second.

    Returns:
        The first model's class id by the second model's, for classes with a partner only.
    """
    unpaired_ids: defaultdict[str, deque[int]] = defaultdict(deque)
    for first_id, name in enumerate(first):
        unpaired_ids[_comparable(name)].append(first_id)

    first_id_by_second_id: dict[int, int] = {}
    for second_id, name in enumerate(second):
        first_ids = unpaired_ids[_comparable(name)]
        if first_ids:
            first_id_by_second_id[second_id] = first_ids.popleft()
    return first_id_by_second_id


def _comparable(name: str) -> str:
    """Normalise a class name for comparison: without its case and the spaces around it."""
    return name.strip().casefold()


def warn_about_differences(pairs: ClassPairs, first: Sequence[str], second: Sequence[str]) -> None:
    """Warn about classes that have different ids or names, or that one model does not have.

    `first` and `second` are the class names of the two models, by class id.
    """
    for sentence in _describe_differences(pairs, first, second):
        warnings.warn(sentence, DetcliWarning, stacklevel=3)


def _describe_differences(
    pairs: ClassPairs, first: Sequence[str], second: Sequence[str]
) -> Iterator[str]:
    """Yield a sentence for each way in which the classes of two models differ.

    Each sentence counts the classes and shows examples. `first` and `second` are the class names
    of the two models, by class id.
    """
    if pairs.moved:
        yield _describe_moved(pairs, second)
    if pairs.renamed:
        yield _describe_renamed(pairs, first, second)
    if pairs.added:
        yield f"{_listed(pairs.added)} only in the second model"
    unpaired_names = _unpaired_names(pairs, first)
    if unpaired_names:
        yield f"{_listed(unpaired_names)} only in the first model"


def _describe_moved(pairs: ClassPairs, second: Sequence[str]) -> str:
    """Describe how many classes have a different id in the second model, with an example."""
    name = pairs.moved[0]
    second_id = second.index(name)
    first_id = int(pairs.ids[second_id])
    return (
        f"classes are compared by name, and {len(pairs.moved)} have different ids: "
        f"'{escape_unprintable(name)}' is {first_id} and {second_id}"
    )


def _describe_renamed(pairs: ClassPairs, first: Sequence[str], second: Sequence[str]) -> str:
    """Describe how many classes have a different name in the second model, with an example."""
    class_id = pairs.renamed[0]
    first_name = escape_unprintable(first[class_id])
    second_name = escape_unprintable(second[class_id])
    return (
        f"classes are compared by id, and {len(pairs.renamed)} have different names: "
        f"{class_id} is '{first_name}' and '{second_name}'"
    )


def _unpaired_names(pairs: ClassPairs, first: Sequence[str]) -> list[str]:
    """List the names of the first model's classes that no class of the second is paired with."""
    paired_ids = set(pairs.ids.tolist())
    return [name for class_id, name in enumerate(first) if class_id not in paired_ids]


def _listed(names: Sequence[str]) -> str:
    """Format the start of a sentence about classes, as in "2 classes (cat, dog) are"."""
    examples = [escape_unprintable(name) for name in names[:MAX_EXAMPLES]]
    if len(names) > MAX_EXAMPLES:
        examples.append("...")
    listing = ", ".join(examples)
    if len(names) == 1:
        return f"1 class ({listing}) is"
    return f"{len(names)} classes ({listing}) are"
