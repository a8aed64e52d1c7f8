"""A folder in an object store keeps what a folder on a disk promises."""

import io
import re
import threading

import conditional_server
import optional
import pytest

from detcli.core.errors import OutputError, StoreError, UsageError
from detcli.run.shards.store import ObjectFolder, open_store


@pytest.fixture
def object_store(s3):
    s3.put("first")  # makes the bucket
    return open_store("s3://photos/a b/boxes/")


def winners(store):
    """The content that each of the writers has published that won."""
    won = []

    def write(content):
        if store.publish("part", io.BytesIO(content)):
            won.append(content)

    writers = [threading.Thread(target=write, args=[b"%d" % number]) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    return won


def test_of_many_writers_one_wins(s3, object_store):
    assert winners(object_store) == [s3.get("a b/boxes/part")]


def test_notes_are_written_anew_and_removed(s3, object_store):
    for content in (b"[1]", b"[2]"):
        object_store.write_note("_working-1.json", content)
        assert [s3.get(key) for key in s3.keys("a b/")] == [content]
    object_store.remove_note("_working-1.json")
    assert not list(s3.keys("a b/"))
    assert object_store.publish("part", io.BytesIO(b"1"))
    object_store.write_note("_working-1.json", b"[1]")
    assert list(object_store.times("_work")) == ["_working-1.json"]
    s3.faults.status = ("403 Forbidden", "AccessDenied")
    object_store.remove_note("_working-1.json")


def test_what_a_torn_answer_brought_is_not_used(s3, object_store):
    content = bytes(range(256)) * 1000
    assert object_store.publish("part", io.BytesIO(content))
    s3.faults.refuse_each = 3
    s3.faults.cut_each = 2
    for _ in range(5):
        with object_store.open("part") as file:
            assert file.read() == content


def test_what_cannot_be_reached_is_an_error_with_its_name(s3):
    missing = ObjectFolder("s3://gone/boxes/")
    for use in (lambda: list(missing.names()), lambda: missing.open("part")):
        with pytest.raises(StoreError, match=r"cannot read s3://gone/boxes/.*no such bucket"):
            use()
    with pytest.raises(OutputError, match="cannot write s3://gone/boxes/part: there is no such"):
        missing.publish("part", io.BytesIO(b""))
    s3.faults.status = "403 Forbidden", "AccessDenied"
    with pytest.raises(StoreError, match="access denied"):
        missing.exists("part")


@pytest.mark.parametrize("address", ["s3:///boxes/", "s3://photos//boxes/", "s3://photos/a/../b/"])
def test_a_malformed_address_is_refused(address):
    with pytest.raises(UsageError, match=re.escape(f"--output {address}: ")):
        open_store(address)


@optional.needs("obstore")
@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_google_and_azure_are_asked_to_replace_nothing(scheme, monkeypatch):
    """A server that looks at the condition stands in for theirs."""
    with conditional_server.serve(scheme) as (url, objects):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{url}/lab")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "lab")
        monkeypatch.setenv("AZURE_STORAGE_KEY", "c2VjcmV0")
        folder = open_store(f"{scheme}://photos/boxes/")
        assert not folder.exists("part")
        (won,) = winners(folder)
        assert list(objects.values()) == [won]
        assert folder.exists("part")
        with folder.open("part") as file:
            assert file.read() == won
