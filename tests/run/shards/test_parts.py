"""Parts, and what becomes of one that others have changed."""

import json
import random as rng

import optional
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detcli.core.errors import StoreError
from detcli.core.record import RecordJson, name_of, set_source
from detcli.run.shards.manifest import Shard
from detcli.run.shards.parts import PartWriter, TornError, read
from detcli.run.shards.store import LocalFolder

SHARD = Shard(7, 40, ("a.jpg", "b.jpg", "c.jpg"), "0123456789abcdef")
NAMES = {"jsonl": "part-00007.jsonl", "parquet": "part-00007.parquet"}
EACH_NAME = [NAMES["jsonl"], pytest.param(NAMES["parquet"], marks=optional.needs("pyarrow"))]


def record(source="a.jpg", **fields):
    found = {"class_id": 1, "class_name": "red", "score": 0.512345}
    found |= {"x1": 1.5, "y1": 2.25, "x2": 3.0, "y2": 4.01}
    return {
        "schema_version": 2,
        "source": source,
        "index": 0,
        "input": 0,
        "width": 64,
        "height": 48,
        "detections": [found],
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
PLACED = [one | {"index": 40 + place} for place, one in enumerate(RECORDS)]


def published(folder, records=RECORDS, name=NAMES["jsonl"], shard=SHARD):
    store = LocalFolder(folder)
    with PartWriter(shard) as writer:
        for one in records:
            writer.add(one)
        assert writer.publish(store, name)
    return store


@pytest.mark.parametrize("name", EACH_NAME)
def test_records_come_back_with_their_place_in_the_run(tmp_path, name):
    for folder in ("one", "two"):
        store = published(tmp_path / folder, name=name)
    found = [*read(store, name, SHARD)]
    assert found == PLACED
    assert [[*one] for one in found] == [[*one] for one in RECORDS]  # in the same order
    assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    for other in (Shard(7, 40, SHARD.names, "f" * 16), Shard(8, 40, SHARD.names, SHARD.run)):
        with pytest.raises(TornError, match="belongs to another run"):
            [*read(store, name, other)]
    assert [*read(published(tmp_path / "three", [], name), name, SHARD)] == []  # it may be empty


def test_the_last_record_says_what_the_part_is(tmp_path):
    published(tmp_path)
    *others, last = map(json.loads, (tmp_path / NAMES["jsonl"]).read_text().splitlines())
    assert not any("part" in one for one in others)
    part = last["part"]
    assert part["shard"] == 7
    assert part["run"] == "0123456789abcdef"
    assert part["records"] == 3


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(st.data())
def test_any_change_of_a_part_is_noticed(tmp_path, data):
    """Whatever is cut out, put in or replaced, the records are the same or the part is refused."""
    name = NAMES["jsonl"]
    path = tmp_path / name
    path.unlink(missing_ok=True)
    store = published(tmp_path)
    whole = path.read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    put_in = data.draw(st.binary(max_size=3) | st.sampled_from(whole.splitlines(keepends=True)))
    path.write_bytes(whole[:start] + put_in + whole[stop:])
    try:
        found = [*read(store, name, SHARD)]
    except TornError:
        return
    assert found == PLACED


def test_lost_lines_are_noticed(tmp_path):
    store = published(tmp_path)
    path = tmp_path / NAMES["jsonl"]
    lines = path.read_bytes().splitlines(keepends=True)
    for kept in ([], lines[:2], lines[1:], [*lines, lines[0]], [lines[1], lines[0], lines[2]]):
        path.write_bytes(b"".join(kept))
        with pytest.raises(TornError):
            [*read(store, path.name, SHARD)]


@optional.needs("pyarrow")
def test_damaged_parquet_is_noticed(tmp_path):
    name = NAMES["parquet"]
    store = published(tmp_path, name=name)
    path = tmp_path / name
    whole, random = path.read_bytes(), rng.Random(0)  # noqa: S311 - no secret
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[random.randrange(len(whole))] ^= 1 << random.randrange(8)
        path.write_bytes(damaged if random.random() < 0.8 else damaged[: random.randrange(300)])
        try:
            found = [*read(store, name, SHARD)]
        except TornError:
            continue
        assert found == PLACED


def test_a_part_that_cannot_be_read_is_another_error(tmp_path):
    with pytest.raises(StoreError, match="No such file"):
        [*read(LocalFolder(tmp_path), "part-00007.jsonl", SHARD)]


@pytest.mark.parametrize("name", EACH_NAME)
def test_many_records_go_to_the_disk(tmp_path, monkeypatch, name):
    monkeypatch.setattr("detcli.core.files.IN_MEMORY", 1000)
    records = [record(f"{number}.jpg") for number in range(100)]
    store = published(tmp_path, records, name)
    assert len([*read(store, name, SHARD)]) == 100


def test_a_piece_is_sent_as_lines():
    with PartWriter(SHARD) as writer:
        for one in RECORDS:
            writer.add(one)
        assert [*map(json.loads, writer.content().splitlines())] == PLACED


@pytest.mark.parametrize("name", EACH_NAME)
def test_names_that_are_not_text_survive(tmp_path, name):
    odd = record()
    set_source(odd, "\udcff.jpg")
    odd = {name: odd[name] for name in RecordJson.__annotations__ if name in odd}
    store = published(tmp_path, [odd], name)
    assert [name_of(piece) for piece in read(store, name, SHARD)] == ["\udcff.jpg"]
