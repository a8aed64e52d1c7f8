"""Pictures at HTTP addresses."""

import threading

import cv2
import numpy as np
import pytest
import stream_server

from detcli.core.errors import DecodeError, SourceError
from detcli.core.record import Origin
from detcli.source.decode import DecodeOptions
from detcli.source.fetch import Fetches, http_request
from detcli.source.sources import Sources


@pytest.fixture
def server():
    with stream_server.serve() as server:
        encoded, data = cv2.imencode(".png", np.full((24, 32, 3), 50, np.uint8))
        assert encoded
        server.files["/a%20b.png?size=1"] = data.tobytes()
        server.files["/%C3%A4.png"] = data.tobytes()
        server.files["/a.png"] = data.tobytes()
        yield server


def load(url, stop=None, **options):
    fetches = Fetches(DecodeOptions(**options), stop or threading.Event())
    return fetches.item(url, lambda: http_request(url)).load()


@pytest.mark.parametrize("path", ["/a%20b.png?size=1", "/a b.png?size=1#there", "/ä.png"])
def test_a_picture_is_fetched(server, path):
    picture = load(server.url(path))
    assert picture.size == (24, 32)
    assert (picture.pixels == 50).all()


def test_it_is_a_picture_among_others(server):
    with Sources([server.url("/a.png", user="eve:pw@")]) as sources:
        (item,) = sources
        assert sources.progress.total == 1
        assert item.origin == Origin(server.url("/a.png"))
        assert item.load().size == (24, 32)


def test_a_password_is_told_to_who_asks(server):
    load(server.url("/a.png", user="eve:p%40w@"))
    assert server.requests == [("/a.png", "")]
    server.password = "eve:p@w"  # noqa: S105
    load(server.url("/a.png", user="eve:p%40w@"))
    assert server.requests[1:] == [("/a.png", ""), ("/a.png", "eve:p@w")]


@pytest.mark.parametrize(
    ("path", "user", "reason"),
    [
        ("/gone.png", "", "the server answers 404 Not Found"),
        ("/a.png", "", "the server answers 401 Unauthorized"),
        ("/a.png", "eve:wrong@", "the server answers 401 Unauthorized"),
    ],
)
def test_what_cannot_be_fetched_is_an_error(server, path, user, reason):
    server.password = "eve:pw" if path == "/a.png" else None
    with pytest.raises(SourceError) as caught:
        load(server.url(path, user=user))
    assert str(caught.value) == f"cannot be fetched: {reason}"
    assert caught.value.hint


def test_what_is_too_large_is_refused(server):
    with pytest.raises(DecodeError, match="too large"):
        load(server.url("/a.png"), max_pixels=100)
    server.files["/a.png"] = bytes(2**24 + 1000)
    with pytest.raises(DecodeError, match="more than 16778016 bytes"):
        load(server.url("/a.png"), max_pixels=100)
    server.files["/a.png"] = b"GIF89a" + bytes(2**24 + 1000)
    with pytest.raises(DecodeError, match="more than 16778016 bytes"):
        load(server.url("/a.png"), max_pixels=100)


def test_a_server_that_drips_is_given_up(server):
    server.drip_s = 0.05
    with pytest.raises(SourceError, match=r"not read and decoded after 0\.5 s"):
        load(server.url("/a.png"), timeout_s=0.5)


def test_fetching_can_be_stopped(server):
    stop = threading.Event()
    stop.set()
    with pytest.raises(SourceError, match="interrupted"):
        load(server.url("/a.png"), stop)
