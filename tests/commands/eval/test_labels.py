"""Findings, and the model's classes as categories of the data."""

import json
from importlib import resources

import pytest
from comparisons import labelled

from detcli.commands.eval.labels import (
    Category,
    Dataset,
    Findings,
    Kind,
    Level,
    Sample,
    map_classes,
)
from detcli.core.errors import UsageError
from detcli.model.contract import UNKNOWN_CLASSES, class_names


def dataset(*names, named=True, boxes=()):
    objects = labelled(*(((0, 0, 1, 1), index, {}) for index in boxes))
    categories = tuple(Category(10 + index, name) for index, name in enumerate(names))
    sample = Sample("a", None, 1, None, objects)
    return Dataset("coco", None, categories, named, [sample])


def mapped(names, data):
    findings = Findings()
    mapping = map_classes(names, data, findings)
    return mapping, {one.kind: one.examples for one in findings.report()}


UNKNOWN = tuple(f"class_{number}" for number in range(UNKNOWN_CLASSES))
BY_ID = tuple({10: 0, 11: 1}.get(number) for number in range(UNKNOWN_CLASSES))
NO_CLASS, NO_CATEGORY = "category that the model does not know", "class that the data does not know"
TWO = ("class_0", "class_1")


@pytest.mark.parametrize(
    ("names", "data", "by", "category_of", "found"),
    [
        (("Bus", "person "), dataset("person", "bus"), "name", (1, 0), {}),
        (
            ("person", "couch"),
            dataset("person", "sofa", "cat", "no boxes", boxes=[1, 1, 2]),
            "name",
            (0, None),
            {NO_CLASS: ("sofa (2 boxes)", "cat (1 boxes)"), NO_CATEGORY: ("couch",)},
        ),
        # One of them has no names.
        (TWO, dataset("a", "b", "c", boxes=[2]), "order", (0, 1), {NO_CLASS: ("c (1 boxes)",)}),
        (("red", "green"), dataset("a", "b", named=False), "order", (0, 1), {}),
        (TWO, dataset("a", named=False), "order", (0, None), {NO_CATEGORY: ("class_1",)}),
        # The model has a name twice, both have, or the data has.
        (("red", "green", "Red"), dataset("red", "green"), "name", (0, 1, 0), {}),
        (("a", "b", "A"), dataset("a", "a", "b", boxes=[0, 1]), "name", (0, 2, 1), {}),
        (
            ("a", "b"),
            dataset("a", "a", boxes=[0, 1]),
            "name",
            (0, None),
            {NO_CLASS: ("a (1 boxes)",), NO_CATEGORY: ("b",)},
        ),
        # Of an unknown number of classes, the numbers are ids.
        (UNKNOWN, dataset("person", "bicycle", boxes=[0]), "id", BY_ID, {}),
    ],
)
def test_classes_as_categories(names, data, by, category_of, found):
    mapping, reported = mapped(names, data)
    assert (mapping.by, mapping.category_of, reported) == (by, category_of, found)
    assert mapping.categories == tuple(sorted({*category_of} - {None}))
    for index in mapping.categories:
        assert {category_of[class_id] for class_id in mapping.classes_of(index)} == {index}


def test_classes_by_cocos_numbers_match_its_categories():
    names, _, _ = class_names("", 91)
    mapping, _ = mapped(names, dataset("person", "traffic light", "toothbrush"))
    assert mapping.category_of[:2] == (None, 0)
    assert mapping.classes_of(2) == (90,)


def test_no_name_in_common():
    with pytest.raises(UsageError, match="no name in common: red, green; a, b") as caught:
        mapped(("red", "green"), dataset("a", "b"))
    assert "--names" in caught.value.hint


def test_failures_come_first_and_five_examples_are_kept():
    findings = Findings()
    for kind in (Kind.UNLABELLED, Kind.OUTSIDE, Kind.MISSING):
        findings.add(kind, "a")
    for number in range(1, 1000):
        findings.add(Kind.OUTSIDE, str(number), count=1000)
    found = findings.report()
    assert [one.level for one in found] == [Level.FAILURE, Level.WARNING, Level.NOTE]
    assert (found[1].count, found[1].examples) == (999_001, ("a", "1", "2", "3", "4"))


def test_the_schema_has_every_kind():
    schema = json.loads(resources.files("detcli").joinpath("commands/eval/schema.json").read_text())
    kinds = schema["$defs"]["Finding"]["properties"]["kind"]["enum"]
    assert kinds == [kind.value[0] for kind in Kind]
    assert schema["$defs"]["Level"]["enum"] == list(Level)
