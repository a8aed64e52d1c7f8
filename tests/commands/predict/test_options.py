"""The format of records, and conditions of --fail-if."""

import os
from collections import Counter
from pathlib import Path

import pytest

from detcli.commands.predict.options import (
    Condition,
    check_conditions,
    parse_condition,
    parse_labels,
)
from detcli.commands.shared.records import Format, choose_format
from detcli.errors import CheckError, UsageError


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("boxes.jsonl", Format.JSONL),
        ("boxes.ndjson", Format.JSONL),
        ("boxes.json", Format.JSON),
        ("out.d/boxes.CSV", Format.CSV),
        ("boxes.parquet", Format.PARQUET),
        ("boxes", Format.JSONL),
        (".boxes", Format.JSONL),
        ("out.d/boxes", Format.JSONL),
        ("/dev/null", Format.JSONL),
        ("/dev/stdout", Format.JSONL),
        ("/dev/fd/63", Format.JSONL),
    ],
)
def test_the_suffix_chooses_the_format(name, chosen):
    assert choose_format(None, Path(name)) is chosen


@pytest.mark.parametrize(
    "name",
    ["boxes.txt", "boxes.xlsx", "boxes.jsonl.gz", "street.jpg", "x.table", "1.5", "a" * 300 + ".x"],
)
def test_an_unknown_suffix_is_refused(name):
    with pytest.raises(UsageError, match="names no format") as caught:
        choose_format(None, Path(name))
    assert ".jsonl, .ndjson, .json, .csv, .parquet" in caught.value.hint
    assert choose_format(Format.TABLE, Path(name)) is Format.TABLE


def test_a_pipe_may_be_called_anything(tmp_path):
    for name, chosen in (("boxes.pipe", Format.JSONL), ("boxes.csv", Format.CSV)):
        os.mkfifo(tmp_path / name)
        assert choose_format(None, tmp_path / name) is chosen


NAMES = ("person", "traffic light", "a>b")


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("person>0", Condition("person", ">", 0)),
        (" traffic light >= 12 ", Condition("traffic light", ">=", 12)),
        ("any==0", Condition("any", "==", 0)),
        ("person!=3", Condition("person", "!=", 3)),
        ("person<=3", Condition("person", "<=", 3)),
        ("person<3", Condition("person", "<", 3)),
    ],
)
def test_conditions_are_read(text, condition):
    assert parse_condition(text, NAMES) == condition


@pytest.mark.parametrize(
    "text", ["", "person", "person>", ">0", "person>x", "person=1", "person>-1"]
)
def test_a_malformed_condition_is_a_usage_error(text):
    with pytest.raises(UsageError, match="is not a condition"):
        parse_condition(text, NAMES)


def test_a_class_that_the_model_lacks_is_a_usage_error():
    with pytest.raises(UsageError, match="no class 'dog'"):
        parse_condition("dog>0", NAMES)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("person>1", True),
        ("person>2", False),
        ("person>=2", True),
        ("person<2", False),
        ("person<=2", True),
        ("person==2", True),
        ("person!=2", False),
        ("traffic light==0", True),
        ("any>4", True),
        ("any>5", False),
    ],
)
def test_counts_are_compared(text, holds):
    found = Counter({"person": 2, "a>b": 3})
    conditions = [parse_condition(text, NAMES)]
    if not holds:
        check_conditions(conditions, found)
        return
    with pytest.raises(CheckError) as caught:
        check_conditions(conditions, found)
    assert caught.value.exit_code == 6


def test_all_conditions_that_hold_are_named():
    conditions = [parse_condition(text, NAMES) for text in ("person>0", "any>9", "any>1")]
    with pytest.raises(CheckError, match=r"person>0 \(2 found\), any>1 \(2 found\)"):
        check_conditions(conditions, Counter(person=2))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("name,score", {"name", "score"}),
        ("score, name", {"name", "score"}),
        ("name", {"name"}),
        ("score", {"score"}),
        ("none", set()),
    ],
)
def test_parts_of_labels(text, parts):
    assert parse_labels(text) == parts


@pytest.mark.parametrize("text", ["", "None", "names", "name,none", "name;score", "id", ","])
def test_other_parts_of_labels_are_a_usage_error(text):
    with pytest.raises(UsageError, match="name and score"):
        parse_labels(text)
