"""Draws detections on a picture, with labels beside their boxes and over no other label."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from detcli.core import frozen
from detcli.core.opencv import cv2
from detcli.core.text import escape_unprintable
from detcli.data.barcode import Barcode
from detcli.data.detections import Detections
from detcli.data.geometry import Boxes, Image, Points, area, common
from detcli.data.record import Overlay

Colour = tuple[int, int, int]

# Strong colours, as CSS abbreviates them. Each is the one that is farthest from all before it, by
# CIEDE2000: to people with deuteranopia, or, if that is less, at 0.8 of what others see.
PALETTE = (
    "e24 0cf 55c fe0 3fc 187 ea7 f5a 071 58f c1a 4b8 6dd f60 c26 3ab af8 eb3 b40 93f "
    "078 f67 e4e c58 8fe 6d9 075 099 f7d b44 5b4 47b c56 0f9 b5c f8a 0db e41 4bb 8ef "
    "e19 f16 54f ce5 e94 8fb 077 6e6 b38 7df 3a8 0bd 4cb 08d 49b b53 b61 076 d5a d67 "
    "a1d 086 294 d47 297 fc0 b45 f88 570 d69 4ed 4c6 f80 0c8 59f 6ec c4a 079 f28 1bf"
).split()
GREY = (136, 136, 136)  # of what has no track yet, where there are tracks
CASING = 3  # a colour stands between lines of a third of its width and brightness
SEMIBOLD = 600  # font weight, 400 is regular
BLACK, WHITE = (0, 0, 0), (255, 255, 255)

WHITE_CONTRAST = 4.0  # by WCAG 2; on colours with less, black is easier to read

ZONE_COLOURS = 40  # number of the first colour for zones
FARTHEST = 32_000  # pixels from the corner, up to which OpenCV draws lines
MIN_TEXT = 10  # pixels; smaller text cannot be read
SHRINKING = (1.0, 0.8, 0.65)  # sizes that are tried for all labels of a picture
MAX_UNPLACED = 0.1  # part of the labels that may be left out before a smaller size is tried
MAX_TEXT = 32  # characters of what a symbol says
COVER, COVER_MORE = 0.15, 0.3  # of a box, under all labels together; the second as a last resort


@frozen
class Style:
    """How detections are drawn."""

    # width of a box's line in pixels; None to scale it with the picture
    line_width: int | None = None
    # what labels say: name, score, both, or nothing
    label_parts: frozenset[str] = frozenset({"name", "score"})


class Label(NamedTuple):
    """Text that belongs to a box."""

    text: str
    box: Boxes  # (4,)
    colour: Colour


DEFAULT_STYLE = Style()
NO_OVERLAY = Overlay()


def annotate(
    image: Image,
    detections: Detections,
    style: Style = DEFAULT_STYLE,
    overlay: Overlay = NO_OVERLAY,
) -> Image:
    """Return a copy of a picture with boxes and labels; lines and text scale with its size.

    Boxes may reach beyond the picture. The best is drawn last, on top, and its label has the first
    choice of a place. The overlay is beneath all.
    """
    canvas, detections = image.copy(), detections.within(image.shape[:2])
    extent = (image.shape[0] + image.shape[1]) / 2
    line = style.line_width or max(1, round(extent / 280))
    text_size = max(MIN_TEXT, round(extent / 40))
    draw_overlay(canvas, overlay, text_size, line)
    tracked = detections.track_id
    numbers = [-1] * len(detections) if tracked is None else tracked.tolist()
    if tracked is None:
        colours = [*map(colour_of, detections.class_id.tolist())]
    else:
        colours = [colour_of(number - 1) if number > 0 else GREY for number in numbers]
    for number, colour in zip(numbers, colours, strict=True):
        if number in overlay.traces:
            draw_path(canvas, overlay.traces[number], colour, line)
    barcodes: list[Barcode | None] = [None] * len(detections)
    if detections.symbols is not None:
        barcodes = detections.symbols.tolist()
    for barcode, box, colour in reversed([*zip(barcodes, detections.xyxy, colours, strict=True)]):
        draw_box(canvas, box, colour, line)
        if barcode is not None and len(barcode.corners):
            draw_path(canvas, barcode.corners, colour, max(1, line // 2), closed=True)
    texts = _texts(detections, numbers, barcodes, style)
    rows = zip(texts, detections.xyxy, colours, strict=True)
    labels = [Label(text, box, colour) for text, box, colour in rows if text]
    draw_labels(canvas, labels, detections.xyxy, text_size, line)
    return canvas


def _texts(
    detections: Detections, numbers: Sequence[int], barcodes: Sequence[Barcode | None], style: Style
) -> Iterator[str]:
    for number, barcode, (_, score, _, name) in zip(numbers, barcodes, detections, strict=True):
        parts = {"name": name, "score": f"{score:.2f}"}
        says = [text for part, text in parts.items() if part in style.label_parts]
        if says and number > 0:
            says.insert(0, f"#{number}")
        if says and barcode is not None and (content := barcode.text):
            says.append(content if len(content) <= MAX_TEXT else f"{content[: MAX_TEXT - 1]}…")
        yield " ".join(says)


def colour_of(number: int) -> Colour:
    """A strong colour (BGR) for a class, a track or a zone."""
    red, green, blue = (17 * int(digit, 16) for digit in PALETTE[number % len(PALETTE)])
    return blue, green, red


def _strokes(colour: Colour, line: int) -> Iterator[tuple[Colour, int]]:
    """The colour of a line, and how far it reaches beyond its width: first a dark casing."""
    blue, green, red = colour
    yield (blue // CASING, green // CASING, red // CASING), max(1, line // CASING)
    yield colour, 0


def draw_box(canvas: Image, box: Boxes, colour: Colour, line: int) -> None:
    """Draw the outline of a box; at the border of the picture, the whole line stays inside.

    OpenCV's lines are up to two pixels wider than asked for.
    """
    height, width = canvas.shape[:2]
    last = np.maximum(0, np.array([width, height] * 2) - line)
    left, top, right, bottom = np.clip(np.rint(box) - line // 2, 0, last).astype(int)
    for shade, more in _strokes(colour, line):
        rows = slice(max(0, top - more), bottom + line + more)
        columns = slice(max(0, left - more), right + line + more)
        for edge in (left, right):
            canvas[rows, max(0, edge - more) : edge + line + more] = shade
        for edge in (top, bottom):
            canvas[max(0, edge - more) : edge + line + more, columns] = shade


def draw_path(
    canvas: Image, points: Points, colour: Colour, line: int, *, closed: bool = False
) -> None:
    """Draw a line through points."""
    for shade, more in _strokes(colour, line):
        cv2.polylines(canvas, [_whole(points)], closed, shade, line + 2 * more)


def draw_overlay(canvas: Image, overlay: Overlay, text_size: int, line: int) -> None:
    """Draw zones and lines, each in its own colour and with a caption at its highest point."""
    for number, (caption, shape) in enumerate((*overlay.zones, *overlay.lines)):
        colour, points = colour_of(ZONE_COLOURS + number), _whole(shape)
        if number < len(overlay.zones):
            draw_path(canvas, shape, colour, line, closed=True)
        else:
            start, end = points.tolist()
            for shade, more in _strokes(colour, line):
                cv2.arrowedLine(canvas, start, end, shade, 2 * (line + more), tipLength=0.03)
        # The caption is as near as it shows.
        (x, y), (width, height) = points[points[:, 1].argmin()], label_size(caption, text_size)
        left = max(0, min(int(x), canvas.shape[1] - width))
        top = max(0, min(int(y), canvas.shape[0] - height))
        draw_label(canvas, caption, (left, top), colour, text_size)


def _whole(points: Points) -> npt.NDArray[np.int32]:
    """Points in whole pixels, at most as far outside as OpenCV draws to."""
    return np.clip(np.rint(points), -FARTHEST, FARTHEST).astype(np.int32)


def draw_labels(
    canvas: Image, labels: Sequence[Label], visible: Boxes, text_size: int, line: int
) -> None:
    """Draw labels, the most important first, over neither each other nor small `visible` boxes.

    In a crowd, the text is smaller. A label without room is left out, and only the box's colour
    shows the class.
    """
    picture = canvas.shape[1], canvas.shape[0]
    outer = np.array([0, 0, line, line], np.float32) - line // 2  # labels begin where lines end
    outlines = [np.rint(label.box) + outer for label in labels]
    sizes = [max(min(MIN_TEXT, text_size), round(text_size * part)) for part in SHRINKING]
    for size in sizes:
        layout = LabelLayout(picture, visible, gap=max(1, size // 8))
        extents = [label_size(label.text, size) for label in labels]
        corners: list[tuple[int, int] | None] = []
        unplaced = 0
        for outline, extent in zip(outlines, extents, strict=True):
            corners.append(layout.place(outline, extent, COVER))
            unplaced += corners[-1] is None
            if unplaced > MAX_UNPLACED * len(labels) and size > sizes[-1]:
                break
        else:
            break
    for label, outline, extent, corner in zip(labels, outlines, extents, corners, strict=True):
        final_corner = corner or layout.place(outline, extent, COVER_MORE)
        if final_corner is not None:
            draw_label(canvas, label.text, final_corner, label.colour, size)


def draw_label(
    canvas: Image, text: str, corner: tuple[int, int], colour: Colour, size: int
) -> None:
    """Draw text on a filled rectangle, given its left top corner."""
    left, top = corner
    width, height = label_size(text, size)
    cv2.rectangle(canvas, corner, (left + width - 1, top + height - 1), colour, cv2.FILLED)
    baseline = (left + _padding(size), top + round(size * 0.95))
    cv2.putText(canvas, escape_unprintable(text), baseline, ink(colour), _font(), size, SEMIBOLD)


def ink(colour: Colour) -> Colour:
    """White on dark and strong colours, black on others."""
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (value / 255 for value in colour)
    ]
    luminance = 0.0722 * linear[0] + 0.7152 * linear[1] + 0.2126 * linear[2]
    return WHITE if 1.05 / (luminance + 0.05) >= WHITE_CONTRAST else BLACK


def _padding(size: int) -> int:
    return max(2, size // 4)


@lru_cache(maxsize=4096)
def label_size(text: str, size: int) -> tuple[int, int]:
    """Width and height of a label in pixels; measuring takes ten times as long as drawing."""
    _, _, width, _ = cv2.getTextSize(
        (0, 0), escape_unprintable(text), (0, 0), _font(), size, SEMIBOLD
    )
    return width + 2 * _padding(size), round(size * 1.3)


def _font() -> cv2.FontFace:
    return cv2.FontFace("sans")  # built into OpenCV; has Unicode, unlike the Hershey fonts


# Where a label is, along x and along y: the edge of the box (0 for left or top, 1 for right or
# bottom), and the shift from there, in sizes of the label.
BEFORE, FIRST, LAST, AFTER = (0, -1), (0, 0), (1, -1), (1, 0)
POSITIONS = np.array(
    [
        (FIRST, BEFORE),  # above; best first
        (FIRST, FIRST),  # inside, at the top
        (FIRST, AFTER),  # below
        (BEFORE, FIRST),  # to the left
        (AFTER, FIRST),  # to the right
        (LAST, BEFORE),  # the same from the other end of each edge
        (LAST, FIRST),
        (LAST, AFTER),
        (BEFORE, LAST),
        (AFTER, LAST),
        (FIRST, LAST),  # inside, at the bottom
        (LAST, LAST),
    ],
    np.float32,
)


class LabelLayout:
    """Labels on a picture: none leaves it or covers another, and boxes stay visible."""

    def __init__(self, picture: tuple[int, int], visible: Boxes, gap: int) -> None:
        self._room = np.array(picture, np.float32)  # width and height
        self._visible = np.clip(visible, 0, np.tile(self._room, 2))
        self._areas = area(self._visible)
        self._hidden = np.zeros(len(visible), np.float32)  # by the labels so far
        self._gap = np.array([-gap, -gap, gap, gap], np.float32)
        self.taken: Boxes = np.empty((0, 4), np.float32)

    def place(self, box: Boxes, size: tuple[int, int], cover: float) -> tuple[int, int] | None:
        """Place a label of a box `(4,)` at the first of POSITIONS that is free.

        `cover` is the part of each visible box that all labels together may cover, from 0 to 1.
        """
        extent = np.array(size, np.float32)
        if (extent > self._room).any():
            return None
        anchors = box.reshape(2, 2)[POSITIONS[..., 0].astype(int), [0, 1]]  # (P, 2)
        corners = np.clip(np.rint(anchors + POSITIONS[..., 1] * extent), 0, self._room - extent)
        candidates = np.hstack([corners, corners + extent])  # (P, 4)
        around = np.hstack([candidates[:, :2].min(axis=0), candidates[:, 2:].max(axis=0)])
        near = _touch(self._visible, around)  # (M',)
        covered = area(common(candidates[:, None], self._visible[near]))
        hidden = self._hidden[near] + covered  # (P, M')
        free = (hidden <= cover * self._areas[near]).all(axis=1)
        labels = self.taken[_touch(self.taken, around)]
        free &= ~(area(common(candidates[:, None], labels)) > 0).any(axis=1)
        if not free.any():
            return None
        best = free.argmax()
        self._hidden[near] = hidden[best]
        self.taken = np.vstack([self.taken, candidates[best] + self._gap])
        left, top = corners[best]
        return int(left), int(top)


def _touch(rectangles: Boxes, box: Boxes) -> npt.NDArray[np.intp]:
    """The indices of the rectangles that touch a box."""
    touching = (rectangles[:, :2] <= box[2:]) & (rectangles[:, 2:] >= box[:2])
    return np.flatnonzero(touching[:, 0] & touching[:, 1])
