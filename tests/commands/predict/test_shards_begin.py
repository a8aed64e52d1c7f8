import multiprocessing
from pathlib import Path

import pytest
from shard_headers import header

from detcli.commands.predict.shards_begin import MAX_SHARD_SIZE, begin_or_join
from detcli.core.errors import UsageError
from detcli.run.shards.manifest import FIRST_MANIFEST
from detcli.run.shards.store import LocalFolder


@pytest.fixture
def boxes_folder(tmp_path):
    return LocalFolder(tmp_path / "boxes")


CONTEXT = multiprocessing.get_context("fork")
NAMES = [f"{number}.jpg" for number in range(100)]


def test_a_run_begins_and_goes_on(boxes_folder):
    opened = begin_or_join(boxes_folder, header(), NAMES, shard_size=30)
    assert opened.added == 100
    assert opened.repeated == 0
    assert len(opened.manifest) == 4
    for sources in (NAMES, NAMES[::-1], NAMES + ["3.jpg"], None):
        continued = begin_or_join(boxes_folder, header(), sources)
        assert continued.added == 0
        assert list(continued.manifest) == list(opened.manifest)


def test_a_name_that_comes_again_counts_once(boxes_folder):
    opened = begin_or_join(boxes_folder, header(), ["a", "b", "a", "a"])
    assert opened.added == 2
    assert opened.repeated == 2
    assert list(opened.manifest.all_names()) == ["a", "b"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "shard_size", "expected"),
    [(0, None, 16), (1, None, 16), (2000, None, 32), (70_000, None, MAX_SHARD_SIZE), (100, 7, 7)],
)
def test_short_runs_have_small_shards(boxes_folder, count, shard_size, expected):
    names = (str(number) for number in range(count))
    opened = begin_or_join(boxes_folder, header(), names, shard_size)
    assert opened.manifest.header["shard_size"] == expected


@pytest.mark.parametrize(
    ("new_header", "shard_size", "message"),
    [
        (header(conf=0.5), None, r"boxes was begun with conf 0\.25 instead of 0\.5$"),
        (header(), 40, "begun with shard_size 30 instead of 40"),
        (header() | {"detcli": "2.0"}, None, r'begun with detcli "1\.0" instead of "2\.0"'),
    ],
)
def test_other_settings_are_refused(boxes_folder, new_header, shard_size, message):
    begin_or_join(boxes_folder, header(), NAMES, shard_size=30)
    for names in (NAMES, None):
        with pytest.raises(UsageError, match=message):
            begin_or_join(boxes_folder, new_header, names, shard_size=shard_size)


def test_other_names_are_refused(boxes_folder):
    begin_or_join(boxes_folder, header(), NAMES)
    expected = "boxes was begun with other inputs: 4 new: a, b, c, ...; 1 gone: 0.jpg"
    with pytest.raises(UsageError, match=f"{expected}$") as caught:
        begin_or_join(boxes_folder, header(), NAMES[1:] + ["a", "b", "c", "d"])
    assert "--extend" in caught.value.hint


def test_new_names_extend_a_run(boxes_folder):
    first_shards = list(begin_or_join(boxes_folder, header(), NAMES, shard_size=30).manifest)
    names = ["x"] + NAMES[:50] + ["y", "x"]
    opened = begin_or_join(boxes_folder, header(), names, extend=True)
    assert opened.added == 2
    assert opened.repeated == 1
    assert opened.gone == 50
    shards = list(opened.manifest)
    assert shards[:4] == first_shards
    assert shards[4].names == ("x", "y")
    assert begin_or_join(boxes_folder, header(), NAMES + ["x", "y"]).added == 0
    assert begin_or_join(boxes_folder, header(), NAMES + ["x", "y"], extend=True).added == 0
    assert sorted(boxes_folder.names()) == ["_manifest-00001.jsonl", FIRST_MANIFEST]


def test_nothing_begins_without_names(boxes_folder):
    with pytest.raises(UsageError, match=r"no inputs given, and .* has no _manifest\.jsonl"):
        begin_or_join(boxes_folder, header(), None)


def test_parts_without_a_manifest_are_refused(boxes_folder, tmp_path):
    (tmp_path / "boxes").mkdir()
    (tmp_path / "boxes" / "part-00003.jsonl").write_bytes(b"")
    with pytest.raises(UsageError, match=r"has part-00003\.jsonl, but no _manifest"):
        begin_or_join(boxes_folder, header(), NAMES)
    assert list(boxes_folder.names()) == ["part-00003.jsonl"]


def test_secrets_are_not_written_down(boxes_folder):
    with pytest.raises(UsageError, match=r"^https://host/a\.jpg\?token=\*\*\*: a manifest would"):
        begin_or_join(boxes_folder, header(), ["https://user:pw@host/a.jpg?token=abc"])
    for mistyped in ("http:/user:pw@host/a.jpg", "user:pw@host/a.jpg", "ftp://user:pw@host/a.jpg"):
        with pytest.raises(UsageError, match="a manifest would") as caught:
            begin_or_join(boxes_folder, header(), [mistyped])
        assert "pw" not in str(caught.value)
    assert list(boxes_folder.names()) == []
    names = ["https://host/a.jpg", "s3://bucket/user:pw@a.jpg?b=c", "a@b.jpg"]
    opened = begin_or_join(boxes_folder, header(), names)
    assert list(opened.manifest.all_names()) == names


class Slow(LocalFolder):
    """A store in which another run publishes just before this one."""

    def publish(self, name, content):
        names = self.names_of_another_run
        self.names_of_another_run = None
        if names is not None:
            begin_or_join(LocalFolder(Path(str(self))), header(), names, extend=True)
        return super().publish(name, content)


def test_a_lost_race_is_not_taken_for_won(tmp_path):
    store = Slow(tmp_path / "boxes")
    store.names_of_another_run = NAMES[1:]
    with pytest.raises(UsageError, match=r"begun with other inputs: 1 new: 0\.jpg$"):
        begin_or_join(store, header(), NAMES)
    store.names_of_another_run = NAMES + ["x"]
    assert begin_or_join(store, header(), NAMES + ["x"], extend=True).added == 0
    store.names_of_another_run = NAMES + ["x", "y"]
    opened = begin_or_join(store, header(), NAMES + ["x", "y", "z"], extend=True)
    assert opened.added == 1
    assert opened.gone == 0
    assert list(opened.manifest.all_names())[100:] == ["x", "y", "z"]


class BegunBetweenLooks(LocalFolder):
    """A folder in which another process begins the run after the first look for its manifest."""

    has_begun = False

    def exists(self, name):
        existed = super().exists(name)
        if not self.has_begun:
            self.has_begun = True
            begin_or_join(self, header(), NAMES)
        return existed


def test_a_run_that_another_process_begins_between_two_looks_is_joined(tmp_path):
    store = BegunBetweenLooks(tmp_path / "boxes")
    opened = begin_or_join(store, header(), NAMES, extend=True)
    assert opened.added == 0
    assert list(opened.manifest.all_names()) == NAMES


def _begin(store, names, barrier, outcomes):
    barrier.wait()
    try:
        outcomes.put(begin_or_join(store, header(), names, extend=True).added)
    except UsageError as error:
        outcomes.put(str(error))


def begin_at_once(folder, names_of_each_process):
    """Begin in a process for each list of names; returns how many names each added."""
    barrier = CONTEXT.Barrier(len(names_of_each_process))
    outcomes = CONTEXT.SimpleQueue()
    processes = []
    for names in names_of_each_process:
        arguments = (folder, names, barrier, outcomes)
        processes.append(CONTEXT.Process(target=_begin, args=arguments))

    for process in processes:
        process.start()
    added = [outcomes.get() for _ in processes]
    for process in processes:
        process.join()
    return added


def test_two_processes_begin_and_extend_at_once(boxes_folder):
    with_x = NAMES + ["x"]
    with_y = NAMES + ["y"]
    with_z = NAMES + ["z"]
    for pair in ((NAMES, NAMES), (with_x, with_x), (with_y, with_z)):
        added = begin_at_once(boxes_folder, pair)
        assert sum(added) in {100, 1, 2}
    names = begin_or_join(boxes_folder, header(), None).manifest.all_names()
    assert sorted(names) == sorted(NAMES + ["x", "y", "z"])
