# mypy: disable-error-code=arg-type
"""Counts, what is said of them, and conditions of --fail-if."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from sample_records import damaged, failure, frame, image

from detcli.core.errors import CheckError, DecodeError, InputError, UsageError
from detcli.core.timing import Stage
from detcli.run.conditions import Condition, check_conditions, parse_condition
from detcli.run.counts import Counts
from detcli.source.decode import DecodeOptions, load_bytes

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
    for zones_and_lines in ((), ("door",)):
        with pytest.raises(UsageError, match="no zone or line is named 'gate'") as error:
            parse_condition("gate.any>1", NAMES, zones_and_lines)
        assert error.value.hint.startswith("add it with --zone")


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
    counts = Counts(images=1, detections_by_class=Counter({"person": 2, "a>b": 3}))
    conditions = [parse_condition(text, NAMES)]
    if not holds:
        check_conditions(conditions, counts)
        return
    with pytest.raises(CheckError) as caught:
        check_conditions(conditions, counts)
    assert caught.value.exit_code == 6


CUT = "the run ended before its last input"
UNSEEN = {
    "2 inputs failed": (
        {"images": 1, "failed": 2, "detections_by_class": Counter(person=2)},
        True,
    ),
    "there were no inputs": ({}, True),
    CUT: ({"images": 1, "detections_by_class": Counter(person=2)}, False),
}
UNDECIDED = {
    "2 inputs failed": ("person==2", "person==3", "person<3", "person<=2", "person>2", "person!=2"),
    "there were no inputs": ("any==0", "any<1", "any>0", "any!=0"),
    CUT: ("person==2", "person<=2", "person>2", "person>=3"),
}
HOLD = ("person>1", "person>=2", "person!=1", "any>0", "person>=0")
FAIL = ("person<2", "person<=1", "person==1")


@pytest.mark.parametrize("why", UNSEEN)
def test_conditions_are_undecided_where_what_nobody_saw_could_change_them(why):
    fields, complete = UNSEEN[why]
    counts = Counts(**fields)

    def check(*texts):
        conditions = [parse_condition(text, NAMES) for text in texts]
        check_conditions(conditions, counts, complete=complete)

    for text in UNDECIDED[why]:
        with pytest.raises(InputError, match=f"undecided, as {why}: {text} ") as caught:
            check(text)
        assert caught.value.exit_code == 3
        with pytest.raises(CheckError, match=r"holds: person>=0 \("):
            check(text, "person>=0")
    holding = ("person>=0",)
    failing = ("person<0",)
    if counts.detections_by_class:
        holding = HOLD
        failing = FAIL
    for text in holding:
        with pytest.raises(CheckError):
            check(text)
    check(*failing)


def test_all_conditions_that_hold_are_named():
    conditions = [parse_condition(text, NAMES) for text in ("person>0", "any>9", "any>1")]
    with pytest.raises(CheckError, match=r"person>0 \(2 found\), any>1 \(2 found\)"):
        check_conditions(conditions, Counts(detections_by_class=Counter(person=2)))


def with_zones_and_lines(record, *zones, crossed=()):
    """The record, whose detections are in zones and have crossed lines."""
    count = len(record.detections)
    zones_of_each = np.empty(count, object)
    lines_of_each = np.empty(count, object)
    for index in range(count):
        zones_of_each[index] = zones
        lines_of_each[index] = crossed
    detections = replace(record.detections, zones=zones_of_each, crossed=lines_of_each)
    return replace(record, detections=detections)


def test_counts_of_records_and_of_other_counts_add_up():
    torn = failure("torn.jpg")
    records = [
        with_zones_and_lines(image(count=2), "door", "hall"),
        damaged(image("b.jpg", "dog"), "odd"),
        with_zones_and_lines(frame(3, count=1), crossed=[("gate", "left")]),
        torn,
        image("c.jpg", count=0),
    ]
    counts = Counts()
    parts = [Counts(), Counts()]
    for number, record in enumerate(records):
        counts.add(record)
        parts[number % 2].add(record)
    added_up = Counts()
    for part in parts:
        added_up.include(part)
    assert counts.images == 3
    assert counts.frames == 1
    assert counts.failed == 1
    assert counts.input_count == 5
    assert counts.detections_by_class == {"cat": 3, "dog": 1}
    expected = {("door", "cat"): 2, ("hall", "cat"): 2, ("gate left", "cat"): 1}
    assert counts.zones_and_lines == expected
    for zone_or_line, number in (("door", 2), ("gate", 1), ("gate left", 1), ("ga", 0), ("", 4)):
        assert Condition("any", ">", 0, zone_or_line).detection_count(counts) == number
    assert counts.messages == [("b.jpg", "odd"), ("torn.jpg", torn.error)]
    assert sorted(added_up.messages, key=str) == sorted(counts.messages, key=str)
    assert replace(added_up, messages=[]) == replace(counts, messages=[])
    assert list(counts.summary(2.0)) == [
        "3 images, 1 frame, 4 detections, 1 failed, 2.00 s, 2.5/s on cpu",
        "found 3 cat, 1 dog",
        "in door: 2 cat",
        "crossed gate to the left: 1 cat",
        "in hall: 2 cat",
    ]
    evaluated = list(counts.summary(2.0, above=0.001))
    totals = "3 images, 1 frame, 4 detections above 0.001, 1 failed"
    assert evaluated[0] == f"{totals}, 2.00 s, 2.5 images/s on cpu"
    assert evaluated[1] == "found above 0.001: 3 cat, 1 dog"


@pytest.mark.parametrize(
    ("counts", "arguments", "lines"),
    [
        (Counts(), {}, ["0 images, 0 detections, 0.50 s"]),
        (Counts(frames=1), {"skipped": 2}, ["1 frame, 0 detections, 2 skipped, 0.50 s"]),
        (
            Counts(images=1, detections_by_class=Counter("a")),
            {"dropped": 1},
            ["1 image, 1 detection, 1 frame dropped, 0.50 s"],
        ),
        (
            Counts(images=2, detections_by_class=Counter("aabcdef")),
            {"times": {Stage.DECODE: 3, Stage.WRITE: 1}},
            [
                "2 images, 7 detections, 0.50 s, 4.0/s; decode 75%, write 25%",
                "found 2 a, 1 b, 1 c, 1 d, 1 e and 1 more class",
            ],
        ),
        (
            Counts(images=2, detections_by_class=Counter("aabcdefg")),
            {},
            [
                "2 images, 8 detections, 0.50 s, 4.0/s",
                "found 2 a, 1 b, 1 c, 1 d, 1 e and 2 more classes",
            ],
        ),
        (
            Counts(images=2, devices=Counter(["cuda:1", "cpu"])),
            {},
            ["2 images, 0 detections, 0.50 s, 4.0/s on cpu, cuda:1"],
        ),
        (
            Counts(images=1, devices=Counter(["openvino:CPU (bf16)"])),
            {},
            ["1 image, 0 detections, 0.50 s on openvino:CPU (bf16)"],
        ),
    ],
)
def test_a_summary_says_what_there_is(counts, arguments, lines):
    assert list(counts.summary(0.5, **arguments)) == lines


def test_errors_are_kept_without_what_was_read():
    """Their tracebacks hold frames, and these the bytes of images: 20 MB in a shard of them."""
    with pytest.raises(DecodeError) as caught:
        load_bytes(b"", DecodeOptions())
    counts = Counts()
    counts.add(replace(failure(), error=caught.value))
    assert counts.messages[0][1].__traceback__ is None  # type: ignore[union-attr]


def test_errors_are_kept_without_those_that_they_come_from():
    """These have tracebacks of their own."""
    error = DecodeError("it is torn")
    error.__cause__ = ValueError("a byte is missing")
    error.__context__ = error.__cause__
    counts = Counts()
    counts.add(replace(failure(), error=error))
    _, message = counts.messages[0]
    assert message.__cause__ is None  # type: ignore[union-attr]
    assert message.__context__ is None  # type: ignore[union-attr]


def test_a_device_is_counted_with_its_precision():
    counts = Counts()
    counts.add(replace(image(), device="openvino:CPU", precision="bf16"))
    counts.add(replace(image(), device="openvino:CPU", precision="bf16"))
    counts.add(image())
    assert counts.devices == {"openvino:CPU (bf16)": 2, "cpu": 1}
    expected = "3 images, 3 detections, 1.50 s, 2.0/s on cpu, openvino:CPU (bf16)"
    assert next(counts.summary(1.5)) == expected
