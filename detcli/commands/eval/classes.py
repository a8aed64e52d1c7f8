"""Which class of the model stands for which category of the data."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from detcli.commands.eval.findings import Findings, Kind
from detcli.commands.eval.labels import Dataset
from detcli.core.errors import UsageError
from detcli.model.contract import UNKNOWN_CLASSES

MappedBy = Literal["name", "order", "id"]  # how classes were assigned to categories


class ClassMapping(NamedTuple):
    """The model's classes and the data's categories."""

    by: MappedBy
    category_of: tuple[int | None, ...]  # index of each class's category; None for classes without

    def classes_of(self, category: int) -> tuple[int, ...]:
        """Ids of the classes of a category; several if the model has a name twice."""
        return tuple(
            class_id for class_id, index in enumerate(self.category_of) if index == category
        )

    @property
    def categories(self) -> tuple[int, ...]:
        """Indices of the categories that the model has a class for."""
        return tuple(sorted({index for index in self.category_of if index is not None}))


def map_classes(names: Sequence[str], dataset: Dataset, findings: Findings) -> ClassMapping:
    """Find out which class of a model stands for which category of the data.

    Args:
        names: The names of the model's classes, by class id.
        dataset: The data, with its categories.
        findings: Receives classes and categories without a counterpart.

    Raises:
        UsageError: No class stands for any category.
    """
    categories = [category.name for category in dataset.categories]
    mapping = _assign_classes(names, categories, dataset)
    if not mapping.categories:
        raise UsageError(
            "the model's classes and the data's categories have no name in common: "
            f"{_first_names(names)}; {_first_names(categories)}",
            "give the model's classes the names of the categories: --names FILE",
        )

    for name, index in zip(names, mapping.category_of, strict=True):
        # Class ids that are taken for ids of categories have no names; most stand for nothing.
        if index is None and mapping.by != "id":
            findings.add(Kind.NO_CATEGORY, name)
    box_counts: Counter[int] = Counter()  # by index of the category
    for sample in dataset.samples:
        box_counts.update(sample.objects["category"].tolist())
    for index, count in sorted(box_counts.items()):
        if index not in mapping.categories:
            findings.add(Kind.NO_CLASS, f"{dataset.categories[index].name} ({count} boxes)")
    return mapping


def _assign_classes(
    names: Sequence[str], categories: Sequence[str], dataset: Dataset
) -> ClassMapping:
    """Assign the classes of a model to the categories of the data.

    This is done by name where both have names, else in their order; or by id, if not even the
    number of the model's classes is known.

    Args:
        names: The names of the model's classes, by class id.
        categories: The names of the data's categories.
        dataset: The data.
    """
    class_ids = range(len(names))
    # A model without names calls its classes class_0, class_1 and so on.
    is_nameless = all(name == f"class_{class_id}" for class_id, name in enumerate(names))
    # A graph that selects boxes itself may not even show how many classes it has. Its class ids are
    # then taken for the ids of COCO's categories.
    has_unknown_classes = is_nameless and len(names) == UNKNOWN_CLASSES
    if has_unknown_classes and dataset.form == "coco":
        index_by_id = {category.id: index for index, category in enumerate(dataset.categories)}
        return ClassMapping("id", tuple(index_by_id.get(class_id) for class_id in class_ids))
    if is_nameless or not dataset.named:
        indices: list[int | None] = [None] * len(names)
        for class_id in class_ids[: len(categories)]:
            indices[class_id] = class_id
        return ClassMapping("order", tuple(indices))
    return ClassMapping("name", _match_names(names, categories))


def _match_names(names: Sequence[str], categories: Sequence[str]) -> tuple[int | None, ...]:
    """Find the category of each class by its name, regardless of case.

    Of several classes of one name, the second has the second category of that name if there are
    several, too. Otherwise all of them have the only one.

    Returns:
        The index of the category of each class; None for a class without one. For the names "Car",
        "dog" and "car" and the categories "car", "bus" and "car" this is (0, None, 2).
    """
    indices_by_name: dict[str, list[int]] = {}
    for index, category in enumerate(categories):
        indices_by_name.setdefault(_folded(category), []).append(index)

    mapped_indices: list[int | None] = []
    class_counts: Counter[str] = Counter()  # how many classes so far have a name
    for name in names:
        folded = _folded(name)
        indices = indices_by_name.get(folded, [])
        if class_counts[folded] < len(indices):
            mapped_indices.append(indices[class_counts[folded]])
        elif indices:
            mapped_indices.append(indices[0])
        else:
            mapped_indices.append(None)
        class_counts[folded] += 1
    return tuple(mapped_indices)


def _folded(name: str) -> str:
    """A name as it is compared: without spaces around it, and regardless of case."""
    return name.strip().casefold()


def _first_names(names: Sequence[str]) -> str:
    """The first five names."""
    text = ", ".join(names[:5])
    if len(names) > 5:
        text += ", ..."
    return text
