"""Draws detections on an image, with labels beside their boxes and over no other label."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from detcli.core import frozen
from detcli.core.opencv import cv2
from detcli.data.barcode import Barcode
from detcli.data.detections import Detections
from detcli.data.geometry import Boxes, Pixels, Points, Size, touching
from detcli.data.record import Overlay
from detcli.sink.colours import FIRST_ZONE_COLOUR, GREY, SHADES, Colour, colour_of, shaded
from detcli.sink.draw_labels import MIN_TEXT, Label, draw_label, draw_labels, label_size

Vertices = npt.NDArray[np.floating[Any]]  # (K, 2), of a path

CASING = 3  # a line lies between two dark ones of a third of its width and brightness
MIN_DISTANCE = 30  # in CIE L*a*b*, with chroma halved; a line on nearer colours gets a casing
# the colour beside a thin line is averaged over these, so that casings are continuous
EDGE_PIXELS = 15
FARTHEST = 32_000  # OpenCV draws lines up to this many pixels from the corner
SIDE_PER_LINE_WIDTH = 280  # an image 560 pixels wide and high has lines of 2 pixels,
SIDE_PER_TEXT_SIZE = 40  # and text of 14 pixels
MAX_TEXT = 32  # characters of what a symbol says


@frozen
class Style:
    """How detections are drawn."""

    # width of a box's line in pixels; None to scale it with the image
    line_width: int | None = None
    # what labels say: name, score, both, or nothing
    label_parts: frozenset[str] = frozenset({"name", "score"})


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
        detections: The best first; their boxes may reach beyond the image.
        style: How boxes and labels look.
        overlay: Zones, lines and the traces of tracks, which are drawn beneath the boxes.
    """
    canvas = image.copy()
    height, width = image.shape[:2]
    detections = detections.within((height, width))
    mean_side = (height + width) / 2
    line_width = style.line_width or max(1, round(mean_side / SIDE_PER_LINE_WIDTH))
    text_size = max(MIN_TEXT, round(mean_side / SIDE_PER_TEXT_SIZE))
    colours = detection_colours(detections)

    draw_overlay(canvas, overlay, text_size, line_width)
    for track_number, colour in zip(_track_numbers(detections), colours, strict=True):
        if track_number in overlay.traces:
            draw_path(canvas, overlay.traces[track_number], colour, line_width)
    _draw_boxes(canvas, detections, colours, line_width)

    labels = _labels(detections, colours, style)
    draw_labels(canvas, labels, detections.xyxy, text_size, line_width)
    return canvas


def _draw_boxes(
    canvas: Pixels, detections: Detections, colours: Sequence[Colour], line_width: int
) -> None:
    """Draw the boxes of detections, the best last, and the outlines of barcodes in them.

    Args:
        canvas: `(H, W, 3)`, which is drawn on.
        detections: The best first.
        colours: The colour of each detection.
        line_width: Of boxes, in pixels; outlines of barcodes are half as wide.
    """
    barcodes = _barcodes(detections)
    outline_width = max(1, line_width // 2)
    for index in reversed(range(len(detections))):
        draw_box(canvas, detections.xyxy[index], colours[index], line_width)
        barcode = barcodes[index]
        if barcode is not None and len(barcode.corners) > 0:  # no corners if it was not located
            draw_path(canvas, barcode.corners, colours[index], outline_width, closed=True)


def _labels(detections: Detections, colours: Sequence[Colour], style: Style) -> list[Label]:
    """Return the labels of detections, the best first; none if the style shows no text."""
    track_numbers = _track_numbers(detections)
    barcodes = _barcodes(detections)
    labels = []
    for index, (box, score, _, name) in enumerate(detections):
        text = _label_text(name, score, track_numbers[index], barcodes[index], style)
        if text:
            labels.append(Label(text, box, colours[index]))
    return labels


def _track_numbers(detections: Detections) -> list[int]:
    """Return the id of each detection's track; -1 if it has none."""
    if detections.track_id is None:
        return [-1] * len(detections)
    track_numbers: list[int] = detections.track_id.tolist()
    return track_numbers


def detection_colours(detections: Detections) -> list[Colour]:
    """Choose the colour of each detection.

    It is that of its track in a video with tracking, and grey until the tracker is sure of the
    object; otherwise that of its class, in different shades where boxes of the class touch.
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
    """Choose the colour of each detection by its class, in different shades where boxes touch.

    So touching boxes of the same class can be counted. The best of them has the colour of the class
    itself. Each of the others has the shade that is rarest among the better ones that it touches.
    """
    shade_numbers = np.zeros(len(detections), int)  # of each detection; 0 is the colour itself
    colours = []
    for index, class_id in enumerate(detections.class_id.tolist()):
        better_of_class = np.flatnonzero(detections.class_id[:index] == class_id)
        touched = touching(detections.xyxy[better_of_class], detections.xyxy[index])
        neighbours = better_of_class[touched]

        uses_of_shade = np.bincount(shade_numbers[neighbours], minlength=len(SHADES))
        shade_number = int(uses_of_shade.argmin())  # the first of the rarest
        shade_numbers[index] = shade_number
        colours.append(shaded(colour_of(class_id), shade_number))
    return colours


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
        track_number: The id of the track; 0 or less if there is none.
        barcode: The barcode that was read in the box, whose text is appended.
        style: Whether the name and the score are part of labels; with neither, the text is empty.
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


class _Stroke(NamedTuple):
    """One of the strokes that a line is drawn with."""

    colour: Colour
    extra_width: int  # how many pixels wider than the line it is, on each side


def _casing_and_line(colour: Colour, line_width: int) -> tuple[_Stroke, _Stroke]:
    """Return the two strokes of a line: a wider dark one, its casing, and the line on top of it.

    The casing keeps the line visible on a background of the same colour.
    """
    blue, green, red = colour
    dark_colour = (blue // CASING, green // CASING, red // CASING)
    casing = _Stroke(dark_colour, max(1, line_width // CASING))
    return casing, _Stroke(colour, 0)


class _LineStarts(NamedTuple):
    """The first pixel across each of the four lines of a box: its leftmost, or its topmost."""

    left: int
    top: int
    right: int
    bottom: int


def draw_box(canvas: Pixels, box: Boxes, colour: Colour, line_width: int) -> None:
    """Draw the four lines of a box, each with a dark casing; all stay inside the image.

    A casing is a dark stripe on each side of a line, so that the line is seen on a background of
    its colour. But a line of one pixel would look dark between two dark stripes. So a thin line has
    a casing only where the image is too similar to its colour.

    Args:
        canvas: `(H, W, 3)`, which is drawn on.
        box: `(4,)`, x1, y1, x2 and y2, which may lie outside of the image.
        colour: BGR.
        line_width: In pixels.
    """
    height, width = canvas.shape[:2]
    line_starts = _line_starts(box, (height, width), line_width)
    casing, line = _casing_and_line(colour, line_width)
    if line_width == 1:
        # The box with its lines, and one pixel of casing around it, as a view of the canvas.
        rows = slice(max(0, line_starts.top - 1), line_starts.bottom + 2)
        columns = slice(max(0, line_starts.left - 1), line_starts.right + 2)
        box_with_casing = canvas[rows, columns]
        background = box_with_casing.copy()

        _draw_outline(canvas, line_starts, line_width, casing)
        _remove_needless_casing(box_with_casing, background, colour)
    else:
        _draw_outline(canvas, line_starts, line_width, casing)
    _draw_outline(canvas, line_starts, line_width, line)


def _line_starts(box: Boxes, image_size: Size, line_width: int) -> _LineStarts:
    """Compute the left or top pixel of each line of a box.

    A line is centred on its edge of the box, but is moved into the image where it would leave it.

    Args:
        box: `(4,)`, x1, y1, x2 and y2, which may lie outside of the image.
        image_size: Height and width of the image.
        line_width: In pixels.
    """
    height, width = image_size
    limits = np.array([width, height, width, height])  # of x1, y1, x2, y2
    # the last at which lines still lie in the image
    last_starts = np.maximum(0, limits - line_width)
    centred_starts = np.rint(box) - line_width // 2
    left, top, right, bottom = np.clip(centred_starts, 0, last_starts).astype(int).tolist()
    return _LineStarts(left, top, right, bottom)


def _draw_outline(canvas: Pixels, starts: _LineStarts, line_width: int, stroke: _Stroke) -> None:
    """Draw one stroke of the four lines of a box.

    The lines are filled as rectangles, since those of OpenCV are up to two pixels too wide.

    Args:
        canvas: `(H, W, 3)`, which is drawn on.
        starts: The left or top pixel of each line.
        line_width: In pixels, without the extra width of the stroke.
        stroke: The colour to draw with, and the extra width on each side of a line.
    """

    def pixels_across(line_start: int) -> slice:
        first = max(0, line_start - stroke.extra_width)
        return slice(first, line_start + line_width + stroke.extra_width)

    left = pixels_across(starts.left)
    top = pixels_across(starts.top)
    right = pixels_across(starts.right)
    bottom = pixels_across(starts.bottom)

    all_rows = slice(top.start, bottom.stop)
    all_columns = slice(left.start, right.stop)
    canvas[all_rows, left] = stroke.colour
    canvas[all_rows, right] = stroke.colour
    canvas[top, all_columns] = stroke.colour
    canvas[bottom, all_columns] = stroke.colour


def _remove_needless_casing(canvas: Pixels, background: Pixels, colour: Colour) -> None:
    """Undo the casing of a thin line where the image alone shows the colour of the line.

    Args:
        canvas: `(H, W, 3)`, the image around a box, on which its casing is drawn.
        background: `(H, W, 3)`, the same before the casing was drawn.
        colour: BGR, of the line.
    """
    # Averaged over some pixels, so that in a noisy image the casing is not a row of dots.
    average = cv2.blur(background, (EDGE_PIXELS, EDGE_PIXELS))
    background_lab = cv2.cvtColor(average.astype(np.float32) / 255, cv2.COLOR_BGR2Lab)
    line_pixel = np.array([[colour]], np.float32) / 255
    line_lab = cv2.cvtColor(line_pixel, cv2.COLOR_BGR2Lab)

    # Differences of hue are hard to see in thin lines, so a and b of L*a*b* count half.
    weights = np.array([1, 0.5, 0.5], np.float32)
    distances = np.linalg.norm((background_lab - line_lab) * weights, axis=-1)
    shows_line = distances >= MIN_DISTANCE
    canvas[shows_line] = background[shows_line]


def draw_path(
    canvas: Pixels, points: Vertices, colour: Colour, line_width: int, *, closed: bool = False
) -> None:
    """Draw a line from point to point `(K, 2)`, and back to the first one if it is closed."""
    vertices = _whole_pixels(points)
    for stroke in _casing_and_line(colour, line_width):
        stroke_width = line_width + 2 * stroke.extra_width
        cv2.polylines(canvas, [vertices], closed, stroke.colour, stroke_width)


def draw_overlay(canvas: Pixels, overlay: Overlay, text_size: int, line_width: int) -> None:
    """Draw zones and lines, each in a different colour and with a caption at its highest point.

    The polygons whose detections are ignored are dimmed first. Lines are drawn as arrows.

    Args:
        canvas: `(H, W, 3)`, which is drawn on.
        overlay: The zones, which are polygons; the lines, whose crossings are counted; and the
            polygons whose detections are ignored.
        text_size: Height of captions in pixels.
        line_width: In pixels.
    """
    if overlay.ignored:
        dim_polygons(canvas, overlay.ignored)

    for zone_number, (caption, corners) in enumerate(overlay.zones):
        colour = colour_of(FIRST_ZONE_COLOUR + zone_number)
        draw_path(canvas, corners, colour, line_width, closed=True)
        _draw_caption(canvas, caption, corners, colour, text_size)

    first_line_colour = FIRST_ZONE_COLOUR + len(overlay.zones)
    for line_number, (caption, ends) in enumerate(overlay.lines):
        colour = colour_of(first_line_colour + line_number)
        _draw_arrow(canvas, ends, colour, line_width)
        _draw_caption(canvas, caption, ends, colour, text_size)


def _draw_arrow(canvas: Pixels, ends: Points, colour: Colour, line_width: int) -> None:
    """Draw a line between two ends `(2, 2)` as an arrow, which is twice as wide as other lines.

    The arrow shows where left and right are: crossings to either side are counted separately.
    """
    start, end = _whole_pixels(ends).tolist()
    for stroke in _casing_and_line(colour, line_width):
        arrow_width = 2 * (line_width + stroke.extra_width)
        cv2.arrowedLine(canvas, start, end, stroke.colour, arrow_width, tipLength=0.03)


def dim_polygons(canvas: Pixels, polygons: Sequence[Points]) -> None:
    """Halve the brightness of an image in the given polygons, and give each a thin grey outline.

    Args:
        canvas: `(H, W, 3)`, which is drawn on.
        polygons: `(K, 2)` each, the corners. Where polygons overlap, the image is not dimmed twice.
            If the edges of a polygon cross, as in a pentagram, its middle is outside of it.
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
    """Draw a caption at the highest of the points `(K, 2)`, moved into the image if needed."""
    x, y = min(_whole_pixels(points).tolist(), key=itemgetter(1))
    width, height = label_size(caption, text_size)
    left = max(0, min(x, canvas.shape[1] - width))
    top = max(0, min(y, canvas.shape[0] - height))
    draw_label(canvas, caption, (left, top), colour, text_size)


def _whole_pixels(points: Vertices) -> npt.NDArray[np.int32]:
    """Round points `(K, 2)` to whole pixels, no farther outside than OpenCV can draw to."""
    return np.clip(np.rint(points), -FARTHEST, FARTHEST).astype(np.int32)
