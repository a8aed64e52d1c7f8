# mypy: disable-error-code=arg-type
"""Which photographs are one burst: the boundary, and all else as a slow search finds it."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcli.data.bursts import Burst, BurstFinder, with_burst
from detcli.data.capture_time import to_text

BEGIN = datetime(2021, 5, 6, 7, 8, 9)  # noqa: DTZ001


def photograph(seconds, source="site/a.jpg", scores=()):
    """A record, without what bursts do not need."""
    taken = to_text(BEGIN + timedelta(seconds=seconds))
    detections = [{"score": score} for score in scores]
    return {"source": source, "taken": taken, "detections": detections}


def find(records, gap_s=60.0):
    """The burst of each record, in a list; None without one."""
    finder = BurstFinder()
    for record in records:
        finder.add(record)
    bursts = finder.find(gap_s)
    return [bursts.of_record(number) for number in range(len(records))]


def numbers(records, gap_s=60.0):
    """The number of each record's burst; None without one."""
    listed = []
    for burst in find(records, gap_s=gap_s):
        listed.append(None if burst is None else burst.number)
    return listed


def test_no_records_have_no_bursts():
    assert find([]) == []


def test_a_single_photograph_is_a_burst():
    assert find([photograph(0, scores=[0.5])]) == [Burst(0, 0.5)]


@pytest.mark.parametrize(
    ("seconds", "number"), [(59.999999, 0), (60, 0), (60.000001, 1), (-60, 0), (-61, 1)]
)
def test_photographs_at_the_very_limit_are_one_burst(seconds, number):
    assert numbers([photograph(0), photograph(seconds)]) == [0, number]


def test_only_the_gap_between_neighbours_counts():
    assert numbers([photograph(0), photograph(60), photograph(120), photograph(181)]) == [
        0,
        0,
        0,
        1,
    ]


def test_without_a_gap_only_the_same_time_is_a_burst():
    assert numbers([photograph(0), photograph(0), photograph(0.000001)], gap_s=0) == [0, 0, 1]


def test_folders_have_bursts_of_their_own():
    records = [
        photograph(0, "a/1.jpg"),
        photograph(0, "b/1.jpg"),
        photograph(1, "a/2.jpg"),
        photograph(1, "2.jpg"),
        photograph(1, "a/c/2.jpg"),
    ]
    assert numbers(records) == [0, 1, 0, 2, 3]


def test_numbers_follow_the_records_and_not_the_times():
    assert numbers([photograph(500), photograph(0), photograph(501)]) == [0, 1, 0]


def test_the_best_score_is_that_of_all_photographs_of_a_burst():
    records = [photograph(0, scores=[0.25]), photograph(1, scores=[0.75, 0.5]), photograph(2)]
    assert find(records) == [Burst(0, 0.75)] * 3


def test_a_burst_without_detections_has_a_score_of_zero():
    assert find([photograph(0), photograph(1)]) == [Burst(0, 0.0)] * 2


def test_records_without_a_time_are_in_no_burst():
    undated = {"source": "site/b.jpg", "detections": []}
    faulty = {**photograph(0), "taken": "noon"}
    failed = {**photograph(0), "error": {"type": "DecodeError", "message": "torn", "hint": ""}}
    del failed["detections"]
    assert numbers([undated, photograph(0), faulty, failed]) == [None, 0, None, None]


def numbers_by_search(records, gap_s):
    """The numbers of bursts by looking at all pairs of photographs, again and again."""
    listed = list(range(len(records)))
    for _ in records:
        for first, (first_folder, first_second) in enumerate(records):
            for second, (second_folder, second_second) in enumerate(records):
                is_near = abs(first_second - second_second) <= gap_s
                if first_folder == second_folder and is_near:
                    lower = min(listed[first], listed[second])
                    listed[first] = lower
                    listed[second] = lower
    order = list(dict.fromkeys(listed))
    return [order.index(number) for number in listed]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40)), max_size=12),
    st.integers(0, 6),
)
def test_bursts_are_those_that_a_search_finds(records, gap_s):
    photographs = [photograph(second, f"{folder}/x.jpg") for folder, second in records]
    assert numbers(photographs, gap_s=gap_s) == numbers_by_search(records, gap_s)


def test_the_fields_of_a_burst_come_before_the_size():
    record = {"source": "a", "taken": "x", "burst": 9, "burst_score": 1.0, "width": 4, "height": 3}
    extended = with_burst(record, Burst(2, 0.5))
    assert list(extended) == ["source", "taken", "burst", "burst_score", "width", "height"]
    assert extended["burst"] == 2
    assert extended["burst_score"] == 0.5
