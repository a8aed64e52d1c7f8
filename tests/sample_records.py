"""Records to write: an image with detections, a frame of a video, and inputs that failed."""

import contextlib
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from detcli.core.errors import DecodeError, InferenceError
from detcli.data.detections import Detections
from detcli.data.geometry import Image
from detcli.data.record import Origin, Record, Video


class Film(NamedTuple):
    """A video of some name, or a camera."""

    source: str
    frames_per_second: float
    live: bool = False


FILM = Film("in/film.avi", 10.0)


def image(source="a.jpg", name="cat", index=0, *, count=1, score=0.5, bottom=4.5):
    """A grey 60x40 image with `count` boxes 1, 2, 3, `bottom` of one class."""
    boxes = np.tile(np.array([1, 2, 3, bottom], np.float32), (count, 1))
    ids = np.zeros(count, np.int64)
    detections = Detections(boxes, np.full(count, score, np.float32), ids, (name,))
    pixels = Image.whole(np.zeros((40, 60, 3), np.uint8))
    return Record(Origin(source), index, "m", "cpu", picture=pixels, detections=detections)


def captions_of(shapes):
    """The captions of the zones or lines that an image shows."""
    return [caption for caption, _ in shapes]


def detected(rows, names=("person", "car")):
    """Rows of x1, y1, x2, y2, score and class id as detections."""
    table = np.array(rows, np.float32).reshape(-1, 6)
    return Detections(table[:, :4], table[:, 4], table[:, 5].astype(np.int64), names)


def damaged(record, *warnings):
    """The same record of an image that could be decoded all the same."""
    return replace(record, picture=replace(record.picture, warnings=warnings))


def failure(source="torn.jpg", message="it is torn", index=0, *, hint="fetch it again"):
    """An input that could not be decoded."""
    return Record(Origin(source), index, "m", "cpu", error=DecodeError(message, hint))


def frame(number=0, film=FILM, shade=0, **options):
    """A frame of a video, of one shade; `size` is (height, width), `time_s` follows the rate."""
    count, size = options.pop("count", 0), options.pop("size", (40, 60))
    rate = film.frames_per_second or 10.0
    record = image(film.source, index=number, count=count)
    height, width = size
    pixels = Image.whole(np.full((height, width, 3), shade, np.uint8))
    time_s = options.pop("time_s", number / rate)
    video = Video(film.frames_per_second, film.live)
    origin = Origin(film.source, frame=number, time_s=time_s, video=video)
    return replace(record, picture=pixels, origin=origin, **options)


def numbered(number, source="-"):
    """An image of a stream that is not a video."""
    return replace(image(source), origin=Origin(source, frame=number))


def failed_frame(number, film=FILM, **options):
    """A frame on which the network failed."""
    error = InferenceError("it failed")
    return replace(frame(number, film, **options), picture=None, detections=None, error=error)


def feed(sink, *records):
    """`feed_all` with the records as arguments."""
    feed_all(sink, records)


def feed_all(sink, records):
    """Write records to a sink, and close it, whatever happens."""
    with contextlib.closing(sink):
        for record in records:
            sink.write(record)
