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


def test_by_name_in_any_order_and_case():
    mapping, found = mapped(("Bus", "person "), dataset("person", "bus"))
    assert (mapping.by, mapping.category_of) == ("name", (1, 0))
    assert found == {}


def test_classes_and_categories_without_a_counterpart_are_found():
    data = dataset("person", "sofa", "cat", "no boxes", boxes=[1, 1, 2])
    mapping, found = mapped(("person", "couch"), data)
    assert mapping.category_of == (0, None)
    assert mapping.categories == (0,)
    assert found == {
        "category that the model does not know": ("sofa (2 boxes)", "cat (1 boxes)"),
        "class that the data does not know": ("couch",),
    }


def test_classes_by_cocos_numbers_match_its_categories():
    names, _, _ = class_names("", 91)
    data = dataset("person", "traffic light", "toothbrush")
    assert mapped(names, data)[0].category_of[:2] == (None, 0)
    assert mapped(names, data)[0].classes_of(2) == (90,)


def test_classes_of_unknown_number_are_ids():
    names = tuple(f"class_{number}" for number in range(UNKNOWN_CLASSES))
    mapping, found = mapped(names, dataset("person", "bicycle", boxes=[0]))
    assert mapping.by == "id"
    assert (mapping.classes_of(0), mapping.classes_of(1)) == ((10,), (11,))
    assert found == {}


@pytest.mark.parametrize(
    ("names", "named"), [(("class_0", "class_1"), True), (("red", "green"), False)]
)
def test_by_order_where_the_model_or_the_data_has_no_names(names, named):
    mapping, found = mapped(names, dataset("person", "bus", "cat", named=named, boxes=[2]))
    assert (mapping.by, mapping.category_of) == ("order", (0, 1))
    assert found == {"category that the model does not know": ("cat (1 boxes)",)}
    more, found = mapped((*names, "class_2", "class_3"), dataset("a", named=False))
    assert more.category_of == (0, None, None, None)
    assert len(found["class that the data does not know"]) == 3


def test_a_name_that_the_model_has_twice():
    mapping, _ = mapped(("red", "green", "Red"), dataset("red", "green"))
    assert mapping.category_of == (0, 1, 0)
    assert mapping.classes_of(0) == (0, 2)


def test_a_name_that_both_have_twice():
    mapping, found = mapped(("a", "b", "A"), dataset("a", "a", "b", boxes=[0, 1]))
    assert (mapping.category_of, found) == ((0, 2, 1), {})
    mapping, found = mapped(("a", "b"), dataset("a", "a", boxes=[0, 1]))
    assert mapping.category_of == (0, None)
    assert found["category that the model does not know"] == ("a (1 boxes)",)


def test_no_name_in_common():
    with pytest.raises(UsageError, match="no name in common: red, green; a, b") as caught:
        mapped(("red", "green"), dataset("a", "b"))
    assert "--names" in caught.value.hint


def test_failures_come_first_and_notes_last():
    findings = Findings()
    for kind in (Kind.UNLABELLED, Kind.OUTSIDE, Kind.MISSING):
        findings.add(kind, "a")
    assert [one.level for one in findings.report()] == [Level.FAILURE, Level.WARNING, Level.NOTE]


def test_only_the_first_five_examples_are_kept():
    findings = Findings()
    for number in range(1000):
        findings.add(Kind.OUTSIDE, str(number), count=1000)
    findings.add(Kind.CROWD, "a", count=0)
    (found,) = findings.report()
    assert found.count == 1_000_000
    assert found.examples == ("0", "1", "2", "3", "4")


def test_the_schema_has_every_kind():
    schema = json.loads(resources.files("detcli").joinpath("commands/eval/schema.json").read_text())
    kinds = schema["$defs"]["Finding"]["properties"]["kind"]["enum"]
    assert kinds == [kind.value[0] for kind in Kind]
    assert schema["$defs"]["Level"]["enum"] == list(Level)
