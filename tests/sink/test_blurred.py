"""Notes of what is hidden in all images of a folder."""

import json
import warnings

import pytest

from detcli.core.errors import DetcliWarning
from detcli.sink.blurred import NOTE, note_hidden_classes


def noted(folder):
    return json.loads((folder / NOTE).read_text())


def check_quietly(folder, classes):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        note_hidden_classes(folder, classes)


def test_an_empty_folder_is_noted_and_then_known(tmp_path):
    check_quietly(tmp_path, ["person", "car"])
    assert noted(tmp_path) == ["car", "person"]
    (tmp_path / "a.jpg").touch()
    check_quietly(tmp_path, ["person", "car"])
    check_quietly(tmp_path, ["car"])
    assert noted(tmp_path) == ["car"]
    with pytest.warns(DetcliWarning, match="which may show person, car"):
        note_hidden_classes(tmp_path, ["person", "car"])


def test_a_pack_of_thumbnails_has_images_and_no_other_script_has(tmp_path):
    for name in ("data/0.js", "thumbnails/0/notes.js", "files/thumbnails.js"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    check_quietly(tmp_path, ["car"])
    (tmp_path / NOTE).unlink()
    (tmp_path / "thumbnails/0/12.js").touch()
    with pytest.warns(DetcliWarning, match="which may show car"):
        note_hidden_classes(tmp_path, ["car"])


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"car": 1}', "[" * 10_000, '["dog"]'])
def test_a_note_that_says_something_else_is_no_note(tmp_path, text):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/film.mp4").touch()
    (tmp_path / NOTE).write_text(text)
    with pytest.warns(DetcliWarning, match="has images of other runs, which may show car"):
        note_hidden_classes(tmp_path, ["car"])


def test_a_run_that_hides_nothing_takes_the_note_away(tmp_path):
    note_hidden_classes(tmp_path, ["car"])
    for _ in range(2):
        check_quietly(tmp_path, [])
        assert not (tmp_path / NOTE).exists()
