"""Polygons of --ignore as users write them, and the sources that patterns fit."""

from pathlib import PurePosixPath

import pytest

from detcli import Watched, Zone
from detcli.config.ignored import IgnoredZone, matches, pattern_of
from detcli.core.errors import UsageError

CORNERS = "0,0.9,1,0.9,1,1,0,1"


def test_a_text_is_a_polygon_for_all_images():
    zone = IgnoredZone.parse(CORNERS)
    assert pattern_of(zone) == ""
    assert zone.points == ((0, 0.9), (1, 0.9), (1, 1), (0, 1))
    assert str(zone) == CORNERS


@pytest.mark.parametrize(
    "pattern", ["site7/**", "*.jpg", "a b", "rtsp://cam/1", "camera:0", "k=v/"]
)
def test_what_no_zone_may_be_called_is_a_pattern(pattern):
    zone = IgnoredZone.parse(f"{pattern}={CORNERS}")
    assert pattern_of(zone) == pattern
    assert str(zone) == f"{pattern}={CORNERS}"
    assert zone == IgnoredZone(pattern, zone.points)


@pytest.mark.parametrize("name", ["sky", "site7", "Tür_3", "gate-2"])
def test_a_text_of_zone_is_taken_and_its_name_is_no_pattern(name):
    text = f"{name}={CORNERS}"
    zone = IgnoredZone.parse(text)
    assert pattern_of(zone) == ""
    assert zone.points == Zone.parse(text).points


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"={CORNERS}", "begins with ="),
        ("site7/**", "is not a list of numbers"),
        ("site7/**=", "is not a list of numbers"),
        ("site7/**=0,0,1", "x without y"),
        ("0,0,1,1", "its corners enclose nothing"),
        ("site7/**=0,0,0.5,700,1,1", "neither all fractions nor all pixels"),
    ],
)
def test_other_texts_are_refused(text, message):
    with pytest.raises(UsageError, match=message) as raised:
        IgnoredZone.parse(text)
    assert raised.value.hint


def test_programs_give_texts_and_zones():
    zone = Zone("sky", [(0, 0), (1, 0), (1, 0.3)])
    watched = Watched(ignore=[f"site7/**={CORNERS}", zone])
    patterns = [pattern_of(ignored) for ignored in watched.ignore]
    assert patterns == ["site7/**", ""]
    assert Watched(ignore=CORNERS).ignore == (IgnoredZone("", watched.ignore[0].points),)
    with pytest.raises(UsageError, match="ignore_share"):
        Watched(ignore=CORNERS, ignore_share=1.5)


FITTING = [
    ("photos/site7/a.jpg", ""),
    ("photos/site7/a.jpg", "site7/**"),
    ("photos/site7/a.jpg", "site7/"),
    ("photos/site7/a.jpg", "photos/**/a.jpg"),
    ("photos/a.jpg", "photos/**/a.jpg"),
    ("photos/x/y/a.jpg", "photos/**/a.jpg"),
    ("photos/site7/a.jpg", "*.jpg"),
    ("photos/site7/a.jpg", "site?/[ab].jpg"),
    ("photos/site7/a.jpg", "**/site7/**/*"),
    ("/data/site7/a.jpg", "/data/**"),
    ("rtsp://cam/1", "rtsp://cam/**"),
    ("camera:0", "camera:0"),
    ("site7/a.jpg", "**"),
]
OTHERS = [
    ("photos/site77/a.jpg", "site7/**"),
    ("photos/mysite7/a.jpg", "site7/**"),
    ("photos/site7/a.jpg", "site7/*/a.jpg"),
    ("photos/site7/a.jpg", "site7/*.png"),
    ("photos/site7/a.jpg", "Site7/**"),
    ("photos/site7/a.jpg", "site7"),
    ("photos/site7/a.jpg", "site*a.jpg"),
    ("data/site7/a.jpg", "/data/**"),
    ("site7/a.jpg", "site7/a.jpg/b"),
]


@pytest.mark.parametrize(("source", "pattern"), FITTING)
def test_a_pattern_fits(source, pattern):
    assert matches(source, pattern)


@pytest.mark.parametrize(("source", "pattern"), OTHERS)
def test_a_pattern_does_not_fit(source, pattern):
    assert not matches(source, pattern)


@pytest.mark.skipif(
    not hasattr(PurePosixPath, "full_match"), reason="Python 3.13 has such patterns itself"
)
@pytest.mark.parametrize(("source", "pattern"), FITTING + OTHERS)
def test_patterns_fit_as_in_python(source, pattern):
    if "://" in source or pattern.startswith("/") or not pattern:
        pytest.skip("no relative path")
    python_pattern = f"**/{pattern}"
    if pattern.endswith("/"):
        python_pattern += "**"
    is_match: bool = PurePosixPath(source).full_match(python_pattern)  # type: ignore[attr-defined,unused-ignore]
    assert matches(source, pattern) == is_match
