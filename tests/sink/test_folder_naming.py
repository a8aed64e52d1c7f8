"""UniqueNames that are safe, and given once."""

import os
import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nasty_names import anything

from detcli.sink.folder import MAX_NAME_BYTES, UniqueNames, safe, stem


def entry(name):
    """The name as a folder sees it that ignores case and the encoding of accents."""
    raw = os.fsdecode(os.fsencode(name))
    return unicodedata.normalize("NFC", raw.casefold())


KEPT = [
    "bus",
    "a,b",
    'q"uote',
    "猫",
    "é",
    "\udcff",
    "-",
    "a.b",
    ".hidden",
    "12:30",
    "a b",
    "😀",
    "*",
]


@pytest.mark.parametrize(
    ("name", "made"),
    [
        *((name, name) for name in (*KEPT, "com10", "console", "x" * MAX_NAME_BYTES)),
        *[("", "_"), (".", "_"), ("..", "_"), (". .", "_"), ("a/b", "a_b"), ("a\0b", "a_b")],
        *[("a\nb\x1b", "a_b_"), ("\x85", "_"), ("\ud800", "_"), ("\udcc2\udc85", "_")],
        *[("a.", "a"), ("a. ", "a"), ("con", "_con"), ("Aux.x", "_Aux.x"), ("con .x", "_con .x")],
        *[("com1", "_com1"), ("lpt²", "_lpt²")],
    ],
)
def test_what_no_folder_takes_is_replaced(name, made):
    assert safe(name, windows=False) == made


@pytest.mark.parametrize(
    ("name", "made"), [("12:30", "12_30"), ('<>"|?*\\', "_" * 7), ("\udcff", "_")]
)
def test_windows_refuses_more(name, made):
    assert safe(name, windows=True) == made


@pytest.mark.parametrize(
    "name", ["x" * 221, "é" * 111, "猫" * 74, "x" * 219 + "猫", "\udcff" * 300]
)
def test_long_names_are_cut_and_stay_different(name):
    made, other = safe(name), safe(name + "y")
    assert len(os.fsencode(made)) <= 220  # so that numbers and a suffix fit into 255
    assert made[:5] == name[:5] or name.startswith("\udcff")
    assert made != other
    assert made == safe(name)


@given(anything, st.booleans())
def test_any_name_becomes_a_valid_file_name(name, windows):
    made = safe(name, windows=windows)
    data = os.fsencode(made)
    assert 0 < len(data) <= MAX_NAME_BYTES
    assert b"/" not in data
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", made)
    assert made not in {".", ".."}
    assert made == os.fsdecode(data)
    assert not made.endswith((".", " "))


@given(anything)
@example("x" * 230)
def test_a_safe_name_is_kept(name):
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
        *[("camera:0", "camera-0"), ("camera:0.jpg", "camera:0"), ("", ""), ("http://", "")],
        *[("rtsp://cam/live", "cam-live"), ("rtsp://cam:554/a/b", "cam-554-a-b")],
        *[("http://10.0.0.1", "10.0.0.1"), ("http://x/../../y", "x-..-..-y"), ("http://x/", "x")],
        *[("https://x.org/a/clip.mp4?token=***#t", "x.org-a-clip"), ("http://x/.", "x")],
    ],
)
def test_an_output_is_named_after_its_input(source, name):
    assert stem(source) == name


def give(names, *wanted, suffix=".png", usable=lambda _: True, mark=""):
    return [names.file(safe(one), suffix, usable, mark) for one in wanted]


@pytest.mark.parametrize(
    ("wanted", "refused", "given"),
    [
        (["a", "a", "b", "a"], [], ["a.png", "a-2.png", "b.png", "a-3.png"]),
        (["a", "a-2", "a", "a-2"], [], ["a.png", "a-2.png", "a-3.png", "a-2-2.png"]),
        (["a"], ["a.png", "a-2.png"], ["a-3.png"]),
    ],
)
def test_a_name_that_is_taken_gets_a_number(wanted, refused, given):
    names = UniqueNames()
    assert give(names, *wanted, usable=lambda name: name not in refused) == given
    jpg = give(names, wanted[0], suffix=".jpg")
    assert [*jpg, *give(names, wanted[0], suffix=".JPG")] == ["a.jpg", "a-2.JPG"]


def test_a_name_that_another_mark_has_gets_its_own():
    names = UniqueNames()
    assert give(names, "a", "a", mark="x") == ["a.png", "a-2.png"]
    assert give(names, "A", "b", "a", mark="y") == ["A-y.png", "b.png", "a-y-2.png"]
    assert give(names, "a", suffix=".jpg", mark="y") == ["a.jpg"]
    assert [names.prefix("a", mark=mark) for mark in "xyx"] == ["a", "a-y", "a-2"]


def test_a_reserved_name_is_for_one_mark():
    names = UniqueNames()
    names.reserve("A", "x")
    names.reserve("a", "y")  # too late
    assert give(names, "a", mark="y") == ["a-y.png"]
    assert names.prefix("a", mark="y") == "a-y"
    assert give(names, "a", mark="x") == ["a.png"]
    assert names.prefix("a", mark="x") == "a"


def test_many_of_one_name_are_quick():
    tried = []
    give(UniqueNames(), *["a"] * 1000, usable=lambda name: tried.append(name) is None)
    assert len(tried) == 1000


def test_no_file_gets_a_name_of_a_prefix():
    names = UniqueNames()
    assert names.prefix("a") == "a"
    assert give(names, "a", "a_7", "A_7_8", "a_x", "a_") == [
        *("a.png", "a_7-2.png", "A_7_8-2.png", "a_x.png", "a_.png")
    ]


@pytest.mark.parametrize("taken", ["a_7", "A_07", "a_7_1"])
def test_a_prefix_avoids_names_that_look_like_its_files(taken):
    names = UniqueNames()
    give(names, taken)
    assert names.prefix("a") == "a-2"


@given(st.lists(st.tuples(anything, st.sampled_from([".png", ".PNG", "", "prefix"])), max_size=8))
@example([("a", "prefix"), ("A", "prefix"), ("a", "prefix"), ("a_1", "prefix")])
@example([("_1", "prefix"), ("_1_2", "prefix"), ("a_1", "prefix"), ("a", "prefix")])
@example([(name, ".png") for name in ("a", "A", "a.", "É", "é", "e\u0301", "ß", "SS")])
@example([("a/b", ".png"), ("a\0b", ".PNG"), ("a_b", ".png")])
@example([("a-2", ".PNG"), ("a", ".png"), ("a", ".png")])
def test_all_files_have_different_names(wanted):
    names, given_ = UniqueNames(), []
    for name, suffix in wanted:
        if suffix == "prefix":
            prefix = names.prefix(safe(name))
            given_ += [
                f"{prefix}{number}{end}" for number in ("_1", "_1_1", "_2") for end in (".png", "")
            ]
        else:
            given_.append(names.file(safe(name), suffix))
    assert len({entry(name) for name in given_}) == len(given_)
