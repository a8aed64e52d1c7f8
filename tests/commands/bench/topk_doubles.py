"""PyTorch and CuPy made of NumPy: the parts of them that the comparison calls."""

import types

import numpy as np


class Tensor(np.ndarray):
    """An array that answers to PyTorch's names."""

    place = "cpu"

    def to(self, place):
        moved = self.copy().view(Tensor)
        moved.place = place
        return moved

    def amax(self, dim):
        return self.max(axis=dim)

    def cpu(self):
        return self

    def numpy(self):
        return np.asarray(self)


def torch(*, gpu=False, wrong=False):
    """A module; `wrong` finds the smallest instead of the largest."""
    module = types.ModuleType("torch")
    module.from_numpy = lambda array: array.view(Tensor)
    module.cuda = types.SimpleNamespace(is_available=lambda: gpu)

    def topk(values, k):
        order = np.argsort(values if wrong else -values, kind="stable")[:k]
        return values[order], order.view(Tensor)

    module.topk = topk
    return module


class CuPy(types.ModuleType):
    """NumPy by another name, which notes the GPUs that it is told to use."""

    def __init__(self):
        super().__init__("cupy")
        self.used = []
        device = lambda number: types.SimpleNamespace(use=lambda: self.used.append(number))  # noqa: E731
        self.cuda = types.SimpleNamespace(Device=device)
        self.asarray, self.asnumpy = np.array, np.asarray
