"""UniqueNames that are safe, and given once."""

import os
import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nasty_names import anything

from detcli.sink.input_names import stem
from detcli.sink.unique_names import UniqueNames
from detcli.storage.file_names import MAX_NAME_BYTES, safe


def entry(name):
    """The name as a folder sees it that ignores case and the encoding of accents."""
    raw = os.fsdecode(os.fsencode(name))
    return unicodedata.normalize("NFC", raw.casefold())


UNCHANGED = [
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
    "com10",
    "console",
    "x" * MAX_NAME_BYTES,
]
WITHOUT_A_NAME = ["", ".", "..", ". .", "\x85", "\ud800", "\udcc2\udc85"]
DEVICES = ["con", "Aux.x", "con .x", "com1", "lpt²"]
REPLACED = {"a/b": "a_b", "a\0b": "a_b", "a\nb\x1b": "a_b_", "a.": "a", "a. ": "a"}
ON_WINDOWS = {"12:30": "12_30", '<>"|?*\\': "_" * 7, "\udcff": "_"}


@pytest.mark.parametrize("name", UNCHANGED)
def test_a_name_that_every_folder_takes_stays(name):
    assert safe(name, windows=False) == name


@pytest.mark.parametrize("name", WITHOUT_A_NAME)
def test_a_name_of_which_nothing_is_left_is_a_line(name):
    assert safe(name, windows=False) == "_"


@pytest.mark.parametrize("name", DEVICES)
def test_a_name_of_a_device_gets_a_line_before_it(name):
    assert safe(name, windows=False) == f"_{name}"


@pytest.mark.parametrize(("name", "expected"), REPLACED.items())
def test_what_no_folder_takes_is_replaced(name, expected):
    assert safe(name, windows=False) == expected


@pytest.mark.parametrize(("name", "expected"), ON_WINDOWS.items())
def test_windows_takes_less(name, expected):
    assert safe(name, windows=True) == expected


@pytest.mark.parametrize(
    "name", ["x" * 221, "é" * 111, "猫" * 74, "x" * 219 + "猫", "\udcff" * 300]
)
def test_long_names_are_cut_and_stay_different(name):
    safe_name = safe(name)
    assert len(os.fsencode(safe_name)) <= 220  # so that numbers and a suffix fit into 255
    assert safe_name[:5] == name[:5] or name.startswith("\udcff")
    assert safe_name != safe(name + "y")
    assert safe_name == safe(name)


@given(anything, st.booleans())
@example("x" * 230, False)  # noqa: FBT003
def test_any_name_becomes_a_valid_file_name(name, windows):
    safe_name = safe(name, windows=windows)
    data = os.fsencode(safe_name)
    assert 0 < len(data) <= MAX_NAME_BYTES
    assert b"/" not in data
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", safe_name)
    assert safe_name not in {".", ".."}
    assert safe_name == os.fsdecode(data)
    assert not safe_name.endswith((".", " "))
    assert safe(safe_name, windows=windows) == safe_name


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


@pytest.mark.parametrize(("source", "expected"), STEMS.items())
def test_an_output_is_named_after_its_input(source, expected):
    assert stem(source) == expected


def choose_names(unique_names, names, suffix=".png", usable=lambda _: True, input_hash=""):
    """The file names chosen for these names."""
    file_names = []
    for name in names:
        file_names.append(unique_names.choose_file_name(safe(name), suffix, usable, input_hash))
    return file_names


@pytest.mark.parametrize(
    ("names", "refused", "expected"),
    [
        (["a", "a", "b", "a"], [], ["a.png", "a-2.png", "b.png", "a-3.png"]),
        (["a", "a-2", "a", "a-2"], [], ["a.png", "a-2.png", "a-3.png", "a-2-2.png"]),
        (["a"], ["a.png", "a-2.png"], ["a-3.png"]),
    ],
)
def test_a_name_that_is_taken_gets_a_number(names, refused, expected):
    unique_names = UniqueNames()
    assert choose_names(unique_names, names, usable=lambda name: name not in refused) == expected
    assert choose_names(unique_names, ["a"], suffix=".jpg") == ["a.jpg"]
    assert choose_names(unique_names, ["a"], suffix=".JPG") == ["a-2.JPG"]


def test_a_name_that_another_input_has_gets_a_hash():
    names = UniqueNames()
    assert choose_names(names, ["a", "a"], input_hash="x") == ["a.png", "a-2.png"]
    assert choose_names(names, ["A", "b", "a"], input_hash="y") == ["A-y.png", "b.png", "a-y-2.png"]
    assert choose_names(names, ["a"], suffix=".jpg", input_hash="y") == ["a.jpg"]
    assert names.choose_prefix("a", input_hash="x") == "a"
    assert names.choose_prefix("a", input_hash="y") == "a-y"
    assert names.choose_prefix("a", input_hash="x") == "a-2"


def test_a_reserved_name_is_for_one_input():
    names = UniqueNames()
    names.reserve("A", "x")
    names.reserve("a", "y")  # too late
    assert choose_names(names, ["a"], input_hash="y") == ["a-y.png"]
    assert names.choose_prefix("a", input_hash="y") == "a-y"
    assert choose_names(names, ["a"], input_hash="x") == ["a.png"]
    assert names.choose_prefix("a", input_hash="x") == "a"


def test_many_of_one_name_are_quick():
    candidates = []

    def usable(name):
        candidates.append(name)
        return True

    unique_names = UniqueNames()
    for _ in range(1000):
        choose_names(unique_names, ["a"], usable=usable)
    assert len(candidates) == 1000


def test_no_file_gets_a_name_of_a_prefix():
    names = UniqueNames()
    assert names.choose_prefix("a") == "a"
    assert choose_names(names, ["a", "a_7", "A_7_8", "a_x", "a_"]) == [
        "a.png",
        "a_7-2.png",
        "A_7_8-2.png",
        "a_x.png",
        "a_.png",
    ]


@pytest.mark.parametrize("name", ["a_7", "A_07", "a_7_1"])
def test_no_prefix_begins_the_name_of_a_file(name):
    names = UniqueNames()
    choose_names(names, [name])
    assert names.choose_prefix("a") == "a-2"


@given(st.lists(st.tuples(anything, st.sampled_from([".png", ".PNG", "", "prefix"])), max_size=8))
@example([("a", "prefix"), ("A", "prefix"), ("a", "prefix"), ("a_1", "prefix")])
@example([("_1", "prefix"), ("_1_2", "prefix"), ("a_1", "prefix"), ("a", "prefix")])
@example(
    [
        ("a", ".png"),
        ("A", ".png"),
        ("a.", ".png"),
        ("É", ".png"),
        ("é", ".png"),
        ("e\u0301", ".png"),
        ("ß", ".png"),
        ("SS", ".png"),
    ]
)
@example([("a/b", ".png"), ("a\0b", ".PNG"), ("a_b", ".png")])
@example([("a-2", ".PNG"), ("a", ".png"), ("a", ".png")])
def test_all_files_have_different_names(requests):
    unique_names = UniqueNames()
    file_names = []
    for name, suffix in requests:
        if suffix == "prefix":
            prefix = unique_names.choose_prefix(safe(name))
            for number in ("_1", "_1_1", "_2"):
                file_names.append(f"{prefix}{number}.png")
                file_names.append(f"{prefix}{number}")
        else:
            file_names.append(unique_names.choose_file_name(safe(name), suffix))
    assert len({entry(name) for name in file_names}) == len(file_names)


@pytest.mark.parametrize("code", list("\u2028\u202a\u202e\u2066\u2069"))
def test_no_name_changes_the_direction_of_text(code):
    assert safe(f"a{code}gpj.exe") == "a_gpj.exe"
