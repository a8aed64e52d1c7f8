"""Tiles cover an image, and what several of them show is one object."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_records import detected

from detcli.config.values import Tiling
from detcli.core.errors import UsageError
from detcli.data.tiling import merge


def detections_from(rows=()):
    """Detections, best first, from rows as in `with_classes`, in pixels of an area."""
    return detected(sorted(with_classes(rows), key=lambda row: -row[4]))


def with_classes(rows):
    """Rows x1, y1, x2, y2, score and class; the class is 0 where a row has none."""
    complete_rows = []
    for row in rows:
        if len(row) == 5:
            complete_rows.append(tuple(row) + (0,))
        else:
            complete_rows.append(row)
    return complete_rows


def rows(detections):
    rounded_rows = []
    for box, score, class_id, _ in detections:
        left, top, right, bottom = box.tolist()
        corners = (round(left, 2), round(top, 2), round(right, 2), round(bottom, 2))
        rounded_rows.append(corners + (round(score, 4), class_id))
    return rounded_rows


@pytest.mark.parametrize(
    ("text", "tiling"),
    [
        ("640", Tiling(640, overlap=0.2)),
        ("640,overlap=0.5", Tiling(640, overlap=0.5)),
        (" 320 , overlap = .25 ", Tiling(320, overlap=0.25)),
        ("1,overlap=0", Tiling(1, overlap=0.0)),
        ("640,overlap=0.9", Tiling(640, overlap=0.9)),
        ("640,crowd=9", Tiling(640, overlap=0.2, crowd=9)),
        ("64, overlap=0, crowd = 1", Tiling(64, overlap=0, crowd=1)),
    ],
)
def test_the_option_is_read_and_written(text, tiling):
    assert Tiling.parse(text) == tiling
    assert Tiling.parse(str(tiling)) == tiling


@pytest.mark.parametrize(
    ("message", "texts"),
    [
        ("is not", ["", "0", "-640", "640x480", "640.5", "640,0.2", "٦٤٠", "9" * 400]),
        (
            "is not",
            ["640,overlap=", "640,overlap=nan", "640,crowd=-1", "640,crowd=2,overlap=0.1"],
        ),
        ("between 0 and 0.9", ["640,overlap=0.91", "640,overlap=1", "640,overlap=-0.1"]),
    ],
)
def test_what_is_no_tiling_is_refused_with_what_to_write(message, texts):
    for text in texts:
        with pytest.raises(UsageError, match=message) as refused:
            Tiling.parse(text)
        assert "640" in refused.value.hint or "overlap=0.2" in refused.value.hint


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(32, 700), st.floats(0, 0.9))
def test_tiles_cover_the_image_and_overlap(height, width, size, overlap):
    areas = Tiling(size, overlap=overlap).areas((height, width))
    tiles = areas[:-1]
    assert areas[-1] == (0, 0, width, height)
    assert bool(tiles) == (max(height, width) > size)
    for axis, length in ((0, width), (1, height)):
        starts = sorted({area[axis] for area in tiles})
        ends = sorted({area[axis + 2] for area in tiles})
        if tiles:
            assert starts[0] == 0
            assert ends[-1] == length
        for end, start in zip(ends, starts[1:], strict=False):
            assert end - start >= int(overlap * size) - 1
        if len(starts) > 1:
            distances = np.diff(starts)
            assert distances.max() - distances.min() <= 1
        for start, end in zip(starts, ends, strict=True):
            assert end - start == min(size, length)


# Two tiles of 100 pixels that share 20 columns, and the whole.
PAIR = Tiling(100, overlap=0.2).areas((100, 180))
LEFT, RIGHT, WHOLE = PAIR


def test_one_area_stays_as_it_is_but_for_what_is_there_twice():
    assert PAIR == [(0, 0, 100, 100), (80, 0, 180, 100), (0, 0, 180, 100)]
    best = (-5, 0, 10, 20, 0.6)
    alike = (-5, 0, 10, 18, 0.5)
    of_another_class = (-5, 0, 10, 19, 0.4, 1)
    remaining = rows(merge([detections_from([best, alike, of_another_class])], [(0, 0, 50, 50)]))
    assert remaining == [best + (0,), alike + (0,), of_another_class]  # 0.9 is not above 0.9
    remaining = rows(merge([detections_from([best, (-5, 0, 10, 18.5, 0.5)])], [(0, 0, 50, 50)]))
    assert remaining == [best + (0,)]


MERGED = {
    "nothing": ([], [], [], []),
    "rows are moved to where their area is": (
        [(10, 20, 30, 40, 0.5)], [(50, 20, 70, 40, 0.6)], [],
        [(130, 20, 150, 40, 0.6), (10, 20, 30, 40, 0.5)]),
    "an object that several show whole is the best of their rows": (
        [(82, 20, 96, 40, 0.5)], [(3, 20, 16, 40, 0.9)], [(82, 21, 97, 41, 0.7)],
        [(83, 20, 96, 40, 0.9)]),
    "other classes are other objects": (
        [(82, 20, 96, 40, 0.5, 1)], [], [(82, 20, 96, 40, 0.7)],
        [(82, 20, 96, 40, 0.7), (82, 20, 96, 40, 0.5, 1)]),
    "an area shows an object once, so these are two people close together": (
        [(20, 20, 40, 60, 0.9), (24, 20, 44, 60, 0.8)], [],
        [(20, 20, 40, 60, 0.7), (24, 20, 44, 60, 0.6)],
        [(20, 20, 40, 60, 0.9), (24, 20, 44, 60, 0.8)]),
    "an area shows an object once, so what it shows beside it is another object": (
        [(20, 20, 40, 60, 0.9)], [], [(20, 20, 40, 60, 0.7), (24, 20, 44, 60, 0.6)],
        [(20, 20, 40, 60, 0.9), (24, 20, 44, 60, 0.6)]),
    "a row cut at a seam is a piece of the object that another area shows": (
        [(60, 20, 100, 60, 0.9)], [(0, 20, 30, 60, 0.3)], [(60, 20, 110, 60, 0.5)],
        [(60, 20, 110, 60, 0.9)]),
    "a piece is one of the object that is most like it": (
        [(60, 20, 100, 60, 0.9)], [], [(60, 20, 110, 45, 0.6), (60, 20, 110, 60, 0.5)],
        [(60, 20, 110, 60, 0.9), (60, 20, 110, 45, 0.6)]),
    "a piece within an object is part of it, as a head is of a person": (
        [(85, 20, 100, 30, 0.9)], [], [(60, 18, 120, 90, 0.5)], [(60, 18, 120, 90, 0.9)]),
    "a small object before a large one is not a piece": (
        [(70, 20, 85, 30, 0.4)], [], [(60, 18, 120, 90, 0.5)],
        [(60, 18, 120, 90, 0.5), (70, 20, 85, 30, 0.4)]),
    "pieces on both sides of a seam are one object": (
        [(40, 20, 100, 60, 0.6)], [(0, 20, 60, 61, 0.7)], [], [(40, 20, 140, 61, 0.7)]),
    "of the pieces in a tile, the one that is most like a piece in another tile goes on with it": (
        [(40, 20, 100, 60, 0.5)], [(0, 20, 60, 50, 0.9), (0, 20, 60, 60, 0.8)], [],
        [(80, 20, 140, 50, 0.9), (40, 20, 140, 60, 0.8)]),
    "pieces that differ where both areas see are two objects": (
        [(40, 20, 100, 50, 0.6)], [(0, 60, 60, 90, 0.7)], [],
        [(80, 60, 140, 90, 0.7), (40, 20, 100, 50, 0.6)]),
    "the edge of the image is no seam": (
        [(0, 0, 30, 30, 0.9)], [], [(4, 2, 90, 90, 0.5)],
        [(0, 0, 30, 30, 0.9), (4, 2, 90, 90, 0.5)]),
    "half in common is one object": (
        [(10, 20, 50, 40, 0.5)], [], [(10, 20, 30, 40, 0.7)], [(10, 20, 30, 40, 0.7)]),
    "less than half in common are two": (
        [(10, 20, 50, 41, 0.5)], [], [(10, 20, 30, 40, 0.7)],
        [(10, 20, 30, 40, 0.7), (10, 20, 50, 41, 0.5)]),
    "seven tenths of a piece within an object is a part of it": (
        [(80, 20, 100, 30, 0.9)], [], [(86, 9, 120, 90, 0.5)], [(86, 9, 120, 90, 0.9)]),
    "less of a piece is an object": (
        [(79, 20, 100, 30, 0.9)], [], [(86, 9, 120, 90, 0.5)],
        [(79, 20, 100, 30, 0.9), (86, 9, 120, 90, 0.5)]),
    "a hundredth of a tile before a seam a row may be cut": (
        [(85, 20, 99, 30, 0.9)], [], [(60, 18, 120, 90, 0.5)], [(60, 18, 120, 90, 0.9)]),
    "farther away it is not": (
        [(85, 20, 98.95, 30, 0.9)], [], [(60, 18, 120, 90, 0.5)],
        [(85, 20, 98.95, 30, 0.9), (60, 18, 120, 90, 0.5)]),
    "of equals, the lower tile and the lower row come first": (
        [(10, 20, 30, 40, 0.5), (40, 20, 60, 40, 0.5)], [(50, 20, 70, 40, 0.5)], [],
        [(10, 20, 30, 40, 0.5), (40, 20, 60, 40, 0.5), (130, 20, 150, 40, 0.5)]),
    "what one area shows twice is one object": (
        [(20, 20, 40, 60, 0.7), (20, 20, 40, 58, 0.6)], [],
        [(20, 20, 40, 60, 0.69), (21, 20, 40, 60, 0.59)],
        [(20, 20, 40, 60, 0.7)]),
    "of equals, an object in pieces comes where the first of them does": (
        [(40, 20, 100, 60, 0.5), (10, 70, 30, 90, 0.5)], [(0, 20, 60, 60, 0.5)], [],
        [(40, 20, 140, 60, 0.5), (10, 70, 30, 90, 0.5)]),
    "a piece and an object are compared where both areas see": (
        [(40, 20, 100, 60, 0.9)], [], [(60, 20, 160, 60, 0.5)], [(60, 20, 160, 60, 0.9)]),
    "two pixels beyond a seam a row is not cut, wherever its tile begins": (
        [], [(2, 20, 15, 30, 0.9)], [(60, 18, 120, 90, 0.5)],
        [(82, 20, 95, 30, 0.9), (60, 18, 120, 90, 0.5)]),
    "a piece without an area is of no object elsewhere": (
        [(99.5, 20, 99.5, 40, 0.9)], [], [(10, 50, 30, 90, 0.5)],
        [(99.5, 20, 99.5, 40, 0.9), (10, 50, 30, 90, 0.5)]),
    "boxes end with their area": (
        [(-9, 20, 30, 40, 0.9), (-9, 20, -2, 40, 0.8)], [], [], [(0, 20, 30, 40, 0.9)]),
}  # fmt: skip


@pytest.mark.parametrize(("left", "right", "whole", "expected"), MERGED.values(), ids=MERGED)
def test_what_several_areas_show(left, right, whole, expected):
    merged = merge([detections_from(left), detections_from(right), detections_from(whole)], PAIR)
    assert rows(merged) == with_classes(expected)
    assert merged.image_size == (100, 180)


def test_boxes_end_with_their_area_wherever_it_is():
    areas = Tiling(100, overlap=0.2).areas((180, 180))
    assert areas[-2] == (80, 80, 180, 180)
    assert areas[-1] == (0, 0, 180, 180)
    nothing = detections_from()
    beyond = detections_from([(50, 60, 120, 130, 0.9)])
    merged = merge([nothing, nothing, nothing, beyond, nothing], areas)
    assert rows(merged) == [(130, 140, 180, 180, 0.9, 0)]


@pytest.mark.parametrize("scores", [(0.9, 0.5, 0.7), (0.5, 0.9, 0.7), (0.7, 0.5, 0.9)])
def test_pieces_in_a_row_are_one_object(scores):
    areas = Tiling(100, overlap=0.2).areas((100, 260))
    left_edges = [area[0] for area in areas]
    assert left_edges == [0, 80, 160, 0]
    first, middle, last = scores
    merged = merge(
        [
            detections_from([(50, 20, 100, 60, first)]),
            detections_from([(0, 20, 100, 60, middle)]),
            detections_from([(0, 20, 70, 60, last)]),
            detections_from(),
        ],
        areas,
    )
    assert rows(merged) == [(50, 20, 230, 60, 0.9, 0)]


def test_what_is_no_larger_than_the_overlap_counts_where_a_tile_shows_it_whole():
    large = (40, 0, 61, 8, 0.5, 1)
    piece = (90, 20, 100, 40, 0.9, 1)
    small = (5, 20, 20, 40, 0.6)
    in_the_whole = (40, 50, 60, 70, 0.9)
    areas = [
        detections_from([large, piece]),
        detections_from([small]),
        detections_from([(41, 0, 62, 8, 0.4, 1), in_the_whole]),
    ]
    expected = [(85, 20, 100, 40, 0.6, 0), large]
    assert rows(merge(areas, PAIR, 20)) == expected
    assert len(rows(merge(areas, PAIR))) == 4
    assert rows(merge([detections_from(), detections_from(), areas[2]], PAIR, 20)) == [
        (41, 0, 62, 8, 0.4, 1)
    ]


def test_an_object_of_one_pixel_counts_unless_small_ones_are_dropped():
    areas = [detections_from(), detections_from(), detections_from([(40, 50, 41, 51, 0.9)])]
    assert rows(merge(areas, PAIR)) == [(40, 50, 41, 51, 0.9, 0)]
    assert rows(merge(areas, PAIR, 1)) == []


def test_pieces_that_share_one_pixel_are_one_object():
    """It is the only pixel that both tiles show."""
    areas = [(0, 0, 10, 10), (9, 9, 19, 19), (0, 0, 19, 19)]
    pieces = [detections_from([(5, 5, 10, 10, 0.9)]), detections_from([(0, 0, 5, 5, 0.8)])]
    assert rows(merge(pieces + [detections_from()], areas)) == [(5, 5, 14, 14, 0.9, 0)]


def test_fewer_detections_than_areas_are_refused():
    with pytest.raises(ValueError):  # noqa: PT011 - zip words it
        merge([detections_from(), detections_from()], PAIR)


def test_without_overlap_the_whole_joins():
    areas = Tiling(100, overlap=0).areas((100, 200))
    pieces = [detections_from([(50, 20, 100, 60, 0.9)]), detections_from([(0, 20, 50, 60, 0.8)])]
    assert len(merge(pieces + [detections_from()], areas)) == 2
    assert rows(merge(pieces + [detections_from([(50, 20, 150, 60, 0.3)])], areas)) == [
        (50, 20, 150, 60, 0.9, 0)
    ]


class Row(NamedTuple):
    """What an area shows, in pixels of the image."""

    area: tuple
    box: list
    score: float
    class_id: int
    is_cut: bool


def plain_merge(detections_of_areas, areas):
    """The three steps of `merge`, one pair of rows at a time."""
    table = rows_in_the_image(detections_of_areas, areas)
    objects = []  # lists of numbers of rows, whose first is the object
    for number in sorted(range(len(table)), key=lambda n: (table[n].is_cut, -table[n].score, n)):
        if table[number].is_cut:
            objects = with_piece(number, objects, table)
        else:
            numbers_in_objects: set[int] = set()
            for members in objects:
                numbers_in_objects.update(members)
            if number not in numbers_in_objects:
                free = set(range(len(table))) - numbers_in_objects
                objects.append([number] + partners(number, table, cut=False, among=free))

    merged = []
    for members in objects:
        merged.append(merged_row(members, table))
    remaining = []
    for _, _, row in sorted(merged):
        # Not if one of them is nearly the same box, of the same class.
        if not any(row[5] == other[5] and is_twice(row[:4], other[:4]) for other in remaining):
            remaining.append(row)
    return remaining


def rows_in_the_image(detections_of_areas, areas):
    """The rows of all areas, without what is outside of its area."""
    right_end = max(area[2] for area in areas)
    bottom_end = max(area[3] for area in areas)
    image_edges = [0, 0, right_end, bottom_end]
    table = []
    for area, detections in zip(areas, detections_of_areas, strict=True):
        size = area[2] - area[0], area[3] - area[1]
        for box, score, class_id, _ in detections:
            sides = []
            is_cut = False
            for number, side in enumerate(box):
                length = size[number % 2]
                end = min(max(side, 0), length) + area[number % 2]
                is_near = 100 * abs(end - area[number]) <= length
                if is_near and area[number] != image_edges[number]:
                    is_cut = True
                sides.append(end)
            if sides[0] < sides[2] and sides[1] < sides[3]:
                table.append(Row(area, sides, score, class_id, is_cut))
    return table


def alike(row, other):
    """How much two rows have in common, if they may be one object, else 0."""
    shared = size_of(row.box, other.box)
    if row.area == other.area or row.class_id != other.class_id or not shared:
        return 0
    piece = size_of(row.box if row.is_cut else other.box)
    box = row.box
    other_box = other.box
    if row.is_cut or other.is_cut:
        box = intersection([box, row.area, other.area])
        other_box = intersection([other_box, row.area, other.area])
    common = size_of(box, other_box)
    ratio = common / (size_of(box) + size_of(other_box) - common)
    is_piece = row.is_cut != other.is_cut and 10 * shared >= 7 * piece
    return ratio if ratio >= 0.5 or is_piece else 0


def partners(number, table, *, cut, among):
    """The most alike row of each other area, best first."""
    row = table[number]
    best_by_area = {}
    for other in sorted(among, key=lambda other: (-alike(row, table[other]), other)):
        if table[other].is_cut == cut and alike(row, table[other]):
            best_by_area.setdefault(table[other].area, other)
    return list(best_by_area.values())


def with_piece(number, objects, table):
    """The objects with a row that is cut: in the object that is whole, or else with its pieces."""
    whole = partners(number, table, cut=False, among=range(len(table)))
    if whole:
        for members in objects:
            if whole[0] in members:
                members.append(number)
                return objects
        raise AssertionError(f"row {whole[0]} is of no object")

    pieces = set()
    for members in objects:
        if all(table[member].is_cut for member in members):
            pieces.update(members)
    joined = set(partners(number, table, cut=True, among=pieces))
    joined_members = []
    for members in sorted(objects):
        if joined & set(members):
            joined_members += members
    others = [members for members in objects if not joined & set(members)]
    return others + [joined_members + [number]]


def merged_row(members, table):
    """What `merge` makes of the rows of an object, behind what it is sorted by."""
    rows_of_object = [table[member] for member in members]
    first = rows_of_object[0]
    score = max(row.score for row in rows_of_object)
    if first.is_cut:
        boxes = np.array([row.box for row in rows_of_object])
    else:
        boxes = np.array([first.box])
    left, top = boxes[:, :2].min(axis=0).tolist()
    right, bottom = boxes[:, 2:].max(axis=0).tolist()
    row = (left, top, right, bottom, round(score, 4), first.class_id)
    return -score, members[0], row


def is_twice(box, second_box):
    shared = size_of(box, second_box)
    return 10 * shared > 9 * (size_of(box) + size_of(second_box) - shared)


def intersection(boxes):
    """The box that several have in common; its sides are the wrong way round where they do not."""
    left, top, right, bottom = boxes[0]
    for box in boxes[1:]:
        left = max(left, box[0])
        top = max(top, box[1])
        right = min(right, box[2])
        bottom = min(bottom, box[3])
    return [left, top, right, bottom]


def size_of(*boxes):
    """The area in pixels that several boxes, or a single one, have in common."""
    left, top, right, bottom = intersection(boxes)
    return max(0, right - left) * max(0, bottom - top)


@st.composite
def crowds(draw):
    """Objects that overlap and touch seams, and what a poor detector finds of them in each tile."""
    tiling = Tiling(100, overlap=draw(st.sampled_from([0, 0.2, 0.5])))
    areas = tiling.areas((draw(st.sampled_from([60, 100, 180, 200])), draw(st.integers(101, 260))))
    count = draw(st.integers(1, 8))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    objects = []
    for _ in range(count):  # around a seam, or close to an earlier one, as often as not
        corner = random.choice([0, 20, 50, 70, 79, 80, 81, 98, 99, 100, 150], 2)
        box = list(corner) + list(corner + random.choice([10, 20, 30, 40, 60, 120], 2))
        near = objects and random.random() < 0.4
        objects.append(objects[-1] + random.choice([-5, 3, 8]) if near else np.array(box))
    sizes_of_calls = []
    for left, top, right, bottom in areas:
        inside = []
        for box in objects:
            moved = box + random.choice([0, 0, 0, 0, -10, -1, 1, 2, 5, 10], 4)
            moved = intersection([moved, (left, top, right, bottom)])
            moved = moved - np.array([left, top, left, top])
            if random.random() < 0.8 and size_of(moved):
                score = random.choice([0.25, 0.5, 0.75])
                class_id = int(random.random() < 0.2)
                inside.append(tuple(moved) + (score, class_id))
        sizes_of_calls.append(detections_from(inside))
    return sizes_of_calls, areas


@pytest.mark.slow
@settings(max_examples=200)
@given(crowds())
def test_a_crowd_is_merged_as_the_three_steps_say(crowd):
    detections_of_areas, areas = crowd
    merged = merge(detections_of_areas, areas)
    assert rows(merged) == plain_merge(detections_of_areas, areas)


@st.composite
def scenes(draw):
    """Objects of an image, and what an exact detector finds of them in each tile."""
    size = draw(st.integers(100, 400)), draw(st.integers(100, 400))
    tiling = Tiling(100, overlap=draw(st.sampled_from([0.2, 0.3, 0.5])))
    cells = draw(
        st.lists(
            st.tuples(st.integers(0, size[1] // 50 - 1), st.integers(0, size[0] // 50 - 1)),
            unique=True,
            max_size=12,
        )
    )
    objects = []
    for column, row in cells:  # one in each cell, none over another
        left = 50 * column + draw(st.integers(2, 20))
        top = 50 * row + draw(st.integers(2, 20))
        right = left + draw(st.integers(12, 26))
        bottom = top + draw(st.integers(12, 26))
        score = draw(st.sampled_from([0.3, 0.5, 0.5, 0.9]))
        class_id = draw(st.integers(0, 1))
        objects.append((left, top, right, bottom, score, class_id))
    return size, tiling, objects


@given(scenes(), st.booleans())
def test_an_exact_detector_finds_each_object_once(scene, seen_whole):
    size, tiling, objects = scene
    areas = tiling.areas(size)
    looked_at = []
    for number, (left, top, right, bottom) in enumerate(areas):
        inside = []
        for x1, y1, x2, y2, score, class_id in objects:
            box = max(x1, left), max(y1, top), min(x2, right), min(y2, bottom)
            if box[0] < box[2] and box[1] < box[3] and (seen_whole or number < len(areas) - 1):
                moved = np.subtract(box, [left, top, left, top])
                inside.append(tuple(moved) + (score, class_id))
        looked_at.append(detections_from(inside))
    if len(areas) == 1 and not seen_whole:
        return
    assert sorted(rows(merge(looked_at, areas))) == sorted(objects)


@pytest.mark.slow
def test_many_rows_are_merged_in_reasonable_memory(random):
    """20,000 x 20,000 pixels: 1,521 tiles of 5 rows each."""
    areas = Tiling(640).areas((20_000, 20_000))
    assert len(areas) == 1522
    detections_of_areas = []
    for _ in areas:
        boxes = []
        for corner in random.uniform(10, 560, (5, 2)):
            score = random.uniform(0.3, 1, 1)
            boxes.append(np.concatenate([corner, corner + 30, score]))
        detections_of_areas.append(detections_from(boxes))
    merged = merge(detections_of_areas, areas)
    assert 5_000 < len(merged) <= 1522 * 5
    assert (np.diff(merged.score) <= 0).all()


@pytest.mark.parametrize(("right", "objects"), [(25, 1), (24, 2)])
def test_rows_of_two_areas_with_an_overlap_of_a_half_are_one_object(right, objects):
    """Of 300 pixels the other has 150, or 140; neither is near a seam."""
    of_tile = detections_from([(10, 10, 40, 20, 0.9)])
    of_image = detections_from([(10, 10, right, 20, 0.8)])
    merged = merge([of_tile, detections_from(), of_image], PAIR)
    assert len(merged) == objects


def test_the_image_is_as_large_as_the_last_area_whatever_the_order_of_the_tiles():
    areas = [RIGHT, LEFT, WHOLE]
    merged = merge([detections_from(), detections_from(), detections_from()], areas)
    assert merged.image_size == (100, 180)
