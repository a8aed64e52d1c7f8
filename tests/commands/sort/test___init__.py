"""`detcli sort`, typed."""

import json
import os
import shutil
import subprocess
import sys
from threading import Event

import pytest
from folders import names_in
from json_lines import text_of
from saved_records import box, error, record

from detcli.sink.sort_log import LOG_NAME
from detcli.source.names import ListedInput, read_list

RULES = ("--by", "animal>=0.2,person>=0.3")


def animal(score=0.9):
    return box(score, name="animal", class_id=0)


def person(score=0.9):
    return box(score, name="person", class_id=1)


CARD = [
    record("card/site1/a.jpg", animal(0.2), person(0.9)),
    record("card/site1/b.jpg", animal(0.1), person(0.3)),
    record("card/site2/a.jpg", animal(0.19)),
    error("card/site2/torn.jpg"),
]
"""An image of both classes, one of a person, one below the scores, and a failure."""


@pytest.fixture
def card(tmp_path):
    """A folder with the images of CARD, and their records in card.jsonl."""
    write_records(tmp_path, CARD)
    for fields in CARD:
        path = tmp_path / fields["source"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fields["source"])
    return tmp_path


def write_records(folder, records, name="card.jsonl"):
    text = text_of(records)
    (folder / name).write_text(text, encoding="utf-8")


@pytest.fixture
def sort(invoke, card):
    """Sort what is on the card; returns the completed command."""

    def run(*words, code=0):
        completed = invoke("sort", words, cwd=card)
        assert completed.returncode == code, completed.stderr
        assert "Traceback" not in completed.stderr
        assert completed.stdout == ""
        return completed

    return run


def files(folder):
    """The names of all files below a folder, without the log, with their texts."""
    texts = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != LOG_NAME:
            texts[path.relative_to(folder).as_posix()] = path.read_text()
    return texts


SORTED = {
    "animal/card/site1/a.jpg": "card/site1/a.jpg",
    "empty/card/site2/a.jpg": "card/site2/a.jpg",
    "failed/card/site2/torn.jpg": "card/site2/torn.jpg",
    "person/card/site1/b.jpg": "card/site1/b.jpg",
}


@pytest.mark.parametrize("how", ["link", "copy"])
def test_images_go_to_the_folder_of_the_first_rule_that_they_meet(sort, card, how):
    completed = sort("card.jsonl", RULES, "-o", "out", "--how", how)
    assert files(card / "out") == SORTED
    assert "sorted 4 images into" in completed.stderr
    assert "1 animal, 1 person, 1 failed, 1 empty" in completed.stderr
    image = card / "out/animal/card/site1/a.jpg"
    assert image.samefile(card / "card/site1/a.jpg") == (how == "link")
    assert image.stat().st_mtime_ns == (card / "card/site1/a.jpg").stat().st_mtime_ns


@pytest.mark.parametrize("how", ["link", "copy"])
def test_undo_takes_everything_back(sort, card, how):
    before = files(card)
    (card / "out/mine").mkdir(parents=True)
    sort("card.jsonl", RULES, "-o", "out", "--how", how)
    assert "took back 4 files of out" in sort("-o", "out", "--undo").stderr
    assert files(card) == before
    assert names_in(card / "out") == ["mine"]


def test_lists_are_read_by_predict(sort, card):
    strange_names = ["card/line\nend.jpg", '{"card.jpg', "card/caf\udce9.jpg"]
    records = [
        record(strange_names[0], animal()),
        record(strange_names[1], animal()),
        record("card/caf\\xe9.jpg", animal(), source_bytes="Y2FyZC9jYWbpLmpwZw=="),
    ]
    write_records(card, CARD + records)
    sort("card.jsonl", RULES, "-o", "out", "--how", "list")
    lists = set(names_in(card / "out"))
    assert lists == {"animal.txt", "person.txt", "empty.txt", "failed.txt", LOG_NAME}
    names = list(read_list(str(card / "out/animal.txt"), Event(), null_separated=False))
    for index, name in enumerate(names):
        assert isinstance(name, str)
        if name.startswith("{"):
            names[index] = ListedInput.parse(name, "").name
    assert names == ["card/site1/a.jpg"] + strange_names
    assert (card / "out/failed.txt").read_text() == "card/site2/torn.jpg\n"
    sort("-o", "out", "--undo")
    assert list((card / "out").iterdir()) == []


def test_a_list_that_exists_is_not_written_over(sort, card):
    (card / "out").mkdir()
    (card / "out/person.txt").write_text("mine")
    completed = sort("card.jsonl", RULES, "-o", "out", "--how", "list", code=1)
    assert "person.txt exists" in completed.stderr
    assert files(card / "out") == {"person.txt": "mine"}


def test_the_images_of_a_burst_stay_together_but_for_failures(sort, card):
    burst = [
        record("card/site1/a.jpg", burst=4),
        record("card/site2/a.jpg", person(), burst=5),
        record("card/site1/b.jpg", animal(), burst=4),
        error("card/site2/torn.jpg") | {"burst": 4},
    ]
    write_records(card, burst)
    sort("card.jsonl", RULES, "-o", "out")
    assert set(files(card / "out")) == {
        "animal/card/site1/a.jpg",
        "animal/card/site1/b.jpg",
        "person/card/site2/a.jpg",
        "failed/card/site2/torn.jpg",
    }


def test_bursts_of_two_files_are_different_ones(sort, card):
    write_records(card, [record("card/site1/a.jpg", animal(), burst=0)])
    write_records(card, [record("card/site1/b.jpg", burst=0)], "b.jsonl")
    sort("card.jsonl", "b.jsonl", RULES, "-o", "out")
    assert set(files(card / "out")) == {"animal/card/site1/a.jpg", "empty/card/site1/b.jpg"}


def test_an_image_with_two_records_goes_to_the_better_folder(sort, card):
    write_records(card, [record("card/site1/a.jpg", person()), record("card/site1/b.jpg")])
    second = [record("card/site1/a.jpg", animal()), error("card/site1/b.jpg")]
    write_records(card, second, "b.jsonl")
    sort("card.jsonl", "b.jsonl", RULES, "-o", "out")
    assert set(files(card / "out")) == {"animal/card/site1/a.jpg", "failed/card/site1/b.jpg"}


def test_a_video_is_sorted_by_the_best_of_its_frames(sort, card):
    frames = [record("card/site1/a.jpg", frame=0), record("card/site1/a.jpg", animal(), frame=1)]
    write_records(card, frames)
    sort("card.jsonl", RULES, "-o", "out")
    assert set(files(card / "out")) == {"animal/card/site1/a.jpg"}


@pytest.mark.parametrize("how", ["link", "copy"])
def test_nothing_is_written_over(sort, card, how):
    place = card / "out/animal/card/site1/a.jpg"
    place.parent.mkdir(parents=True)
    place.write_text("mine")
    completed = sort("card.jsonl", RULES, "-o", "out", "--how", how, code=3)
    assert "1 image whose destination is taken" in completed.stderr
    assert place.read_text() == "mine"
    sort("-o", "out", "--undo")
    assert files(card / "out") == {"animal/card/site1/a.jpg": "mine"}


@pytest.mark.parametrize("how", ["link", "copy"])
def test_the_same_again_changes_nothing_and_goes_on(sort, card, how):
    write_records(card, CARD[:2])
    sort("card.jsonl", RULES, "-o", "out", "--how", how)
    write_records(card, CARD)
    assert "sorted 4 images" in sort("card.jsonl", RULES, "-o", "out", "--how", how).stderr
    assert files(card / "out") == SORTED
    assert "took back 4 files" in sort("-o", "out", "--undo").stderr


def test_other_rules_take_another_folder(sort, card):
    sort("card.jsonl", RULES, "-o", "out")
    completed = sort("card.jsonl", "--by", "animal", "-o", "out", code=2)
    assert "was sorted before, by other rules" in completed.stderr
    assert files(card / "out") == SORTED
    sort("card.jsonl", RULES, "-o", "out", "--how", "copy", code=2)


def test_images_that_are_gone_are_named_and_the_others_are_sorted(sort, card):
    (card / "card/site1/a.jpg").unlink()
    write_records(card, CARD + [record("-"), record("rtsp://cam/1", animal())])
    completed = sort("card.jsonl", RULES, "-o", "out", code=3)
    assert "card/site1/a.jpg: no such file here" in completed.stderr
    assert "not sorted: 3 images not found" in completed.stderr
    assert len(files(card / "out")) == 3


def test_names_from_the_root_and_from_above_stay_in_the_folder(sort, card):
    (card / "work").mkdir()
    absolute_name = str(card / "card/site1/b.jpg")
    write_records(card, [record("work/../card/site1/a.jpg"), record(absolute_name)])
    sort("card.jsonl", RULES, "-o", "out")
    assert set(files(card / "out/empty")) == {"work/card/site1/a.jpg", absolute_name[1:]}


def test_undo_leaves_what_changed_or_is_the_last_copy(sort, card):
    sort("card.jsonl", RULES, "-o", "out")
    (card / "card/site1/a.jpg").unlink()
    changed = card / "out/person/card/site1/b.jpg"
    changed.unlink()
    changed.write_text("edited")
    completed = sort("-o", "out", "--undo", code=1)
    assert "2 files left in out" in completed.stderr
    assert files(card / "out") == {
        "animal/card/site1/a.jpg": "card/site1/a.jpg",
        "person/card/site1/b.jpg": "edited",
    }
    changed.unlink()
    (card / "out/animal/card/site1/a.jpg").unlink()
    sort("-o", "out", "--undo")
    assert list((card / "out").iterdir()) == []


@pytest.mark.parametrize(
    "entry",
    [
        {"file": "../card/site1/a.jpg", "source": "card/site1/a.jpg"},
        {"file": "/etc/hostname", "source": "/etc/hostname"},
        {"folder": "."},
        {"file": 5},
        {},
    ],
)
def test_a_log_cannot_remove_anything_elsewhere(sort, card, entry):
    sort("card.jsonl", RULES, "-o", "out")
    with (card / "out" / LOG_NAME).open("a") as log:
        log.write(json.dumps(entry) + "\n")
    before = files(card)
    assert "is damaged" in sort("-o", "out", "--undo", code=2).stderr
    assert files(card) == before


def test_a_torn_line_of_the_log_was_not_done(sort, card):
    sort("card.jsonl", RULES, "-o", "out")
    with (card / "out" / LOG_NAME).open("a") as log:
        log.write('{"file": "animal/card/si')
    assert "took back 4 files" in sort("-o", "out", "--undo").stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["card.jsonl", "-o", "out"], 2, "--by is missing"),
        (["card.jsonl", "--by", "animal>=2", "-o", "out"], 2, "the score is 2"),
        (["card.jsonl", "--by", "animal>=x", "-o", "out"], 2, "is not a rule"),
        (["card.jsonl", "--by", "animal<0.2", "-o", "out"], 2, "is not a rule"),
        (["card.jsonl", "--by", "animal,Animal>0.2", "-o", "out"], 2, "a folder Animal already"),
        (["card.jsonl", "--by", "empty", "-o", "out"], 2, "a folder empty already"),
        (["card.jsonl", "--by", "http://me:pw@host", "-o", "out"], 2, "is an address"),
        (list(RULES) + ["-o", "out"], 2, "no records given"),
        (["card.jsonl"] + list(RULES), 2, "--output"),
        (["card.jsonl", "-o", "out", "--undo"], 2, "--undo takes no records"),
        (["-o", "card", "--undo"], 3, "cannot read"),
    ],
)
def test_what_cannot_be_sorted_is_refused(sort, card, words, code, message):
    assert message in sort(words, code=code).stderr
    assert not (card / "out").exists()


def test_a_class_that_no_box_is_of_is_mentioned(sort):
    completed = sort("card.jsonl", "--by", "animol>=0.2,any", "-o", "out")
    assert "no box is of the class animol; did you mean animal?" in completed.stderr
    assert "0 animol, 3 any, 1 failed, 0 empty" in completed.stderr


def test_a_key_of_count_is_no_rule(sort):
    completed = sort("card.jsonl", "--by", "class", "-o", "out")
    assert "no box is of the class class; --by takes classes of the records" in completed.stderr
    assert "such as animal, " in completed.stderr


def test_a_score_is_met_exactly_or_from_above(sort, card):
    sort("card.jsonl", "--by", "animal>0.2,person>=0.3", "-o", "out", "-q")
    assert "person/card/site1/a.jpg" in files(card / "out")


def test_another_disk_is_said_to_be_one(sort, monkeypatch):
    def link(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", link)
    completed = sort("card.jsonl", RULES, "-o", "out", code=1)
    assert "it is on another disk" in completed.stderr
    assert "--how copy" in completed.stderr


def test_what_was_sorted_until_a_kill_is_taken_back(sort, card):
    """The process dies within the third link, after its line in the log."""
    code = (
        "import os, sys\n"
        "link, calls = os.link, []\n"
        "def dying(*names):\n"
        "    link(*names)\n"
        "    calls.append(names)\n"
        "    if len(calls) == 3: os._exit(9)\n"
        "os.link = dying\n"
        "from detcli.__main__ import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", code, "sort", "card.jsonl"] + list(RULES) + ["-o", "out"]
    assert subprocess.run(command, cwd=card, check=False).returncode == 9
    assert len(files(card / "out")) == 3
    sort("-o", "out", "--undo")
    assert list((card / "out").iterdir()) == []
    assert len(files(card / "card")) == 4


def test_a_copy_that_cannot_be_finished_leaves_nothing(sort, card, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    completed = sort("card.jsonl", RULES, "-o", "out", "--how", "copy", code=1)
    assert "No space left" in completed.stderr
    assert files(card / "out") == {}
