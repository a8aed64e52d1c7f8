"""Parts, and what becomes of one that others have changed."""

import errno
import os
from collections import Counter
from dataclasses import replace

import json_lines
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from json_lines import column_of, optional_column_of, records_with, text_of
from shard_headers import written

from detcli.core.errors import CheckError, StoreError
from detcli.data.record import RecordJson, name_of, set_source
from detcli.run.shards.manifest import Manifest, Shard, publish
from detcli.run.shards.parts import CorruptPartError, Merge, PartWriter, count_failures, read_part
from detcli.run.shards.store import LocalFolder
from detcli.source.listing import hash_of
from detcli.source.names import ListedInput

SHARD = Shard(7, 40, ("a.jpg", "b.jpg", "c.jpg"), "0123456789abcdef")
PART_NAME = "part-00007.jsonl"


def record(source="a.jpg", **fields):
    detection = {"class_id": 1, "class_name": "red", "score": 0.512345}
    detection |= {"x1": 1.5, "y1": 2.25, "x2": 3.0, "y2": 4.01}
    return {
        "schema_version": 2,
        "source": source,
        "index": 0,
        "input": 0,
        "width": 64,
        "height": 48,
        "detections": [detection],
        "model": "m",
        "device": "cpu",
        **fields,
    }


ERROR = {
    "schema_version": 2,
    "source": "b.jpg",
    "index": 0,
    "input": 1,
    "frame": 3,
    "time_s": 0.25,
    "error": {"type": "DecodeError", "message": "torn", "hint": ""},
}
RECORDS = [record(), ERROR, record("ä\n.jpg", detections=[], warnings=["odd"])]
PLACED = [RECORDS[0] | {"index": 40}, RECORDS[1] | {"index": 41}, RECORDS[2] | {"index": 42}]


def published(folder, records=RECORDS, name=PART_NAME, shard=SHARD):
    store = LocalFolder(folder)
    with PartWriter(shard) as writer:
        for record in records:
            writer.add(record)
        assert writer.publish(store, name)
    return store


def film_frames(count, source="film.mp4", **fields):
    """The records of the first frames of a video."""
    frames = []
    for number in range(count):
        frames.append(record(source, frame=number, **fields))
    return frames


def reasons_of(merge):
    """The reason of each fault in a merge."""
    return [fault.reason for fault in merge.faults]


def records_in(path):
    return json_lines.lines(path.read_text())


def test_records_come_back_with_their_place_in_the_run(tmp_path):
    for folder in ("one", "two"):
        store = published(tmp_path / folder)
    records = list(read_part(store, PART_NAME, SHARD))
    assert records == PLACED
    for record, written_record in zip(records, RECORDS, strict=True):
        assert list(record) == list(written_record)  # the order of their fields
    assert (tmp_path / "one" / PART_NAME).read_bytes() == (
        tmp_path / "two" / PART_NAME
    ).read_bytes()
    for other_shard in (Shard(7, 40, SHARD.names, "f" * 16), Shard(8, 40, SHARD.names, SHARD.run)):
        with pytest.raises(CorruptPartError, match="belongs to another run"):
            list(read_part(store, PART_NAME, other_shard))
    assert (
        list(read_part(published(tmp_path / "three", []), PART_NAME, SHARD)) == []
    )  # it may be empty


def test_the_last_record_says_what_the_part_is(tmp_path):
    published(tmp_path)
    records = records_in(tmp_path / PART_NAME)
    assert records_with(records, "part") == records[-1:]
    part = records[-1]["part"]
    assert part["shard"] == 7
    assert part["run"] == "0123456789abcdef"
    assert part["records"] == 3


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(st.data())
def test_any_change_of_a_part_is_noticed(tmp_path, data):
    """Whatever is cut out, put in or replaced, the records are the same or the part is refused."""
    path = tmp_path / PART_NAME
    path.unlink(missing_ok=True)
    store = published(tmp_path)
    content = path.read_bytes()
    start = data.draw(st.integers(0, len(content)))
    stop = data.draw(st.integers(start, len(content)))
    put_in = data.draw(st.binary(max_size=3) | st.sampled_from(content.splitlines(keepends=True)))
    path.write_bytes(content[:start] + put_in + content[stop:])
    try:
        records = list(read_part(store, PART_NAME, SHARD))
    except CorruptPartError:
        return
    assert records == PLACED


def test_lost_lines_are_noticed(tmp_path):
    store = published(tmp_path)
    path = tmp_path / PART_NAME
    lines = path.read_bytes().splitlines(keepends=True)
    for remaining_lines in (
        [],
        lines[:2],
        lines[1:],
        lines + [lines[0]],
        [lines[1], lines[0], lines[2]],
    ):
        path.write_bytes(b"".join(remaining_lines))
        with pytest.raises(CorruptPartError):
            list(read_part(store, path.name, SHARD))


def test_a_part_that_cannot_be_read_is_another_error(tmp_path):
    with pytest.raises(StoreError, match="No such file"):
        list(read_part(LocalFolder(tmp_path), "part-00007.jsonl", SHARD))


def test_a_disk_that_fails_while_a_part_is_read_is_no_damage(tmp_path, monkeypatch):
    def fail(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    store = published(tmp_path)
    monkeypatch.setattr("detcli.run.shards.parts.bounded_lines", fail)
    with pytest.raises(StoreError, match=r"cannot read part-00007\.jsonl in .*Input/output error"):
        list(read_part(store, PART_NAME, SHARD))


def test_many_records_go_to_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("detcli.storage.temporary.IN_MEMORY", 1000)
    records = [record(f"{number}.jpg") for number in range(100)]
    store = published(tmp_path, records)
    assert len(list(read_part(store, PART_NAME, SHARD))) == 100


def test_a_piece_is_sent_as_lines():
    with PartWriter(SHARD) as writer:
        for record in RECORDS:
            writer.add(record)
        pieces = json_lines.lines(writer.content())
        assert pieces == PLACED
        assert json_lines.lines(writer.content()) == PLACED  # each record once


def test_names_that_are_not_text_survive(tmp_path):
    fields = record()
    set_source(fields, "\udcff.jpg")
    ordered_fields = {name: fields[name] for name in RecordJson.__annotations__ if name in fields}
    store = published(tmp_path, [ordered_fields])
    (piece,) = read_part(store, PART_NAME, SHARD)
    assert name_of(piece) == "\udcff.jpg"


# Parts of earlier versions


def without_in_part(path, *fields):
    """Take fields from the end of a part, as versions had it that did not write them."""
    records = records_in(path)
    for field in fields:
        del records[-1]["part"][field]
    path.write_text(text_of(records))


def test_a_part_that_does_not_say_what_made_it_is_read(tmp_path):
    shard = replace(SHARD, fingerprint="detcli 2.0, model abc, settings def")
    store = published(tmp_path, shard=shard)
    without_in_part(tmp_path / PART_NAME, "made_by")
    assert list(read_part(store, PART_NAME, shard)) == PLACED


def test_a_part_that_something_else_made_is_refused(tmp_path):
    store = published(tmp_path, shard=replace(SHARD, fingerprint="detcli 1.0"))
    with pytest.raises(
        CorruptPartError, match="made by another model, other settings or another version"
    ):
        list(read_part(store, PART_NAME, replace(SHARD, fingerprint="detcli 2.0")))


def test_a_part_of_the_same_maker_is_read(tmp_path):
    shard = replace(SHARD, fingerprint="detcli 2.0")
    assert list(read_part(published(tmp_path, shard=shard), PART_NAME, shard)) == PLACED


@pytest.mark.parametrize("field", ["run", "shard", "records", "sha256"])
def test_a_part_without_what_every_version_wrote_is_torn(tmp_path, field):
    store = published(tmp_path)
    without_in_part(tmp_path / PART_NAME, field)
    with pytest.raises(CorruptPartError):
        list(read_part(store, PART_NAME, SHARD))


# Parts of a run, and what --retry-failed adds to them


SOURCES = ["0.jpg", "1.jpg", "2.jpg", "3.jpg"]


def image_of(source, number, **fields):
    return record(source, input=number, **fields)


def failure_of(source, number):
    failure = ERROR | {"source": source, "input": number}
    del failure["frame"]
    del failure["time_s"]
    return failure


@pytest.fixture
def begun(tmp_path):
    """A run of two shards of two names, in the second of which one failed."""
    store = LocalFolder(tmp_path / "boxes")
    manifest = written(store, SOURCES, 2)
    first = [image_of("0.jpg", 0), image_of("1.jpg", 1)]
    second = [image_of("2.jpg", 2), failure_of("3.jpg", 3)]
    for number, records in enumerate((first, second)):
        publish_part(store, manifest, manifest.shard(number), records)
    return store, manifest


def publish_part(store, manifest, shard, records):
    with PartWriter(shard) as writer:
        for each in records:
            writer.add(each)
        assert writer.publish(store, manifest.part(shard.number, shard.attempt))


def test_a_retry_takes_the_place_of_an_error(begun):
    store, manifest = begun
    shard = Merge(store, manifest).retry_shard(1)
    assert shard.names == ("3.jpg",)
    assert shard.attempt == 1
    publish_part(store, manifest, shard, [image_of("3.jpg", 3)])
    merge = Merge(store, manifest)
    records = list(merge)
    assert column_of(records, "source") == SOURCES
    assert records_with(records, "error") == []
    assert merge.faults == []


def test_a_second_retry_takes_the_place_of_the_first(begun):
    store, manifest = begun
    publish_part(store, manifest, Merge(store, manifest).retry_shard(1), [failure_of("3.jpg", 3)])
    retried = Merge(store, manifest).retry_shard(1)
    assert retried.attempt == 2
    publish_part(store, manifest, retried, [image_of("3.jpg", 3)])
    assert records_with(Merge(store, manifest), "error") == []


def test_a_lost_part_beside_its_retry_is_missing(begun, tmp_path):
    """The names that had not failed are in no other part."""
    store, manifest = begun
    publish_part(store, manifest, Merge(store, manifest).retry_shard(1), [image_of("3.jpg", 3)])
    (tmp_path / "boxes" / manifest.part(1)).unlink()
    merge = Merge(store, manifest)
    [fault] = merge.faults
    assert fault.part == "part-00001.jsonl"
    assert fault.reason == "missing: 2.jpg, 3.jpg"
    assert fault.names == 2
    assert fault.missing
    assert count_failures(store, manifest, [0, 1]).keys() == {0}


def test_a_lost_first_retry_beside_its_second_is_a_fault_of_the_part(begun, tmp_path):
    store, manifest = begun
    publish_part(store, manifest, Merge(store, manifest).retry_shard(1), [failure_of("3.jpg", 3)])
    retried = Merge(store, manifest).retry_shard(1)
    publish_part(store, manifest, retried, [image_of("3.jpg", 3)])
    (tmp_path / "boxes" / manifest.part(1, 1)).unlink()
    with pytest.raises(StoreError, match="part-00001-1"):
        list(Merge(store, manifest))


def test_a_retry_with_records_of_other_names_is_a_fault(begun):
    store, manifest = begun
    shard = Merge(store, manifest).retry_shard(1)
    publish_part(store, manifest, shard, [image_of("other.jpg", 3)])
    merge = Merge(store, manifest)
    assert column_of(merge, "source") == SOURCES[:2]
    assert reasons_of(merge) == ["part-00001-1.jsonl has records of other names"]


def test_nothing_is_retried_of_a_damaged_part(begun, tmp_path):
    store, manifest = begun
    path = tmp_path / "boxes" / manifest.part(1)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CheckError, match=r"part-00001\.jsonl: ") as caught:
        Merge(store, manifest).retry_shard(1)
    assert caught.value.hint.startswith("remove it")


def test_failures_of_shards_are_counted_by_their_kind(begun):
    store, manifest = begun
    assert count_failures(store, manifest, [0, 1]) == {
        0: Counter(),
        1: Counter({"DecodeError: torn": 1}),
    }


def test_a_part_of_an_earlier_version_counts_as_one_without_failures(begun, tmp_path):
    store, manifest = begun
    without_in_part(tmp_path / "boxes" / manifest.part(1), "failed")
    assert count_failures(store, manifest, [1]) == {1: Counter()}


def test_the_end_of_a_part_without_records_is_read(tmp_path):
    store = published(tmp_path, records=[])
    assert list(read_part(store, PART_NAME, SHARD)) == []


def test_a_part_that_goes_on_after_its_end_is_torn(tmp_path):
    """Its records and their digest are whole, but what tells of the end is at the first."""
    store = published(tmp_path)
    path = tmp_path / PART_NAME
    records = records_in(path)
    records[0]["part"] = records[-1].pop("part")
    path.write_text(text_of(records))
    with pytest.raises(CorruptPartError, match="continues after its end"):
        list(read_part(store, path.name, SHARD))


def merge_of(folder, names, records):
    """The merge of a run of one shard."""
    store = LocalFolder(folder / "boxes")
    manifest = written(store, names, len(names))
    publish_part(store, manifest, manifest.shard(0), records)
    return Merge(store, manifest)


def test_a_video_that_is_the_first_name_has_many_records(tmp_path):
    frames = film_frames(3, input=0)
    merge = merge_of(tmp_path, ["film.mp4", "1.jpg"], frames + [image_of("1.jpg", 1)])
    assert optional_column_of(merge, "frame") == [0, 1, 2, None]
    assert merge.faults == []


def test_a_record_more_than_there_are_names_is_a_fault(tmp_path):
    merge = merge_of(tmp_path, ["0.jpg"], [image_of("0.jpg", 0), image_of("0.jpg", 0)])
    assert len(list(merge)) == 1
    assert reasons_of(merge) == ["0.jpg is not among its names"]


def test_a_record_of_an_address_shows_no_password(tmp_path):
    names = ["http://user:secret@host/a.jpg"]
    merge = merge_of(tmp_path, names, [image_of("http://host/a.jpg", 0)])
    assert column_of(merge, "source") == ["http://host/a.jpg"]
    assert merge.faults == []


def test_a_file_whose_name_looks_like_an_address_is_known_when_it_is_gone(tmp_path):
    """While it exists, records have its whole name; of another one they would hide the password."""
    names = ["http:/user:secret@host/a.jpg"]
    merge = merge_of(tmp_path, names, [image_of(names[0], 0)])
    assert column_of(merge, "source") == names
    assert merge.faults == []


def test_the_last_images_of_a_part_have_records(tmp_path):
    merge = merge_of(tmp_path, ["0.jpg", "1.jpg", "2.jpg"], [image_of("0.jpg", 0)])
    assert column_of(merge, "source") == ["0.jpg"]
    [fault] = merge.faults
    assert fault.reason == "1.jpg has no record"
    assert fault.names == 3
    assert not fault.missing


def test_the_last_videos_and_archives_of_a_part_may_have_no_records(tmp_path):
    merge = merge_of(tmp_path, ["0.jpg", "film.mp4", "pics.tar"], [image_of("0.jpg", 0)])
    assert column_of(merge, "source") == ["0.jpg"]
    assert merge.faults == []


def test_records_of_an_archive_are_those_of_its_members(tmp_path):
    names = ["empty.tar", "pics.tar", "2.jpg"]
    records = [image_of("pics.tar/a.jpg", 0), image_of("pics.tar/b.jpg", 0), image_of("2.jpg", 0)]
    merge = merge_of(tmp_path, names, records)
    assert column_of(merge, "input") == [1, 1, 2]
    assert merge.faults == []


def test_an_image_has_no_members(tmp_path):
    merge = merge_of(tmp_path, ["0.jpg"], [image_of("0.jpg/a.jpg", 0)])
    assert list(merge) == []
    assert reasons_of(merge) == ["found a record for 0.jpg/a.jpg where 0.jpg was expected"]


def extended(begun, names):
    """The manifest of a run to which more names were added, with the records of these."""
    store, manifest = begun
    assert publish(store, manifest.next_file, manifest.header, names, len(manifest))
    extended_manifest = Manifest(store)
    first_new = len(manifest)
    number = manifest.name_count
    for shard_number in range(first_new, len(extended_manifest)):
        shard = extended_manifest.shard(shard_number)
        records = []
        for name in shard.names:
            records.append(image_of(name, number))
            number += 1
        publish_part(store, extended_manifest, shard, records)
    return extended_manifest


@pytest.mark.parametrize(
    ("repeated", "inputs"), [("1.jpg", [0, 2, 3, 4, 5]), ("2.jpg", [0, 1, 3, 4, 5])]
)
def test_of_a_file_that_two_shards_have_the_later_record_counts(begun, repeated, inputs):
    """Its file has changed before the run was extended."""
    store, _ = begun
    merge = Merge(store, extended(begun, [repeated, "4.jpg"]))
    assert column_of(merge, "input") == inputs
    assert merge.faults == []


def test_merged_records_are_numbered_and_counted(begun):
    store, manifest = begun
    merge = Merge(store, manifest)
    assert column_of(merge, "index") == [0, 1, 2, 3]
    assert merge.count == 4
    assert merge.failed == Counter({"DecodeError: torn": 1})


def test_the_damaged_record_of_a_part_is_named(tmp_path):
    store = published(tmp_path)
    path = tmp_path / PART_NAME
    first, _, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + b"{\n" + last)
    with pytest.raises(CorruptPartError, match="damaged, in record 2: "):
        list(read_part(store, PART_NAME, SHARD))


def test_a_run_says_which_stamps_files_had_when_they_were_retried(begun):
    store, manifest = begun
    assert Merge(store, manifest).stamps_of_retried_inputs() == {}
    retry = Merge(store, manifest).retry_shard(1)
    publish_part(store, manifest, retry, [image_of("3.jpg", 3, file_stamp="7 1.5")])
    merge = Merge(store, manifest)
    assert merge.stamps_of_retried_inputs() == {hash_of("3.jpg"): "7 1.5"}
    assert records_with(merge, "file_stamp") == []  # merged records have none


def test_an_input_without_a_stamp_was_retried_as_well(begun):
    store, manifest = begun
    retry = Merge(store, manifest).retry_shard(1)
    publish_part(store, manifest, retry, [image_of("3.jpg", 3)])
    assert Merge(store, manifest).stamps_of_retried_inputs() == {hash_of("3.jpg"): None}


def test_a_damaged_retry_is_a_fault_of_the_part_and_tells_no_stamps(begun, tmp_path):
    store, manifest = begun
    retry = Merge(store, manifest).retry_shard(1)
    publish_part(store, manifest, retry, [image_of("3.jpg", 3, file_stamp="7 1.5")])
    path = tmp_path / "boxes" / manifest.part(1, 1)
    path.write_bytes(path.read_bytes()[:-20])
    merge = Merge(store, manifest)
    assert merge.stamps_of_retried_inputs() == {}
    assert column_of(merge, "source") == SOURCES[:2]
    [fault] = merge.faults
    assert fault.part == "part-00001.jsonl"
    assert fault.reason.startswith("part-00001-1.jsonl: it is damaged")


def test_a_video_that_was_retried_has_its_new_records_once(tmp_path):
    failed = failure_of("film.mp4", 0)
    merge = merge_of(tmp_path, ["film.mp4"], [record("film.mp4", frame=0), failed])
    store = LocalFolder(tmp_path / "boxes")
    manifest = Manifest(store)
    frames = film_frames(3)
    publish_part(store, manifest, merge.retry_shard(0), frames)
    assert column_of(Merge(store, manifest), "frame") == [0, 1, 2]


def test_the_last_64_kib_of_a_part_tell_its_failures(begun, tmp_path):
    _, manifest = begun
    opened = []

    class WatchedFolder(LocalFolder):
        def open(self, name, tail_bytes=0):
            opened.append((name, tail_bytes))
            return super().open(name, tail_bytes)

    watched_store = WatchedFolder(tmp_path / "boxes")
    assert count_failures(watched_store, manifest, [1])[1].total() == 1
    assert opened == [("part-00001.jsonl", 65536)]


def test_the_temporary_file_of_a_part_is_closed():
    with PartWriter(SHARD) as writer:
        file = writer._file  # noqa: SLF001
    assert file.closed


def test_a_lost_part_is_named_and_not_its_retries(begun, tmp_path):
    store, manifest = begun
    (tmp_path / "boxes" / manifest.part(1)).unlink()
    with pytest.raises(StoreError, match=r"cannot read .*/part-00001\.jsonl"):
        list(Merge(store, manifest))


def test_a_run_that_has_all_parts_is_merged_without_a_look_at_its_names(begun, monkeypatch):
    store, manifest = begun
    monkeypatch.setattr(Manifest, "shard", None)
    assert Merge(store, manifest).faults == []


def test_a_file_that_a_run_names_twice_has_two_records(tmp_path):
    store = LocalFolder(tmp_path / "boxes")
    manifest = written(store, ["0.jpg", "0.jpg"], 1)
    for number in range(2):
        publish_part(store, manifest, manifest.shard(number), [image_of("0.jpg", number)])
    merge = Merge(store, manifest)
    assert column_of(merge, "input") == [0, 1]
    assert merge.faults == []


@pytest.mark.parametrize(("meta", "fault_count"), [({"side": "left"}, 0), ({"side": "right"}, 1)])
def test_a_record_has_what_the_list_says_of_its_input(tmp_path, meta, fault_count):
    name = ListedInput("0.jpg", None, '{"side": "left"}')
    merge = merge_of(tmp_path, [name], [image_of("0.jpg", 0, meta=meta)])
    assert len(list(merge)) == 1 - fault_count
    assert len(merge.faults) == fault_count


def test_a_record_has_nothing_that_no_list_says(tmp_path):
    merge = merge_of(tmp_path, ["0.jpg"], [image_of("0.jpg", 0, meta={"side": "left"})])
    assert list(merge) == []
    assert len(merge.faults) == 1


def test_a_video_at_an_address_is_one_whatever_is_asked_of_it(tmp_path):
    """What follows the question mark is not of its name."""
    address = "http://host/film.mp4?part=1"
    frames = film_frames(2, address)
    merge = merge_of(tmp_path, [address, "1.jpg"], frames + [image_of("1.jpg", 1)])
    assert column_of(merge, "input") == [0, 0, 1]
    assert merge.faults == []


def test_shards_that_were_never_retried_are_not_read_for_their_stamps(begun, monkeypatch):
    store, manifest = begun
    monkeypatch.setattr(Manifest, "shard", None)
    assert Merge(store, manifest).stamps_of_retried_inputs() == {}
