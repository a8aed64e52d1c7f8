"""Where the cache is, and whose entries are used."""

import grp
import logging
import os
import pwd
import types
from pathlib import Path
from unittest.mock import Mock

import pytest

from detcli.core.errors import OutputError
from detcli.storage.cache import cache_folder, cached, why_untrusted

USER = pwd.getpwuid(os.geteuid())


def test_the_cache_is_the_users_by_default_and_the_environment_moves_it(
    monkeypatch, tmp_path, cache
):
    assert cache_folder() == cache
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("DETCLI_CACHE_DIR", "")
    assert cache_folder() == tmp_path / "detcli"


@pytest.mark.parametrize("answer", [{"side_effect": RuntimeError}, {"return_value": Path("~/a")}])
def test_a_cache_needs_a_home_folder(monkeypatch, answer):
    monkeypatch.delenv("DETCLI_CACHE_DIR")
    monkeypatch.setattr("platformdirs.user_cache_path", Mock(**answer))
    with pytest.raises(OutputError, match="no home"):
        cache_folder()


@pytest.mark.parametrize("part", ["", "prepared", "prepared/entry"])
def test_a_cache_that_others_can_write_to_is_not_used(cache, caplog, part):
    build, path = Mock(return_value=b"entry"), cache / part
    caplog.set_level(logging.WARNING)
    for build_count in (1, 1, 2, 3):
        if build_count == 2:
            path.chmod(0o777)
        assert cached("prepared/entry", build) == b"entry"
        assert build.call_count == build_count
    (record,) = caplog.records
    assert f"the cache is not used, since others can write to {path}" in record.message


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_new_cache_is_the_users_alone(cache, umask):
    before = os.umask(umask)
    cached("prepared/entry", lambda: b"entry")
    os.umask(before)
    for path in (cache, cache / "prepared", cache / "prepared/entry"):
        assert path.stat().st_mode & 0o077 == 0


@pytest.fixture(params=["file", "folder"])
def mine(request, tmp_path):
    path = tmp_path / "mine"
    path.touch() if request.param == "file" else path.mkdir()
    path.chmod(0o755)
    return path


def test_what_only_the_user_can_write_to_is_trusted(mine, monkeypatch):
    assert why_untrusted(mine) == ""
    assert why_untrusted(mine.with_name("missing")) == ""
    mine.chmod(0o757)
    assert why_untrusted(mine) == f"others can write to {mine}"
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert why_untrusted(Path("/")) == ""
    user = os.stat_result((0o100644, 0, 0, 1, 4712, 0, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "stat", lambda _: user)
    assert why_untrusted(mine) == f"{mine} belongs to another user"


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
