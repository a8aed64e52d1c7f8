"""Addresses, and their public names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcli.errors import SourceError
from detcli.source.address import camera_number, check_address, is_address, is_live, public_name


@pytest.mark.parametrize(
    ("name", "live"),
    [
        ("rtsp://host/a.mp4", True),
        ("RTSPS://host/", True),
        ("http://host/video.mjpg", True),
        ("https://host/live.m3u8?x=a.jpg", True),
        ("http://host/a.mp4", False),
        ("https://host/a.JPG?size=3", False),
        ("camera:0", True),
        ("camera:front", True),
        ("a.jpg", False),
        ("./camera:0", False),
        ("ftp://host/a", False),
        ("http:/host/a", False),
        ("-", False),
        ("", False),
        ("http://[1/a", True),
    ],
)
def test_live_sources_are_recognised_by_name(name, live):
    assert is_live(name) == live


@pytest.mark.parametrize(("name", "number"), [("camera:0", 0), ("Camera:12", 12)])
def test_cameras_have_numbers(name, number):
    assert camera_number(name) == number


@pytest.mark.parametrize("name", ["camera:", "camera:-1", "camera:a", "camera:1 ", "camera:٣"])
def test_malformed_camera_names_are_refused(name):
    with pytest.raises(SourceError):
        camera_number(name)


@pytest.mark.parametrize(
    "url", ["rtsp://h", "http://1.2.3.4:80/", "rtsp://[::1]:554/a", "http://ü.example/ä?ö=1"]
)
def test_addresses_are_accepted(url):
    check_address(url)


@pytest.mark.parametrize(
    "url",
    [
        "rtsp://",
        "rtsp://:554/",
        "http://user@/",
        "http://host:0x50/",
        "http://host:99999/",
        "http://[::1/",
        "http://host/a\0b",
        "http://host/a\r\nX: y",
        "http://host/\udcff",
    ],
)
def test_malformed_addresses_are_refused(url):
    with pytest.raises(SourceError):
        check_address(url)


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


@given(value=secrets.filter(lambda text: "@" not in text))
def test_any_values_are_left_out(value):
    assert "Q" not in public_name(f"http://host/path?token={value}")
