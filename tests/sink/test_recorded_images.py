"""The records of images in a resume file, beside plain lists of the same records."""

import tracemalloc

import hypothesis.strategies as st
import pytest
from hypothesis import given

from detcli.sink import recorded_images
from detcli.sink.recorded_images import RecordedImages

names = st.sampled_from(["", "a.jpg", "b.jpg", "\udcff.jpg"])
file_stamps = st.sampled_from(
    [None, "0-0", "10-1", "10-2", '"an-etag"', "00-1", "1-01", "1-9999999999999999999"]
)
additions = st.tuples(st.just("add"), names, file_stamps)
questions = st.tuples(st.just("ask"), names, st.none())
removals = st.tuples(st.just("remove"), names, st.none())


def last_stamp(file_stamps):
    """Return the last stamp of a list that is not None; None if there is none."""
    stamp = None
    for file_stamp in file_stamps:
        if file_stamp is not None:
            stamp = file_stamp
    return stamp


@given(st.lists(st.one_of(additions, questions, removals)))
def test_every_image_has_its_records_and_its_last_stamp(steps):
    images = RecordedImages()
    stamps_by_name: dict[str, list[str | None]] = {}
    record_counts: dict[str, int] = {}
    for action, name, file_stamp in steps:
        count = record_counts.get(name, 0)
        if action == "add":
            images.add(name, file_stamp)
            stamps_by_name.setdefault(name, []).append(file_stamp)
            record_counts[name] = count + 1
        elif action == "remove" and count > 0:
            images.remove(name)
            record_counts[name] = count - 1
        elif count > 0:
            assert images.has(name)
            assert images.file_stamp(name) == last_stamp(stamps_by_name[name])
        else:
            assert not images.has(name)
            assert images.file_stamp(name) is None


@given(st.from_regex(r"[0-9]{1,21}-[0-9]{1,21}", fullmatch=True))
def test_any_stamp_is_the_same_text_again(stamp):
    images = RecordedImages()
    images.add("a.jpg", stamp)
    assert images.file_stamp("a.jpg") == stamp


@pytest.mark.parametrize("hash_end_bits", [0, 1])
def test_names_whose_hashes_begin_alike_are_told_apart(monkeypatch, hash_end_bits):
    """The second name has the first's 64 bits, and its other bits only in one of the cases."""
    hashes = {"a.jpg": (7, 1), "b.jpg": (7, 1 + hash_end_bits), "c.jpg": (2**64 - 1, 1)}
    monkeypatch.setattr(recorded_images, "_hash", hashes.__getitem__)
    images = RecordedImages()
    images.add("a.jpg", "10-1")
    images.add("c.jpg", "30-1")
    assert images.has("b.jpg") == (hash_end_bits == 0)
    assert images.file_stamp("c.jpg") == "30-1"


def test_a_removed_record_stays_removed_when_others_are_added():
    images = RecordedImages()
    for number in range(100):
        images.add(f"{number}.jpg", f"{number}-1")
    images.remove("50.jpg")
    for number in range(100, 200):
        images.add(f"{number}.jpg", f"{number}-1")
    assert not images.has("50.jpg")
    assert images.file_stamp("49.jpg") == "49-1"
    assert images.file_stamp("150.jpg") == "150-1"


def test_a_record_takes_little_memory():
    tracemalloc.start()
    images = RecordedImages()
    for number in range(20_000):
        images.add(f"{number}.jpg", f"{number}-1")
    images.has("1.jpg")
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # 42 bytes, and an eighth of them that arrays allocate in advance.
    assert used_bytes < 20_000 * 50
