"""Names and messages without control codes and secrets."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcli.core.text import public_name, public_text, shell_line
from detcli.source.names import is_address


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("rtsp://10.0.0.7:554/stream1", "rtsp://10.0.0.7:554/stream1"),
        ("rtsp://admin:pw@10.0.0.7:554/stream1", "rtsp://10.0.0.7:554/stream1"),
        ("rtsp://admin@cam/", "rtsp://cam/"),
        ("rtsp://admin:p@ss@cam/x", "rtsp://cam/x"),
        ("rtsp://admin:p/s?s#@cam/x", "rtsp://***"),
        ("rtsp://admin:123/4@cam/x", "rtsp://***"),
        ("http://cam/x?mail=a@b.c", "http://***"),
        ("rtsp://[::1]:554/x", "rtsp://[::1]:554/x"),
        ("rtsp://[::1]/x", "rtsp://[::1]/x"),
        ("rtsp://admin:secret", "rtsp://admin"),
        ("HTTPS://u:p@Host/x", "HTTPS://Host/x"),
        (
            "rtsp://h/cam/realmonitor?channel=1&subtype=0",
            "rtsp://h/cam/realmonitor?channel=1&subtype=0",
        ),
        ("http://h/v?user=a&pwd=b&channel=2", "http://h/v?user=***&pwd=***&channel=2"),
        ("http://h/v?abcdef", "http://h/v?***"),
        ("http://h/v?token=a;b=c&&d", "http://h/v?token=***&b=***&&***"),
        ("http://h/v?", "http://h/v?"),
        ("http://h/v#token", "http://h/v"),
        ("rtsp://h:554/user=a_password=b_channel=1.sdp", "rtsp://h:554/user=***"),
        ("rtsp://h/user=a&password=b/c", "rtsp://h/user=***/c"),
        ("camera:0", "camera:0"),
        ("a@b.jpg", "a@b.jpg"),
        ("ftp://u:p@host/x?key=1", "ftp://host/x?key=***"),
        ("http:/u:p@host/x", "http:/***@host/x"),
        ("u:p@host/x.jpg", "***@host/x.jpg"),
        ("u:p/a@s@host/x.jpg", "***@host/x.jpg"),
        (":p@host", "***@host"),
        ("C:\\\\a@b.jpg", "C:\\\\a@b.jpg"),
        ("folder/12:30@noon.jpg", "folder/12:30@noon.jpg"),
    ],
)
def test_secrets_are_left_out(url, public):
    assert public_name(url) == public


secrets = st.text("SECRET/@:?#&=;%[]", min_size=1).map(lambda text: f"QQ{text}QQ")


@given(user=secrets, password=secrets)
def test_any_credentials_are_left_out(user, password):
    for url in (f"rtsp://{user}:{password}@host/path", f"http://{user}@host/path?x={password}"):
        assert is_address(url)
        assert "Q" not in public_name(url)
    if "/" not in user:  # else it looks like a file in a folder
        assert "Q" not in public_name(f"{user}:{password}@host/path")


@given(value=secrets.filter(lambda text: "@" not in text))
def test_any_values_are_left_out(value):
    assert "Q" not in public_name(f"http://host/path?token={value}")


def test_a_file_has_any_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "12:30@noon.jpg").touch()
    assert public_name("12:30@noon.jpg") == "12:30@noon.jpg"


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("cannot fetch http://u:p@host:80/x: 404", "cannot fetch http://host:80/x: 404"),
        ("from https://host: no", "from https://host: no"),
        ("GET 'https://u:p@host/x?a=b' (x)", "GET 'https://host/x?a=***' (x)"),
        ("u:p@host/x.jpg: no such file", "***@host/x.jpg: no such file"),
        ("proxy http://u:p/@host, u:p@[::1]:80", "proxy http://***, ***@[::1]:80"),
        ("a: b@c, 12:30, x/y:z", "a: b@c, 12:30, x/y:z"),
        ("C:/a@b.jpg", "C:/a@b.jpg"),
    ],
)
def test_secrets_are_left_out_of_messages(text, public):
    assert public_text(text) == public


@pytest.mark.parametrize(
    ("system", "line"),
    [
        ("linux", "detcli predict 'my pics' 'C:\\x.jpg'"),
        ("win32", 'detcli predict "my pics" C:\\x.jpg'),
    ],
)
def test_a_line_is_quoted_as_the_systems_shell_takes_it(monkeypatch, system, line):
    monkeypatch.setattr(sys, "platform", system)
    assert shell_line(["detcli", "predict", "my pics", "C:\\x.jpg"]) == line
