"""A small Hugging Face hub on this machine, with a second server that hands out contents.

As the real one, it answers a request for a file with what it knows about it and a redirect:

    HEAD, GET  /<repository>/resolve/<revision>/<file>   302, or 404, or 401 for no such repository
        X-Repo-Commit, X-Linked-Etag (the SHA-256), X-Linked-Size, Location
    GET        /<SHA-256> of the other server            200, or 206 where a range was asked for,
                                                         416 where nothing lies in it
"""

import contextlib
import hashlib
import http.server
import os
import threading
from dataclasses import dataclass, field

import forked
from serving import running

COMMIT = "57657320425ee34056408a57ad9d29c4d4815bd8"  # the one that yolov10n is pinned to
NEWER = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Faults:
    """What goes wrong."""

    contents: dict = field(default_factory=dict)  # in place of what the record says, by file
    break_after: list = field(default_factory=list)  # bytes of each connection
    hang: str = ""  # "record" or "content" never comes, or "rest", after half of the content
    status: int = 0  # what the hub answers every request with
    headers: dict = field(default_factory=dict)  # in place of the record's; None leaves one out
    ignore_ranges: bool = False  # every content comes from its beginning


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, handler, hub=None):
        super().__init__(("127.0.0.1", 0), handler)
        self.hub = hub or self
        self.over = threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_):
        """The client has gone, which is what many tests are about."""


class Hub(Server):
    """The hub: contents by repository and path, and the requests to either server."""

    def __init__(self):
        super().__init__(HubHandler)
        self.storage = Server(StorageHandler, self)
        self.files = {}
        self.main = COMMIT
        self.faults = Faults()
        self.requests = []

    def add(self, name, content, half=None):
        """Put a model of onnx-community there."""
        self.files[f"onnx-community/{name}", "onnx/model.onnx"] = content
        if half is not None:
            self.files[f"onnx-community/{name}", "onnx/model_fp16.onnx"] = half

    def asked(self, method="GET"):
        """Paths of the requests of a kind."""
        paths = []
        for method_of_request, path, _ in self.requests:
            if method_of_request == method:
                paths.append(path)
        return paths

    def ranges(self):
        """Range of each request for content."""
        ranges = []
        for method, path, headers in self.requests:
            if method == "GET" and "/resolve/" not in path:
                ranges.append(headers.get("Range"))
        return ranges


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Say nothing."""

    def note(self):
        hub = self.server.hub
        hub.requests.append((self.command, self.path, dict(self.headers)))
        return hub, hub.faults

    def answer(self, status, headers=(), content=b""):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **dict(headers)}.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


class HubHandler(Handler):
    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub, faults = self.note()
        if faults.hang == "record":
            hub.over.wait(60)
            return
        if faults.status:
            self.answer(faults.status)
            return
        repository, _, rest = self.path.strip("/").partition("/resolve/")
        revision, _, path = rest.partition("/")
        content = hub.files.get((repository, path))
        repositories = {name for name, _ in hub.files}
        if repository not in repositories:
            self.answer(401, {"X-Error-Code": "RepoNotFound"})
        elif revision not in {"main", COMMIT, hub.main}:
            self.answer(404, {"X-Error-Code": "RevisionNotFound"})
        elif content is None:
            self.answer(404, {"X-Error-Code": "EntryNotFound"})
        elif path.endswith(".json"):  # small files are in git, under its names
            commit = hub.main if revision == "main" else revision
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
            record = {"X-Repo-Commit": commit, "ETag": f'"{blob.hexdigest()}"'}
            self.answer(200, record | faults.headers, faults.contents.get(path, content))
        else:
            digest = hashlib.sha256(content).hexdigest()
            record = {
                "X-Repo-Commit": hub.main if revision == "main" else revision,
                "X-Linked-Etag": f'"{digest}"',
                "X-Linked-Size": str(len(content)),
                "ETag": '"0123"',
                # By another name, as in the world: credentials must not go there. This one takes no
                # resolver: a system without /etc/hosts does not know localhost.
                "Location": f"http://127.1:{hub.storage.server_port}/{digest}",
            }
            self.answer(302, record | faults.headers)


class StorageHandler(Handler):
    def do_GET(self):
        hub, faults = self.note()
        if faults.hang == "content":
            hub.over.wait(60)
            return
        digest = self.path.strip("/")
        content = None
        for name, recorded_content in hub.files.items():
            if hashlib.sha256(recorded_content).hexdigest() == digest:
                content = faults.contents.get(name, recorded_content)
                break
        if content is None:
            raise LookupError(digest)
        status, headers, start = 200, {}, 0
        byte_range = self.headers.get("Range")
        if byte_range and not faults.ignore_ranges:
            start = int(byte_range.removeprefix("bytes=").removesuffix("-"))
            headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
            status = 206
        if byte_range and start >= len(content):
            self.answer(416)
            return
        part = content[start:]
        if faults.break_after:
            count = faults.break_after.pop(0)
        elif faults.hang == "rest":
            count = len(part) // 2
        else:
            self.answer(status, headers, part)
            return
        self.answer(status, headers | {"Content-Length": str(len(part))}, b"")
        self.wfile.write(part[:count])
        self.wfile.flush()
        if faults.hang:
            hub.over.wait(60)
        self.close_connection = True


@contextlib.contextmanager
def serve():
    """Run a hub, and end it with all that hangs on it."""
    hub = Hub()
    with running(hub, hub.storage):
        yield hub


def fetch(name, content, folder):
    """Fetch a model of onnx-community into an empty HF_HOME."""
    with serve() as hub:
        hub.add(name, content)
        environment = {**os.environ, "HF_HOME": str(folder), "HF_ENDPOINT": hub.url}
        process = forked.run(["models", "pull", name], env=environment)
        assert process.returncode == 0, process.stderr
