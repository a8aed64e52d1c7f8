"""What decodes on a GPU, for tests of the flow around it: nothing is on a GPU."""

import threading

import cv2
import numpy as np

from detcli.errors import DecodeError
from detcli.geometry import DeviceImage


def on_device(pixels):
    """A picture whose address leads nowhere."""
    return DeviceImage(pixels.shape, 1 << 40, 3 * pixels.shape[1], pixels.copy)


class FakeDecoder:
    """Decodes JPEGs by OpenCV and videos by PyAV.

    Attributes:
        decoded: Threads that decoded JPEGs.
        refused: Files and paths that it does not take.
        change: What it does to pictures and frames.
        fails_at: Number of the frame with which a video fails.
    """

    def __init__(self):
        self.decoded, self.refused = [], set()
        self.change = lambda pixels: pixels
        self.fails_at = None
        self.closed = False

    def decode_jpeg(self, data):
        assert not self.closed
        if data in self.refused:
            return None
        self.decoded.append(threading.get_ident())
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        return None if pixels is None else on_device(self.change(pixels))

    def decode_video(self, path):
        import av

        if path in self.refused:
            raise DecodeError("the GPU does not decode it: codec", "leave out --gpu-decode")
        with av.open(path) as file:
            stream = file.streams.video[0]
            for number, frame in enumerate(file.decode(stream)):
                if number == self.fails_at:
                    raise DecodeError("the GPU does not decode it: error", "leave out --gpu-decode")
                pixels = frame.to_ndarray(format="bgr24")
                yield float(frame.pts * stream.time_base), on_device(self.change(pixels))

    def close(self):
        self.closed = True
