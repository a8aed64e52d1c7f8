"""An S3 server on this machine, of moto, behind which things go wrong on request."""

import contextlib
import itertools
import logging
import socket
import threading
import time
import warnings
from dataclasses import dataclass, field

from json_lines import column_of

with warnings.catch_warnings():  # of what moto imports
    warnings.simplefilter("ignore")
    import boto3
    from moto.backends import get_backend
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

logging.getLogger("werkzeug").setLevel(logging.ERROR)


@dataclass
class Faults:
    """What goes wrong.

    Attributes:
        refuse_each: Every so many requests are answered with 503.
        cut_each: Of every so many bodies that are sent, one ends in the middle.
        status: What every request is answered with, and the code in its body.
        outage: The numbers of those requests, if not all.
        delay_s: Time before each answer.
        hang: Set while requests are to wait, until the end of the test.
    """

    refuse_each: int = 0
    cut_each: int = 0
    status: tuple = ()
    outage: range = range(1 << 62)
    delay_s: float = 0.0
    hang: threading.Event = field(default_factory=threading.Event)


class Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept, as stores keep them


class S3:
    """The server.

    Attributes:
        url: Its endpoint.
        client: boto3's, for whatever a test puts there and looks at.
        faults: What goes wrong with requests that are not boto3's.
        requests: Method and path of each of these, in their order.
        answered: How many there were.
        most_at_once: How many requests were under way at the same time.
        key, secret: Credentials, which it takes for whatever is asked.
    """

    key, secret = "AKIAEXAMPLE", "wJalrXUtnFEMI"

    def __init__(self):
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server(
            "127.0.0.1", 0, self._answer, threaded=True, request_handler=Handler
        )
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.02])
        self._thread.start()
        self.client = boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            region_name="us-east-1",
        )
        self._lock = threading.Lock()
        # moto looks whether a key is taken, and then takes it; a store does both at once.
        self._one_at_a_time = threading.Lock()
        self.reset()

    def reset(self):
        """Empty it, and mend it."""
        for regions in get_backend("s3").values():
            for backend in regions.values():
                backend.reset()
        self.faults, self.requests = Faults(), []
        self._bodies = itertools.count(1)
        self.answered = self._under_way = self.most_at_once = 0

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def put(self, key, content=b"", bucket="photos"):
        """Put an object there; the bucket is made."""
        buckets = self.client.list_buckets()["Buckets"]
        if bucket not in set(column_of(buckets, "Name")):
            self.client.create_bucket(Bucket=bucket)
        self.client.put_object(Bucket=bucket, Key=key, Body=content)

    def get(self, key, bucket="photos"):
        """The bytes of an object."""
        return self.client.get_object(Bucket=bucket, Key=key)["Body"].read()

    def keys(self, prefix="", bucket="photos"):
        """The keys that begin with a prefix."""
        listing = self.client.list_objects_v2(Bucket=bucket, Prefix=prefix)
        return column_of(listing.get("Contents", ()), "Key")

    def _answer(self, environ, start):
        if "Boto3" in environ["HTTP_USER_AGENT"]:  # a test looks, or prepares something
            return self._moto(environ, start)
        faults = self.faults
        with self._lock:
            self.requests.append((environ["REQUEST_METHOD"], environ["RAW_URI"]))
            number = self.answered = self.answered + 1
            self._under_way += 1
            self.most_at_once = max(self.most_at_once, self._under_way)
        try:
            time.sleep(faults.delay_s)
            if faults.hang.is_set():
                while self.faults is faults:
                    time.sleep(0.05)
            if faults.refuse_each and number % faults.refuse_each == 0:
                return self._refuse(environ, start, "503 Slow Down", "SlowDown")
            if faults.status and number in faults.outage:
                status, code = faults.status
                return self._refuse(environ, start, status, code)
            with self._one_at_a_time:
                content = b"".join(self._moto(environ, start))
        finally:
            with self._lock:
                self._under_way -= 1
        if faults.cut_each and environ["REQUEST_METHOD"] == "GET" and content:
            with self._lock:
                cut = next(self._bodies) % faults.cut_each == 0
            if cut:
                return self._cut(environ, content)
        return [content]

    @staticmethod
    def _refuse(environ, start, status, code):
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        body = (
            b""
            if environ["REQUEST_METHOD"] == "HEAD"
            else b"<Error><Code>%s</Code></Error>" % code.encode()
        )
        start(status, [("Content-Length", str(len(body))), ("Content-Type", "application/xml")])
        return [body]

    @staticmethod
    def _cut(environ, content):
        yield content[: len(content) // 2]
        with contextlib.suppress(OSError):
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)


def environment(server):
    """Variables with which the server is found, and no credentials of this machine."""
    return {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": S3.key,
        "AWS_SECRET_ACCESS_KEY": S3.secret,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/no/such/file",
        "AWS_SHARED_CREDENTIALS_FILE": "/no/such/file",
    }
