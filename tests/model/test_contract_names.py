"""Class names from metadata and from files, valid or not."""

import json

import pytest

from detcli.core.errors import UsageError
from detcli.data.coco import COCO
from detcli.model.contract import MAX_NAME, MAX_TEXT, parse_names, read_names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('["person", "car"]', ["person", "car"]),
        ("['person', \"driver's car\"]", ["person", "driver's car"]),
        ("('person', 'car')", ["person", "car"]),
        ("{0: 'person', 1: 'car'}", ["person", "car"]),
        ('{"0": "person", "1": "car"}', ["person", "car"]),
        ("{'1': 'car', '0': 'person'}", ["person", "car"]),
        ("{0: 'Fußgänger', 1: '車'}", ["Fußgänger", "車"]),
        ("{1: 'car', 3: 'bus'}", ["class_0", "car", "class_2", "bus"]),
        ("[1, 2]", ["1", "2"]),
    ],
)
def test_lists_and_mappings_are_read_in_json_and_python_notation(text, names):
    assert parse_names(text) == names


def test_names_round_trip_in_both_notations():
    assert parse_names(json.dumps(COCO)) == list(COCO)
    assert parse_names(str(dict(enumerate(COCO)))) == list(COCO)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "person",
        "person, car",
        "[]",
        "{}",
        "()",
        "null",
        "80",
        '"person"',
        "\0",
        "{'person', 'car'}",
        "{'person': 0}",
        "{None: 'a'}",
        "{-1: 'a'}",
        "['person'",
        "{0: 'a', 1000000000: 'b'}",
        "{1e999: 'a'}",
        "{float('nan'): 'a'}",
        "{[]: 'a'}",
        "{" + "9" * 5000 + ": 'a'}",
        "[" + "9" * 5000 + "]",
        "[" * 200_000,
        '{"a":' * 100_000,
        "{'a':" * 200_000,
        "(" * 5000,
        "+".join("1" * 100_000),
        "-" * 200_000 + "1",
        "[" + "0," * MAX_TEXT + "]",
        str(["x" * (MAX_NAME + 1)]),
        "['a'] * 10**9",
        "[__import__('pathlib').Path(FILE).touch()]",
        "{0: [].append(open(FILE, 'w'))}",
    ],
    ids=lambda text: f"{text[:20]}...{len(text)}",
)
def test_anything_else_is_rejected_and_not_executed(text, tmp_path):
    assert parse_names(text.replace("FILE", repr(str(tmp_path / "trace")))) is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"person\ntraffic light\n", ("person", "traffic light")),
        (b"person\r\ncar", ("person", "car")),
        (b"  person \n\tcar\n\n\n", ("person", "car")),
        (b"\xef\xbb\xbfperson\ncar\n", ("person", "car")),
        (b'\xef\xbb\xbf["person", "car"]', ("person", "car")),
        ("Fußgänger\n車\n".encode(), ("Fußgänger", "車")),
        (b'\n  ["person", "car"]\n', ("person", "car")),
        (b'{"0": "person", "2": "car"}', ("person", "class_1", "car")),
        (b"{0: 'person'}", ("person",)),
    ],
)
def test_a_names_file_holds_lines_a_list_or_a_mapping(tmp_path, content, names):
    path = tmp_path / "names.txt"
    path.write_bytes(content)
    assert read_names(path) == names


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no class names"),
        (b" \n\n\t\n", "no class names"),
        (b"[]", "no class names"),
        (b"{0: 'person'", "no class names"),
        (b"[" * 200_000, "no class names"),
        (b"\x89PNG\r\n\x1a\n\0\0", "not UTF-8 text"),
        ("person\ncar".encode("utf-16-le"), "holds NUL characters"),
    ],
    ids=["empty", "blank", "empty list", "truncated JSON", "deep", "binary", "UTF-16, unmarked"],
)
def test_a_names_file_without_names_is_a_usage_error(tmp_path, content, reason):
    path = tmp_path / "names.txt"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=reason) as error:
        read_names(path)
    assert str(path) in str(error.value)
    assert "one class name per line" in error.value.hint


@pytest.mark.parametrize("name", [".", "missing.txt"])
def test_an_unreadable_names_file_is_a_usage_error(tmp_path, name):
    with pytest.raises(UsageError, match="cannot read names from") as error:
        read_names(tmp_path / name)
    assert error.value.hint


def test_coco_has_eighty_different_names():
    assert len(COCO) == len(set(COCO)) == 80
    assert COCO[0] == "person"
    assert COCO[5] == "bus"
    assert COCO[9] == "traffic light"
    assert COCO[79] == "toothbrush"
    for name in COCO:
        assert name
        assert name == name.strip()


def test_the_longest_names_are_read():
    assert parse_names(str(["x" * MAX_NAME])) == ["x" * MAX_NAME]
