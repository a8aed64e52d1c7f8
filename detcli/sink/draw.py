"""Draws detections on a picture, with labels beside their boxes and over no other label."""

from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

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
Vertices = npt.NDArray[np.floating[Any]]  # (K, 2), of a path
Corner = tuple[int, int]  # x and y of the left top corner of a label

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
BLACK = (0, 0, 0)
WHITE = (255, 255, 255)

WHITE_CONTRAST = 4.0  # by WCAG 2; on colours with less, black is easier to read

ZONE_COLOURS = 40  # number of the first colour for zones
FARTHEST = 32_000  # pixels from the corner, up to which OpenCV draws lines
MIN_TEXT = 10  # pixels; smaller text cannot be read
SHRINKING = (1.0, 0.8, 0.65)  # sizes that are tried for all labels of a picture
MAX_UNPLACED = 0.1  # part of the labels that may be left out before a smaller size is tried
MAX_TEXT = 32  # characters of what a symbol says
COVER = 0.15  # part of a box that all labels together may cover
COVER_MORE = 0.3  # the same for a label that has no room otherwise


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
    canvas = image.copy()
    height, width = image.shape[:2]
    detections = detections.within((height, width))
    mean_side = (height + width) / 2
    line_width = style.line_width or max(1, round(mean_side / 280))
    text_size = max(MIN_TEXT, round(mean_side / 40))
    track_numbers = _track_numbers(detections)
    colours = _colours(detections)
    barcodes = _barcodes(detections)

    draw_overlay(canvas, overlay, text_size, line_width)
    for track_number, colour in zip(track_numbers, colours, strict=True):
        if track_number in overlay.traces:
            draw_path(canvas, overlay.traces[track_number], colour, line_width)

    for row in reversed(range(len(detections))):
        draw_box(canvas, detections.xyxy[row], colours[row], line_width)
        barcode = barcodes[row]
        if barcode is not None and len(barcode.corners):
            outline_width = max(1, line_width // 2)
            draw_path(canvas, barcode.corners, colours[row], outline_width, closed=True)

    labels = []
    for row, (box, score, _, name) in enumerate(detections):
        text = _label_text(name, score, track_numbers[row], barcodes[row], style)
        if text:
            labels.append(Label(text, box, colours[row]))
    draw_labels(canvas, labels, detections.xyxy, text_size, line_width)
    return canvas


def _track_numbers(detections: Detections) -> list[int]:
    """The number of each detection's track; -1 where there are no tracks."""
    if detections.track_id is None:
        return [-1] * len(detections)
    track_numbers: list[int] = detections.track_id.tolist()
    return track_numbers


def _colours(detections: Detections) -> list[Colour]:
    """The colour of each detection: that of its track, or of its class where there are none."""
    if detections.track_id is None:
        return [colour_of(class_id) for class_id in detections.class_id.tolist()]
    colours = []
    for track_number in detections.track_id.tolist():
        if track_number > 0:
            colours.append(colour_of(track_number - 1))
        else:
            colours.append(GREY)
    return colours


def _barcodes(detections: Detections) -> list[Barcode | None]:
    """What was read in each detection; None for what is no barcode."""
    if detections.symbols is None:
        return [None] * len(detections)
    barcodes: list[Barcode | None] = detections.symbols.tolist()
    return barcodes


def _label_text(
    name: str, score: float, track_number: int, barcode: Barcode | None, style: Style
) -> str:
    """The text of a detection's label, such as `#3 person 0.87`; empty if it has none."""
    parts = []
    if "name" in style.label_parts:
        parts.append(name)
    if "score" in style.label_parts:
        parts.append(f"{score:.2f}")
    if not parts:
        return ""

    if track_number > 0:
        parts.insert(0, f"#{track_number}")
    if barcode is not None and barcode.text:
        content = barcode.text
        if len(content) > MAX_TEXT:
            content = f"{content[: MAX_TEXT - 1]}…"
        parts.append(content)
    return " ".join(parts)


def colour_of(number: int) -> Colour:
    """A strong colour (BGR) for a class, a track or a zone."""
    red, green, blue = (17 * int(digit, 16) for digit in PALETTE[number % len(PALETTE)])
    return blue, green, red


def _strokes(colour: Colour, line: int) -> list[tuple[Colour, int]]:
    """The colour of each stroke, and how far it reaches beyond the line: first a dark casing."""
    blue, green, red = colour
    casing = (blue // CASING, green // CASING, red // CASING)
    return [(casing, max(1, line // CASING)), (colour, 0)]


def draw_box(canvas: Image, box: Boxes, colour: Colour, line: int) -> None:
    """Draw the outline of a box; at the border of the picture, the whole line stays inside.

    OpenCV's lines are up to two pixels wider than asked for.
    """
    height, width = canvas.shape[:2]
    last = np.maximum(0, np.array([width, height] * 2) - line)
    left, top, right, bottom = np.clip(np.rint(box) - line // 2, 0, last).astype(int)
    for shade, reach in _strokes(colour, line):
        rows = slice(max(0, top - reach), bottom + line + reach)
        columns = slice(max(0, left - reach), right + line + reach)
        for edge in (left, right):
            canvas[rows, max(0, edge - reach) : edge + line + reach] = shade
        for edge in (top, bottom):
            canvas[max(0, edge - reach) : edge + line + reach, columns] = shade


def draw_path(
    canvas: Image, points: Vertices, colour: Colour, line: int, *, closed: bool = False
) -> None:
    """Draw a line through points."""
    for shade, reach in _strokes(colour, line):
        cv2.polylines(canvas, [_whole(points)], closed, shade, line + 2 * reach)


def draw_overlay(canvas: Image, overlay: Overlay, text_size: int, line: int) -> None:
    """Draw zones and lines, each in its own colour and with a caption at its highest point."""
    for number, (caption, corners) in enumerate(overlay.zones):
        colour = colour_of(ZONE_COLOURS + number)
        draw_path(canvas, corners, colour, line, closed=True)
        _draw_caption(canvas, caption, corners, colour, text_size)

    for number, (caption, ends) in enumerate(overlay.lines, len(overlay.zones)):
        colour = colour_of(ZONE_COLOURS + number)
        start, end = _whole(ends).tolist()
        for shade, reach in _strokes(colour, line):
            cv2.arrowedLine(canvas, start, end, shade, 2 * (line + reach), tipLength=0.03)
        _draw_caption(canvas, caption, ends, colour, text_size)


def _draw_caption(
    canvas: Image, caption: str, points: Points, colour: Colour, text_size: int
) -> None:
    """Draw a caption at the highest of some points, or as near as it shows."""
    x, y = min(_whole(points).tolist(), key=itemgetter(1))
    width, height = label_size(caption, text_size)
    left = max(0, min(x, canvas.shape[1] - width))
    top = max(0, min(y, canvas.shape[0] - height))
    draw_label(canvas, caption, (left, top), colour, text_size)


def _whole(points: Vertices) -> npt.NDArray[np.int32]:
    """Points in whole pixels, at most as far outside as OpenCV draws to."""
    return np.clip(np.rint(points), -FARTHEST, FARTHEST).astype(np.int32)


def draw_labels(
    canvas: Image, labels: Sequence[Label], visible: Boxes, text_size: int, line: int
) -> None:
    """Draw labels, the most important first, over neither each other nor small `visible` boxes.

    In a crowd, the text is smaller. A label without room is left out, and only the box's colour
    shows the class.
    """
    height, width = canvas.shape[:2]
    outer = np.array([0, 0, line, line], np.float32) - line // 2  # labels begin where lines end
    outlines = [np.rint(label.box) + outer for label in labels]
    sizes = [max(min(MIN_TEXT, text_size), round(text_size * part)) for part in SHRINKING]

    for size in sizes:
        layout = LabelLayout((width, height), visible, gap=max(1, size // 8))
        extents = [label_size(label.text, size) for label in labels]
        max_unplaced: float = len(labels)
        if size > sizes[-1]:
            max_unplaced = MAX_UNPLACED * len(labels)
        corners = _place_labels(layout, outlines, extents, max_unplaced)
        if corners.count(None) <= max_unplaced:
            break

    for label, outline, extent, corner in zip(labels, outlines, extents, corners, strict=True):
        final_corner = corner or layout.place(outline, extent, COVER_MORE)
        if final_corner is not None:
            draw_label(canvas, label.text, final_corner, label.colour, size)


def _place_labels(
    layout: "LabelLayout",
    outlines: Sequence[Boxes],
    extents: Sequence[tuple[int, int]],
    max_unplaced: float,
) -> list[Corner | None]:
    """The place of each label, or None; it ends once more than `max_unplaced` have no place."""
    corners: list[Corner | None] = []
    unplaced = 0
    for outline, extent in zip(outlines, extents, strict=True):
        corner = layout.place(outline, extent, COVER)
        corners.append(corner)
        if corner is None:
            unplaced += 1
        if unplaced > max_unplaced:
            break
    return corners


def draw_label(canvas: Image, text: str, corner: Corner, colour: Colour, size: int) -> None:
    """Draw text on a filled rectangle, given its left top corner."""
    left, top = corner
    width, height = label_size(text, size)
    cv2.rectangle(canvas, corner, (left + width - 1, top + height - 1), colour, cv2.FILLED)
    baseline = (left + _padding(size), top + round(size * 0.95))
    cv2.putText(canvas, escape_unprintable(text), baseline, ink(colour), _font(), size, SEMIBOLD)


def ink(colour: Colour) -> Colour:
    """White on dark and strong colours, black on others."""
    blue, green, red = colour
    luminance = 0.0722 * _linear(blue) + 0.7152 * _linear(green) + 0.2126 * _linear(red)
    if 1.05 / (luminance + 0.05) >= WHITE_CONTRAST:
        return WHITE
    return BLACK


def _linear(value: int) -> float:
    """How bright a value of an sRGB channel is, from 0 to 1."""
    part = value / 255
    if part <= 0.04045:
        return part / 12.92
    linear: float = ((part + 0.055) / 1.055) ** 2.4
    return linear


def _padding(size: int) -> int:
    """Pixels beside the text of a label."""
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
BEFORE = (0, -1)
FIRST = (0, 0)
LAST = (1, -1)
AFTER = (1, 0)
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
        self._picture = np.array(picture, np.float32)  # width and height
        self._visible = np.clip(visible, 0, np.tile(self._picture, 2))
        self._areas = area(self._visible)
        self._hidden = np.zeros(len(visible), np.float32)  # by the labels so far
        self._gap = np.array([-gap, -gap, gap, gap], np.float32)
        self.taken: Boxes = np.empty((0, 4), np.float32)

    def place(self, box: Boxes, size: tuple[int, int], cover: float) -> Corner | None:
        """Place a label of a box `(4,)` at the first of POSITIONS that is free.

        Args:
            box: The box, to whose edges the label is placed.
            size: Width and height of the label.
            cover: The part of each visible box that all labels together may cover, from 0 to 1.
        """
        extent = np.array(size, np.float32)
        if (extent > self._picture).any():
            return None
        anchors = box.reshape(2, 2)[POSITIONS[..., 0].astype(int), [0, 1]]  # (P, 2)
        corners = np.rint(anchors + POSITIONS[..., 1] * extent)
        corners = np.clip(corners, 0, self._picture - extent)
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
