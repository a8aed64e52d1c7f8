"""Units of records, and the order in which they are drawn."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from saved_records import box, error, record

from detcli.commands.promise.draw import RandomSample, looks_of_round
from detcli.commands.promise.inputs import InputColumns, WantedClasses
from detcli.commands.promise.unit_kind import UnitKind
from detcli.commands.promise.units import NO_UNIT, draw_key, make_units
from detcli.core.errors import UsageError


def animal(score):
    return box(score, name="animal")


def read(records, kind="image", classes=("animal",)):
    """The columns of records."""
    inputs = InputColumns(WantedClasses(classes), UnitKind.parse(kind))
    for fields in records:
        inputs.add(fields)
    return inputs


def units_of(records, kind="image", classes=("animal",), seed=7):
    inputs = read(records, kind, classes)
    return make_units(inputs, UnitKind.parse(kind), seed)


def scores_of(units):
    """The score of each unit by its name."""
    return {units.name(unit): float(units.scores[unit]) for unit in range(len(units))}


def test_the_score_of_an_image_is_the_best_of_the_wanted_classes():
    records = [
        record("a.jpg", animal(0.2), animal(0.4), box(0.9)),
        record("b.jpg", box(0.9)),
        record("c.jpg"),
    ]
    assert scores_of(units_of(records)) == {"a.jpg": 0.4, "b.jpg": 0, "c.jpg": 0}
    everything = scores_of(units_of(records, classes=()))
    assert everything == {"a.jpg": 0.9, "b.jpg": 0.9, "c.jpg": 0}


def test_a_class_may_be_named_by_its_id():
    records = [record("a.jpg", box(0.4, class_id=3, name="deer"))]
    assert scores_of(units_of(records, classes=("3",))) == {"a.jpg": 0.4}


def test_the_frames_of_a_video_are_one_unit_also_when_they_are_mixed():
    records = [
        record("a.mp4", animal(0.2), frame=0),
        record("b.mp4", animal(0.3), frame=0),
        record("a.mp4", animal(0.7), frame=5),
    ]
    units = units_of(records)
    assert scores_of(units) == {"a.mp4": 0.7, "b.mp4": 0.3}
    assert units.unit_by_record().tolist() == [0, 1, 0]


def test_what_failed_is_no_unit_nor_is_a_video_that_failed_in_the_middle():
    records = [
        error("torn.jpg"),
        record("a.jpg", animal(0.2)),
        record("a.mp4", animal(0.2), frame=0),
        error("a.mp4"),
    ]
    units = units_of(records)
    assert scores_of(units) == {"a.jpg": 0.2}
    assert units.failed == ["torn.jpg", "a.mp4"]
    files = [("torn.jpg", NO_UNIT), ("a.jpg", 0), ("a.mp4", NO_UNIT)]
    assert list(units.files()) == files


def test_a_score_of_minus_zero_is_zero():
    without_box = units_of([record("a.jpg")])
    assert units_of([record("a.jpg", animal(-0.0))]).scores_sha256 == without_box.scores_sha256


def test_another_model_changes_the_hash_by_its_scores_and_not_by_its_name():
    scores_sha256 = units_of([record("a.jpg", animal(0.2))]).scores_sha256
    renamed_model = record("a.jpg", animal(0.2)) | {"model": "other"}
    assert units_of([renamed_model]).scores_sha256 == scores_sha256
    other_score = record("a.jpg", animal(0.200001)) | {"model": "other"}
    assert units_of([other_score]).scores_sha256 != scores_sha256


def taken(name, time, *boxes):
    return record(name, *boxes, taken=f"2026-05-01T{time}")


BURSTS = [
    taken("x/2.jpg", "12:00:30"),
    taken("x/1.jpg", "12:00:00", animal(0.6)),
    taken("y/1.jpg", "12:00:10", animal(0.3)),
    taken("x/3.jpg", "12:05:00"),
    record("x/untimed.jpg", animal(0.1)),
    error("x/torn.jpg"),
]


def test_a_burst_has_the_name_of_its_first_image_and_its_best_score():
    units = units_of(BURSTS, "burst:60s")
    expected = {"x/2.jpg": 0.6, "y/1.jpg": 0.3, "x/3.jpg": 0, "x/untimed.jpg": 0.1}
    assert scores_of(units) == expected
    assert units.failed == ["x/torn.jpg"]
    numbers = units.unit_by_record().tolist()
    assert numbers[0] == numbers[1]
    assert numbers[5] == NO_UNIT


def test_bursts_need_a_time():
    with pytest.raises(UsageError, match="no record says when"):
        units_of([record("a.jpg"), record("b.jpg")], "burst:60s")


def test_a_folder_is_a_unit_but_for_what_failed_in_it():
    records = [record("x/a.jpg", animal(0.2)), record("x/b.jpg"), record("c.jpg"), error("x/t.jpg")]
    units = units_of(records, "folder")
    assert scores_of(units) == {"x": 0.2, ".": 0}
    assert units.failed == ["x/t.jpg"]


def test_units_by_meta_have_the_value_that_a_list_gave_them():
    records = [
        record("a.jpg", animal(0.2), meta={"trap": 7}),
        record("b.jpg", animal(0.4), meta={"trap": 7}),
        record("c.jpg", meta={"trap": "north"}),
        error("torn.jpg"),
    ]
    assert scores_of(units_of(records, "meta:trap")) == {"7": 0.4, "north": 0}


@pytest.mark.parametrize("meta", [None, "text", {}, {"trap": None}, {"trap": [1]}])
def test_units_by_meta_need_the_value(meta):
    with pytest.raises(UsageError, match=r"b\.jpg has no trap in meta"):
        units_of([record("a.jpg", meta={"trap": 1}), record("b.jpg", meta=meta)], "meta:trap")


@pytest.mark.parametrize("other", [record("a.jpg"), error("a.jpg")])
def test_an_image_that_is_there_twice_is_refused(other):
    with pytest.raises(UsageError, match=r"a\.jpg is in the records twice"):
        read([record("a.jpg"), record("b.jpg"), other]).require_unique_names()
    read([record("a.jpg"), record("b.jpg")]).require_unique_names()


def test_a_name_that_is_not_utf_8_leads_to_its_file():
    fields = record("caf\\xe9.jpg", source_bytes="Y2Fm6S5qcGc=")
    units = units_of([fields])
    assert units.name(0) == "caf\\xe9.jpg"
    assert list(units.files()) == [("caf\udce9.jpg", 0)]


def test_a_name_that_is_no_unicode_is_a_name():
    units = units_of([record("a\udcff.jpg", animal(0.2)), record("b.jpg")])
    assert scores_of(units) == {"a\udcff.jpg": 0.2, "b.jpg": 0}
    assert len(units.scores_sha256) == 64


@pytest.mark.parametrize("text", ["burst", "burst:", "burst:x", "meta:", "site", ""])
def test_what_is_no_unit_is_refused(text):
    with pytest.raises(UsageError):
        UnitKind.parse(text)


@pytest.mark.parametrize("text", ["image", "burst:60s", "burst:0.5s", "folder", "meta:site"])
def test_a_unit_is_written_as_it_is_read(text):
    assert str(UnitKind.parse(text)) == text


MANY = [record(f"{number}.jpg", animal(number / 1000)) for number in range(1, 201)]


def test_the_order_is_that_of_the_hashes_whatever_the_order_of_records():
    units = units_of(MANY)
    names = units.names(units.order)
    assert names == sorted(names, key=lambda name: hashlib.sha256(f"7\0{name}".encode()).digest())
    reversed_units = units_of(MANY[::-1])
    assert reversed_units.names(reversed_units.order) == names
    assert reversed_units.scores_sha256 == units.scores_sha256
    assert units_of(MANY, seed=8).names(range(5)) == units.names(range(5))


def test_the_hash_is_that_of_lines_with_name_and_score():
    units = units_of(MANY[:3])
    scores = scores_of(units)
    text = ""
    for name in units.names(units.order):
        text += f"{name}\0{scores[name]!r}\n"
    assert units.scores_sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_every_unit_below_is_drawn_as_often_as_the_others():
    counts = np.zeros(50)
    for seed in range(2000):
        keys = [draw_key(seed, f"{number}.jpg") for number in range(50)]
        counts[np.argsort(keys)[:10]] += 1
    assert abs(counts - 400).max() < 5 * np.sqrt(400 * 0.8)


def test_rounds_draw_from_below_and_the_first_has_all_from_above():
    units = units_of(MANY)
    draw = RandomSample(units, threshold=0.1505, round_sizes=[20, 10], above_limit="all")
    assert len(draw.sample_below) == 30
    assert draw.count_above == len(draw.sample_above) == 50
    assert units.scores[draw.sample_below].max() < 0.1505
    assert units.scores[draw.sample_above].min() > 0.1505
    first = draw.names_of_round(1, units.names(draw.best_above(2)))
    assert len(first) == 70
    assert draw.names_of_round(2, []) == units.names(draw.sample_below)[20:]
    assert units.names(draw.best_above(2)) == ["200.jpg", "199.jpg"]


def test_a_sample_from_above_is_the_beginning_of_the_draw():
    units = units_of(MANY)
    sampled = RandomSample(units, threshold=0.1505, round_sizes=[20], above_limit=10)
    everything = RandomSample(units, threshold=0.1505, round_sizes=[20], above_limit="all")
    assert sampled.sample_above.tolist() == everything.sample_above.tolist()[:10]


@given(st.integers(0, 40), st.sampled_from([0.0, 0.05, 0.3, 0.9]))
def test_what_is_repeated_comes_in_both_halves(count, share):
    names = [f"{number}.jpg" for number in range(count)]
    looks = looks_of_round(names, 1, seed=3, repeat_share=share)
    first_positions = {}
    second_positions = {}
    for position, look in enumerate(looks):
        if look.pass_ == 1:
            assert look.name not in first_positions
            first_positions[look.name] = position
        else:
            assert look.pass_ == 2
            assert look.name not in second_positions
            second_positions[look.name] = position
    assert sorted(first_positions) == sorted(names)
    assert len(second_positions) == min(round(share * count), count // 2)
    for name, second_position in second_positions.items():
        assert first_positions[name] < count // 2 <= second_position


@pytest.mark.parametrize("kind", ["folder", "burst:60s", "meta:site"])
def test_an_image_that_is_added_to_a_unit_makes_other_records(kind):
    fields = {"taken": "2026-11-29T12:00:00", "meta": {"site": "north"}}
    records = [record("north/a.jpg", animal(0.5), **fields)]
    added = record("north/b.jpg", animal(0.1), **fields)
    units = units_of(records, kind)
    units_with_added = units_of(records + [added], kind)
    assert scores_of(units_with_added) == scores_of(units)
    assert units_with_added.scores_sha256 != units.scores_sha256


@pytest.mark.parametrize("kind", ["image", "folder"])
def test_the_hash_of_records_does_not_depend_on_their_order(kind):
    records = [record("n/a.jpg", animal(0.5)), record("n/b.jpg", animal(0.1)), record("s/c.jpg")]
    in_order = units_of(records, kind).scores_sha256
    assert units_of(records[::-1], kind).scores_sha256 == in_order
