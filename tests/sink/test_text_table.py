"""Tables for people."""

import os
import re
from functools import partial

import pytest
import sample_records
import terminals

from detcli.files import AtomicFile, StandardOutput
from detcli.sink.text import TableSink

MARKUP = ["[red]x", "[bold]y[/bold]", "[/]", "a[1].jpg", ":smile:", "[link=http://x]y", "\\[a]"]


picture = partial(sample_records.picture, bottom=1234.567)
failure = partial(sample_records.failure, hint="")


@pytest.fixture
def written(tmp_path):
    """The text of a file that the sink wrote."""

    def write(*records):
        path = tmp_path / "out.txt"
        sink = TableSink(AtomicFile(path))
        for one in records:
            sink.write(one)
        assert not path.exists()
        sink.close()
        text = path.read_text(encoding="utf-8")
        path.unlink()
        return text

    return write


@pytest.fixture
def shown(monkeypatch):
    """Output on a terminal."""
    for variable in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    master, slave = os.openpty()

    def write(*records):
        with os.fdopen(slave, "w") as terminal:
            monkeypatch.setattr("sys.stdout", terminal)
            sink = TableSink(StandardOutput())
            for one in records:
                sink.write(one)
            sink.close()
        return terminals.read_all(master).decode()

    yield write
    os.close(master)


def test_an_empty_run_writes_nothing(written):
    assert written() == ""


def test_a_picture_has_a_heading_and_one_row_per_detection(written):
    heading, columns, *rows = written(picture(count=2)).splitlines()
    assert heading.split() == ["a.jpg", "60x40"]
    assert columns.split() == ["class", "score", "x1", "y1", "x2", "y2"]
    assert [row.split() for row in rows] == [["cat", "0.50", "1.0", "2.0", "3.0", "1234.6"]] * 2


def test_a_picture_without_detections_has_one_line(written):
    assert written(picture(count=0)) == "a.jpg  60x40  nothing found\n"


def test_an_error_has_one_line(written):
    assert written(failure()) == "torn.jpg: it is torn\n"


def test_an_error_comes_with_its_hint(written):
    assert written(failure(hint="fetch it again")) == "torn.jpg: it is torn  (fetch it again)\n"


@pytest.mark.parametrize("name", MARKUP)
def test_markup_in_names_is_not_interpreted(written, name):
    heading, _, row = written(picture(name, name)).splitlines()
    assert heading == f"{name}  60x40"
    assert row.startswith(f"{name}  ")
    assert written(failure(name, name)) == f"{name}: {name}\n"


@pytest.mark.parametrize("name", ["a,b", 'q"uote', "猫", "é", "😀"])
def test_odd_names_are_unchanged(written, name):
    lines = written(picture(name, name), failure(name, name)).splitlines()
    assert lines[0] == f"{name}  60x40"
    assert lines[2].startswith(name)
    assert lines[3] == f"{name}: {name}"


def test_invalid_unicode_is_escaped(written):
    lines = written(picture("\udcff", "\udcfe"), failure("\udcff", "\udcfe")).splitlines()
    assert lines[0] == "\\udcff  60x40"
    assert lines[2].startswith("\\udcfe")
    assert lines[3] == "\\udcff: \\udcfe"


@pytest.mark.parametrize("name", ["new\nline", "re\rturn", "\x1b[2J", "\x07bell", "\x9b2J"])
def test_control_codes_in_names_do_not_reach_the_terminal(written, name):
    lines = written(picture(name, name), failure(name, name)).split("\n")
    assert len(lines) == 5  # heading, columns, row, error, and what follows the last line end
    for line in lines:
        assert line.isprintable()


def test_a_long_path_is_on_one_line(written):
    name = "folder of pictures/" * 20
    assert written(picture(name, count=0)) == f"{name}  60x40  nothing found\n"
    assert written(failure(name)) == f"{name}: it is torn\n"


def test_a_long_class_name_is_complete(written):
    name = "x" * 300
    row = written(picture(name=name)).splitlines()[2]
    assert row.split() == [name, "0.50", "1.0", "2.0", "3.0", "1234.6"]


def test_a_terminal_gets_colours(shown):
    text = shown(failure(), picture())
    assert "\x1b[31m" in text
    assert "\x1b[36m" in text


def test_a_file_gets_no_colours(written, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert "\x1b" not in written(picture(), failure(), picture(count=0))


def test_no_color_is_respected(shown, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(picture(), failure())
    assert "cat" in text
    assert "\x1b[3" not in text


@pytest.mark.parametrize("count", [0, 2])
def test_warnings_stand_beside_the_name(written, count):
    one = sample_records.damaged(picture(count=count), "damaged: torn\x1b")
    assert written(one).startswith("a.jpg  60x40  damaged: torn\\x1b")


def test_frames_have_their_number_and_time(written):
    line = "in/film.avi  frame 12  1.20 s  60x40  nothing found\n"
    assert written(sample_records.frame(12)) == line


def test_frames_without_detections_take_no_line_on_a_terminal(shown):
    frames = [sample_records.frame(number, count=number % 2) for number in range(3)]
    text = shown(*frames, picture(count=0), failure())
    assert re.findall(r"frame \d", text) == ["frame 1"]
    assert "nothing found" in text  # of the picture
