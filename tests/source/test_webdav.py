"""Folders on web servers that speak WebDAV."""

import base64
import contextlib
import http.server
import sys
import threading
from urllib.parse import quote, unquote

import cv2
import numpy as np
import pytest

from detcli.errors import DeviceError, SourceError
from detcli.source.item import SourceOptions
from detcli.source.sources import Sources

PNG = cv2.imencode(".png", np.full((24, 32, 3), 50, np.uint8))[1].tobytes()

ENTRY = """<D:response><D:href>{href}</D:href><D:propstat><D:prop>
<D:getlastmodified>Sun, 22 Nov 2026 16:00:00 GMT</D:getlastmodified>
<D:getcontentlength>{size}</D:getcontentlength><D:getetag>"1"</D:getetag>
<D:resourcetype>{kind}</D:resourcetype></D:prop><D:status>HTTP/1.1 200 OK</D:status>
</D:propstat></D:response>"""


class Handler(http.server.BaseHTTPRequestHandler):
    """Lists as Apache does: a folder first, then what is in it, in any order."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Say nothing."""

    def do_PROPFIND(self):
        path = unquote(self.path).strip("/")
        within = f"{path}/" if path else ""
        below = [name.removeprefix(within) for name in self.server.files if name.startswith(within)]
        folders = {name.split("/")[0] for name in below if "/" in name}
        entries = [(path, "<D:collection/>")]
        entries += [(within + name, "<D:collection/>") for name in folders]
        entries += [(within + name, "") for name in below if "/" not in name]
        text = "".join(
            ENTRY.format(href=f"/{quote(name)}{'/' if kind else ''}", size=1, kind=kind)
            for name, kind in entries
        )
        self.answer(207, f'<D:multistatus xmlns:D="DAV:">{text}</D:multistatus>'.encode())

    def do_GET(self):
        content = self.server.files.get(unquote(self.path).strip("/"))
        self.answer(404 if content is None else 200, content or b"")

    def answer(self, status, content):
        wanted = self.server.password
        given = (self.headers.get("Authorization") or "").removeprefix("Basic ")
        if wanted and base64.b64decode(given).decode() != wanted:
            status, content = 401, b""
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="files"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(content)


@pytest.fixture
def server():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.password = None
    names = "z.png", "a b#1?%.png", "ä.png", "note.txt", ".hidden.png", "sub/b.png", "sub/.t/c.png"
    server.files = dict.fromkeys([*(f"pics/{name}" for name in names), "pics2/d.png"], PNG)
    server.host = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=[0.02])
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def items(*names, **options):
    sources = Sources(names, SourceOptions(**options))
    found = list(sources)
    assert sources.progress.total == len(found)
    return found


NAMES = ["a%20b%231%3F%25.png", "z.png", "%C3%A4.png"]


@pytest.mark.parametrize(("recursive", "more"), [(False, []), (True, ["sub/b.png"])])
def test_a_folder_has_its_pictures_by_name(server, recursive, more):
    root = f"http://{server.host}/pics/"
    found = items(root, recursive=recursive)
    assert [item.origin.source for item in found] == [root + name for name in [*NAMES, *more]]
    assert all(item.load().size == (24, 32) for item in found)


def test_a_password_is_used_and_not_shown(server):
    server.password = "eve:pw"  # noqa: S105
    found = items(f"http://eve:pw@{server.host}/pics/")
    assert [item.origin.source for item in found] == [
        f"http://{server.host}/pics/{name}" for name in NAMES
    ]
    assert found[0].load().size == (24, 32)
    source, reason = failure(f"http://eve:no@{server.host}/pics/")
    assert source == f"http://{server.host}/pics/"
    assert reason == "cannot be listed: the store does not take the credentials: 401 Unauthorized"


def failure(name):
    (item,) = items(name)
    with pytest.raises(SourceError) as caught:
        item.load()
    assert caught.value.hint
    return item.origin.source, str(caught.value)


def test_other_servers_are_refused(server, monkeypatch):
    monkeypatch.delattr(Handler, "do_PROPFIND")
    monkeypatch.setattr("detcli.object_store.credentials.RETRY_S", 0)
    reason = failure(f"http://{server.host}/pics/")[1]
    assert reason == "cannot be listed: the store answers 501 Not Implemented"


def test_an_empty_folder_is_an_error(server):
    assert failure(f"http://{server.host}/none/")[1] == "no pictures or videos in this folder"


def test_without_the_library_nothing_begins(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(DeviceError, match="obstore"):
        Sources(["https://host/pics/"])
