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
    *(
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
    ),
    *("com10", "console", "x" * MAX_NAME_BYTES),
]
SAFE = {
    **{name: name for name in KEPT},
    **dict.fromkeys(("", ".", "..", ". .", "\x85", "\ud800", "\udcc2\udc85"), "_"),
    "a/b": "a_b",
    "a\0b": "a_b",
    "a\nb\x1b": "a_b_",
    "a.": "a",
    "a. ": "a",
    **{name: f"_{name}" for name in ("con", "Aux.x", "con .x", "com1", "lpt²")},
}
ON_WINDOWS = {"12:30": "12_30", '<>"|?*\\': "_" * 7, "\udcff": "_"}


def test_what_no_folder_takes_is_replaced():
    assert {name: safe(name, windows=False) for name in SAFE} == SAFE
    assert {name: safe(name, windows=True) for name in ON_WINDOWS} == ON_WINDOWS


def test_long_names_are_cut_and_stay_different():
    for name in ("x" * 221, "é" * 111, "猫" * 74, "x" * 219 + "猫", "\udcff" * 300):
        made, other = safe(name), safe(name + "y")
        assert len(os.fsencode(made)) <= 220  # so that numbers and a suffix fit into 255
        assert made[:5] == name[:5] or name.startswith("\udcff")
        assert made != other
        assert made == safe(name)


@given(anything, st.booleans())
@example("x" * 230, False)  # noqa: FBT003
def test_any_name_becomes_a_valid_file_name(name, windows):
    made = safe(name, windows=windows)
    data = os.fsencode(made)
    assert 0 < len(data) <= MAX_NAME_BYTES
    assert b"/" not in data
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", made)
    assert made not in {".", ".."}
    assert made == os.fsdecode(data)
    assert not made.endswith((".", " "))
    assert safe(made, windows=windows) == made


STEMS = {
    "a/b.jpg": "b",
    "b": "b",
    "-": "stdin",
    "./-": "-",
    "a.b.c": "a.b",
    "..": "..",
    "": "",
    "camera:0": "camera-0",
    "camera:0.jpg": "camera:0",
    "http://": "",
    "http://x/.": "x",
    "rtsp://cam/live": "cam-live",
    "rtsp://cam:554/a/b": "cam-554-a-b",
    "http://x/": "x",
    "http://10.0.0.1": "10.0.0.1",
    "http://x/../../y": "x-..-..-y",
    "https://x.org/a/clip.mp4?token=***#t": "x.org-a-clip",
}


def test_an_output_is_named_after_its_input():
    assert {source: stem(source) for source in STEMS} == STEMS


def give(names, *wanted, suffix=".png", usable=lambda _: True, mark=""):
    return [names.file(safe(one), suffix, usable, mark) for one in wanted]


def test_a_name_that_is_taken_gets_a_number():
    for wanted, refused, given_ in (
        ("a a b a", "", "a.png a-2.png b.png a-3.png"),
        ("a a-2 a a-2", "", "a.png a-2.png a-3.png a-2-2.png"),
        ("a", "a.png a-2.png", "a-3.png"),
    ):
        names = UniqueNames()
        usable = lambda name, refused=refused: name not in refused.split()  # noqa: E731
        assert give(names, *wanted.split(), usable=usable) == given_.split()
        jpg = give(names, "a", suffix=".jpg")
        assert [*jpg, *give(names, "a", suffix=".JPG")] == ["a.jpg", "a-2.JPG"]


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
    for taken in ("a_7", "A_07", "a_7_1"):
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


@pytest.mark.parametrize("code", [*"\u2028\u202a\u202e\u2066\u2069"])
def test_no_name_changes_the_direction_of_text(code):
    assert safe(f"a{code}gpj.exe") == "a_gpj.exe"
