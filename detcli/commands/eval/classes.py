"""Which class of the model stands for which category of the data."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from detcli.commands.eval.findings import Findings, Kind
from detcli.commands.eval.labels import Dataset
from detcli.core.errors import UsageError
from detcli.model.contract import UNKNOWN_CLASSES

MAX_NAMES = 5  # names that a message lists

MappedBy = Literal["name", "order", "id"]  # how classes were assigned to categories


class ClassMapping(NamedTuple):
    """The model's classes and the data's categories."""

    mapped_by: MappedBy
    category_of_class: tuple[
        int | None, ...
    ]  # by class id, the index of its category, if it has one

    def classes_of(self, category: int) -> tuple[int, ...]:
        """Ids of the classes of a category; several if the model has a name twice."""
        return tuple(
            class_id for class_id, index in enumerate(self.category_of_class) if index == category
        )

    @property
    def categories(self) -> tuple[int, ...]:
        """Indices of the categories that the model has a class for, ascending."""
        return tuple(sorted({index for index in self.category_of_class if index is not None}))


def map_classes(names: Sequence[str], dataset: Dataset, findings: Findings) -> ClassMapping:
    """Find out which class of a model stands for which category of the data.

    Classes without a category, and categories with boxes but without a class, become findings.

    Args:
        names: The names of the model's classes, by class id.
        dataset: The data, with its categories.
        findings: Collects what is odd about the data.

    Raises:
        UsageError: No class stands for any category.
    """
    category_names = [category.name for category in dataset.categories]
    mapping = _assign_classes(names, category_names, dataset)
    if not mapping.categories:
        raise UsageError(
            "the model's classes and the data's categories have no name in common: "
            f"{_first_names(names)}; {_first_names(category_names)}",
            "give the model's classes the names of the categories: --names FILE",
        )

    # A mapping by id belongs to a model with an unknown number of classes, a thousand of which are
    # assumed. Most of them do not exist, so it is not worth saying that they have no category.
    if mapping.mapped_by != "id":
        for name, category in zip(names, mapping.category_of_class, strict=True):
            if category is None:
                findings.add(Kind.NO_CATEGORY, name)

    box_counts: Counter[int] = Counter()  # by index of the category
    for sample in dataset.samples:
        box_counts.update(sample.objects["category"].tolist())
    mapped_categories = set(mapping.categories)
    for category, box_count in sorted(box_counts.items()):
        if category not in mapped_categories:
            findings.add(Kind.NO_CLASS, f"{category_names[category]} ({box_count} boxes)")
    return mapping


def _assign_classes(
    names: Sequence[str], category_names: Sequence[str], dataset: Dataset
) -> ClassMapping:
    """Assign the classes of a model to the categories of the data.

    This is done by name where both have names, and in their order otherwise. It is done by id for a
    model whose number of classes is unknown, on data in COCO's form.

    Args:
        names: The names of the model's classes, by class id.
        category_names: The names of the data's categories.
        dataset: The data.
    """
    # A model without names calls its classes class_0, class_1 and so on.
    is_nameless = all(name == f"class_{class_id}" for class_id, name in enumerate(names))
    # A graph that selects boxes itself may not even show how many classes it has: UNKNOWN_CLASSES
    # are assumed. Its class ids are then taken for the ids of COCO's categories.
    has_unknown_classes = is_nameless and len(names) == UNKNOWN_CLASSES
    if has_unknown_classes and dataset.form == "coco":
        index_by_id = {category.id: index for index, category in enumerate(dataset.categories)}
        mapped_by_id = tuple(index_by_id.get(class_id) for class_id in range(len(names)))
        return ClassMapping("id", mapped_by_id)

    if is_nameless or not dataset.named:
        # The first class stands for the first category, and so on.
        mapped_in_order: list[int | None] = []
        for class_id in range(len(names)):
            if class_id < len(category_names):
                mapped_in_order.append(class_id)
            else:
                mapped_in_order.append(None)
        return ClassMapping("order", tuple(mapped_in_order))

    return ClassMapping("name", _match_names(names, category_names))


def _match_names(names: Sequence[str], category_names: Sequence[str]) -> tuple[int | None, ...]:
    """Find the category of each class by its name, regardless of case.

    Where several classes have the same name, the first gets the first category of that name, the
    second gets the second one, and so on. If there are fewer categories of that name than classes,
    each remaining class gets the first one.

    Returns:
        The index of the category of each class; None for a class without one. For the names "Car",
        "dog" and "car" and the categories "car", "bus" and "car" this is (0, None, 2).
    """
    categories_by_name: dict[str, list[int]] = {}
    for category, category_name in enumerate(category_names):
        categories_by_name.setdefault(_folded(category_name), []).append(category)

    category_of_class: list[int | None] = []
    class_counts: Counter[str] = Counter()  # how many classes with a name came before
    for name in names:
        folded_name = _folded(name)
        categories = categories_by_name.get(folded_name, [])
        position = class_counts[folded_name]
        if position < len(categories):
            category_of_class.append(categories[position])
        elif categories:
            category_of_class.append(categories[0])
        else:
            category_of_class.append(None)
        class_counts[folded_name] += 1
    return tuple(category_of_class)


def _folded(name: str) -> str:
    """A name as it is compared: without spaces around it, and regardless of case."""
    return name.strip().casefold()


def _first_names(names: Sequence[str]) -> str:
    """List the first names for a message, with "..." if there are more."""
    text = ", ".join(names[:MAX_NAMES])
    if len(names) > MAX_NAMES:
        text += ", ..."
    return text
