"""Outputs that are objects in a store; boto3 reads what came of them."""

import tempfile

import pytest

from detcli.core.errors import OutputError
from detcli.storage.objects import Address, ObjectFile

TARGET = Address("s3", "photos", "a b/all.jsonl")


@pytest.fixture(autouse=True)
def temporary(s3, tmp_path, monkeypatch):
    """The folder for temporary files, of this test alone."""
    s3.put("first")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_an_object_appears_when_it_is_complete(s3, temporary):
    file = ObjectFile(TARGET)
    file.write("ä\n")
    file.write(b"b\n")
    assert s3.keys() == ["first"]
    (path,) = temporary.iterdir()
    assert path.stat().st_mode & 0o077 == 0
    file.commit()
    assert s3.get("a b/all.jsonl").decode() == "ä\nb\n"
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("bucket", ["gone", "photos"])
def test_a_bucket_out_of_reach_is_noticed_at_once(s3, temporary, bucket):
    if bucket == "photos":
        s3.faults.status = "403 Forbidden", "InvalidAccessKeyId"
    with pytest.raises(OutputError, match=f"cannot write s3://{bucket}/a: (there is no|the store)"):
        ObjectFile(Address("s3", bucket, "a"))
    assert list(temporary.iterdir()) == []


def test_what_cannot_become_an_object_is_kept(s3, temporary):
    file = ObjectFile(TARGET)
    file.write("of an hour's work")
    s3.faults.status = "403 Forbidden", "AccessDenied"
    with pytest.raises(OutputError, match="cannot write s3://photos/a b/all") as caught:
        file.commit()
    (remaining_file,) = temporary.iterdir()
    assert str(remaining_file) in str(caught.value)
    assert remaining_file.suffix == ".jsonl"
    assert remaining_file.read_text() == "of an hour's work"


def test_what_is_not_wanted_leaves_nothing_and_listing_need_not_be_allowed(s3, temporary):
    s3.faults.status = "403 Forbidden", "AccessDenied"
    ObjectFile(TARGET).discard()
    s3.faults.status = None
    file = ObjectFile(TARGET)
    file.write("a")
    file.discard()
    assert s3.keys() == ["first"]
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("is_there", [True, False])
def test_an_object_that_somebody_else_has_made_meanwhile_stays(s3, temporary, is_there):
    if is_there:
        s3.put(TARGET.key, b"of last week")
    file = ObjectFile(TARGET)
    file.write("of this run")
    s3.put(TARGET.key, b"of another run")
    with pytest.raises(OutputError, match="was written by somebody else") as caught:
        file.commit()
    (remaining_file,) = temporary.iterdir()
    assert str(remaining_file) in str(caught.value)
    assert remaining_file.read_text() == "of this run"
    assert s3.get(TARGET.key) == b"of another run"


def test_an_object_is_replaced_where_the_store_does_not_tell_whether_it_is_the_same(s3):
    s3.put(TARGET.key, b"of last week")
    file = ObjectFile(TARGET)
    file.write("of this run")
    file.commit()
    assert s3.get(TARGET.key) == b"of this run"
