"""The index of an output folder survives what may happen to it."""

import os

import pytest
from small_disk import small_disk

from detcli.errors import OutputError
from detcli.sink.index import ENTRY, NAME, FolderIndex


@pytest.fixture
def path(tmp_path):
    """An index of three files."""
    index = FolderIndex(tmp_path)
    for number, name in enumerate("abc"):
        index.add(name, f"of {name}", number)
    return tmp_path / NAME


def known(folder):
    index = FolderIndex(folder)
    return [name for name in "abcd" if index.owner_is(name, f"of {name}", unknown=False)]


def test_no_file_no_index(tmp_path):
    index = FolderIndex(tmp_path)
    index.sync()
    assert index.numbers("of a") == []
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_is_known_to_the_next_run(path):
    index = FolderIndex(path.parent)
    assert known(path.parent) == ["a", "b", "c"]
    assert [index.numbers(f"of {name}") for name in "abcd"] == [[0], [1], [2], []]
    assert not index.owner_is("a", "of b", unknown=True)
    assert index.owner_is("d", "of a", unknown=True)


def test_the_last_entry_of_a_file_counts(path):
    FolderIndex(path.parent).add("a", "of b", 7)
    index = FolderIndex(path.parent)
    assert index.owner_is("a", "of b", unknown=False)
    assert index.numbers("of a") == []
    assert index.numbers("of b") == [1, 7]


def test_an_index_cut_anywhere_keeps_its_whole_entries_and_is_continued(path):
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        kept = list("abc")[: size // ENTRY.itemsize]
        assert known(path.parent) == kept
        FolderIndex(path.parent).add("d", "of d", 1)
        assert known(path.parent) == [*kept, "d"]


def test_damaged_entries_are_left_out(path):
    whole = path.read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x10
        path.write_bytes(changed)
        assert known(path.parent) == [n for i, n in enumerate("abc") if i != place // 24]
    path.write_bytes(whole[:24] + bytes(240))
    assert known(path.parent) == ["a"]


def test_any_file_can_stand_in_its_place(path):
    path.write_bytes(os.urandom(10_007))
    assert known(path.parent) == []


def link(path):
    path.symlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize("planted", [link, os.mkfifo, os.mkdir])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path, planted):
    planted(tmp_path / NAME)
    with pytest.raises(OutputError, match=NAME):
        FolderIndex(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_is_an_output_error(path):
    index = FolderIndex(path.parent)
    with small_disk(72), pytest.raises(OutputError, match=NAME):
        index.add("d", "of d", 1)
    assert known(path.parent) == ["a", "b", "c"]


def test_a_million_files_are_known(tmp_path):
    """Not more than a few copies of 24 bytes a file are in memory."""
    import tracemalloc

    import numpy as np

    from detcli.sink.index import _checksums

    entries = np.zeros(1_000_000, ENTRY)
    rng = np.random.default_rng(0)
    for field in ("input", "file"):
        entries[field] = rng.integers(0, 1 << 63, len(entries), np.uint64)
    entries["check"] = _checksums(entries)
    (tmp_path / NAME).write_bytes(entries.tobytes())
    FolderIndex(tmp_path).add("a", "of a", 1)
    tracemalloc.start()
    index = FolderIndex(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 200e6
    assert tracemalloc.get_traced_memory()[0] < 60e6
    tracemalloc.stop()
    assert index.owner_is("a", "of a", unknown=False)
