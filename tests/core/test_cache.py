"""Where the cache is, and whose entries are used."""

import grp
import logging
import os
import pwd
import types
from pathlib import Path

import pytest

from detcli.core.cache import cache_folder, cached, why_untrusted
from detcli.core.errors import OutputError

USER = pwd.getpwuid(os.geteuid())


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


@pytest.fixture(params=["file", "folder"])
def mine(request, tmp_path):
    path = tmp_path / "mine"
    path.touch() if request.param == "file" else path.mkdir()
    path.chmod(0o755)
    return path


def test_what_only_the_user_can_write_to_is_trusted(mine):
    assert why_untrusted(mine) == ""
    assert why_untrusted(mine.with_name("missing")) == ""


def test_what_others_can_write_to_is_not(mine):
    mine.chmod(0o757)
    assert why_untrusted(mine) == f"others can write to {mine}"


@pytest.mark.parametrize(
    ("name", "members", "trusted"),
    [
        (USER.pw_name, [], True),
        (USER.pw_name, [USER.pw_name], True),
        (USER.pw_name, [USER.pw_name, "mallory"], False),
        ("users", [], False),
    ],
)
def test_only_a_private_group_may_write(mine, monkeypatch, name, members, trusted):
    mine.chmod(0o775)
    group = types.SimpleNamespace(gr_name=name, gr_mem=members)
    monkeypatch.setattr(grp, "getgrgid", lambda _: group)
    user = types.SimpleNamespace(pw_name=USER.pw_name, pw_gid=mine.stat().st_gid)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: user)
    assert why_untrusted(mine) == ("" if trusted else f"its group can write to {mine}")
    monkeypatch.setattr(os, "listxattr", lambda _: ["system.posix_acl_access"], raising=False)
    assert why_untrusted(mine) == f"its group can write to {mine}"


def test_what_belongs_to_another_user_is_not(mine, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: mine.stat().st_uid + 1)
    expected = "" if mine.stat().st_uid == 0 else f"{mine} belongs to another user"
    assert why_untrusted(mine) == expected


def test_root_is_trusted(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert why_untrusted(Path("/")) == ""
