"""Images with boxes for tests of drawing, and the light of colours."""

import numpy as np

from detcli.data.detections import Detections
from detcli.sink.draw import annotate

GREY = 114


def grey(height, width):
    return np.full((height, width, 3), GREY, np.uint8)


def boxes_of(sides, name="cat", score=0.5, class_id=0):
    """Detections of one class."""
    corners = np.array(sides, np.float32).reshape(-1, 4)
    scores = np.full(len(sides), score, np.float32)
    class_ids = np.full(len(sides), class_id)
    names = (name,) * (class_id + 1)
    return Detections(corners, scores, class_ids, names)


def drawn(image, sides, **options):
    """The image with one box drawn in it."""
    return annotate(image, boxes_of([sides], **options))


def linear(colours):
    """sRGB from 0 to 1 as light."""
    return np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)


def luminance(colour):
    return linear(np.array(colour[::-1]) / 255) @ [0.2126, 0.7152, 0.0722] + 0.05
