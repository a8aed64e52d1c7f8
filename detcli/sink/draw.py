"""Draws detections on a picture."""

import colorsys

from detcli.detections import Detections
from detcli.geometry import Image
from detcli.opencv import cv2

Colour = tuple[int, int, int]

GOLDEN_RATIO = 0.618033988749895  # of the colour wheel: multiples of it stay far apart
SHADES = ((0.9, 0.95), (0.65, 1.0), (1.0, 0.7), (0.65, 0.75))  # saturation, value; 20 classes each
SEMIBOLD = 600  # font weight, 400 is regular
BLACK, WHITE = (0, 0, 0), (255, 255, 255)


def annotate(image: Image, detections: Detections) -> Image:
    """Return a copy of a picture with boxes and labels; lines and text scale with its size.

    Args:
        image: `(H, W, 3)` uint8 BGR.
        detections: Boxes in pixels of the picture; the best is drawn last, on top.
    """
    canvas = image.copy()
    extent = (image.shape[0] + image.shape[1]) / 2
    line, text_size = max(1, round(extent / 320)), max(10, round(extent / 40))
    for box, _, class_id, _ in reversed(list(detections)):
        left, top, right, bottom = (round(float(side)) for side in box)
        corners = (left, top), (right, bottom)
        cv2.rectangle(canvas, *corners, class_colour(class_id), line, cv2.LINE_AA)
    for box, score, class_id, name in reversed(list(detections)):  # above every box
        left, top = round(float(box[0])), round(float(box[1]))
        # A lone surrogate, which a file of names can hold, would crash OpenCV.
        label = f"{name} {score:.2f}".encode(errors="replace").decode()
        draw_label(canvas, label, (left - line // 2, top), class_colour(class_id), text_size)
    return canvas


def class_colour(class_id: int) -> Colour:
    """A strong colour (BGR) for a class."""
    saturation, value = SHADES[class_id // 20 % len(SHADES)]
    red, green, blue = colorsys.hsv_to_rgb(class_id * GOLDEN_RATIO % 1, saturation, value)
    return round(blue * 255), round(green * 255), round(red * 255)


def draw_label(
    canvas: Image, text: str, corner: tuple[int, int], colour: Colour, size: int
) -> None:
    """Draw text on a filled box above a corner, moved into the picture if necessary."""
    font = cv2.FontFace("sans")  # built into OpenCV; has Unicode, unlike the Hershey fonts
    height, width = canvas.shape[:2]
    _, _, text_width, _ = cv2.getTextSize((0, 0), text, (0, 0), font, size, SEMIBOLD)
    padding = size // 4
    label_width, label_height = text_width + 2 * padding, size + 2 * padding
    left = max(0, min(corner[0], width - label_width))
    top = corner[1] - label_height if corner[1] >= label_height else corner[1]
    top = max(0, min(top, height - label_height))
    cv2.rectangle(canvas, (left, top), (left + label_width, top + label_height), colour, cv2.FILLED)
    blue, green, red = colour
    luma = 0.114 * blue + 0.587 * green + 0.299 * red  # BT.601
    ink = BLACK if luma > 128 else WHITE
    baseline = (left + padding, top + padding + round(size * 0.8))
    cv2.putText(canvas, text, baseline, ink, font, size, SEMIBOLD)
