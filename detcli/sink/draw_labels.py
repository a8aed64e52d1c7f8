"""Draws labels beside their boxes, in a text size that leaves enough of them room."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from detcli.core.opencv import cv2
from detcli.core.text import escape_unprintable
from detcli.data.geometry import Boxes, Pixels
from detcli.sink.colours import BLACK, Colour, ink
from detcli.sink.label_layout import Corner, LabelLayout

SEMIBOLD = 600  # font weight, 400 is regular
MIN_TEXT = 10  # pixels; smaller text cannot be read
# text sizes that are tried for all labels, as shares of the usual one
TEXT_SCALES = (1.0, 0.8, 0.65)
MAX_UNPLACED = 0.1  # share of the labels that may have no room before a smaller size is tried
USUAL_COVERAGE = 0.15  # share of a box that all labels together may cover
RELAXED_COVERAGE = 0.3  # the same for a label that has no room otherwise


class Label(NamedTuple):
    """Text that belongs to a box."""

    text: str
    box: Boxes  # (4,)
    colour: Colour


def draw_labels(
    canvas: Pixels, labels: Sequence[Label], visible: Boxes, text_size: int, line_width: int
) -> None:
    """Draw the labels of boxes where they cover neither each other nor much of any box.

    If many labels have no room, all of them get smaller text. A label that still has none may cover
    more of the boxes. If that does not help either, it is left out, and only the colour of its box
    shows the class. A corner of the image then says how many labels are left out.

    Args:
        canvas: `(H, W, 3)`, which is drawn on.
        labels: The most important first, which chooses its position first.
        visible: `(N, 4)`, the boxes that labels may cover only in part.
        text_size: Height of the text in pixels, unless lack of room makes it smaller.
        line_width: Width in pixels of the lines of boxes, outside of which labels begin.
    """
    # A line lies on the edge of its box, with half of its width on each side. So boxes with their
    # lines, `outlines`, reach farther out.
    outer_width = line_width // 2
    inner_width = line_width - outer_width
    outward = np.array([-outer_width, -outer_width, inner_width, inner_width], np.float32)
    outlines = [np.rint(label.box) + outward for label in labels]

    height, width = canvas.shape[:2]
    placed = _place_at_largest_size((width, height), labels, outlines, visible, text_size)

    omitted_count = 0
    for number, label in enumerate(labels):
        corner = placed.corners[number]
        if corner is None:
            label_extent = placed.extents[number]
            corner = placed.layout.place(outlines[number], label_extent, RELAXED_COVERAGE)
        if corner is None:
            omitted_count += 1
        else:
            draw_label(canvas, label.text, corner, label.colour, placed.text_size)
    if omitted_count:
        _draw_omitted_count(canvas, placed, omitted_count)


def _draw_omitted_count(canvas: Pixels, placed: "_PlacedLabels", omitted_count: int) -> None:
    """Write in a corner of an image how many labels had no room, such as `+7 labels`.

    It covers no label, and little of any box if a corner has room for that. In an image without
    any free corner it is left out.

    Args:
        canvas: `(H, W, 3)`, which is drawn on.
        placed: The labels that had room, and the size of their text.
        omitted_count: How many had none.
    """
    text = f"+{omitted_count} labels"
    if omitted_count == 1:
        text = "+1 label"
    extent = label_size(text, placed.text_size)
    height, width = canvas.shape[:2]
    whole_image = np.array([0, 0, width, height], np.float32)
    for coverage in (USUAL_COVERAGE, RELAXED_COVERAGE, 1.0):
        corner = placed.layout.place(whole_image, extent, coverage)
        if corner is not None:
            draw_label(canvas, text, corner, BLACK, placed.text_size)
            return


class _PlacedLabels(NamedTuple):
    """Where the labels of an image are, in a text size that leaves enough of them room."""

    text_size: int
    layout: LabelLayout
    extents: list[tuple[int, int]]  # width and height of each label
    corners: list[Corner | None]  # the top left corner of each label; None if it has no room


def _place_at_largest_size(
    image: tuple[int, int],
    labels: Sequence[Label],
    outlines: Sequence[Boxes],
    visible: Boxes,
    text_size: int,
) -> _PlacedLabels:
    """Find positions for labels, in the largest text size that leaves enough of them room.

    Sizes are tried from the largest down, until at most a tenth of the labels have no room. The
    smallest size is used however many labels have no room then.

    Args:
        image: Width and height of the image.
        labels: The most important first.
        outlines: `(4,)` each, the boxes of the labels with their lines.
        visible: `(N, 4)`, the boxes that labels may cover only in part.
        text_size: The usual height of the text in pixels.
    """
    min_size = min(MIN_TEXT, text_size)
    sizes = [max(min_size, round(text_size * scale)) for scale in TEXT_SCALES]
    smallest_size = sizes[-1]
    max_unplaced = int(MAX_UNPLACED * len(labels))
    for size in sizes:
        if size == smallest_size:
            max_unplaced = len(labels)
        layout = LabelLayout(image, visible, gap=max(1, size // 8))
        extents = [label_size(label.text, size) for label in labels]
        corners = _place_labels(layout, outlines, extents, max_unplaced)

        # With one more unplaced, `_place_labels` has stopped early, and `corners` is incomplete.
        unplaced_count = corners.count(None)
        if unplaced_count <= max_unplaced:
            break
    return _PlacedLabels(size, layout, extents, corners)  # of the size that was tried last


def _place_labels(
    layout: LabelLayout,
    outlines: Sequence[Boxes],
    extents: Sequence[tuple[int, int]],
    max_unplaced: int,
) -> list[Corner | None]:
    """Find a position for each label, until too many have no room.

    Args:
        layout: Which positions are free; it notes the labels that are placed.
        outlines: `(4,)` each, the boxes with their lines, the most important first.
        extents: Width and height of each label in pixels.
        max_unplaced: How many labels may have no room; with one more, the search ends.

    Returns:
        The top left corner of each label, or None for one without room. The list is shorter if the
        search ended.
    """
    corners: list[Corner | None] = []
    unplaced_count = 0
    for outline, extent in zip(outlines, extents, strict=True):
        corner = layout.place(outline, extent, USUAL_COVERAGE)
        corners.append(corner)
        if corner is None:
            unplaced_count += 1
        if unplaced_count > max_unplaced:
            break
    return corners


def draw_label(canvas: Pixels, text: str, corner: Corner, colour: Colour, size: int) -> None:
    """Draw text, `size` pixels high, on a filled rectangle with this top left corner."""
    left, top = corner
    width, height = label_size(text, size)
    cv2.rectangle(canvas, corner, (left + width - 1, top + height - 1), colour, cv2.FILLED)
    baseline = (left + _padding(size), top + round(size * 0.95))
    cv2.putText(canvas, escape_unprintable(text), baseline, ink(colour), _font(), size, SEMIBOLD)


def _padding(size: int) -> int:
    """Return the room in pixels to the left and the right of a label's text of this size."""
    return max(2, size // 4)


@lru_cache(maxsize=4096)
def label_size(text: str, size: int) -> tuple[int, int]:
    """Measure the width and height in pixels of a label whose text is `size` pixels high.

    Results are kept, as measuring takes ten times as long as drawing.
    """
    _, _, width, _ = cv2.getTextSize(
        (0, 0), escape_unprintable(text), (0, 0), _font(), size, SEMIBOLD
    )
    return width + 2 * _padding(size), round(size * 1.3)


def _font() -> cv2.FontFace:
    return cv2.FontFace("sans")  # built into OpenCV; has Unicode, unlike the Hershey fonts
