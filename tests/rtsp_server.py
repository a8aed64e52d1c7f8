"""A network camera on this machine: one JPEG over and over by RTSP, with a user and a password.

RTP goes through the connection of RTSP itself (RFC 2326, 10.12); images are packed by RFC 2435.
"""

import base64
import contextlib
import socketserver
import struct
import threading

import cv2
from serving import running

USER = "user:password"
FRAMES_PER_SECOND = 25
CLOCK = 90_000  # ticks a second, of all images in RTP
PACKET = 1400  # bytes of an image


@contextlib.contextmanager
def serve(image):
    """Serve an image (H, W, 3), sides divisible by 8; yields `HOST:PORT`."""
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Camera)
    server.daemon_threads = True
    server.packets = list(packets(image))
    server.over = threading.Event()
    with running(server):
        yield f"127.0.0.1:{server.server_address[1]}"


def packets(image):
    """The image as payloads of RTP."""
    _, encoded = cv2.imencode(".jpg", image)
    data = encoded.tobytes()
    tables = b""
    position = 2
    while (marker := data[position + 1]) != 0xDA:
        (length,) = struct.unpack_from(">H", data, position + 2)
        segment = data[position + 4 : position + 2 + length]
        if marker == 0xDB:  # one table or several, each of 64 bytes after its number
            for at in range(0, len(segment), 65):
                tables += segment[at + 1 : at + 65]
        position += 2 + length
    (length,) = struct.unpack_from(">H", data, position + 2)
    scan = data[position + 2 + length : -2]
    height, width = image.shape[:2]
    for start in range(0, len(scan), PACKET):
        # 4:2:0, as OpenCV writes; quality 255 means that the tables are in the first packet
        head = struct.pack(">IBBBB", start, 1, 255, width // 8, height // 8)
        if start == 0:
            head += struct.pack(">HH", 0, len(tables)) + tables
        yield head + scan[start : start + PACKET]


class Camera(socketserver.StreamRequestHandler):
    """A connection."""

    def handle(self):
        expected = f"Basic {base64.b64encode(USER.encode()).decode()}"
        with contextlib.suppress(OSError):  # the reader has gone
            while method := self.rfile.readline().decode().partition(" ")[0]:
                headers = {}
                while line := self.rfile.readline().decode().strip():
                    name, _, headers[name] = line.partition(": ")
                answer = self.answers(method)
                if method != "OPTIONS" and headers.get("Authorization") != expected:
                    answer = ("401 Unauthorized", 'WWW-Authenticate: Basic realm="camera"', "")
                status, header, body = answer
                lines = [f"RTSP/1.0 {status}", f"CSeq: {headers['CSeq']}", header]
                lines += [f"Content-Length: {len(body)}", "", body]
                self.wfile.write("\r\n".join(lines).encode())
                if method == "PLAY" and status == "200 OK":
                    self.play()
                    return

    def answers(self, method):
        """Status, a header, and the body."""
        match method:
            case "DESCRIBE":
                media = "m=video 0 RTP/AVP 26\r\na=control:track\r\n"
                text = f"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=camera\r\nt=0 0\r\n{media}"
                return "200 OK", "Content-Type: application/sdp", text
            case "SETUP":
                transport = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1"
                return "200 OK", f"{transport}\r\nSession: 1", ""
            case _:
                return "200 OK", "Session: 1", ""

    def play(self):
        """Send the image until the reader goes."""
        payloads = self.server.packets
        sequence = time = 0
        while not self.server.over.wait(1 / FRAMES_PER_SECOND):
            for payload in payloads:
                payload_type = 26  # JPEG
                if payload is payloads[-1]:
                    payload_type |= 0x80  # marks the end of the image
                header = struct.pack(">BBHII", 0x80, payload_type, sequence % 65536, time, 7)
                packet = header + payload
                self.wfile.write(struct.pack(">BBH", ord("$"), 0, len(packet)) + packet)
                sequence += 1
            time += CLOCK // FRAMES_PER_SECOND
