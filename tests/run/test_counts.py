"""Conditions of --fail-if."""

from collections import Counter

import pytest

from detcli.core.errors import CheckError, UsageError
from detcli.run.counts import (
    Condition,
    Counts,
    check_conditions,
    parse_condition,
)

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
    counts = Counts(found=Counter({"person": 2, "a>b": 3}))
    conditions = [parse_condition(text, NAMES)]
    if not holds:
        check_conditions(conditions, counts)
        return
    with pytest.raises(CheckError) as caught:
        check_conditions(conditions, counts)
    assert caught.value.exit_code == 6


def test_all_conditions_that_hold_are_named():
    conditions = [parse_condition(text, NAMES) for text in ("person>0", "any>9", "any>1")]
    with pytest.raises(CheckError, match=r"person>0 \(2 found\), any>1 \(2 found\)"):
        check_conditions(conditions, Counts(found=Counter(person=2)))
