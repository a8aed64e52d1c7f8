"""The records of images in a resume file, beside plain lists of the same records."""

import tracemalloc
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given

from detcli.sink import recorded_images
from detcli.sink.recorded_images import RecordedImages

names = st.sampled_from(["", "a.jpg", "b.jpg", "\udcff.jpg", "\udcfe.jpg"])
file_stamps = st.sampled_from(
    [
        None,
        "0-0",
        "10-1",
        "10-2",
        '"an-etag"',
        "00-1",
        "1-01",
        "10--5",
        "\u0661-1",
        "1-9999999999999999999",
        "999999999-1",
        "1000000000-1",
        "4294967297-1",
    ]
)
records = st.lists(st.tuples(names, file_stamps))
questions = st.lists(st.tuples(st.sampled_from(["ask", "remove"]), names))


@given(records, questions)
def test_every_image_has_its_records_and_its_last_stamp(added_records, questions):
    images = RecordedImages()
    last_stamps: dict[str, str | None] = {}
    record_counts: Counter[str] = Counter()
    for name, file_stamp in added_records:
        images.add(name, file_stamp)
        record_counts[name] += 1
        if file_stamp is not None:
            last_stamps[name] = file_stamp
    images.sort()
    for question, name in questions:
        if record_counts[name] == 0:
            assert not images.has(name)
            assert images.file_stamp(name) is None
            with pytest.raises(KeyError):
                images.remove(name)
        elif question == "remove":
            images.remove(name)
            record_counts[name] -= 1
        else:
            assert images.has(name)
            assert images.file_stamp(name) == last_stamps.get(name)


@given(st.one_of(st.from_regex(r"[0-9]{1,21}-[0-9]{1,21}", fullmatch=True), st.text()))
def test_any_stamp_is_the_same_text_again(stamp):
    images = RecordedImages()
    images.add("a.jpg", stamp)
    images.sort()
    assert images.file_stamp("a.jpg") == stamp


def test_names_whose_hashes_begin_alike_are_told_apart(monkeypatch):
    hashes = {"a.jpg": (7, 1), "b.jpg": (7, 2), "c.jpg": (2**64 - 1, 1), "d.jpg": (7, 3)}
    monkeypatch.setattr(recorded_images, "_hash", hashes.__getitem__)
    images = RecordedImages()
    for name in ["a.jpg", "c.jpg", "b.jpg"]:
        images.add(name, f"{ord(name[0])}-1")
    images.sort()
    assert images.file_stamp("a.jpg") == "97-1"
    assert images.file_stamp("b.jpg") == "98-1"
    assert images.file_stamp("c.jpg") == "99-1"
    assert not images.has("d.jpg")


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 100, 4095, 4096, 4097])
def test_all_images_of_any_number_are_there(count):
    images = RecordedImages()
    for number in range(count):
        images.add(f"{number}.jpg", f"{number}-1")
    images.sort()
    for number in range(count):
        assert images.file_stamp(f"{number}.jpg") == f"{number}-1"
    assert not images.has(f"{count}.jpg")


def test_many_records_of_a_name_take_no_longer_each():
    """Addresses whose secrets are hidden have the same name, so there may be thousands of it."""
    images = RecordedImages()
    for _ in range(50_000):
        images.add("https://host/image?file=***", None)
    images.sort()
    for _ in range(50_000):
        assert images.has("https://host/image?file=***")
        images.remove("https://host/image?file=***")
    assert not images.has("https://host/image?file=***")


def test_records_are_added_before_they_are_sorted():
    images = RecordedImages()
    images.sort()
    assert not images.has("a.jpg")
    with pytest.raises(ValueError, match="before they are sorted"):
        images.add("a.jpg", None)


def test_records_are_sorted_once():
    images = RecordedImages()
    images.sort()
    with pytest.raises(ValueError, match="sorted once"):
        images.sort()


def test_questions_are_asked_after_the_records_are_sorted():
    images = RecordedImages()
    images.add("a.jpg", None)
    with pytest.raises(ValueError, match="after the records are sorted"):
        images.has("a.jpg")


def test_an_image_takes_little_memory():
    tracemalloc.start()
    images = RecordedImages()
    for number in range(20_000):
        images.add(f"{number}.jpg", f"{number}-1")
    images.sort()
    used_bytes, most_used_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used_bytes < 20_000 * 34  # an array has room for some more elements
    assert most_used_bytes < 20_000 * 56
