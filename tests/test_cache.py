"""Where the cache is, and whose entries are used."""

import logging
import os
from pathlib import Path

import pytest

from detcli.cache import cache_folder, cached
from detcli.errors import OutputError


def test_the_environment_moves_the_cache(cache):
    assert cache_folder() == cache


@pytest.mark.parametrize("variable", [None, ""])
def test_the_cache_is_the_users_by_default(monkeypatch, tmp_path, variable):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("DETCLI_CACHE_DIR")
    if variable is not None:
        monkeypatch.setenv("DETCLI_CACHE_DIR", variable)
    assert cache_folder() == tmp_path / "detcli"


def no_home(*_args, **_options):
    raise RuntimeError("could not determine the home directory")


@pytest.mark.parametrize("answer", [no_home, lambda *_, **__: Path("~/.cache/detcli")])
def test_a_cache_needs_a_home_folder(monkeypatch, answer):
    monkeypatch.delenv("DETCLI_CACHE_DIR")
    monkeypatch.setattr("platformdirs.user_cache_path", answer)
    with pytest.raises(OutputError, match="no home"):
        cache_folder()


@pytest.mark.parametrize("part", ["", "prepared", "prepared/entry"])
def test_a_cache_that_others_can_write_to_is_not_used(cache, caplog, part):
    made = []

    def build():
        made.append(1)
        return b"entry"

    for _ in range(2):
        assert cached("prepared/entry", build) == b"entry"
    assert len(made) == 1
    place = cache / part
    place.chmod(0o777)
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        assert cached("prepared/entry", build) == b"entry"
    assert len(made) == 3
    (record,) = caplog.records
    assert f"the cache is not used, since others can write to {place}" in record.message


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_a_new_cache_is_the_users_alone(cache, umask):
    before = os.umask(umask)
    try:
        cached("prepared/entry", lambda: b"entry")
    finally:
        os.umask(before)
    for path in (cache, cache / "prepared", cache / "prepared/entry"):
        assert path.stat().st_mode & 0o077 == 0
