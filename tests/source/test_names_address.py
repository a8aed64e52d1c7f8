"""Addresses."""

import pytest

from detcli.core.errors import SourceError
from detcli.source.names import camera_number, check_address, is_live


@pytest.mark.parametrize(
    ("name", "live"),
    [
        ("rtsp://host/a.mp4", True),
        ("RTSPS://host/", True),
        ("http://host/video.mjpg", True),
        ("https://host/live.m3u8?x=a.jpg", True),
        ("http://host/a.mp4", False),
        ("https://host/a.JPG?size=3", False),
        ("http://camera/mjpg/video.mjpg", True),
        ("http://camera/video.MJPEG?size=3", True),
        ("video.mjpg", False),
        ("camera:0", True),
        ("camera:front", True),
        ("a.jpg", False),
        ("./camera:0", False),
        ("ftp://host/a", False),
        ("http:/host/a", False),
        ("-", False),
        ("", False),
        ("http://[1/a", True),
        ("https://host/pics/", True),
        ("http://host:8081/", True),
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
