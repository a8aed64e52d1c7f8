"""Videos whose frames carry their numbers, as dark and bright stripes that survive compression."""

import cv2
import numpy as np

BITS, STRIPE, HEIGHT = 10, 16, 64
SIZE = (BITS * STRIPE, HEIGHT)


def frame(number):
    """The image of a number: a stripe a bit, the lowest on the left, over a dark lower half."""
    image = np.full((HEIGHT, BITS * STRIPE, 3), 20, np.uint8)
    for bit in range(BITS):
        if number >> bit & 1:
            image[: HEIGHT // 2, bit * STRIPE : (bit + 1) * STRIPE] = 230
    return image


def number(image):
    """The number in an image."""
    value = 0
    for bit in range(BITS):
        middle_of_stripe = image[16, bit * STRIPE + 8]
        if middle_of_stripe.mean() > 128:
            value += 1 << bit
    return value


def open_writer(path, size, rate=10, code="mp4v"):
    """A writer of frames of a size (width, height), by the four letters of a codec."""
    return cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*code), rate, size)


def write(path, frames=50, rate=25.0, code="mp4v"):
    """Write a video and return its path."""
    writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, cv2.VideoWriter_fourcc(*code), rate, SIZE)  # type: ignore[attr-defined]
    assert writer.isOpened()
    for at in range(frames):
        writer.write(frame(at))
    writer.release()
    return path


CODES = {"mp4": "mp4v", "avi": "MJPG", "mkv": "mp4v", "webm": "VP80", "mov": "mp4v", "ts": "mp4v"}


def numbers_of(items):
    """The number that the image of each item shows."""
    return [number(item.load().pixels) for item in items]


def frame_times(count, begin_s=0.0):
    """The times of `count` frames at 25 fps, from `begin_s` on."""
    return [begin_s + number / 25 for number in range(count)]


def since_first(times):
    """Times relative to the first one."""
    return [time - times[0] for time in times]
