# mypy: disable-error-code=arg-type
"""Values of settings as their types say: refused where they are made, or taken."""

import math
from dataclasses import fields, replace
from decimal import Decimal
from pathlib import Path
from typing import get_origin

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import detcli
from detcli import DeviceOptions, Inputs, Settings, Tiling, Watched
from detcli.config.config import SettingsValues
from detcli.config.inputs import InputOptions
from detcli.config.shapes import Line, Region, Zone
from detcli.config.typed import ConversionError, convert, describe_type
from detcli.config.values import BoxFormat, Tracker, Tracking
from detcli.core.errors import UsageError

DOOR = "door=0,0,1,0,1,1"
YARD = "yard=0,0,1,0,1,1"


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (Settings, "conf", "0.4"),
        (Settings, "conf", True),
        (Settings, "conf", [0.4]),
        (Settings, "conf", np.array([0.4])),
        (Settings, "conf", Decimal("0.4")),
        (Settings, "conf", 10**400),
        (Settings, "max_det", "3"),
        (Settings, "max_det", 3.0),
        (Settings, "max_det", True),
        (Settings, "max_det", None),
        (Settings, "classes", 0),
        (Settings, "classes", "person"),
        (Settings, "classes", b"person"),
        (Settings, "classes", None),
        (Settings, "classes", (None,)),
        (Settings, "classes", (True,)),
        (Settings, "classes", (1.5,)),
        (Settings, "classes", {"person": 1}),
        (Settings, "class_conf", "person=0.5"),
        (Settings, "class_conf", ("person", 0.5)),
        (Settings, "class_conf", (("person",),)),
        (Settings, "class_conf", {"person": "0.5"}),
        (Settings, "nms", "0.5"),
        (Settings, "nms", "None"),
        (Settings, "nms", False),
        (Settings, "imgsz", (640, 640)),
        (Settings, "imgsz", "640"),
        (Settings, "imgsz", 640.0),
        (Settings, "names", 3),
        (Settings, "names", ("person", "car")),
        (Settings, "box_format", "yxyx"),
        (Settings, "box_format", 1),
        (Settings, "unique", "yes"),
        (Settings, "unique", 1),
        (Settings, "rect", None),
        (Settings, "preprocess", 5),
        (Settings, "region", "lower half"),
        (Settings, "region", (0, 0, 1)),
        (Settings, "region", {}),
        (Settings, "region", True),
        (Settings, "tile", "large"),
        (Settings, "tile", 0),
        (Settings, "tile", 640.5),
        (Settings, "tile", True),
        (Settings, "tile", ()),
        (Inputs, "vid_stride", 0),
        (Inputs, "vid_stride", -1),
        (Inputs, "vid_stride", "2"),
        (Inputs, "vid_stride", 2.5),
        (Inputs, "vid_stride", True),
        (Inputs, "vid_stride", None),
        (Inputs, "every", 0),
        (Inputs, "every", "1s"),
        (Inputs, "every", math.nan),
        (Inputs, "every", 1e9),
        (Inputs, "start", -1),
        (Inputs, "start", None),
        (Inputs, "end", math.inf),
        (Inputs, "fps", 0),
        (Inputs, "max_pixels", 0),
        (Inputs, "input_timeout", "5s"),
        (Inputs, "recursive", "yes"),
        (InputOptions, "source", "a.jpg"),
        (InputOptions, "source", (3,)),
        (InputOptions, "files_from", ["a.jpg"]),
        (Watched, "zone", "door"),
        (Watched, "zone", 5),
        (Watched, "zone", (DOOR, 5)),
        (Watched, "zone", {"door": 1}),
        (Watched, "zone", b"door"),
        (Watched, "line", "gate=0,0"),
        (Watched, "track", "sort"),
        (Watched, "track", True),
        (Watched, "read", "yes"),
        (DeviceOptions, "workers", "2"),
        (DeviceOptions, "workers", 0),
        (DeviceOptions, "cores", 1.5),
        (DeviceOptions, "gpu_mem_limit", "2GiB"),
        (DeviceOptions, "half", "yes"),
        (DeviceOptions, "cuda_graph", 1),
        (Tiling, "size", "640"),
        (Tiling, "size", 640.5),
        (Tracking, "tracker", "sort"),
        (Tracking, "tracker", 1),
    ],
)
def test_a_value_of_another_type_is_refused_where_it_is_made(kind, name, value):
    with pytest.raises(UsageError, match=f"^{name}[ :]") as caught:
        kind(**{name: value})
    assert caught.value.hint
    assert "--" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    ("kind", "name", "value", "expected"),
    [
        (Settings, "conf", 1, 1.0),
        (Settings, "conf", np.float32(0.5), 0.5),
        (Settings, "conf", np.array(0.5), 0.5),
        (Settings, "conf", None, None),
        (Settings, "max_det", np.int64(3), 3),
        (Settings, "classes", ["person", 0], ("person", 0)),
        (Settings, "classes", iter(["person", 0]), ("person", 0)),
        (Settings, "classes", (name for name in ["person"]), ("person",)),
        (Settings, "classes", {"person"}, ("person",)),
        (Settings, "classes", {"person": 1}.keys(), ("person",)),
        (Settings, "classes", range(2), (0, 1)),
        (Settings, "classes", np.array([0, 2]), (0, 2)),
        (Settings, "classes", [], ()),
        (Settings, "class_conf", {}, ()),
        (Settings, "class_conf", {"person": 1, 2: 0.5}, (("person", 1.0), (2, 0.5))),
        (Settings, "class_conf", [["person", 0.5]], (("person", 0.5),)),
        (Settings, "nms", 1, 1.0),
        (Settings, "nms", "none", "none"),
        (Settings, "names", "names.txt", "names.txt"),
        (Settings, "names", Path("names.txt"), Path("names.txt")),
        (Settings, "box_format", "cxcywh", BoxFormat.CXCYWH),
        (Settings, "rect", np.True_, True),
        (Settings, "region", "0,0.5,1,1", Region.parse("0,0.5,1,1")),
        (Settings, "region", (0, 0.5, 1, 1), Region.parse("0,0.5,1,1")),
        (Settings, "region", np.array([0, 0, 640, 480]), Region.parse("0,0,640,480")),
        (Settings, "tile", 640, Tiling(640)),
        (Settings, "tile", "640,crowd=10", Tiling(640, crowd=10)),
        (Settings, "tile", "none", "none"),
        (Settings, "tile", Tiling(32), Tiling(32)),
        (Inputs, "start", 2, 2.0),
        (Inputs, "every", 1, 1.0),
        (InputOptions, "source", [Path("a.jpg"), "b.jpg"], ("a.jpg", "b.jpg")),
        (InputOptions, "files_from", Path("names.txt"), "names.txt"),
        (Watched, "zone", DOOR, (Zone.parse(DOOR),)),
        (Watched, "zone", [DOOR, Zone.parse(YARD)], (Zone.parse(DOOR), Zone.parse(YARD))),
        (Watched, "zone", Zone.parse(DOOR), (Zone.parse(DOOR),)),
        (Watched, "zone", iter([DOOR]), (Zone.parse(DOOR),)),
        (Watched, "line", "gate=0,0,1,1", (Line.parse("gate=0,0,1,1"),)),
        (Watched, "track", "ocsort,conf=0.5", Tracking(Tracker.OCSORT, conf=0.5)),
        (Watched, "track", Tracker.OCSORT, Tracking(Tracker.OCSORT)),
        (Tiling, "size", np.int32(640), 640),
        (Tracking, "tracker", "ocsort", Tracker.OCSORT),
    ],
)
def test_what_is_natural_is_taken(kind, name, value, expected):
    settled = getattr(kind(**{name: value}), name)
    assert settled == expected
    assert type(settled) is type(expected)


@pytest.mark.parametrize("conf", ["0.5", True, 2, -0.1, math.nan])
def test_a_tracker_needs_a_confidence(conf):
    with pytest.raises(UsageError, match=r"^conf is") as caught:
        Tracking(Tracker.OCSORT, conf=conf)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("name", 3, "line 3 does not begin with a name"),
        ("points", "0,0,1,1", "the points of the line are"),
        ("points", ((0, 0), (1, "one")), "the points of the line are"),
        ("points", ((0, 0, 1), (1, 1)), "the points of the line are"),
        ("fractions", 1, "fractions of the line is"),
    ],
)
def test_a_shape_of_another_type_is_refused(name, value, message):
    values = {"name": "gate", "points": ((0, 0), (1, 1)), "fractions": True}
    with pytest.raises(UsageError, match=message) as caught:
        Line(**values | {name: value})
    assert caught.value.hint


def test_a_shape_takes_an_array_of_points():
    line = Line("gate", np.array([[0, 0], [1, 1]]), fractions=True)
    assert line == Line.parse("gate=0,0,1,1")


def test_a_file_of_zones_is_read(tmp_path):
    path = tmp_path / "zones.txt"
    path.write_text(f"{DOOR}\n{YARD}\n")
    assert Watched(zone=f"@{path}").zone == (Zone.parse(DOOR), Zone.parse(YARD))
    with pytest.raises(UsageError, match="door is given twice"):
        Watched(zone=(DOOR, f"@{path}"))


def test_a_text_with_a_comma_is_one_class():
    assert Settings(classes=("person, sitting",)).classes == ("person, sitting",)


ODD = [
    None,
    True,
    0,
    -1,
    7,
    0.5,
    math.nan,
    math.inf,
    "",
    "x",
    "0.4",
    b"x",
    (),
    [],
    {},
    set(),
    {1: 2},
]
ODD += [("x",), [1, 2], object(), int, np.float32(0.5), np.zeros(0), np.zeros((2, 2)), Path("x")]


PUBLIC_GROUPS = (Settings, InputOptions, Watched)


def public_fields():
    """A test case for each field of the public option groups, named after it."""
    cases = []
    for kind in PUBLIC_GROUPS:
        for field in fields(kind):
            cases.append(pytest.param(kind, field, id=f"{kind.__name__}.{field.name}"))
    return cases


@pytest.mark.parametrize(("kind", "field"), public_fields())
def test_whatever_is_given_is_settled_or_refused(kind, field):
    for value in ODD:
        refused = None
        try:
            settled = getattr(kind(**{field.name: value}), field.name)
        except UsageError as error:
            refused = error
        if refused is not None:
            assert refused.hint
            continue
        assert convert(settled, field.type) == settled
        if get_origin(field.type) is tuple:
            assert type(settled) is tuple


numbers = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()


@pytest.mark.slow
@given(numbers | st.lists(numbers) | st.dictionaries(st.text(), numbers))
def test_a_conversion_ends_with_a_value_of_the_type_or_an_error(value):
    for kind in (bool, int, float, str, float | None, tuple[int | str, ...]):
        try:
            converted = convert(value, kind)
        except ConversionError:
            continue
        assert convert(converted, kind) == converted or converted != converted  # noqa: PLR0124 - NaN
        if isinstance(kind, type) and get_origin(kind) is None:
            assert type(converted) is kind


def test_types_are_described():
    types = {}
    for kind in PUBLIC_GROUPS:
        types |= {field.name: describe_type(field.type) for field in fields(kind)}
    assert types["conf"] == "a number or None"
    assert types["classes"] == "a tuple, each of whose entries is a whole number or a text"
    assert types["nms"] == "'none' or a number or None"
    assert types["class_conf"].startswith("a mapping from a text or a whole number to a number")
    assert types["box_format"] == "one of 'xyxy', 'cxcywh' or None"
    assert types["region"] == "a Region or its text or None"
    assert describe_type(tuple[int, str]) == "a tuple of a whole number, a text"


def test_a_whole_number_of_any_size_is_in_range_or_not():
    huge = 10**400
    assert Inputs(vid_stride=huge, max_pixels=huge).vid_stride == huge
    for change in ({"fps": huge}, {"vid_stride": -huge}):
        with pytest.raises(UsageError):
            Inputs(**change)
    with pytest.raises(UsageError, match="cores is 1000"):
        DeviceOptions(cores=huge)


@pytest.mark.parametrize("value", [b"a", bytearray(b"a"), memoryview(b"a")])
def test_bytes_are_no_list_of_class_ids(value):
    with pytest.raises(UsageError, match="classes is"):
        Settings(classes=value)
    with pytest.raises(UsageError, match="tile is"):
        Settings(tile=value)


def test_zones_and_lines_have_the_names_of_the_options_as_well():
    watched = Watched(track="bytetrack", zones=[DOOR], lines=["gate=0,0.5,1,0.5"])
    by_option_names = Watched(track="bytetrack", zone=DOOR, line="gate=0,0.5,1,0.5")
    assert watched == by_option_names
    assert watched.zones == watched.zone == (Zone.parse(DOOR),)
    assert watched.lines == watched.line == (Line.parse("gate=0,0.5,1,0.5"),)
    assert replace(watched, zone=()).lines == watched.lines


def test_zones_are_given_by_one_of_both_names():
    with pytest.raises(UsageError, match="zones and zone are the same, and both are given"):
        Watched(zones=[DOOR], zone=[YARD])


def test_values_may_be_made_by_their_public_types():
    zone = detcli.Zone("door", [(0, 0), (1, 0), (1, 1)])
    tracking = detcli.Tracking(Tracker.BYTETRACK, conf=0.5)
    watched = Watched(track=tracking, zones=[zone, YARD])
    assert watched.zones == (zone, Zone.parse(YARD))
    assert watched.track == Watched(track="bytetrack,conf=0.5").track
    region = detcli.Region(0, 0.5, 1, 1)
    assert Settings(region=region).region == Settings(region="0,0.5,1,1").region


def field_names(kind):
    return [field.name for field in fields(kind)]


def test_type_checkers_know_all_arguments_of_settings():
    """They read an `__init__` that is not there at run time, as it takes more than the fields."""
    assert list(SettingsValues.__annotations__) == field_names(Settings)


def test_settings_inputs_and_device_options_are_given_by_name():
    for kind in (Settings, Inputs, Watched, DeviceOptions):
        with pytest.raises(TypeError, match="positional"):
            kind(0.4)


def test_programs_do_not_see_what_only_the_command_line_has():
    internal_names = set(field_names(InputOptions)) - set(field_names(Inputs))
    assert internal_names == {"source", "files_from", "null", "strict"}
    for name in internal_names:
        with pytest.raises(TypeError, match=name):
            Inputs(**{name: True})
