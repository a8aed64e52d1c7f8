"""Tiles cover a picture, and what several of them show is one object."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_records import detected

from detcli.core.errors import UsageError
from detcli.core.tiling import Tiling, merge


def found(*rows):
    """Rows x1, y1, x2, y2, score and maybe a class, in pixels of an area."""
    return detected(*sorted(((*row, 0)[:6] for row in rows), key=lambda row: -row[4]))


def rows(detections):
    return [
        (*(round(float(side), 2) for side in box), round(score, 4), class_id)
        for box, score, class_id, _ in detections
    ]


@pytest.mark.parametrize(
    ("text", "tiling"),
    [
        *(("640", Tiling(640, 0.2)), ("640,overlap=0.5", Tiling(640, 0.5))),
        *((" 320 , overlap = .25 ", Tiling(320, 0.25)), ("1,overlap=0", Tiling(1, 0.0))),
        ("640,overlap=0.9", Tiling(640, 0.9)),
    ],
)
def test_the_option_is_read_and_written(text, tiling):
    assert Tiling.parse(text) == tiling
    assert Tiling.parse(str(tiling)) == tiling


@pytest.mark.parametrize(
    ("says", "texts"),
    [
        ("not a size", ["", "0", "-640", "640x480", "640.5", "640,0.2", "٦٤٠", "9" * 400]),
        ("not a size", ["640,overlap=", "640,overlap=nan"]),
        ("between 0 and 0.9", ["640,overlap=0.91", "640,overlap=1", "640,overlap=-0.1"]),
    ],
)
def test_what_is_no_tiling_is_refused_with_what_to_write(says, texts):
    for text in texts:
        with pytest.raises(UsageError, match=says) as refused:
            Tiling.parse(text)
        assert "640" in refused.value.hint or "overlap=0.2" in refused.value.hint


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(32, 700), st.floats(0, 0.9))
def test_tiles_cover_the_picture_and_overlap(height, width, size, overlap):
    *tiles, whole = Tiling(size, overlap).areas((height, width))
    assert whole == (0, 0, width, height)
    assert bool(tiles) == (max(height, width) > size)
    for axis, length in ((0, width), (1, height)):
        starts = sorted({area[axis] for area in tiles})
        ends = sorted({area[axis + 2] for area in tiles})
        if tiles:
            assert starts[0] == 0
            assert ends[-1] == length
        for end, start in zip(ends, starts[1:], strict=False):
            assert end - start >= int(overlap * size) - 1
        distances = [after - before for before, after in pairwise(starts)]
        assert not distances or max(distances) - min(distances) <= 1
        assert {end - start for start, end in zip(starts, ends, strict=True)} <= {min(size, length)}


# Two tiles of 100 pixels that share 20 columns, and the whole.
PAIR = Tiling(100, 0.2).areas((100, 180))
LEFT, RIGHT, WHOLE = PAIR


def test_one_area_stays_as_it_is_but_for_what_is_there_twice():
    assert PAIR == [(0, 0, 100, 100), (80, 0, 180, 100), (0, 0, 180, 100)]
    best, alike, of_another_class = (
        (-5, 0, 10, 20, 0.6),
        (-5, 0, 10, 18, 0.5),
        (-5, 0, 10, 19, 0.4, 1),
    )
    kept = rows(merge([found(best, alike, of_another_class)], [(0, 0, 50, 50)]))
    assert kept == [(*best, 0), (*alike, 0), of_another_class]  # 0.9 is not above 0.9
    kept = rows(merge([found(best, (-5, 0, 10, 18.5, 0.5))], [(0, 0, 50, 50)]))
    assert kept == [(*best, 0)]


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
    "a row cut at a seam is a piece of the object that another area shows": (
        [(60, 20, 100, 60, 0.9)], [(0, 20, 30, 60, 0.3)], [(60, 20, 110, 60, 0.5)],
        [(60, 20, 110, 60, 0.9)]),
    "a piece within an object is part of it, as a head is of a person": (
        [(85, 20, 100, 30, 0.9)], [], [(60, 18, 120, 90, 0.5)], [(60, 18, 120, 90, 0.9)]),
    "a small object before a large one is not a piece": (
        [(70, 20, 85, 30, 0.4)], [], [(60, 18, 120, 90, 0.5)],
        [(60, 18, 120, 90, 0.5), (70, 20, 85, 30, 0.4)]),
    "pieces on both sides of a seam are one object": (
        [(40, 20, 100, 60, 0.6)], [(0, 20, 60, 61, 0.7)], [], [(40, 20, 140, 61, 0.7)]),
    "pieces that differ where both areas see are two objects": (
        [(40, 20, 100, 50, 0.6)], [(0, 60, 60, 90, 0.7)], [],
        [(80, 60, 140, 90, 0.7), (40, 20, 100, 50, 0.6)]),
    "the edge of the picture is no seam": (
        [(0, 0, 30, 30, 0.9)], [], [(0, 0, 90, 90, 0.5)],
        [(0, 0, 30, 30, 0.9), (0, 0, 90, 90, 0.5)]),
    "what one area shows twice is one object": (
        [(20, 20, 40, 60, 0.7), (20, 20, 40, 58, 0.6)], [],
        [(20, 20, 40, 60, 0.69), (21, 20, 40, 60, 0.59)],
        [(20, 20, 40, 60, 0.7)]),
    "boxes end with their area": (
        [(-9, 20, 30, 40, 0.9), (-9, 20, -2, 40, 0.8)], [], [], [(0, 20, 30, 40, 0.9)]),
}  # fmt: skip


@pytest.mark.parametrize(("left", "right", "whole", "merged"), MERGED.values(), ids=MERGED)
def test_what_several_areas_show(left, right, whole, merged):
    seen = rows(merge([found(*left), found(*right), found(*whole)], PAIR))
    assert seen == [(*row, 0)[:6] for row in merged]


@pytest.mark.parametrize("scores", [(0.9, 0.5, 0.7), (0.5, 0.9, 0.7), (0.7, 0.5, 0.9)])
def test_pieces_in_a_row_are_one_object(scores):
    areas = Tiling(100, 0.2).areas((100, 260))
    assert [area[0] for area in areas] == [0, 80, 160, 0]
    first, middle, last = scores
    merged = merge(
        [
            found((50, 20, 100, 60, first)),
            found((0, 20, 100, 60, middle)),
            found((0, 20, 70, 60, last)),
            found(),
        ],
        areas,
    )
    assert rows(merged) == [(50, 20, 230, 60, 0.9, 0)]


def test_without_overlap_the_whole_joins():
    areas = Tiling(100, 0).areas((100, 200))
    pieces = [found((50, 20, 100, 60, 0.9)), found((0, 20, 50, 60, 0.8))]
    assert len(merge([*pieces, found()], areas)) == 2
    assert rows(merge([*pieces, found((50, 20, 150, 60, 0.3))], areas)) == [
        (50, 20, 150, 60, 0.9, 0)
    ]


@st.composite
def scenes(draw):
    """Objects of a picture, and what an exact detector finds of them in each tile."""
    size = draw(st.integers(100, 400)), draw(st.integers(100, 400))
    tiling = Tiling(100, draw(st.sampled_from([0.2, 0.3, 0.5])))
    cells = draw(
        st.lists(
            st.tuples(st.integers(0, size[1] // 50 - 1), st.integers(0, size[0] // 50 - 1)),
            unique=True,
            max_size=12,
        )
    )
    objects = []
    for column, row in cells:  # one in each cell, none over another
        left, top = (draw(st.integers(2, 20)) for _ in range(2))
        width, height = (draw(st.integers(12, 26)) for _ in range(2))
        x, y = 50 * column + left, 50 * row + top
        score = draw(st.sampled_from([0.3, 0.5, 0.5, 0.9]))
        objects.append((x, y, x + width, y + height, score, draw(st.integers(0, 1))))
    return size, tiling, objects


@given(scenes(), st.booleans())
def test_an_exact_detector_finds_each_object_once(scene, seen_whole):
    size, tiling, objects = scene
    areas = tiling.areas(size)
    seen = []
    for number, (left, top, right, bottom) in enumerate(areas):
        inside = []
        for x1, y1, x2, y2, score, class_id in objects:
            box = max(x1, left), max(y1, top), min(x2, right), min(y2, bottom)
            if box[0] < box[2] and box[1] < box[3] and (seen_whole or number < len(areas) - 1):
                moved = np.subtract(box, [left, top, left, top])
                inside.append((*moved, score, class_id))
        seen.append(found(*inside))
    if len(areas) == 1 and not seen_whole:
        return
    assert sorted(rows(merge(seen, areas))) == sorted(
        (*map(float, box[:4]), *box[4:]) for box in objects
    )


def test_many_rows_are_merged_in_reasonable_memory(random):
    """20,000 x 20,000 pixels: 1,521 tiles of 5 rows each."""
    areas = Tiling(640).areas((20_000, 20_000))
    assert len(areas) == 1522
    seen = []
    for _ in areas:
        corners = random.uniform(10, 560, (5, 2))
        seen.append(
            found(*(np.concatenate([c, c + 30, random.uniform(0.3, 1, 1)]) for c in corners))
        )
    merged = merge(seen, areas)
    assert 5_000 < len(merged) <= 1522 * 5
    assert (np.diff(merged.score) <= 0).all()
