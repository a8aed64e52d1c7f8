"""A service: images are posted to one of two models, and the answer is JSON."""

import json
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from detcli import DetcliError, Detector, InputError, Settings


class Service(ThreadingHTTPServer):
    """A server with a detector for each path, which all of its threads share."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        settings = Settings(conf=0.4, classes=["person", "car"])
        self.detectors = {
            "/fast": Detector("yolov10n", device="cpu", settings=settings),
            "/exact": Detector("yolov10s", device="cpu", settings=settings, max_det=100),
        }

    def server_close(self) -> None:
        """Stop, and release the models."""
        super().server_close()
        for detector in self.detectors.values():
            detector.close()


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    def do_POST(self) -> None:
        """Detect objects in the image that was posted."""
        assert isinstance(self.server, Service)
        upload = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            detections = self.server.detectors[self.path](upload)
        except InputError as error:
            self.answer(400, {"error": str(error), "hint": error.hint})
        except DetcliError as error:
            self.answer(500, {"error": str(error)})
        else:
            self.answer(200, {"detections": detections.to_dict()})

    def answer(self, status: int, content: dict[str, object]) -> None:
        """Send an answer in JSON."""
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the base
        """Print nothing."""


def post(port: int, path: str, image: bytes) -> str:
    """Post an image as a client would, and word the answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", image) as response:
            detections = json.load(response)["detections"]
    except urllib.error.HTTPError as error:
        return f"{error.code} {json.load(error)['error']}"
    names = sorted(detection["class_name"] for detection in detections)
    return f"{path} {', '.join(names)}"


with Service() as service:
    thread = threading.Thread(target=service.serve_forever)
    thread.start()
    for path in ("/fast", "/exact"):
        print(post(service.server_port, path, Path("pics/person.jpg").read_bytes()))
    print(post(service.server_port, "/fast", Path("pics/torn.jpg").read_bytes()))
    service.shutdown()
    thread.join()
