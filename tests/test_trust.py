"""What others can write to is not trusted."""

import grp
import os
import pwd
import types

import pytest

from detcli import trust
from detcli.trust import why_untrusted

USER = pwd.getpwuid(os.geteuid())


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
    assert why_untrusted(trust.Path("/")) == ""
