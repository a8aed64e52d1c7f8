"""The text form of a preprocessing."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcli.core.errors import UsageError
from detcli.model.contract import Interpolation, Preprocessing, Resize
from detcli.model.preprocessing import format_preprocessing, named_steps, parse, with_fields

NUMBERS = st.floats(-300, 300)
NONZERO = NUMBERS.filter(bool)
SIDES = st.integers(1, 5000)
ANY = st.builds(
    Preprocessing,
    resize=st.sampled_from(sorted(set(Resize) - {Resize.SHORTEST_EDGE})),
    interpolation=st.sampled_from(Interpolation),
    scale=NUMBERS,
    mean=st.tuples(NUMBERS, NUMBERS, NUMBERS),
    std=st.tuples(NONZERO, NONZERO, NONZERO),
    bgr=st.booleans(),
    pad=st.integers(0, 255),
    longest=st.none() | SIDES,
    enlarge=st.none() | st.floats(1, 100),
    multiple=SIDES,
)
BY_EDGE = st.builds(
    Preprocessing, resize=st.just(Resize.SHORTEST_EDGE), edges=st.tuples(SIDES, SIDES)
)


@given(ANY | BY_EDGE)
def test_what_is_written_is_read_back(preprocessing):
    assert (
        with_fields(
            Preprocessing(bgr=True, pad=9, longest=7, enlarge=2),
            parse(format_preprocessing(preprocessing)),
        )
        == preprocessing
    )
    assert named_steps(format_preprocessing(preprocessing)) == {
        "resize",
        "interpolation",
        "values",
        "channels",
    }


def test_only_what_is_named_changes():
    before = Preprocessing(Resize.CORNER, scale=1.0, bgr=True, longest=600, enlarge=1)
    assert with_fields(before, parse("bilinear")) == Preprocessing(
        Resize.CORNER, Interpolation.BILINEAR, scale=1.0, bgr=True, longest=600, enlarge=1
    )
    assert with_fields(before, parse(" stretch , mean=1:2:3")) == Preprocessing(
        Resize.STRETCH, scale=1.0, mean=(1.0, 2.0, 3.0), bgr=True
    )
    assert named_steps("stretch,mean=1:2:3") == {"resize", "values"}
    assert with_fields(before, parse("scale=1/255,std=1:1/2:2")) == replace(
        before, scale=1 / 255, std=(1.0, 0.5, 2.0)
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'' is unknown"),
        ("stretched", "'stretched' is unknown"),
        ("stretch,", "'' is unknown"),
        ("stretch,letterbox", "sets resize twice"),
        ("mean=1:2:3,mean=1:2:3", "sets mean twice"),
        ("mean=1:2", "'1:2' is not 3 numbers"),
        ("mean=a:b:c", "'a:b:c' is not 3 numbers"),
        ("mean=nan:0:0", "is not 3 numbers"),
        ("std=1:0:1", "divided by 0"),
        ("scale=inf", "'inf' is not one number"),
        ("scale", "'scale' is unknown"),
        ("stretch=1", "'stretch=1' is unknown"),
        ("pad=256", "out of range"),
        ("pad=1.5", "'1.5' is not one number"),
        ("shortest-edge", "'shortest-edge' is unknown"),
        ("shortest-edge=800", "'800' is not 2 numbers"),
        ("shortest-edge=0:800", "out of range"),
        ("longest=" + "9" * 5000, "5008 characters"),
        ("longest=" + "9" * 900, "is not one number"),
        ("longest=99999", "out of range"),
        ("enlarge=0.5", "out of range"),
        ("enlarge=1:2", "is not one number"),
        ("scale=1/0", "is not one number"),
        ("scale=1/", "is not one number"),
        ("pad=1/2", "is not one number"),
    ],
)
def test_what_is_malformed_is_named(text, problem):
    with pytest.raises(UsageError, match=problem) as caught:
        parse(text)
    assert caught.value.hint


@pytest.mark.parametrize("resize", ["shortest-edge=500:700", "round", "none"])
def test_what_sides_are_multiples_of_stays_with_another_way_of_resizing(resize):
    family = Preprocessing(resize=Resize.ROUND, multiple=32)
    assert with_fields(family, parse(resize)).multiple == 32
    assert with_fields(family, parse(f"{resize},multiple=16")).multiple == 16
    assert with_fields(family, parse("stretch")).multiple == 1
