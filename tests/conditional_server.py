"""A server that keeps objects as Google's and Azure's do, as far as one is made only if absent."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from serving import running

REFUSALS = {"gs": 412, "az": 409}
"""What a store answers where the object is there: PreconditionFailed, BlobAlreadyExists."""


def is_conditional(scheme, headers):
    """Whether a request asks that nothing be replaced."""
    if scheme == "gs":
        return headers.get("x-goog-if-generation-match") == "0"
    return headers.get("If-None-Match") == "*"


@contextlib.contextmanager
def serve(scheme):
    """Yield its address, and the objects by their paths."""
    objects = {}  # contents by path
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self):
            content = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                if is_conditional(scheme, self.headers) and self._name in objects:
                    self._answer(REFUSALS[scheme])
                else:
                    objects[self._name] = content
                    self._answer(201)

        def do_GET(self):
            if self._name in objects:
                self._answer(200, objects[self._name])
            else:
                self._answer(404)

        def do_HEAD(self):
            self.do_GET()

        @property
        def _name(self):
            return unquote(urlsplit(self.path).path)

        def _answer(self, status, content=b""):
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Mon, 02 Nov 2026 10:00:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with running(server):
        yield f"http://127.0.0.1:{server.server_port}", objects
