"""What a resume file has records of: counts and stamps, beside a plain list of the records."""

from collections import Counter

import hypothesis.strategies as st
from hypothesis import given

from detcli.sink.recorded_inputs import RecordedInputs

record = st.tuples(
    st.sampled_from(["a.jpg", "b.jpg", "c.mp4"]),
    st.sampled_from([None, 0, 1]),
    st.sampled_from([None, "10-1", "10-2"]),
)


@given(st.lists(record), st.lists(record))
def test_each_record_is_there_once(records, later):
    inputs = RecordedInputs()
    counts: Counter[tuple[str, int | None]] = Counter()
    for source, frame, file_stamp in records:
        inputs.add(source, frame, file_stamp)
        counts[source, frame] += 1
    inputs.sort()
    for source, frame, _ in later:
        assert inputs.has(source, frame) == (counts[source, frame] > 0)
        if counts[source, frame]:
            inputs.remove(source, frame)
            counts[source, frame] -= 1


def test_the_last_stamp_of_a_file_counts():
    inputs = RecordedInputs()
    inputs.add("a.jpg", None, "10-1")
    inputs.add("a.jpg", None, "10-2")
    inputs.add("a.jpg", None, None)
    inputs.add("c.mp4", 0, "20-1")
    inputs.add("c.mp4", 1, None)
    inputs.sort()
    assert inputs.file_stamp("a.jpg") == "10-2"
    assert inputs.file_stamp("c.mp4") == "20-1"
    assert inputs.file_stamp("b.jpg") is None


def test_nothing_is_left_after_clearing():
    inputs = RecordedInputs()
    inputs.add("a.jpg", None, "10-1")
    inputs.add("c.mp4", 0, "20-1")
    inputs.clear()
    inputs.sort()
    assert not inputs.has("a.jpg", None)
    assert not inputs.has("c.mp4", 0)
    assert inputs.file_stamp("c.mp4") is None


@given(st.text())
def test_a_stamp_of_any_form_is_the_same_text_again(file_stamp):
    inputs = RecordedInputs()
    inputs.add("a.jpg", None, file_stamp)
    inputs.sort()
    assert inputs.file_stamp("a.jpg") == file_stamp


def test_names_of_all_kinds_are_told_apart():
    inputs = RecordedInputs()
    inputs.add("", None, None)
    inputs.add("\udcff.jpg", None, "10-1")
    inputs.sort()
    assert inputs.has("", None)
    assert inputs.file_stamp("\udcff.jpg") == "10-1"
    assert not inputs.has("\udcfe.jpg", None)
