"""A server on this machine that streams JPEG files, as cameras do, or hands out files."""

import base64
import contextlib
import http.server
import threading

import cv2
import number_video
from serving import running

BOUNDARY = "frame"


class Server(http.server.ThreadingHTTPServer):
    """Serves what a test puts into it.

    Attributes:
        files: Bytes by path.
        frames: How many frames a connection to `/stream` gives; None means without end.
        pause: Waited for between frames.
        short: How many bytes are missing at the end of a file.
        drip_s: Waited for between the bytes of a file.
        silent: Whether it takes requests and answers none.
        stall: Set when a stream is to stand still, with its connection open.
        ranges: Whether parts of a file can be asked for.
        password: What `user:password` has to be, if anything.
        requests: Path and credentials of each request.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {}
        self.frames = None
        self.pause = 0.01
        self.short = 0
        self.drip_s = 0.0
        self.silent = False
        self.stall = threading.Event()
        self.over = threading.Event()
        self.ranges = False
        self.password = None
        self.requests = []

    def url(self, path="/stream", user=""):
        """Address of a path."""
        return f"http://{user}127.0.0.1:{self.server_port}{path}"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        """Say nothing."""

    def do_GET(self):
        authorization = self.headers.get("Authorization") or ""
        credentials = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        self.server.requests.append((self.path, credentials))
        if self.server.silent:
            self.server.over.wait()
        elif self.server.password not in {None, credentials}:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="camera"')
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path.startswith("/stream"):
            with contextlib.suppress(OSError):  # the reader has gone
                self.stream()
        elif self.path in self.server.files:
            self.send_file(self.server.files[self.path])
        else:
            self.send_error(404)

    def send_file(self, content):
        """Send a file, or the part that is asked for."""
        byte_range = self.headers.get("Range")
        if self.server.ranges and byte_range:
            first, last = byte_range.removeprefix("bytes=").split("-")
            end = min(int(last or len(content)) + 1, len(content))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{len(content)}")
            content = content[int(first) : end]
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.send(content[: len(content) - self.server.short])

    def send(self, data):
        if not self.server.drip_s:
            self.wfile.write(data)
            return
        with contextlib.suppress(OSError):  # the reader has gone
            for byte in data:
                self.wfile.write(bytes([byte]))
                if self.server.over.wait(self.server.drip_s):
                    return

    def stream(self):
        self.send_response(200)
        self.send_header("Content-Type", f"multipart/x-mixed-replace; boundary={BOUNDARY}")
        self.end_headers()
        number = 0
        while self.server.frames is None or number < self.server.frames:
            _, data = cv2.imencode(".jpg", number_video.frame(number % 1024))
            head = (
                f"--{BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n"
            )
            self.wfile.write(head.encode() + data.tobytes() + b"\r\n")
            self.wfile.flush()
            number += 1
            self.server.over.wait(self.server.pause)
            while self.server.stall.is_set() and not self.server.over.is_set():
                self.server.over.wait(0.05)
            if self.server.over.is_set():
                return


@contextlib.contextmanager
def serve():
    """Run a server, and end it with all that hangs on it."""
    server = Server()
    with running(server):
        yield server
