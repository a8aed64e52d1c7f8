"""Messages of libraries keep no personal names and no values of variables."""

import platform
import sys
from pathlib import Path

import pytest

from detcli.commands.doctor.scrub import scrub, shorten

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="paths of other systems")


@pytest.fixture(autouse=True)
def _user(monkeypatch):
    monkeypatch.setenv("HOME", "/home/zaphod")
    for name in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(name, "zaphod")
    monkeypatch.setattr(platform, "node", lambda: "heart-of-gold")


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("/home/zaphod/v/libx.so: undefined symbol: f", "libx.so: undefined symbol: f"),
        ("cannot open '/opt/a b/lib/x.so' here", "cannot open 'x.so' here"),
        ("(/a/b.py:3)", "(b.py:3)"),
        (r"C:\Users\zaphod\x.dll is missing", "x.dll is missing"),
        ("see https://www.nvidia.com/drivers or ~/.cache", None),
        ("one and/or two, 3 / 4", None),
        ("zaphod's key", "USER's key"),
        ("zaphodian is not a name", None),
        ("open /scratch/a job/run 1/libcuda.so.1", "open libcuda.so.1"),
        ("bad value 'tok-1234' of it", "bad value '...' of it"),
        ("hostname=heart-of-gold ; x", "hostname=HOST ; x"),
        ("", None),
    ],
)
def test_scrub(text, scrubbed, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "tok-1234")
    monkeypatch.setenv("MY_WORD", "missing")  # a common word: too short
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/a b/lib:/scratch/a job/run 1")
    assert scrub(text) == (text if scrubbed is None else scrubbed)


def test_shorten(monkeypatch):
    for path, shortened in {
        "/home/zaphod/.cache/detcli": "~/.cache/detcli",
        "/scratch/zaphod/cache": "/scratch/USER/cache",
        "/var/cache": "/var/cache",
    }.items():
        assert shorten(Path(path)) == shortened

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert shorten(Path("/home/zaphod/x")) == "/home/USER/x"
    assert scrub("/home/zaphod/x.so") == "x.so"
