"""A journal: no record is lost, and none is written twice."""

import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_records import failure, numbered, picture
from small_disk import small_disk

from detcli.errors import OutputError, UsageError
from detcli.record import Origin
from detcli.sink.journal import Journal


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


def write(path, *records):
    journal = Journal(path)
    for one in records:
        journal.write(one)
    journal.close()


def sources(path):
    return [json.loads(line)["source"] for line in path.read_text().splitlines()]


def run(path, names):
    """Run over all inputs that the journal does not have."""
    journal = Journal(path)
    for name in names:
        if not journal.skip(Origin(name)):
            try:
                journal.write(picture(name))
            except OutputError:
                journal.close()
                raise
    journal.close()


def test_a_second_run_continues(path):
    run(path, ["a", "b"])
    run(path, ["a", "b", "c"])
    assert sources(path) == ["a", "b", "c"]


def test_failures_are_tried_again(path):
    write(path, picture("a"), failure("b"), picture("c"))
    run(path, ["a", "b", "c"])
    assert sources(path) == ["a", "c", "b"]


def test_an_input_named_twice_has_two_records(path):
    run(path, ["a"])
    run(path, ["a", "a", "b"])
    assert sorted(sources(path)) == ["a", "a", "b"]


def test_frames_are_distinguished(path):
    write(path, numbered(0, "v.mp4"), numbered(1, "v.mp4"))
    journal = Journal(path)
    assert [journal.skip(Origin("v.mp4", frame=frame)) for frame in (0, 1, 2)] == [
        True,
        True,
        False,
    ]
    journal.close()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_journal_torn_anywhere_can_be_completed(path, data):
    """The run is killed at any byte that it writes."""
    path.unlink(missing_ok=True)
    names = [f"{number}.jpg" for number in range(5)]
    run(path, names)
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    run(path, names)
    assert Counter(sources(path)) == Counter(names)


def test_records_are_written_before_the_journal_is_closed(path):
    journal = Journal(path)
    journal.write(picture("a"))
    assert sources(path) == ["a"]
    journal.close()


def test_odd_names_are_recognised(path):
    name = "caf\udce9\u2028\n.jpg"  # no UTF-8, and no line for every reader
    write(path, picture(name))
    journal = Journal(path)
    assert journal.skip(Origin(name))
    journal.close()


@pytest.mark.parametrize(
    "content",
    ["hello\n", '{"a": 1}\n', "[1]\n", '{"source": 1}\n', "a token", '{"my": "notes"}', "[1]"],
)
def test_another_file_is_not_touched(path, content):
    path.write_text(content)
    with pytest.raises(UsageError, match="not a file of detcli records"):
        Journal(path)
    assert path.read_text() == content


def test_two_runs_do_not_write_to_one_file(path):
    journal = Journal(path)
    with pytest.raises(UsageError, match="another run"):
        Journal(path)
    journal.close()
    Journal(path).close()


def test_a_repaired_file_is_locked_too(path):
    write(path, failure("a"))
    journal = Journal(path)
    with pytest.raises(UsageError, match="another run"):
        Journal(path)
    journal.close()


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(OutputError, match="nowhere"):
        Journal(tmp_path / "nowhere" / "run.jsonl")


def test_a_full_disk_names_the_file_and_the_next_run_continues(path):
    names = [f"{number}.jpg" for number in range(20)]
    with small_disk(), pytest.raises(OutputError, match=r"run\.jsonl"):
        run(path, names)
    run(path, names)
    assert sources(path) == names
