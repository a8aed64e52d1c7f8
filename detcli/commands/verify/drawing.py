"""Draws the detections of both sides on the pictures that differ most."""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import numpy as np

from detcli.commands.shared.comparison import Comparison, PictureReport
from detcli.geometry import Image, Picture
from detcli.opencv import cv2
from detcli.record import Origin, Record
from detcli.sink.draw import WHITE, Colour, Label, draw_box, draw_label, draw_labels, label_height
from detcli.sink.folder import OutputFolder
from detcli.sink.image import encode

# BGR; Okabe and Ito's vermillion and blue, which every kind of colour vision tells apart.
LEFT: Colour = (0, 94, 213)
RIGHT: Colour = (178, 114, 0)

WORST = 10
"""Number of pictures that are drawn, and of rows in the table."""


@dataclass(frozen=True, eq=False, slots=True)
class SeenPicture:
    """A picture that both sides have seen.

    Attributes:
        origin: Where it comes from.
        size: Its height and width.
        load: Reads it; None where it is not found any more.
        warnings: What is wrong with it.
    """

    origin: Origin
    size: tuple[int, int]
    load: Callable[[], Picture | None]
    warnings: Sequence[str] = ()


@dataclass(frozen=True, eq=False, slots=True)
class ComparedPicture:
    """A picture that was compared, and its place among the pictures."""

    index: int
    seen: SeenPicture
    comparison: Comparison
    report: PictureReport


class WorstPictures:
    """Keeps the WORST pictures only, so that memory stays bounded."""

    def __init__(self) -> None:
        self._kept: list[tuple[tuple[int, float], ComparedPicture]] = []

    def add(self, severity: tuple[int, float], shown: ComparedPicture) -> None:
        """Keep a picture if it is among the worst and differs at all."""
        if severity > (0, 0.0):
            entries = [*self._kept, (severity, shown)]
            self._kept = heapq.nlargest(WORST, entries, key=itemgetter(0))  # of equals the first

    def __iter__(self) -> Iterator[ComparedPicture]:
        """Yield the pictures, the worst first."""
        for _, shown in self._kept:
            yield shown

    def save(self, folder: OutputFolder, titles: tuple[str, str]) -> dict[int, Path]:
        """Draw the pictures into a folder; returns their paths by index.

        Raises:
            OutputError: A picture cannot be written.
        """
        written = {}
        for shown in self:
            if (picture := shown.seen.load()) is None:
                continue
            index, origin = shown.index, shown.seen.origin
            record = Record(origin, index=index, model="", device="", picture=picture)
            data, suffix = encode(draw(picture.pixels, shown.comparison, titles), record)
            written[index] = folder.file_of(record, suffix)
            folder.write(record, written[index], data)
        return written


def draw(pixels: Image, compared: Comparison, titles: tuple[str, str]) -> Image:
    """Draw the left boxes with wide lines and the right ones with narrow lines on top.

    Boxes that agree coincide, boxes that disagree have a label, and a legend above the picture
    names both sides.

    Args:
        pixels: The picture, `(H, W, 3)` uint8 BGR, upright.
        compared: Its boxes on both sides.
        titles: Of both sides.
    """
    canvas = pixels.copy()
    extent = (canvas.shape[0] + canvas.shape[1]) / 2
    line, text_size = max(2, round(extent / 450)), max(10, round(extent / 45))
    pairs = (*compared.pairs, *compared.over)
    lefts = {*compared.missing, *(pair.left for pair in pairs)}
    rights = {*compared.extra, *(pair.right for pair in pairs)}
    wide = 2 * line + 1
    for found, rows, colour, width in (
        (compared.left, lefts, LEFT, wide),
        (compared.right, rights, RIGHT, line),
    ):
        for row in sorted(rows, reverse=True):
            draw_box(canvas, found.xyxy[row], colour, width)
    drawn = compared.left.xyxy[sorted(lefts)], compared.right.xyxy[sorted(rights)]
    draw_labels(canvas, _labels(compared), np.vstack(drawn), text_size, wide)
    return np.vstack([_legend(canvas.shape[1], text_size, titles), canvas])


def _labels(compared: Comparison) -> list[Label]:
    """The labels of the boxes that disagree."""
    left, right = compared.left, compared.right
    labels = []
    for pair in compared.over:
        name = left.names[left.class_id[pair.left]]
        scores = f"{left.score[pair.left]:.2f} / {right.score[pair.right]:.2f}"
        text = f"{name} {scores}, {pair.corner_difference:.1f} px"
        labels.append(Label(text, left.xyxy[pair.left], LEFT))
    for found, rows, colour in ((left, compared.missing, LEFT), (right, compared.extra, RIGHT)):
        for row in rows:
            name = found.names[found.class_id[row]]
            labels.append(Label(f"only {name} {found.score[row]:.2f}", found.xyxy[row], colour))
    return labels


def _legend(width: int, text_size: int, titles: tuple[str, str]) -> Image:
    """The names of both sides in their colours, one above the other: `(H, W, 3)`."""
    row = label_height(text_size)
    strip = np.full((2 * row, width, 3), WHITE, np.uint8)
    for number, (title, colour) in enumerate(zip(titles, (LEFT, RIGHT), strict=True)):
        cv2.rectangle(strip, (0, number * row), (width, (number + 1) * row), colour, cv2.FILLED)
        draw_label(strip, title, (0, number * row), colour, text_size)
    return strip
