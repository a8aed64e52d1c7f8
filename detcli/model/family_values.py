"""What several families of detectors share, see `detcli.model.families`."""

from dataclasses import replace

from detcli.model.contract import Interpolation, Preprocessing, Resize
from detcli.model.heads import Anchors, Centres, HeadPart, PartWidths

# How images are prepared, see `Preprocessing`: what several families share.
LETTERBOX = Preprocessing()
STRETCH = Preprocessing(resize=Resize.STRETCH, interpolation=Interpolation.BILINEAR)
# Stretched, too, and normalised by the mean and standard deviation of the images of ImageNet.
STRETCH_BY_IMAGENET = replace(STRETCH, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
BLACK_PADDING = Preprocessing(pad=0)  # a letterbox


def part_widths(**widths: int) -> PartWidths:
    """Return the parts of a grid head in their order, with the number of channels of each.

    Args:
        **widths: The numbers, by the values of `HeadPart`; 0 where the file says it.
    """
    return tuple((HeadPart(part), width) for part, width in widths.items())


def square_anchors(*scales: tuple[float, ...]) -> tuple[Anchors, ...]:
    """Return the square anchors of a cell of each scale: boxes by which its boxes are decoded.

    Args:
        *scales: For each scale, the lengths of the anchors' sides, in pixels.
    """
    anchors = []
    for side_lengths in scales:
        anchors.append(tuple((length, length) for length in side_lengths))
    return tuple(anchors)


def dense_centres(*counts: int) -> Centres:
    """Return the centres of a cell's anchors, where small anchors lie closer together.

    The anchors of one size lie in a square of n rows and n columns. A 2 stands for four anchors, at
    0 and 0.5 of the cell along x and along y: (0, 0), (0.5, 0), (0, 0.5), (0.5, 0.5). A single
    anchor is an exception: it lies in the middle of the cell, not at its corner.

    Args:
        *counts: The number n for each size of anchors.

    Returns:
        x and y of each centre, as fractions of the cell: all of the first size, row by row, then
        those of the next size.
    """
    centres: list[tuple[float, float]] = []
    for count in counts:
        if count == 1:
            centres.append((0.5, 0.5))
            continue
        for row in range(count):
            for column in range(count):
                x = column / count
                y = row / count
                centres.append((x, y))
    return tuple(centres)
