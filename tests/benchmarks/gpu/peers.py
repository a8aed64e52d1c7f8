"""PyTorch on the stream of our GPU; what goes wrong with peers."""

import contextlib
import functools
import importlib

import numpy as np


class MissingError(Exception):
    """A peer is unavailable; the message says why."""


class DisagreementError(Exception):
    """An answer is wrong; the message says how."""


def import_optional(package, name):
    """Import a peer's package, or raise MissingError."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingError(f"{name} is not installed") from error


def on_host(gpu) -> bool:
    """Whether the driver is that of the tests, whose memory is the host's."""
    return gpu.name == "CPU in disguise"


class Torch:
    """PyTorch on our GPU and our stream, or on the CPU beside the tests' driver."""

    def __init__(self, gpu):
        self.torch = torch = import_optional("torch", "PyTorch")
        self.device = "cpu"
        if not on_host(gpu):
            if not torch.cuda.is_available():
                raise MissingError("PyTorch does not find the GPU")
            self.device = f"cuda:{gpu.ordinal}"
            self._stream = torch.cuda.ExternalStream(gpu.stream, device=self.device)

    def upload(self, array):
        """A copy of a NumPy array on the device."""
        tensor = self.torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
        if self.device != "cpu":
            self.torch.cuda.synchronize(self.device)
        return tensor

    def upload_all(self, arrays):
        """A copy of each of some NumPy arrays on the device."""
        return [self.upload(array) for array in arrays]

    def stream(self):
        """A context in which everything is enqueued on our stream."""
        if self.device == "cpu":
            return contextlib.nullcontext()
        return self.torch.cuda.stream(self._stream)

    def eager(self, function, tensors):
        """A function of a tensor's number that calls `function` on the tensor."""

        def enqueue(number):
            with self.stream(), self.torch.inference_mode():
                return function(tensors[number])

        return enqueue

    def captured(self, function, tensors):
        """The same as replays of CUDA graphs, one for each tensor."""
        if self.device == "cpu":
            raise MissingError("a CUDA graph needs a GPU")
        replays = [self._capture(function, tensor) for tensor in tensors]

        def enqueue(number):
            graph, result = replays[number]
            with self.stream():
                graph.replay()
            return result

        return enqueue

    def _capture(self, function, tensor):
        cuda = self.torch.cuda
        side = cuda.Stream(self.device)
        with cuda.stream(side), self.torch.inference_mode():
            for _ in range(3):
                function(tensor)
        side.synchronize()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, stream=side), self.torch.inference_mode():
            result = function(tensor)
        side.synchronize()
        return graph, result

    def wait(self):
        """Wait until everything on our stream is done."""
        if self.device != "cpu":
            self._stream.synchronize()

    def to_host(self, tensor):
        """A NumPy array of a tensor, once the work is done."""
        with self.stream():
            return tensor.cpu().numpy()


torch_on = functools.lru_cache(maxsize=1)(Torch)


def v10_postprocess(torch, heads, keep):
    """What the YOLOv10 authors do behind the network, as they describe it.

    Args:
        torch: The module.
        heads: Tensor `(B, N, 4 + C)`, mostly a view of `(B, 4 + C, N)`.
        keep: K.

    Returns:
        Tensor `(B, K, 6)`: x1, y1, x2, y2, score, label.
    """
    boxes, scores = heads[..., :4], heads[..., 4:]
    classes = scores.shape[-1]
    keep = min(keep, scores.shape[1])
    _, anchors = torch.topk(scores.amax(dim=-1), keep, dim=-1)
    anchors = anchors.unsqueeze(-1)
    boxes = torch.gather(boxes, 1, anchors.expand(-1, -1, 4))
    scores = torch.gather(scores, 1, anchors.expand(-1, -1, classes))
    best, place = torch.topk(scores.flatten(1), keep, dim=-1)
    labels = (place % classes).unsqueeze(-1).to(boxes.dtype)
    boxes = torch.gather(boxes, 1, (place // classes).unsqueeze(-1).expand(-1, -1, 4))
    return torch.cat([boxes, best.unsqueeze(-1), labels], dim=-1)
