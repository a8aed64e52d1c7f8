"""Hashes of files that did not change are taken from the cache; any change is noticed."""

import os
import sys
import time

import pytest

from detcli.storage import hashes
from detcli.storage.files import sha256
from detcli.storage.hashes import FileChangedError, recorded_sha256

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is kept there")


class Counted:
    """Hashes a file, and counts how often."""

    def __init__(self, path):
        self.path = path
        self.count = 0

    def __call__(self):
        self.count += 1
        return sha256(self.path)


@pytest.fixture
def path(tmp_path, cache):
    assert not cache.exists()
    path = tmp_path / "large"
    path.write_bytes(b"content")
    return path


@pytest.fixture
def _later(monkeypatch):
    """The files of a test have not been changed for long."""
    now_ns = time.time_ns
    monkeypatch.setattr(hashes.time, "time_ns", lambda: now_ns() + 2 * hashes.SETTLED_NS)


@pytest.mark.usefixtures("_later")
def test_an_unchanged_file_is_hashed_once(path):
    compute = Counted(path)
    digests = [recorded_sha256(path, compute) for _ in range(3)]
    assert digests == [sha256(path)] * 3
    assert compute.count == 1


def rewrite(path):
    path.write_bytes(b"CONTENT")


def rewrite_and_set_times_back(path):
    status = path.stat()
    path.write_bytes(b"CONTENT")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace(path):
    other = path.with_name("other")
    other.write_bytes(b"CONTENT")
    status = path.stat()
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)


@pytest.mark.usefixtures("_later")
@pytest.mark.parametrize("change", [rewrite, rewrite_and_set_times_back, replace])
def test_a_changed_file_is_hashed_again(path, change):
    compute = Counted(path)
    before = recorded_sha256(path, compute)
    time.sleep(0.02)  # longer than a step of the clock of files
    change(path)
    after = recorded_sha256(path, compute)
    assert after == sha256(path)
    assert after != before
    assert compute.count == 2


def test_the_hash_of_a_file_that_has_just_changed_is_not_kept(path, cache):
    compute = Counted(path)
    recorded_sha256(path, compute)
    recorded_sha256(path, compute)
    assert compute.count == 2
    assert not cache.exists()


@pytest.mark.usefixtures("_later")
def test_a_file_that_changes_while_it_is_read_is_refused(path, cache):
    def compute_and_rewrite():
        digest = sha256(path)
        time.sleep(0.02)
        path.write_bytes(b"longer content")
        return digest

    with pytest.raises(FileChangedError):
        recorded_sha256(path, compute_and_rewrite)
    assert not cache.exists()


@pytest.mark.usefixtures("_later")
def test_a_damaged_hash_is_computed_again(path, cache):
    compute = Counted(path)
    recorded_sha256(path, compute)
    [entry] = [file for file in cache.rglob("*") if file.is_file()]
    entry.write_bytes(entry.read_bytes()[:-1] + b"x")
    assert recorded_sha256(path, compute) == sha256(path)
    assert compute.count == 2


def test_what_cannot_be_opened_is_left_to_the_caller(path):
    path.unlink()
    with pytest.raises(FileNotFoundError):
        recorded_sha256(path, Counted(path))
