"""PyTorch, on the CPU or a GPU; where it is installed."""

import importlib
from typing import Any

from detcli.backend.device import Device
from detcli.commands.bench.topk.cases import CONFIDENCE, Answer, Do, MissingError, Task


def open_torch(device: Device) -> tuple[Any, str]:
    """The module, and what it calls the device.

    Raises:
        MissingError: It is not installed, or does not find the GPU.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise MissingError("PyTorch is not installed") from error
    if device.is_gpu and not torch.cuda.is_available():
        raise MissingError("PyTorch does not find the GPU")
    return torch, str(device)


def torch_way(task: Task, device: Device) -> Do:
    """`torch.topk` once, or twice as the YOLOv10 authors do.

    Raises:
        MissingError: There is no PyTorch.
    """
    torch, place = open_torch(device)
    values = torch.from_numpy(task.values).to(place)
    if task.name == "top_k":
        return lambda: _to_host(torch.topk(values, min(task.k, task.n)))
    return lambda: _to_host(_select(torch, values, task.k))


def _select(torch: Any, head: Any, k: int) -> Any:  # noqa: ANN401 - PyTorch may not be there
    boxes, scores = head[:4], head[4:]
    classes, anchors = scores.shape
    _, best = torch.topk(scores.amax(dim=0), min(k, anchors))  # (K,)
    kept = scores[:, best].T.flatten()  # (K * C,)
    score, place = torch.topk(kept, min(k, len(kept)))
    above = score > CONFIDENCE
    score, place = score[above], place[above]
    return score, place % classes, boxes[:, best[place // classes]].T


def _to_host(parts: Any) -> Answer:  # noqa: ANN401
    return [part.cpu().numpy() for part in parts]
