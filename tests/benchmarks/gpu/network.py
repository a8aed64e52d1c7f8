"""From decoded pictures to boxes with a real model, beside the usual way around ONNX Runtime.

The usual way: letterbox with OpenCV on the host, run the session from and to host memory, and
post-process with PyTorch. Its session is ONNX Runtime's with the same provider and graph.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from benchmarks.gpu.letterbox import specified
from benchmarks.gpu.measure import MissingError, Plan, sample, summary
from benchmarks.gpu.peers import onnxruntime_with, torch_on, v10_postprocess
from detcli import Letterbox
from detcli.backend import DeviceOptions, open_backend
from detcli.backend.cpu import CpuBackend
from detcli.backend.postprocess import SelectionOptions
from detcli.errors import DetcliError
from detcli.model.contract import BoxFormat, Layout
from detcli.model.prepared import PreparedModel, prepare

LIMITS = SelectionOptions(0.25, 300, None, None)
BATCHES = (1, 8, 32)
STAGES = ("letterbox", "network", "selection")


def open_on_gpu(model: PreparedModel, *, cuda_graph: bool):
    """A backend on the first GPU.

    Raises:
        MissingError: It cannot run a network.
    """
    try:
        return open_backend("cuda:0", model, DeviceOptions(cuda_graph=cuda_graph))
    except DetcliError as error:
        raise MissingError(str(error)) from error


@dataclass
class Setting:
    """What is run, on what.

    Attributes:
        models: Model files, by what they are called in the table.
        images: Files, or folders of them.
        batches: How many pictures at a time.
        opener: Opens a backend.
        clock: Makes a clock for a GPU.
        provider: ONNX Runtime's, for the usual way.
    """

    models: dict[str, Path]
    images: list[Path]
    clock: Callable[[Any], Any]
    batches: tuple[int, ...] = BATCHES
    opener: Callable[..., Any] = open_on_gpu
    provider: str = "CUDAExecutionProvider"
    plan: Plan = field(default_factory=Plan)


@dataclass
class Run:
    """What one record needs."""

    gpu: Any
    clock: Any
    backend: Any
    model: PreparedModel
    images: list[Any]
    letterboxes: list[Letterbox]


def records(setting: Setting) -> Iterator[dict[str, Any]]:
    """One record for each model, batch, with and without CUDA graph."""
    if not setting.models:
        yield _nothing("a real model", "no model was given: MODEL=path/to/yolov10n.onnx")
        return
    try:
        pictures = read_pictures(setting.images)
    except MissingError as error:
        yield _nothing("a real model", str(error))
        return
    for (name, path), cuda_graph in itertools.product(setting.models.items(), (True, False)):
        case = f"{name}, {'with' if cuda_graph else 'without'} CUDA graph"
        try:
            model = prepare(path)
            backend = setting.opener(model, cuda_graph=cuda_graph)
        except (MissingError, DetcliError) as error:
            yield _nothing(case, str(error))
            continue
        gpu = backend._gpu  # noqa: SLF001
        clock, canvas = setting.clock(gpu), model.contract.canvas()
        for batch in setting.batches:
            images = list(itertools.islice(itertools.cycle(pictures), batch))
            letterboxes = [Letterbox.fit(image.shape[:2], canvas) for image in images]
            run = Run(gpu, clock, backend, model, images, letterboxes)
            yield _record(setting, run, f"batch {batch}, {case}")
        backend.close()


def read_pictures(paths: list[Path]) -> list[np.ndarray]:
    """All pictures in some files and folders, decoded.

    Raises:
        MissingError: There is none.
    """
    files = [
        file
        for path in paths
        for file in (sorted(path.iterdir()) if path.is_dir() else [path])
        if file.suffix.lower() in {".jpg", ".jpeg", ".png"}
    ]
    pictures = [picture for file in files if (picture := cv2.imread(str(file))) is not None]
    if not pictures:
        raise MissingError(f"no picture was found in {', '.join(map(str, paths))}")
    return pictures


def _nothing(case, reason):
    return {"case": case, "bytes": 0, "ways": [{"way": "detcli", "missing": reason}]}


def _record(setting, run, case):
    """Check and time our way and the usual one."""
    ways = {"detcli": _ours, "ONNX Runtime, PyTorch behind it": _usual}
    record = {"case": case, "bytes": 0, "batch": len(run.images), "ways": []}
    for name, way in ways.items():
        entry = {"way": name}
        try:
            entry |= way(setting, run)
        except MissingError as error:
            entry["missing"] = str(error)
        except Exception as error:  # noqa: BLE001 - the other cases are measured all the same
            entry["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        record["ways"].append(entry)
    return record


def _ours(setting, run):
    def enqueue():
        buffer = run.backend.infer(run.backend.prepare(run.images, run.letterboxes))
        return run.backend.select(buffer, run.letterboxes, LIMITS)

    def detect():
        return enqueue()()

    for _ in range(6):  # both slots of the ring, each captured and replayed
        found = detect()
    figures = {"agrees": agreement(found, run)}
    figures["host"] = sample(setting.plan, lambda _: _seconds(detect))
    figures["pictures_a_second"] = _throughput(setting.plan, enqueue, len(run.images))
    run.clock.relax()
    taken = [_stages(run) for _ in range(min(setting.plan.samples, 20))]
    for stage, seconds in zip(STAGES, zip(*taken, strict=True), strict=True):
        figures[stage] = summary(list(seconds))
    return figures


def _stages(run):
    """The GPU's seconds for each stage, all of them enqueued before the first begins."""
    flow = []
    seconds = run.clock.queued(
        lambda: flow.append(run.backend.prepare(run.images, run.letterboxes)),
        lambda: flow.append(run.backend.infer(flow[-1])),
        lambda: flow.append(run.backend.select(flow[-1], run.letterboxes, LIMITS)),
    )
    flow[-1]()
    return seconds


def _throughput(plan, enqueue, batch):
    """Pictures a second with a batch on the GPU while the rows of the one before are read."""
    runs, waiting = 0, None
    start = time.perf_counter()
    while runs < max(4, plan.samples) and time.perf_counter() - start < plan.seconds:
        following = enqueue()
        if waiting is not None:
            waiting()
        waiting, runs = following, runs + 1
    waiting()
    return runs * batch / (time.perf_counter() - start)


def _usual(setting, run):
    contract, images, letterboxes = run.model.contract, run.images, run.letterboxes
    if contract.layout is Layout.ONE_TO_MANY or contract.box_format is not BoxFormat.XYXY:
        raise MissingError("the usual way is written for YOLOv10 models")
    peer = torch_on(run.gpu)
    onnxruntime = onnxruntime_with(setting.provider)
    session = onnxruntime.InferenceSession(run.model.graph, providers=[setting.provider])
    if session.get_providers()[0] != setting.provider:
        raise MissingError(f"ONNX Runtime did not take {setting.provider}")
    torch, step = peer.torch, contract.batch or len(images)
    dtype = np.dtype(contract.input_dtype)

    def detect():
        tensor = specified(images, letterboxes, dtype)
        tensor = np.concatenate([tensor, tensor[: -len(tensor) % step]])
        heads = [
            session.run(None, {contract.input_name: tensor[first : first + step]})[0]
            for first in range(0, len(tensor), step)
        ]
        heads = torch.from_numpy(np.concatenate(heads)[: len(images)]).to(peer.device)
        heads = heads if contract.anchors_first else heads.transpose(-1, -2)
        with torch.inference_mode():
            rows = v10_postprocess(torch, heads, LIMITS.max_det).cpu().numpy()
        return [
            (letterbox.to_picture(one[:, :4]), one[:, 4:])
            for one, letterbox in zip(
                (one[one[:, 4] > LIMITS.confidence] for one in rows), letterboxes, strict=True
            )
        ]

    for _ in range(3):
        detect()
    host = sample(setting.plan, lambda _: _seconds(detect))
    return {"host": host, "pictures_a_second": len(images) / host["median"]}


def agreement(found, run) -> str:
    """How many of the CPU's boxes are found, and how many of those found are the CPU's."""
    cpu = CpuBackend(run.model)
    expected = [
        one
        for image, letterbox in zip(run.images[:4], run.letterboxes[:4], strict=True)
        for one in cpu.select(cpu.infer(cpu.prepare([image], [letterbox])), [letterbox], LIMITS)()
    ]
    pairs = list(zip(found[:4], expected, strict=True))
    there = np.sum([_known(other, one) for one, other in pairs], axis=0)
    here = np.sum([_known(one, other) for one, other in pairs], axis=0)
    return f"{there[0]} of the CPU's {there[1]}, {here[0]} of its own {here[1]}"


def _known(some, others):
    """Of some boxes with a score above 0.3: how many have their like among others, and all."""
    near = (
        (np.abs(some.xyxy[:, None] - others.xyxy[None]).max(axis=-1) < 2)
        & (some.class_id[:, None] == others.class_id[None])
        & (np.abs(some.score[:, None] - others.score[None]) < 0.05)
    )
    sure = some.score > 0.3
    return int(near.any(axis=1)[sure].sum()), int(sure.sum())


def _seconds(step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start
