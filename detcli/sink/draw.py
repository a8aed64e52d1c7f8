"""Draws detections on an image, with labels beside their boxes and over no other label."""

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
from detcli.data.geometry import Boxes, Pixels, Points, area, common
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
MIN_DISTANCE = 30  # in CIE L*a*b*, chroma halved; a line on nearer colours gets a casing
EDGE_PIXELS = 15  # over which the colour beside a thin line is averaged, so that casings hold on
# How boxes of one class that touch are told apart: the shares of white and of black mixed in.
SHADES = ((0.0, 0.0), (0.45, 0.0), (0.0, 0.4))
SEMIBOLD = 600  # font weight, 400 is regular
BLACK = (0, 0, 0)
WHITE = (255, 255, 255)

WHITE_CONTRAST = 4.0  # by WCAG 2; on colours with less, black is easier to read

ZONE_COLOURS = 40  # number of the first colour for zones
FARTHEST = 32_000  # pixels from the corner, up to which OpenCV draws lines
MIN_TEXT = 10  # pixels; smaller text cannot be read
TEXT_SCALES = (1.0, 0.8, 0.65)  # text sizes that are tried for all labels, of the usual one
MAX_UNPLACED = 0.1  # share of the labels that may have no room before a smaller size is tried
MAX_TEXT = 32  # characters of what a symbol says
COVER = 0.15  # share of a box that all labels together may cover
COVER_MORE = 0.3  # the same for a label that has no room otherwise


@frozen
class Style:
    """How detections are drawn."""

    # width of a box's line in pixels; None to scale it with the image
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
    image: Pixels,
    detections: Detections,
    style: Style = DEFAULT_STYLE,
    overlay: Overlay = NO_OVERLAY,
) -> Pixels:
    """Return a copy of an image with boxes and labels; lines and text scale with its size.

    The best detection is drawn last, on top, and its label is the first to choose a position.

    Args:
        image: `(H, W, 3)` uint8 BGR.
        detections: The detections, the best first; their boxes may reach beyond the image.
        style: How boxes and labels look.
        overlay: Zones, lines and the traces of tracks, which are drawn beneath the boxes.
    """
    canvas = image.copy()
    height, width = image.shape[:2]
    detections = detections.within((height, width))
    mean_side = (height + width) / 2
    line_width = style.line_width or max(1, round(mean_side / 280))
    text_size = max(MIN_TEXT, round(mean_side / 40))
    track_numbers = _track_numbers(detections)
    colours = detection_colours(detections)
    barcodes = _barcodes(detections)

    draw_overlay(canvas, overlay, text_size, line_width)
    for track_number, colour in zip(track_numbers, colours, strict=True):
        if track_number in overlay.traces:
            draw_path(canvas, overlay.traces[track_number], colour, line_width)

    for index in reversed(range(len(detections))):
        draw_box(canvas, detections.xyxy[index], colours[index], line_width)
        barcode = barcodes[index]
        if barcode is not None and len(barcode.corners):
            outline_width = max(1, line_width // 2)
            draw_path(canvas, barcode.corners, colours[index], outline_width, closed=True)

    labels = []
    for index, (box, score, _, name) in enumerate(detections):
        text = _label_text(name, score, track_numbers[index], barcodes[index], style)
        if text:
            labels.append(Label(text, box, colours[index]))
    draw_labels(canvas, labels, detections.xyxy, text_size, line_width)
    return canvas


def _track_numbers(detections: Detections) -> list[int]:
    """Return the number of each detection's track; -1 without a track."""
    if detections.track_id is None:
        return [-1] * len(detections)
    track_numbers: list[int] = detections.track_id.tolist()
    return track_numbers


def detection_colours(detections: Detections) -> list[Colour]:
    """Choose the colour of each detection.

    It is that of its track in a video with tracking, and grey until the tracker is sure of the
    object; otherwise that of its class, in another shade where boxes of the class touch.
    """
    if detections.track_id is None:
        return _class_colours(detections)
    colours = []
    for track_number in detections.track_id.tolist():
        if track_number > 0:
            colours.append(colour_of(track_number - 1))
        else:
            colours.append(GREY)
    return colours


def _class_colours(detections: Detections) -> list[Colour]:
    """Choose the colour of each detection by its class, so that touching boxes can be counted.

    The best detection has the colour itself. One whose box touches better ones of its class has
    the first shade that none of them has, or the rarest among them.
    """
    shade_numbers = np.zeros(len(detections), int)
    colours = []
    for index, class_id in enumerate(detections.class_id.tolist()):
        better_of_class = np.flatnonzero(detections.class_id[:index] == class_id)
        touching = _touching(detections.xyxy[better_of_class], detections.xyxy[index])
        neighbour_shades = shade_numbers[better_of_class[touching]]
        shade_number = int(np.bincount(neighbour_shades, minlength=len(SHADES)).argmin())
        shade_numbers[index] = shade_number
        colours.append(shaded(colour_of(class_id), shade_number))
    return colours


def shaded(colour: Colour, shade_number: int) -> Colour:
    """Return a lighter or darker shade of a colour, by its number in SHADES."""
    white_share, black_share = SHADES[shade_number]
    blue, green, red = (
        round((value + white_share * (255 - value)) * (1 - black_share)) for value in colour
    )
    return blue, green, red


def _barcodes(detections: Detections) -> list[Barcode | None]:
    """Return the barcode that was read in each detection; None where there is none."""
    if detections.symbols is None:
        return [None] * len(detections)
    barcodes: list[Barcode | None] = detections.symbols.tolist()
    return barcodes


def _label_text(
    name: str, score: float, track_number: int, barcode: Barcode | None, style: Style
) -> str:
    """Compose the text of a detection's label, such as `#3 person 0.87`.

    Args:
        name: The name of the class.
        score: The score, from 0 to 1.
        track_number: The number of the track; 0 or less without a track.
        barcode: The barcode that was read in the box, whose text is appended.
        style: Whether the name and the score are part of labels; without both, the text is empty.
    """
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
    """Return a strong colour (BGR) for the number of a class, a track or a zone."""
    digits = PALETTE[number % len(PALETTE)]  # as in CSS, `e24` is `ee2244`
    red, green, blue = (17 * int(digit, 16) for digit in digits)
    return blue, green, red


def _strokes(colour: Colour, line_width: int) -> list[tuple[Colour, int]]:
    """List the strokes that a line is drawn with, so that it shows on any background.

    First comes a dark one that is wider, and then the line in its colour.

    Returns:
        The colour of each stroke, and by how many pixels it is wider than the line on each side.
    """
    blue, green, red = colour
    dark_colour = (blue // CASING, green // CASING, red // CASING)
    return [(dark_colour, max(1, line_width // CASING)), (colour, 0)]


def draw_box(canvas: Pixels, box: Boxes, colour: Colour, line_width: int) -> None:
    """Draw the outline of a box, whose lines stay inside the image in their whole width.

    The lines are filled as rectangles, since OpenCV's lines are up to two pixels too wide. A line
    of one pixel has a dark casing only where the image is too similar to its colour: elsewhere
    the casing would have twice as many pixels as the line, and its colour would not be seen.

    Args:
        canvas: `(H, W, 3)`, which is drawn on.
        box: `(4,)`, x1, y1, x2 and y2, which may lie outside of the image.
        colour: BGR.
        line_width: In pixels.
    """
    height, width = canvas.shape[:2]
    # Where the line of each edge begins, from its left or its upper side: its middle is on the box.
    last_start = np.maximum(0, np.array([width, height, width, height]) - line_width)
    line_starts = np.clip(np.rint(box) - line_width // 2, 0, last_start).astype(int)
    left, top, right, bottom = line_starts.tolist()
    around = (slice(max(0, top - 1), bottom + 2), slice(max(0, left - 1), right + 2))
    background: Pixels | None = None
    if line_width == 1:
        background = canvas[around].copy()
    for stroke_colour, extra_width in _strokes(colour, line_width):
        if background is not None and extra_width == 0:  # the casing is drawn, and the line is next
            _remove_needless_casing(canvas[around], background, colour)
        end_distance = line_width + extra_width  # from the start of a line
        rows = slice(max(0, top - extra_width), bottom + end_distance)
        columns = slice(max(0, left - extra_width), right + end_distance)
        canvas[rows, columns.start : left + end_distance] = stroke_colour
        canvas[rows, max(0, right - extra_width) : columns.stop] = stroke_colour
        canvas[rows.start : top + end_distance, columns] = stroke_colour
        canvas[max(0, bottom - extra_width) : rows.stop, columns] = stroke_colour


def _remove_needless_casing(canvas: Pixels, background: Pixels, colour: Colour) -> None:
    """Restore an image where its background differs enough from the colour of a thin line.

    The background is averaged over some pixels, so that a casing is not a row of dots.

    Args:
        canvas: `(H, W, 3)`, which is drawn on.
        background: `(H, W, 3)`, the image before the casing was drawn.
        colour: BGR, of the line.
    """
    average = cv2.blur(background, (EDGE_PIXELS, EDGE_PIXELS))
    ground_lab = cv2.cvtColor(average.astype(np.float32) / 255, cv2.COLOR_BGR2Lab)
    line_pixel = np.array([[colour]], np.float32) / 255
    line_lab = cv2.cvtColor(line_pixel, cv2.COLOR_BGR2Lab)
    # Differences of hue are hard to see in thin lines, so they count half.
    differences = (ground_lab - line_lab) * np.array([1, 0.5, 0.5], np.float32)
    is_visible = np.linalg.norm(differences, axis=-1) >= MIN_DISTANCE
    canvas[is_visible] = background[is_visible]


def draw_path(
    canvas: Pixels, points: Vertices, colour: Colour, line_width: int, *, closed: bool = False
) -> None:
    """Draw a line from point to point `(K, 2)`, and back to the first one if it is closed."""
    vertices = _whole_pixels(points)
    for stroke_colour, extra_width in _strokes(colour, line_width):
        cv2.polylines(canvas, [vertices], closed, stroke_colour, line_width + 2 * extra_width)


def draw_overlay(canvas: Pixels, overlay: Overlay, text_size: int, line_width: int) -> None:
    """Draw zones and lines, each in its own colour and with a caption at its highest point.

    Lines are arrows of twice the width, as crossings are counted to the left and the right of their
    direction. Before that, the polygons in which nothing counts are made dim.
    """
    if overlay.ignored:
        dim(canvas, overlay.ignored)
    for number, (caption, corners) in enumerate(overlay.zones):
        colour = colour_of(ZONE_COLOURS + number)
        draw_path(canvas, corners, colour, line_width, closed=True)
        _draw_caption(canvas, caption, corners, colour, text_size)

    for number, (caption, ends) in enumerate(overlay.lines, len(overlay.zones)):
        colour = colour_of(ZONE_COLOURS + number)
        start, end = _whole_pixels(ends).tolist()
        for stroke_colour, extra_width in _strokes(colour, line_width):
            arrow_width = 2 * (line_width + extra_width)
            cv2.arrowedLine(canvas, start, end, stroke_colour, arrow_width, tipLength=0.03)
        _draw_caption(canvas, caption, ends, colour, text_size)


def dim(canvas: Pixels, polygons: Sequence[Points]) -> None:
    """Halve the brightness of an image in some polygons, and give each a thin grey outline.

    Args:
        canvas: `(H, W, 3)`, which is drawn on.
        polygons: `(K, 2)` each. Where edges of a polygon cross, what they enclose twice is outside;
            what is in several polygons is as dim as the rest.
    """
    mask = np.zeros(canvas.shape[:2], np.uint8)
    for corners in polygons:
        polygon_mask = np.zeros_like(mask)
        cv2.fillPoly(polygon_mask, [_whole_pixels(corners)], 1)
        mask |= polygon_mask
    np.copyto(canvas, canvas // 2, where=mask[..., np.newaxis].astype(bool))
    for corners in polygons:
        cv2.polylines(canvas, [_whole_pixels(corners)], isClosed=True, color=GREY, thickness=1)


def _draw_caption(
    canvas: Pixels, caption: str, points: Points, colour: Colour, text_size: int
) -> None:
    """Draw a caption at the highest of some points `(K, 2)`, moved into the image if needed."""
    x, y = min(_whole_pixels(points).tolist(), key=itemgetter(1))
    width, height = label_size(caption, text_size)
    left = max(0, min(x, canvas.shape[1] - width))
    top = max(0, min(y, canvas.shape[0] - height))
    draw_label(canvas, caption, (left, top), colour, text_size)


def _whole_pixels(points: Vertices) -> npt.NDArray[np.int32]:
    """Round points `(K, 2)` to whole pixels, no farther outside than OpenCV can draw to."""
    return np.clip(np.rint(points), -FARTHEST, FARTHEST).astype(np.int32)


def draw_labels(
    canvas: Pixels, labels: Sequence[Label], visible: Boxes, text_size: int, line_width: int
) -> None:
    """Draw the labels of boxes where they cover neither each other nor much of any box.

    Where many labels have no room, their text is smaller. A label that has no room even then is
    left out, and only the colour of its box shows the class. A corner of the image then says how
    many labels are left out.

    Args:
        canvas: `(H, W, 3)`, which is drawn on.
        labels: The most important first, which chooses its position first.
        visible: `(N, 4)`, the boxes that labels may cover only in part.
        text_size: Height of the text in pixels, unless it is smaller for want of room.
        line_width: Width in pixels of the lines of boxes, outside of which labels begin.
    """
    # The outer edges of a box's line, seen from its corners x1, y1, x2, y2.
    outer_edges = np.array([0, 0, line_width, line_width], np.float32) - line_width // 2
    outlines = [np.rint(label.box) + outer_edges for label in labels]
    height, width = canvas.shape[:2]
    placed = _place_at_largest_size((width, height), labels, outlines, visible, text_size)
    omitted_count = 0
    for number, label in enumerate(labels):
        corner = placed.corners[number]
        if corner is None:  # It has no room unless it covers more of the boxes.
            corner = placed.layout.place(outlines[number], placed.extents[number], COVER_MORE)
        if corner is None:
            omitted_count += 1
        else:
            draw_label(canvas, label.text, corner, label.colour, placed.text_size)
    if omitted_count:
        _draw_omitted_count(canvas, placed, omitted_count)


def _draw_omitted_count(canvas: Pixels, placed: "_PlacedLabels", omitted_count: int) -> None:
    """Say in a corner of an image how many labels had no room, such as `+7 labels`.

    It covers no label, and little of any box if a corner has room for that. In an image without
    any free corner it is left out.
    """
    text = f"+{omitted_count} labels"
    if omitted_count == 1:
        text = "+1 label"
    height, width = canvas.shape[:2]
    whole_image = np.array([0, 0, width, height], np.float32)
    extent = label_size(text, placed.text_size)
    corner = None
    for cover in (COVER, COVER_MORE, 1.0):
        if corner is None:
            corner = placed.layout.place(whole_image, extent, cover)
    if corner is not None:
        draw_label(canvas, text, corner, BLACK, placed.text_size)


class _PlacedLabels(NamedTuple):
    """Where the labels of an image are, in a text size that leaves enough of them room."""

    text_size: int
    layout: "LabelLayout"
    extents: list[tuple[int, int]]  # width and height of each label
    corners: list[Corner | None]  # the left top corner of each label; None if it has no room


def _place_at_largest_size(
    image: tuple[int, int],
    labels: Sequence[Label],
    outlines: Sequence[Boxes],
    visible: Boxes,
    text_size: int,
) -> _PlacedLabels:
    """Place labels at the largest of the TEXT_SCALES at which not too many of them have no room.

    Args:
        image: Width and height of the image.
        labels: The most important first.
        outlines: `(4,)` each, the boxes of the labels with their lines.
        visible: `(N, 4)`, the boxes that labels may cover only in part.
        text_size: The usual height of the text in pixels.
    """
    min_size = min(MIN_TEXT, text_size)
    sizes = [max(min_size, round(text_size * scale)) for scale in TEXT_SCALES]
    for size in sizes:
        layout = LabelLayout(image, visible, gap=max(1, size // 8))
        extents = [label_size(label.text, size) for label in labels]
        max_unplaced: float = len(labels)
        if size > sizes[-1]:  # there is a smaller size to try
            max_unplaced = MAX_UNPLACED * len(labels)
        corners = _place_labels(layout, outlines, extents, max_unplaced)
        if corners.count(None) <= max_unplaced:
            break
    return _PlacedLabels(size, layout, extents, corners)


def _place_labels(
    layout: "LabelLayout",
    outlines: Sequence[Boxes],
    extents: Sequence[tuple[int, int]],
    max_unplaced: float,
) -> list[Corner | None]:
    """Find a position for each label, unless too many have no room.

    Args:
        layout: Which positions are free; it notes the labels that are placed.
        outlines: `(4,)` each, the boxes with their lines, the most important first.
        extents: Width and height of each label in pixels.
        max_unplaced: How many labels may have no room; with one more, the search ends.

    Returns:
        The left top corner of each label, or None for one without room. The list is shorter if the
        search ended.
    """
    corners: list[Corner | None] = []
    unplaced_count = 0
    for outline, extent in zip(outlines, extents, strict=True):
        corner = layout.place(outline, extent, COVER)
        corners.append(corner)
        if corner is None:
            unplaced_count += 1
        if unplaced_count > max_unplaced:
            break
    return corners


def draw_label(canvas: Pixels, text: str, corner: Corner, colour: Colour, size: int) -> None:
    """Draw text of a size in pixels on a filled rectangle with this left top corner."""
    left, top = corner
    width, height = label_size(text, size)
    cv2.rectangle(canvas, corner, (left + width - 1, top + height - 1), colour, cv2.FILLED)
    baseline = (left + _padding(size), top + round(size * 0.95))
    cv2.putText(canvas, escape_unprintable(text), baseline, ink(colour), _font(), size, SEMIBOLD)


def ink(colour: Colour) -> Colour:
    """Return the colour for text on a background: white on dark and strong colours, else black.

    The contrast of white is computed as WCAG 2 defines it, from the relative luminance.
    """
    blue, green, red = colour
    luminance = 0.0722 * _linear(blue) + 0.7152 * _linear(green) + 0.2126 * _linear(red)
    if 1.05 / (luminance + 0.05) >= WHITE_CONTRAST:
        return WHITE
    return BLACK


def _linear(value: int) -> float:
    """Return the light intensity, from 0 to 1, of an sRGB channel's value, from 0 to 255."""
    fraction = value / 255
    if fraction <= 0.04045:
        return fraction / 12.92
    linear: float = ((fraction + 0.055) / 1.055) ** 2.4
    return linear


def _padding(size: int) -> int:
    """Return the room in pixels to the left and the right of a label's text of a size."""
    return max(2, size // 4)


@lru_cache(maxsize=4096)
def label_size(text: str, size: int) -> tuple[int, int]:
    """Measure the width and height in pixels of a label with a text of a size in pixels.

    Results are kept, as measuring takes ten times as long as drawing.
    """
    _, _, width, _ = cv2.getTextSize(
        (0, 0), escape_unprintable(text), (0, 0), _font(), size, SEMIBOLD
    )
    return width + 2 * _padding(size), round(size * 1.3)


def _font() -> cv2.FontFace:
    return cv2.FontFace("sans")  # built into OpenCV; has Unicode, unlike the Hershey fonts


# Where a label begins along one axis: the edge of the box that it is beside (0 for left or top, 1
# for right or bottom), and its shift from there, in widths or heights of the label.
BEFORE = (0, -1)  # outside, it ends where the box begins
FIRST = (0, 0)  # inside, at the beginning of the box
LAST = (1, -1)  # inside, at the end of the box
AFTER = (1, 0)  # outside, it begins where the box ends
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
)  # (P, 2, 2): of each position, edge and shift along x, and the same along y


class LabelLayout:
    """The labels placed on an image so far; no label leaves it, covers another, or hides a box."""

    def __init__(self, image: tuple[int, int], visible: Boxes, gap: int) -> None:
        """Begin without labels.

        Args:
            image: Width and height of the image.
            visible: `(N, 4)`, x1, y1, x2, y2 of the boxes of which labels may cover only a share.
            gap: The least distance between labels, in pixels.
        """
        width, height = image
        self._image_size = np.array([width, height], np.float32)
        limits = np.array([width, height, width, height], np.float32)  # of x1, y1, x2, y2
        self._visible = np.clip(visible, 0, limits)
        self._visible_areas = area(self._visible)
        # The area of each visible box that labels cover so far.
        self._covered_areas = np.zeros(len(visible), np.float32)
        self._gap = np.array([-gap, -gap, gap, gap], np.float32)  # to enlarge a label on all sides
        self.taken: Boxes = np.empty((0, 4), np.float32)  # the labels so far, with their gaps

    def place(self, box: Boxes, size: tuple[int, int], cover: float) -> Corner | None:
        """Place a label at the first of POSITIONS beside a box where there is room for it.

        Args:
            box: `(4,)`, the box, to whose edges the label is placed.
            size: Width and height of the label.
            cover: The share of each visible box that all labels together may cover, from 0 to 1.

        Returns:
            The left top corner of the label; None if no position has room for it.
        """
        label_size = np.array(size, np.float32)
        if (label_size > self._image_size).any():
            return None
        candidates = self._candidates(box, label_size)  # (P, 4), the label at each of POSITIONS
        # What does not touch the rectangle around all candidates cannot be covered by any of them.
        enclosing_box = np.hstack([candidates[:, :2].min(axis=0), candidates[:, 2:].max(axis=0)])
        near = _touching(self._visible, enclosing_box)  # (M,), indices of the visible boxes

        # The area of each box near by that labels cover, if the label is placed at each candidate.
        newly_covered = area(common(candidates[:, np.newaxis], self._visible[near]))
        covered_areas = self._covered_areas[near] + newly_covered  # (P, M)
        allowed_areas = cover * self._visible_areas[near]  # (M,)
        boxes_stay_visible = (covered_areas <= allowed_areas).all(axis=1)  # (P,)
        is_free = boxes_stay_visible & ~self._cover_labels(candidates, enclosing_box)  # (P,)
        if not is_free.any():
            return None

        position = is_free.argmax()  # the first that is true
        self._covered_areas[near] = covered_areas[position]
        rectangle = candidates[position]
        self.taken = np.vstack([self.taken, rectangle + self._gap])
        left, top, _, _ = rectangle
        return int(left), int(top)

    def _cover_labels(self, candidates: Boxes, enclosing_box: Boxes) -> npt.NDArray[np.bool_]:
        """Tell which rectangles `(P, 4)` in a box `(4,)` cover a part of a label placed before."""
        near_labels = self.taken[_touching(self.taken, enclosing_box)]
        covered_areas = area(common(candidates[:, np.newaxis], near_labels))  # (P, L)
        return np.asarray((covered_areas > 0).any(axis=1))

    def _candidates(self, box: Boxes, label_size: Boxes) -> Boxes:
        """Return the rectangle of a label at each of POSITIONS, moved into the image if needed.

        A position names an edge of the box along each axis, and by how many widths or heights of
        itself the label is moved from there.

        Args:
            box: `(4,)`.
            label_size: `(2,)`, width and height of the label.

        Returns:
            `(P, 4)`, in whole pixels.
        """
        edges = POSITIONS[..., 0].astype(int)  # (P, 2): 0 for left or top, 1 for right or bottom
        shifts = POSITIONS[..., 1]  # (P, 2)
        left, top, right, bottom = box
        edge_x = np.array([left, right])[edges[:, 0]]
        edge_y = np.array([top, bottom])[edges[:, 1]]
        edge_points = np.stack([edge_x, edge_y], axis=1)
        label_corners = np.rint(edge_points + shifts * label_size)
        last_corner = self._image_size - label_size  # at which the label is still in the image
        label_corners = np.clip(label_corners, 0, last_corner)
        return np.hstack([label_corners, label_corners + label_size])


def _touching(rectangles: Boxes, box: Boxes) -> npt.NDArray[np.intp]:
    """Return the indices of the rectangles `(N, 4)` that touch or overlap a box `(4,)`."""
    begins_before_end = rectangles[:, :2] <= box[2:]  # along x and along y
    ends_after_begin = rectangles[:, 2:] >= box[:2]
    return np.flatnonzero((begins_before_end & ends_after_begin).all(axis=1))
