"""Videos to write, and to read back."""

from types import SimpleNamespace

import cv2
from sample_records import FILM, Film, frame

from detcli.sink.video import LIVE_RATE

DOOR, YARD = Film("camera:0", 0.0, live=True), Film("camera:1", 0.0, live=True)


def play(path):
    """The shades of a video's frames, its rate and its size as (height, width)."""
    # Names that are no Unicode crash OpenCV.
    link = path.with_name("link.mp4")
    link.symlink_to(path.name)
    video = cv2.VideoCapture(str(link))
    link.unlink()
    assert video.isOpened(), path
    shades = []
    while True:
        more, pixels = video.read()
        if not more:
            break
        shades.append(round(float(pixels.mean())))
        size = pixels.shape[:2]
    rate = video.get(cv2.CAP_PROP_FPS)
    assert len(shades) == video.get(cv2.CAP_PROP_FRAME_COUNT)
    return SimpleNamespace(shades=shades, rate=rate, size=size)


def film(count, clip=FILM, step=10):
    """Frames that become brighter."""
    return [frame(number, clip, number * step) for number in range(count)]


def live(*times, clip=DOOR, step=20):
    """Frames of a camera, at these frames of the video."""
    return [
        frame(number, clip, number * step, time_s=time / LIVE_RATE)
        for number, time in enumerate(times)
    ]
