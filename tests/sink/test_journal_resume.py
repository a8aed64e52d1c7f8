"""What a run that resumes takes from a journal: its settings and changed files."""

import json
from dataclasses import replace

import pytest
from sample_records import failure, image
from sink.journals import settings_of, sources, write

from detcli.core.errors import DetcliWarning, UsageError
from detcli.data.record import Origin
from detcli.sink.journal import Journal
from detcli.source.reading import file_stamp


@pytest.fixture
def resumed_path(tmp_path):
    return tmp_path / "run.jsonl"


SETTINGS = {"model": "m", "model_sha256": "0" * 64, "conf": 0.25, "classes": [], "names": None}


def written_with(path, *records, **changed):
    force = changed.pop("force", False)
    journal = Journal(path, SETTINGS | changed, force=force)  # type: ignore[arg-type]
    for record in records:
        journal.write(record)
    journal.close()


def test_the_first_record_of_a_run_has_its_settings(resumed_path):
    written_with(resumed_path, image("a"), image("b"))
    written_with(resumed_path)
    written_with(resumed_path, image("c"))
    assert settings_of(resumed_path) == [SETTINGS, None, SETTINGS]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"conf": 0.5}, "conf 0.25 instead of 0.5"),
        ({"model": "n"}, 'model "m" instead of "n"'),
        ({"model_sha256": "1" * 64}, "another file of the model"),
        ({"names": ["x" * 99]}, "another names"),
        (
            {"classes": [1], "conf": 0.1},
            r"conf 0\.25 instead of 0\.1, classes \[\] instead of \[1\]",
        ),
    ],
)
def test_other_settings_are_refused_unless_forced(resumed_path, changed, message):
    written_with(resumed_path, image("a"))
    before = resumed_path.read_bytes()
    with pytest.raises(UsageError, match=message) as caught:
        written_with(resumed_path, **changed)
    assert "--force" in caught.value.hint
    assert resumed_path.read_bytes() == before
    written_with(resumed_path, image("b"), force=True, **changed)
    written_with(resumed_path, **changed)
    with pytest.raises(UsageError):
        written_with(resumed_path)


def test_settings_survive_the_record_that_had_them(resumed_path):
    written_with(resumed_path, failure("a"), image("b"), image("c"))
    written_with(resumed_path, image("a"))
    assert sources(resumed_path) == ["b", "c", "a"]
    assert settings_of(resumed_path) == [SETTINGS, None, SETTINGS]
    with pytest.raises(UsageError):
        written_with(resumed_path, conf=0.5)


def test_failures_leave_no_settings_behind(resumed_path):
    written_with(resumed_path, image("a"))
    written_with(resumed_path, failure("b"), conf=0.5, force=True)
    written_with(resumed_path, image("b"))
    assert settings_of(resumed_path) == [SETTINGS, SETTINGS]


def test_a_journal_of_0_1_0_is_continued_by_the_same_model(resumed_path):
    write(resumed_path, [image("a")])
    with pytest.raises(UsageError, match='model "m" instead of "n"'):
        written_with(resumed_path, model="n")
    written_with(resumed_path, image("b"))
    assert settings_of(resumed_path) == [None, SETTINGS]


def stamped(stamp, name="a"):
    """An image of a file that had this stamp."""
    return replace(image(name), origin=Origin(name, file_stamp=stamp))


def test_an_unchanged_file_is_skipped(resumed_path):
    write(resumed_path, [stamped("old")])
    journal = Journal(resumed_path)
    assert journal.skip(Origin("a", file_stamp="old"))
    journal.close()


def test_a_changed_file_has_a_record_that_replaces_the_earlier_one(resumed_path):
    write(resumed_path, [stamped("old")])
    journal = Journal(resumed_path)
    assert not journal.skip(Origin("a", file_stamp="new"))
    journal.write(stamped("new"))
    last = json.loads(resumed_path.read_text().splitlines()[-1])
    assert last["file_stamp"] == "new"
    assert last["replaces"] == "old"
    journal._file.close()  # noqa: SLF001 - as a kill would
    Journal(resumed_path).close()
    assert sources(resumed_path) == ["a"]


def test_a_run_says_which_files_had_changed(resumed_path):
    write(resumed_path, [stamped("old")])
    journal = Journal(resumed_path)
    journal.skip(Origin("a", file_stamp="new"))
    journal.write(stamped("new"))
    with pytest.warns(DetcliWarning, match="1 input processed again, as their files"):
        journal.close()


@pytest.mark.parametrize(("count", "ending"), [(3, "a0, a1, a2$"), (4, r"a0, a1, a2, \.\.\.$")])
def test_a_warning_about_changed_files_names_three(resumed_path, count, ending):
    names = [f"a{number}" for number in range(count)]
    write(resumed_path, [stamped("old", name) for name in names])
    journal = Journal(resumed_path)
    for name in names:
        journal.skip(Origin(name, file_stamp="new"))
        journal.write(stamped("new", name))
    with pytest.warns(DetcliWarning, match=ending):
        journal.close()


def test_a_file_without_a_stamp_is_skipped_with_a_warning(resumed_path):
    write(resumed_path, [image("a")])
    journal = Journal(resumed_path)
    assert journal.skip(Origin("a", file_stamp="new"))
    with pytest.warns(DetcliWarning, match="1 input skipped without a check"):
        journal.close()


def journal_of_file(path, recorded_stamp, repeats=1):
    """Open a journal with records of an image file, whose file had this stamp."""
    origin = Origin(str(path), path, file_stamp=recorded_stamp)
    record = replace(image("a"), origin=origin)
    journal_path = path.with_suffix(".jsonl")
    write(journal_path, [record] * repeats)
    return Journal(journal_path)


def skips(journal, path):
    """Whether the file is skipped by its path, which has to be what its origin says."""
    answer = journal.skip_file(str(path))
    if not answer:
        assert not journal.skip(Origin(str(path), path))
    return answer


def test_a_file_is_skipped_by_its_path_as_often_as_it_has_records(tmp_path):
    path = tmp_path / "a.jpg"
    path.touch()
    journal = journal_of_file(path, file_stamp(path), repeats=2)
    assert skips(journal, path)
    assert skips(journal, path)
    assert not skips(journal, path)
    assert not skips(journal, tmp_path / "b.jpg")
    journal.close()


def test_a_file_that_has_changed_is_not_skipped_by_its_path(tmp_path):
    path = tmp_path / "a.jpg"
    path.touch()
    journal = journal_of_file(path, "1-2")
    assert not skips(journal, path)
    journal.close()


def test_a_file_that_is_gone_is_skipped_by_its_path(tmp_path):
    path = tmp_path / "a.jpg"
    journal = journal_of_file(path, "1-2")
    assert skips(journal, path)
    journal.close()


def test_a_file_without_a_stamp_is_skipped_by_its_path_with_a_warning(tmp_path):
    path = tmp_path / "a.jpg"
    path.touch()
    journal = journal_of_file(path, None)
    assert skips(journal, path)
    with pytest.warns(DetcliWarning, match="1 input skipped without a check"):
        journal.close()


def test_the_progress_of_reading_is_shown(resumed_path, monkeypatch):
    monkeypatch.setattr("detcli.sink.journal.RECORDS_A_STEP", 2)
    write(resumed_path, [image(name) for name in "abcde"])
    counts = []
    parts = []

    def show(count, part):
        counts.append(count)
        parts.append(part)

    Journal(resumed_path, show=show).close()
    assert counts == [2, 4]
    assert 0 < parts[0] <= parts[1] <= 1


@pytest.mark.parametrize(
    "change",
    [
        {"detections": None},
        {"detections": {}},
        {"source": 3},
        {"width": 0},
        {"width": -1},
        {"width": True},
        {"index": 1.5},
        {"frame": -1},
        {"frame": 1 << 60},
        {"schema_version": 3},
        {"error": "no"},
        {"file_stamp": 5},
        {"model": None},
        {"settings": 3},
    ],
)
def test_a_line_that_is_no_record_is_refused(resumed_path, change):
    write(resumed_path, [image("a")])
    fields = json.loads(resumed_path.read_text())
    with resumed_path.open("a") as file:
        file.write(json.dumps(fields | change) + "\n")
    with pytest.raises(UsageError, match="line 2 is not a record of detcli"):
        Journal(resumed_path)


@pytest.mark.parametrize("missing", ["schema_version", "source", "width", "height", "detections"])
def test_a_line_without_a_field_that_every_record_has_is_refused(resumed_path, missing):
    write(resumed_path, [image("a")])
    fields = json.loads(resumed_path.read_text())
    del fields[missing]
    with resumed_path.open("a") as file:
        file.write(json.dumps(fields) + "\n")
    with pytest.raises(UsageError, match="line 2 is not a record of detcli"):
        Journal(resumed_path)


def test_other_settings_are_refused_unless_the_caller_says_otherwise(resumed_path):
    written_with(resumed_path, image("a"))
    with pytest.raises(UsageError, match=r"conf 0\.25 instead of 0\.5"):
        Journal(resumed_path, SETTINGS | {"conf": 0.5})  # type: ignore[arg-type]


def test_a_line_that_others_have_torn_goes_with_the_records_that_are_replaced(resumed_path):
    write(resumed_path, [stamped("old")])
    journal = Journal(resumed_path)
    journal.skip(Origin("a", file_stamp="new"))
    journal.write(stamped("new"))
    with resumed_path.open("a") as file:
        file.write('{"schema_version": 2, "sou')
    with pytest.warns(DetcliWarning, match="1 input processed again"):
        journal.close()
    assert sources(resumed_path) == ["a"]


def test_the_progress_of_reading_is_shown_every_20_000_records(resumed_path):
    write(resumed_path, [image("a")])
    resumed_path.write_bytes(resumed_path.read_bytes() * 20_001)
    counts = []
    Journal(resumed_path, show=lambda count, _: counts.append(count)).close()
    assert counts == [20_000]
