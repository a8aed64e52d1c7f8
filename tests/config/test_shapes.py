# mypy: disable-error-code=arg-type
"""Zones and lines as users write them, and where objects stand."""

import copy
import pickle

import numpy as np
import pytest

from detcli import Line, Region, Zone
from detcli.config.shapes import read_shapes
from detcli.core.errors import UsageError
from detcli.data.geometry import bottom_centres


def test_fractions_are_of_the_image_and_other_numbers_are_pixels():
    zone = Zone.parse("door=0.1,0.4, 0.5,0.4,1,1")
    np.testing.assert_allclose(zone.pixels((100, 200)), [(20, 40), (100, 40), (200, 100)])
    pixels = Zone.parse("door=0,0,50,0,50,25.5")
    np.testing.assert_array_equal(pixels.pixels((100, 200)), [(0, 0), (50, 0), (50, 25.5)])
    assert zone.name == "door"
    assert str(zone) == "door=0.1,0.4,0.5,0.4,1,1"


@pytest.mark.parametrize("name", ["a", "Tür_3", "入口", "gate-2", "7"])
def test_names(name):
    assert Line.parse(f"{name}=0,0,1,1").name == name


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "begin with a name"),
        ("0,0,1,0,1,1", "begin with a name"),
        ("=0,0,1,0,1,1", "begin with a name"),
        ("a b=0,0,1,0,1,1", "begin with a name"),
        ("a.b=0,0,1,0,1,1", "begin with a name"),
        ("-a=0,0,1,0,1,1", "begin with a name"),
        ("\x1b=0,0,1,0,1,1", "begin with a name"),
        ("a=", "list of numbers"),
        ("a=0,0,1,0,1", "x without y"),
        ("a=0,0,1,0,1,1,", "list of numbers"),
        ("a=0,0;1,0;1,1", "list of numbers"),
        ("a=0,0,1,1", "enclose nothing"),
        ("a=0,0,1,1,0.5,0.5", "enclose nothing"),
        ("a=5,5,5,5,5,5", "enclose nothing"),
        ("a=0,0,nan,0,1,1", "no image"),
        ("a=0,0,inf,0,1,1", "no image"),
        ("a=0,0,1e300,0,1,1", "no image"),
        ("a=-0.1,0,1,0,1,1", "neither all fractions nor all pixels"),
        ("a=0,0,1.2,0,1,1", "neither all fractions nor all pixels"),
        ("a=0.5,0,405,0,405,1080", "neither all fractions nor all pixels"),
    ],
)
def test_what_is_no_zone_is_a_usage_error(text, says):
    with pytest.raises(UsageError, match=says) as caught:
        Zone.parse(text)
    assert caught.value.hint


@pytest.mark.parametrize("text", ["a=0,0", "a=0,0,1,1,1,0", "a=3,4,3,4", "a=0,0,1", "a=9,9,1,0.5"])
def test_what_is_no_line_is_a_usage_error(text):
    with pytest.raises(UsageError):
        Line.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0,0,1",
        "0,0,0,1",
        "0,0,1,1,1,0",
        "9,0,3,5",
        "0,-3,5,5",
        "a=0,0,1,1",
        "nan,0,1,1",
        "0,0,1.5,1",
        "0.5,0,405,1080",
    ],
)
def test_what_is_no_region_is_a_usage_error(text):
    with pytest.raises(UsageError, match="--region '") as caught:
        Region.parse(text)
    assert caught.value.hint


def test_a_file_has_one_a_line(tmp_path):
    file = tmp_path / "zones.txt"
    file.write_text("# of camera 3\n\n  door=0,0,1,0,1,1\nroad=0,0,1,0,1,1\r\n")
    assert read_shapes(str, "--zone", "a=1") == ["a=1"]
    lines = ["door=0,0,1,0,1,1", "road=0,0,1,0,1,1"]
    assert read_shapes(str, "--zone", f"@{file}") == lines
    assert read_shapes(Zone.parse, "--zone", f"@{file}") == [Zone.parse(line) for line in lines]


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    file = tmp_path / "zones.txt"
    file.write_text("door=0,0,1,0,1,1\n", encoding="utf-8-sig")
    assert read_shapes(str, "--zone", f"@{file}") == ["door=0,0,1,0,1,1"]


@pytest.mark.parametrize("content", [None, b"", b"# none\n", b"\xff\xfe", b"folder"])
def test_a_file_without_zones_is_a_usage_error(tmp_path, content):
    file = tmp_path / "zones.txt"
    if content == b"folder":
        file.mkdir()
    elif content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=r"--zone @.*zones\.txt"):
        read_shapes(str, "--zone", f"@{file}")


@pytest.mark.parametrize(
    ("box", "point"),
    [
        ((10, 20, 30, 40), (20, 40)),
        ((10, 20, 30, 80), (20, 50)),  # cut off at the lower edge, where the image ends
        ((80, 20, 160, 40), (90, 40)),
        ((-20, -20, 40, -5), (np.nan, np.nan)),  # outside
        ((100, 20, 130, 40), (np.nan, np.nan)),
        ((-3e38, -3e38, 3e38, 3e38), (50, 50)),
    ],
)
def test_bottom_centres(box, point):
    points = bottom_centres(np.array([box], np.float32), (50, 100))
    np.testing.assert_array_equal(points, np.array([point], np.float32))
    assert bottom_centres(np.empty((0, 4), np.float32), (50, 100)).shape == (0, 2)


@pytest.mark.parametrize(("x", "is_read"), [(1_000_000, True), (1_000_001, False)])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_point_may_be_a_million_pixels_away(x, is_read, sign):
    text = f"gate=0,0,{sign * x},2"
    if is_read:
        assert Line.parse(text).points[1] == (sign * x, 2)
    else:
        with pytest.raises(UsageError, match="no image has such a point"):
            Line.parse(text)


def test_a_shape_of_numbers_is_that_of_its_text():
    corners = [(0.1, 0.4), (0.5, 0.4), (0.5, 1)]
    assert Zone("door", corners) == Zone.parse("door=0.1,0.4,0.5,0.4,0.5,1")
    assert Zone("door", np.array(corners)) == Zone("door", corners)
    assert Line("gate", [(0, 200), (640, 200)]) == Line.parse("gate=0,200,640,200")
    assert Region(0, 0.5, 1, 1) == Region.parse("0,0.5,1,1")
    assert Region(left=0, top=0, right=1, bottom=1, fractions=False).fractions is False


@pytest.mark.parametrize("shape", [Zone.parse("a=0,0,9,0,9,9"), Region.parse("0,0,9,9")])
def test_a_copy_of_a_shape_is_equal(shape):
    assert pickle.loads(pickle.dumps(shape)) == shape  # noqa: S301 - our own bytes
    assert copy.deepcopy(shape) == shape


def test_a_zone_is_no_line():
    assert Zone("a", [(0, 0), (1, 0), (1, 1)]) != Line("a", [(0, 0), (1, 1)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Zone("a b", [(0, 0), (1, 0), (1, 1)]), "zone 'a b' does not begin with a name"),
        (lambda: Zone(5, [(0, 0), (1, 0), (1, 1)]), "zone 5 does not begin with a name"),
        (lambda: Zone("a", []), "zone 'a': no image has such a point"),
        (lambda: Zone("a", 5), "the points of the zone are 5"),
        (lambda: Zone("a", [(0, 0, 1)]), "the points of the zone are"),
        (lambda: Zone("a", [(0, 0), (1, 1)]), "zone 'a': its corners enclose nothing"),
        (lambda: Line("a", [(0, 0), (0, 0)]), "line 'a': not two different points"),
        (lambda: Line("a", [(0, 0), (0.5, 9)]), "line 'a' is neither all fractions nor all pixels"),
        (lambda: Region(1, 0, 0, 1), "the region: not a rectangle"),
        (lambda: Region(float("nan"), 0, 1, 1), "the region: no image has such a point"),
        (lambda: Region("left", 0, 1, 1), "the points of the region are"),
        (lambda: Zone("a", [(0, 0), (1e9, 0), (1, 1)], fractions=False), "no image has such a"),
    ],
)
def test_numbers_that_are_no_shape_are_a_usage_error(make, message):
    with pytest.raises(UsageError, match=message) as caught:
        make()
    assert caught.value.hint
    assert "--" not in caught.value.hint
