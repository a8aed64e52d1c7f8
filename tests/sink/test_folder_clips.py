"""States of videos, which begin and end with their frames."""

import pytest
from sample_records import Film, frame, numbered

from detcli.errors import OutputError
from detcli.sink.folder import PerClip

DOOR, YARD = Film("camera:0", 0, live=True), Film("camera:1", 0, live=True)
OTHER = Film("other.avi", 10.0)


@pytest.fixture
def seen():
    """Log of begins and ends."""
    return []


@pytest.fixture
def per_clip(seen):
    def begin(record):
        seen.append(f"+{record.origin.source}")
        return object()

    names = {}
    per_clip = PerClip(begin, lambda state: seen.append(f"-{names[state]}"))
    per_clip.names = names
    return per_clip


def visit(per_clip, *records):
    """The states of these records."""
    states = []
    for record in records:
        states.append(per_clip.of(record))
        per_clip.names[states[-1]] = record.origin.source
    return states


def test_frames_of_a_video_share_one(per_clip, seen):
    first, *others = visit(per_clip, *(frame(number) for number in (0, 1, 5, 6)))
    assert others == [first] * 3
    assert seen == ["+in/film.avi"]


def test_the_next_video_ends_the_previous_one(per_clip, seen):
    visit(per_clip, frame(0), frame(1), frame(0, OTHER))
    assert seen == ["+in/film.avi", "-in/film.avi", "+other.avi"]
    per_clip.close()
    assert seen[3:] == ["-other.avi"]


@pytest.mark.parametrize("again", [0, 1])
def test_the_same_video_again_is_a_new_one(per_clip, seen, again):
    one, _, other = visit(per_clip, frame(0), frame(1), frame(again))
    assert one is not other
    assert seen == ["+in/film.avi", "-in/film.avi", "+in/film.avi"]


def test_live_sources_are_interleaved(per_clip, seen):
    one, other, *rest = visit(
        *(per_clip, frame(0, DOOR), frame(0, YARD), frame(1, DOOR), frame(0, OTHER)),
        *(frame(1, YARD), frame(2, DOOR)),
    )
    assert (rest[0], rest[2], rest[3]) == (one, other, one)
    assert seen == ["+camera:0", "+camera:1", "+other.avi"]
    per_clip.close()
    assert sorted(seen[3:]) == ["-camera:0", "-camera:1", "-other.avi"]


def test_frames_without_a_clip_are_grouped_by_source(per_clip):
    piped = [numbered(number) for number in range(3)]
    one, *others = visit(per_clip, *piped)
    assert others == [one, one]


def test_a_failing_end_does_not_keep_the_others(seen):
    def end(source):
        seen.append(source)
        if source == YARD.source:
            raise OutputError("the disk is full")

    per_clip = PerClip(lambda record: record.origin.source, end)
    for clip in (DOOR, YARD, OTHER):
        per_clip.of(frame(0, clip))
    with pytest.raises(OutputError, match="full"):
        per_clip.close()
    assert sorted(seen) == ["camera:0", "camera:1", "other.avi"]
    per_clip.close()
    assert len(seen) == 3
