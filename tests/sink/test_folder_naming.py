"""Names that are safe, and given once."""

import os
import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nasty_names import anything

from detcli.sink.folder import LONGEST, Names, safe, stem


def entry(name):
    """What the name is called in a folder that tells no capitals and no accents apart."""
    raw = os.fsdecode(os.fsencode(name))
    return unicodedata.normalize("NFC", raw.casefold())


@pytest.mark.parametrize(
    "name",
    ["bus", "a,b", 'q"uote', "猫", "é", "\udcff", "-", "a.b", ".hidden", "12:30", "a b", "😀", "*"],
)
def test_usual_names_stay(name):
    assert safe(name, windows=False) == name


@pytest.mark.parametrize(
    ("name", "made"),
    [
        *[("", "_"), (".", "_"), ("..", "_"), (". .", "_"), ("a/b", "a_b"), ("a\0b", "a_b")],
        *[("a\nb\x1b", "a_b_"), ("\x85", "_"), ("\ud800", "_"), ("\udcc2\udc85", "_")],
        *[("a.", "a"), ("a. ", "a"), ("con", "_con"), ("Aux.x", "_Aux.x"), ("con .x", "_con .x")],
        *[("com1", "_com1"), ("com10", "com10"), ("console", "console"), ("lpt²", "_lpt²")],
    ],
)
def test_what_no_folder_should_hold_is_replaced(name, made):
    assert safe(name, windows=False) == made


@pytest.mark.parametrize(
    ("name", "made"), [("12:30", "12_30"), ('<>"|?*\\', "_" * 7), ("\udcff", "_")]
)
def test_windows_refuses_more(name, made):
    assert safe(name, windows=True) == made


@pytest.mark.parametrize(
    "name", ["x" * 221, "é" * 111, "猫" * 74, "x" * 219 + "猫", "\udcff" * 300]
)
def test_long_names_are_cut_and_told_apart(name):
    made, other = safe(name), safe(name + "y")
    assert len(os.fsencode(made)) <= LONGEST
    assert made[:5] == name[:5] or name.startswith("\udcff")
    assert made != other
    assert made == safe(name)


def test_a_name_that_fits_is_not_cut():
    assert safe("x" * LONGEST) == "x" * LONGEST


@given(anything, st.booleans())
def test_any_name_becomes_one_entry_of_a_folder(name, windows):
    made = safe(name, windows=windows)
    data = os.fsencode(made)
    assert 0 < len(data) <= LONGEST
    assert b"/" not in data
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", made)
    assert made not in {".", ".."}
    assert made == os.fsdecode(data)
    assert not made.endswith((".", " "))


@given(anything)
@example("x" * 230)
def test_a_safe_name_is_left_alone(name):
    assert safe(safe(name)) == safe(name)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        *[
            ("a/b.jpg", "b"),
            ("b", "b"),
            ("-", "stdin"),
            ("./-", "-"),
            ("a.b.c", "a.b"),
            ("..", ".."),
        ],
        *[("camera:0", "camera-0"), ("camera:0.jpg", "camera:0"), ("", "")],
        *[("rtsp://cam/live", "cam-live"), ("rtsp://cam:554/a/b", "cam-554-a-b")],
        *[
            ("http://10.0.0.1", "10.0.0.1"),
            ("https://x.org/a/clip.mp4?token=***#t", "x.org-a-clip"),
        ],
        *[
            ("http://x/../../y", "x-..-..-y"),
            ("http://", ""),
            ("http://x/", "x"),
            ("http://x/.", "x"),
        ],
    ],
)
def test_an_output_is_called_after_its_input(source, name):
    assert stem(source) == name


def give(names, *wanted, suffix=".png", may_be=lambda _: True):
    return [names.single(one, suffix, may_be) for one in wanted]


def test_a_name_that_is_taken_gets_a_number():
    assert give(Names(), "a", "a", "b", "a") == ["a.png", "a-2.png", "b.png", "a-3.png"]


def test_a_number_that_is_taken_is_not_given_again():
    wanted = ["a", "a-2", "a", "a-2", "a"]
    assert give(Names(), *wanted) == ["a.png", "a-2.png", "a-3.png", "a-2-2.png", "a-4.png"]


@pytest.mark.parametrize(
    ("one", "other"),
    [("a", "A"), ("É", "é"), ("é", "e\u0301"), ("a", "a."), ("a/b", "a\0b"), ("ß", "SS")],
)
def test_names_that_some_disks_take_for_the_same_get_a_number(one, other):
    assert len({entry(name) for name in give(Names(), one, other)}) == 2


def test_suffixes_tell_names_apart_but_not_by_capitals():
    names = Names()
    assert give(names, "a", suffix=".png") == ["a.png"]
    assert give(names, "a", suffix=".jpg") == ["a.jpg"]
    assert give(names, "a", suffix=".PNG") == ["a-2.PNG"]


def test_what_may_not_be_is_passed_over():
    refused = {"a.png", "a-2.png"}
    assert give(Names(), "a", may_be=lambda name: name not in refused) == ["a-3.png"]


def test_many_of_one_name_are_quick():
    tried = []
    give(Names(), *["a"] * 1000, may_be=lambda name: tried.append(name) is None)
    assert len(tried) == 1000


def test_nobody_gets_the_name_of_a_member():
    names = Names()
    assert names.family("a") == "a"
    assert give(names, "a", "a_7", "A_7_8", "a_x", "a_") == [
        *("a.png", "a_7-2.png", "A_7_8-2.png", "a_x.png", "a_.png")
    ]


@pytest.mark.parametrize("taken", ["a_7", "A_07", "a_7_1"])
def test_a_family_leaves_alone_what_looks_like_a_member(taken):
    names = Names()
    give(names, taken)
    assert names.family("a") == "a-2"


@pytest.mark.parametrize(
    ("first", "second"), [("a", "a"), ("a", "A"), ("a", "a_1"), ("a_1", "a"), ("_1", "_1_2")]
)
def test_families_have_no_member_in_common(first, second):
    names = Names()
    one, other = names.family(first), names.family(second)
    numbers = ["_1", "_2", "_1_1", "_1_2"]
    assert not {entry(one + n) for n in numbers} & {entry(other + n) for n in numbers}


@given(st.lists(st.tuples(anything, st.sampled_from([".png", ".PNG", "", "family"])), max_size=8))
def test_all_files_have_different_names(wanted):
    names, given_ = Names(), []
    for name, suffix in wanted:
        if suffix == "family":
            family = names.family(name)
            given_ += [
                f"{family}{number}{end}" for number in ("_1", "_1_1", "_2") for end in (".png", "")
            ]
        else:
            given_.append(names.single(name, suffix, lambda _: True))
    assert len({entry(name) for name in given_}) == len(given_)
