"""Which category of the data each of the model's classes is."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from detcli.commands.eval.dataset import Dataset
from detcli.commands.eval.findings import NO_CATEGORY, NO_CLASS, Findings
from detcli.errors import UsageError


class MappedBy(StrEnum):
    """How classes were assigned to categories."""

    NAME = "name"
    ORDER = "order"


@dataclass(frozen=True, slots=True)
class ClassMapping:
    """Classes and categories.

    Attributes:
        by: How they were assigned.
        category_of: Index of the category of each class of the model; None where it has none.
    """

    by: MappedBy
    category_of: tuple[int | None, ...]

    def classes_of(self, category: int) -> tuple[int, ...]:
        """Ids of the classes that are a category; several if the model has a name twice."""
        return tuple(
            class_id for class_id, index in enumerate(self.category_of) if index == category
        )

    @property
    def categories(self) -> tuple[int, ...]:
        """Indices of the categories that the model has a class for."""
        return tuple(sorted({index for index in self.category_of if index is not None}))


def map_classes(names: Sequence[str], dataset: Dataset, findings: Findings) -> ClassMapping:
    """Assign classes to categories: by name where both have names, else in their order.

    Args:
        names: Of the model's classes.
        dataset: Has the categories.
        findings: Is told which classes and categories stay alone.

    Raises:
        UsageError: They have not one name in common.
    """
    nameless = all(name == f"class_{index}" for index, name in enumerate(names))
    categories = [category.name for category in dataset.categories]
    if nameless or not dataset.named:
        indices = [index if index < len(categories) else None for index in range(len(names))]
        mapping = ClassMapping(MappedBy.ORDER, tuple(indices))
    else:
        index_of = {_plain(name): index for index, name in reversed(list(enumerate(categories)))}
        mapping = ClassMapping(MappedBy.NAME, tuple(index_of.get(_plain(name)) for name in names))
    if not mapping.categories:
        raise UsageError(
            "the model's classes and the data's categories have not one name in common: "
            f"{_some(names)}; {_some(categories)}",
            "give the model's classes the names of the categories: --names FILE",
        )
    for name, index in zip(names, mapping.category_of, strict=True):
        if index is None:
            findings.add(NO_CATEGORY, name)
    _find_unknown(dataset, frozenset(mapping.categories), findings)
    return mapping


def _find_unknown(dataset: Dataset, known: frozenset[int], findings: Findings) -> None:
    """Tell which categories with objects the model has no class for."""
    boxes: dict[int, int] = {}
    for sample in dataset.samples:
        for index in sample.objects.category.tolist():
            boxes[index] = boxes.get(index, 0) + 1
    for index, count in sorted(boxes.items()):
        if index not in known:
            findings.add(NO_CLASS, f"{dataset.categories[index].name} ({count} boxes)")


def _plain(name: str) -> str:
    return name.strip().casefold()


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
