"""Layers of detectors whose boxes lie in cells, and what their numbers mean in plain NumPy."""

import numpy as np
from graph_builder import softmax

Size = tuple[int, int]
"""Height and width of an input."""

SIZE = (128, 192)


def layer(graph, channels, stride, final=""):
    """A map [B, channels, H / stride, W / stride], with as many cells as cover the input."""
    weights = graph.weights(channels, 3, 3, 3)
    bias = graph.random.standard_normal(channels).astype(np.float32)
    kernel = {"kernel_shape": [3, 3], "strides": [stride] * 2, "auto_pad": "SAME_UPPER"}
    convolution = graph("Conv", "images", weights, bias, **kernel)
    return graph(final, convolution) if final else convolution


def in_rows(graph, tensor, channels, *, batched=True):
    """A map as [B, N, channels] of all anchors, or [N, channels]."""
    last = graph("Transpose", tensor, perm=[0, 2, 3, 1])
    return graph("Reshape", last, [1, -1, channels] if batched else [-1, channels])


def rows_and_columns(size, stride):
    """Rows and columns of cells that cover an input; the last may extend beyond it."""
    height, width = size
    return -(-height // stride), -(-width // stride)


def cells(size, stride, anchors=1):
    """Column and row of each anchor's cell (N, 2)."""
    rows, columns = rows_and_columns(size, stride)
    y, x = np.mgrid[:rows, :columns]
    return np.repeat(np.stack([x, y], -1).reshape(-1, 2), anchors, axis=0).astype(np.float32)


def cells_of_scales(size, strides):
    """Column and row of the cells of all scales (N, 2), and the stride of each cell (N, 1)."""
    cells_by_scale = []
    strides_by_scale = []
    for stride in strides:
        cells_of_scale = cells(size, stride)
        cells_by_scale.append(cells_of_scale)
        strides_by_scale.append(np.full((len(cells_of_scale), 1), stride))
    return np.concatenate(cells_by_scale), np.concatenate(strides_by_scale)


def listed(maps, width):
    """The numbers of a map [channels, H, W] as (N, width), anchor by anchor of each cell."""
    return maps.transpose(1, 2, 0).reshape(-1, width)


def row_per_cell(maps):
    """The numbers of a map [channels, H, W] as (H * W, channels)."""
    return listed(maps, len(maps))


def joined(pairs):
    """Concatenate the boxes and the scores of all scales, given as a pair for each scale."""
    boxes = []
    scores = []
    for boxes_of_scale, scores_of_scale in pairs:
        boxes.append(boxes_of_scale)
        scores.append(scores_of_scale)
    return np.concatenate(boxes), np.concatenate(scores)


def around(points, sides):
    """x1, y1, x2, y2 from the distances to left, top, right and bottom."""
    return np.concatenate([points - sides[:, :2], points + sides[:, 2:]], 1)


def mean_of_bins(numbers, bins):
    """Distances (N, 4): the expectation of a distribution over `bins` bins each."""
    return (softmax(numbers.reshape(-1, 4, bins)) * np.arange(bins)).sum(-1)
