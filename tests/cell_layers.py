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


def cells(size, stride, anchors=1):
    """Column and row of each anchor's cell (N, 2)."""
    rows, columns = (-(-side // stride) for side in size)
    y, x = np.mgrid[:rows, :columns]
    return np.repeat(np.stack([x, y], -1).reshape(-1, 2), anchors, axis=0).astype(np.float32)


def listed(maps, width):
    """The numbers of a map [channels, H, W] as (N, width), anchor by anchor of each cell."""
    return maps.transpose(1, 2, 0).reshape(-1, width)


def joined(pairs):
    """Boxes and scores of all scales."""
    return tuple(np.concatenate(parts) for parts in zip(*pairs, strict=True))


def around(points, sides):
    """x1, y1, x2, y2 from the distances to left, top, right and bottom."""
    return np.concatenate([points - sides[:, :2], points + sides[:, 2:]], 1)


def mean_of_bins(numbers, bins):
    """Distances (N, 4): the expectation of a distribution over so many bins each."""
    return (softmax(numbers.reshape(-1, 4, bins)) * np.arange(bins)).sum(-1)
