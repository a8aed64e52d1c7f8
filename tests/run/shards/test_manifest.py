import errno
import hashlib
import json
import os
import shutil

import json_lines
import pytest
from shard_headers import header, written

from detcli.core.errors import StoreError, UsageError
from detcli.run.shards.manifest import (
    FIRST_MANIFEST,
    Manifest,
    class_names_of,
    fingerprint_of,
    publish,
    shortened,
)
from detcli.source.listing import Unusable, hash_of

NAMES = [f"{number}.jpg" for number in range(10)]


def sizes_of(shards):
    """How many names each shard has."""
    return [len(shard.names) for shard in shards]


@pytest.fixture
def first(store, tmp_path):
    """The file of a manifest with three shards."""
    written(store, NAMES, 4)
    return tmp_path / "boxes" / FIRST_MANIFEST


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [(0, 4, []), (1, 4, [1]), (4, 4, [4]), (5, 4, [4, 1]), (10, 4, [4, 4, 2]), (3, 1, [1, 1, 1])],
)
def test_names_are_cut_into_lots(store, count, size, expected):
    manifest = written(store, NAMES[:count], size)
    shards = list(manifest)
    assert sizes_of(shards) == expected
    assert list(manifest.all_names()) == NAMES[:count]
    assert len(manifest) == len(expected)
    assert manifest.name_count == count
    for number, shard in enumerate(shards):
        assert manifest.shard(number) == shard
        assert shard.first == sum(expected[:number])


def test_further_names_are_further_shards(store):
    manifest = written(store, NAMES, 4)
    for names in (["x", "y", "z"], ["w"]):
        assert publish(store, manifest.next_file, manifest.header, names, len(manifest))
        manifest = Manifest(store)
    shards = list(manifest)
    assert sizes_of(shards) == [4, 4, 2, 3, 1]
    assert [shard.first for shard in shards] == [0, 4, 8, 10, 13]
    for number, shard in enumerate(shards):
        assert manifest.shard(number) == shard
    assert list(manifest.all_names()) == NAMES + ["x", "y", "z", "w"]
    assert len({shard.run for shard in shards}) == 3
    assert len(manifest.hashes(hash_of)) == 14
    publish(store, "_manifest-00004.jsonl", manifest.header, ["x"], 3)
    with pytest.raises(UsageError, match=r"_manifest-00003\.jsonl is missing"):
        Manifest(store)


def test_the_names_of_a_shard_have_their_numbers_in_the_run(store):
    manifest = written(store, NAMES, 4)
    assert [list(shard.numbers) for shard in manifest] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_name_that_an_extension_has_again_counts_where_it_is_last(store):
    """Its file has changed since the first time."""
    manifest = written(store, ["a", "b", "c"], 2)
    publish(store, manifest.next_file, manifest.header, ["b", "d"], len(manifest))
    manifest = Manifest(store)
    assert manifest.last_shards_of_repeated_names() == {hash_of("b"): 2}
    assert list(manifest.last_names()) == ["a", "c", "b", "d"]
    assert len(manifest.hashes(hash_of)) == 4


def test_a_manifest_is_written_once(store):
    written(store, NAMES, 4)
    assert not publish(store, FIRST_MANIFEST, header(1), ["other"])
    assert list(Manifest(store).all_names()) == NAMES


def test_any_name_comes_back(store):
    names = ["\udcff\n.jpg", 'a"\\.jpg', Unusable("pics", "cannot list it", "check"), "数.png", ""]
    assert list(written(store, names, 4).all_names()) == names


def test_parts_are_those_of_the_format(store, tmp_path):
    manifest = written(store, NAMES, 4)
    for name in (
        "part-00001.jsonl",
        "part-00002.parquet",
        "part-2.jsonl",
        "note.txt",
        f"manifest-{'9' * 200}.jsonl",
        f"part-{'9' * 200}.jsonl",
    ):
        (tmp_path / "boxes" / name).touch()
    assert manifest.last_attempts() == {1: 0}
    assert manifest.part(123456) == "part-123456.jsonl"
    assert len(Manifest(store)) == 3


def test_a_folder_of_parquet_parts_is_refused(store):
    """Earlier versions wrote such parts."""
    assert publish(store, FIRST_MANIFEST, header(4) | {"format": "parquet"}, NAMES)
    with pytest.raises(UsageError, match=r"the parts in .*boxes are Parquet") as caught:
        Manifest(store)
    assert "merge them with detcli" in caught.value.hint


@pytest.mark.parametrize("line_count", [0, 1, 2, 3, 4])
def test_a_manifest_that_was_cut_off_is_refused(store, first, line_count):
    lines = first.read_bytes().splitlines(keepends=True)
    assert len(lines) == 5
    first.write_bytes(b"".join(lines[:line_count]) + lines[line_count][:-5])
    with pytest.raises(UsageError, match=r"_manifest.jsonl in .*boxes is damaged"):
        Manifest(store)


@pytest.mark.parametrize(
    "line",
    [
        "null",
        "[]",
        "{}",
        '{"shard": 1}',
        '{"shard": 1, "names": 3}',
        "9" * 5000,
        "[" * 9000,
        '{"shard": 1, "names": [["a", null, "{"]]}',
        '{"shard": 1, "names": [["a", null, 3]]}',
    ],
)
def test_a_manifest_with_another_line_is_refused(store, first, line):
    lines = first.read_text().splitlines()
    for index in range(5):
        changed_lines = list(lines)
        changed_lines[index] = line
        first.write_text("\n".join(changed_lines) + "\n")
        with pytest.raises(UsageError, match="damaged"):
            list(Manifest(store))


@pytest.mark.parametrize(
    "changed",
    [
        {"shard_size": "4"},
        {"shard_size": 0},
        {"shard_size": True},
        {"shard_size": None},
        {"format": "../../x"},
        {"format": ["jsonl"]},
        {"format": "csv"},
    ],
)
def test_a_header_that_would_lead_astray_is_refused(store, first, changed):
    lines = first.read_text().splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | changed)
    first.write_text("\n".join(lines) + "\n")
    with pytest.raises(UsageError, match="damaged"):
        Manifest(store)


def test_a_manifest_that_changes_while_it_is_read_is_refused(store, first):
    manifest = Manifest(store)
    first.write_bytes(first.read_bytes().replace(b'"shard": 1', b'"shard": 7'))
    with pytest.raises(UsageError, match="it has changed"):
        manifest.shard(1)


@pytest.mark.usefixtures("first")
def test_a_disk_that_fails_while_a_manifest_is_read_is_no_damage(store, monkeypatch):
    def fail(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    manifest = Manifest(store)
    monkeypatch.setattr("detcli.run.shards.manifest.bounded_line", fail)
    with pytest.raises(StoreError, match=r"cannot read _manifest\.jsonl in .*Input/output error"):
        manifest.shard(1)


def test_a_manifest_of_this_and_of_an_earlier_version_is_one_too_many(store, first):
    shutil.copy(first, first.with_name("manifest.jsonl"))
    with pytest.raises(UsageError, match=r"has both _manifest\.jsonl and manifest\.jsonl"):
        Manifest(store)


def test_a_folder_without_a_manifest_is_refused(store, tmp_path):
    for _ in range(2):
        with pytest.raises(UsageError, match=r"has no _manifest\.jsonl"):
            Manifest(store)
        written(store, NAMES, 4)
        (tmp_path / "boxes" / FIRST_MANIFEST).rename(tmp_path / "boxes" / "_manifest-00001.jsonl")


def test_the_manifest_is_json_lines(first):
    entries = json_lines.lines(first.read_text())
    head = entries[0]
    shards = entries[1:-1]
    end = entries[-1]
    assert head["settings"]["model"] == "colours"
    assert shards[2] == {"shard": 2, "names": ["8.jpg", "9.jpg"]}
    assert end == {"shards": 3, "names": 10}


def test_a_shard_whose_part_is_lost_is_not_done_by_its_retry(store, tmp_path):
    """The part of a retry has only the names that had failed."""
    manifest = written(store, NAMES, 4)
    for name in ("part-00000.jsonl", "part-00000-1.jsonl", "part-00001-1.jsonl"):
        (tmp_path / "boxes" / name).touch()
    assert manifest.last_attempts() == {0: 1}


def test_the_last_turn_of_a_retry_is_the_one_that_counts(store, tmp_path):
    manifest = written(store, NAMES, 4)
    for attempt in ("", "-2", "-10", "-9"):
        (tmp_path / "boxes" / f"part-00002{attempt}.jsonl").touch()
    assert manifest.last_attempts() == {2: 10}


@pytest.mark.parametrize(
    "name", ["part-00001-0.jsonl", "part-00001-01.jsonl", "part-00001-1.parquet", "part-1-1.jsonl"]
)
def test_a_name_that_no_retry_writes_is_no_part(store, tmp_path, name):
    manifest = written(store, NAMES, 4)
    for each in ("part-00001.jsonl", name):
        (tmp_path / "boxes" / each).touch()
    assert manifest.last_attempts() == {1: 0}


@pytest.mark.parametrize(
    ("count", "text"), [(3, "0.jpg, 1.jpg, 2.jpg"), (4, "0.jpg, 1.jpg, 2.jpg, ...")]
)
def test_three_names_are_shown(count, text):
    assert shortened(NAMES[:count], count) == text


def test_a_shard_of_the_manifest_is_of_no_retry(store):
    manifest = written(store, NAMES, 4)
    shard = manifest.shard(1)
    assert shard.attempt == 0
    assert manifest.part(shard.number, shard.attempt) == "part-00001.jsonl"


def test_a_run_with_other_options_of_inputs_is_refused(store):
    manifest = written(store, NAMES, 4)
    manifest.require_same(inputs=dict(manifest.header["inputs"]))
    with pytest.raises(UsageError, match="strict false instead of true"):
        manifest.require_same(inputs=manifest.header["inputs"] | {"strict": True})


def test_a_run_with_other_settings_is_refused_unless_they_are_implied(store):
    manifest = written(store, NAMES, 4)
    other_settings = manifest.header["settings"] | {"conf": 0.5}
    with pytest.raises(UsageError, match=r"was begun with conf 0\.25 instead of 0\.5") as caught:
        manifest.require_same(settings=other_settings)
    assert caught.value.hint == "use the same settings, or write to another folder"
    manifest.require_same(["conf"], settings=other_settings)


def test_a_shard_whose_names_nobody_could_read_is_not_written(store, monkeypatch):
    monkeypatch.setattr("detcli.core.lines.MAX_LINE_BYTES", 1000)
    with pytest.raises(UsageError, match="the names of a shard make a line") as caught:
        written(store, ["x" * 1000], 4)
    assert caught.value.hint == "choose a smaller --shard-size"
    assert FIRST_MANIFEST not in store.names()


def test_the_order_of_settings_makes_no_other_part():
    settings = header()["settings"]
    in_other_order = dict(reversed(settings.items()))
    fingerprint = fingerprint_of("1.0", settings)
    assert fingerprint_of("1.0", in_other_order) == fingerprint  # type: ignore[arg-type]
    assert fingerprint_of("1.0", settings) != fingerprint_of("1.0", settings | {"conf": 0.5})


def test_a_run_of_another_version_is_finished_by_that_version(store):
    manifest = written(store, NAMES, 4)
    earlier_version = manifest.header["detcli"]
    with pytest.raises(UsageError, match="was begun with detcli") as caught:
        manifest.require_same(detcli="9.9.9")
    hint = f"finish it with detcli {earlier_version}, or write to another folder"
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"class_names": ["cat", "dog"]}, ["cat", "dog"]),
        ({"settings": {"names": ["cat"]}}, ["cat"]),  # as earlier versions wrote it
        ({"class_names": ["cat"], "settings": {"names": ["dog"]}}, ["cat"]),
        ({}, []),
        ({"class_names": {"0": "cat"}}, []),
        ({"class_names": "cat"}, []),
        ({"class_names": ["cat", 1]}, []),
    ],
)
def test_the_names_of_classes_are_texts(fields, names):
    assert class_names_of(header() | fields) == names


def test_a_name_that_a_run_has_twice_from_the_beginning_counts_twice(store):
    manifest = written(store, ["a", "b", "a"], 2)
    assert manifest.last_shards_of_repeated_names() == {}
    assert list(manifest.last_names()) == ["a", "b", "a"]


def test_parts_name_their_run_by_16_digits(store, first):
    """As those of earlier versions, which are continued."""
    digest = hashlib.sha256(first.read_bytes()).hexdigest()
    assert Manifest(store).shard(0).run == digest[:16]
