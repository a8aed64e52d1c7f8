"""`detcli bench --mode topk`: top-k and selection beside other libraries.

Only detcli defines the order of equal values, so its answer must be right in every row; others must
find the same values, and the same rows where a value occurs once.
"""

import importlib
import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from detcli.backend import Device, open_ranker
from detcli.backend.postprocess import SelectionOptions
from detcli.backend.protocol import Ranker
from detcli.commands.bench.baseline import Limit, Measured, compare, identity_of, require_same
from detcli.commands.bench.machine import GpuWatch, NoiseMeter, describe_machine, describe_software
from detcli.commands.bench.report import Summary, TaskName, TopKCase, TopKReport, TopKTiming
from detcli.commands.bench.request import Mode
from detcli.commands.bench.sampling import sampling_share, take_turns
from detcli.errors import CheckError, DeviceError

Floats = npt.NDArray[np.float32]

Answer = Sequence[npt.NDArray[Any]]
"""The result, best first: the sorted values, then what belongs to them, row by row."""

Implementation = Callable[[], Answer]
"""Does all the work, and returns when the answer is on the host."""

OURS = "detcli"
CLASSES = 80
CONFIDENCE = 0.25
OBJECTS, NEIGHBOURS = 6, 4


class MissingError(Exception):
    """An implementation is unavailable; the message says why."""


class DisagreementError(Exception):
    """An answer is wrong; the message says how."""


# Tasks


@dataclass(frozen=True, slots=True)
class TopKTask:
    """The `k` best of random numbers: of a row `(N,)`, or of a head `(4 + C, N)`."""

    name: TaskName
    values: Floats
    k: int

    @property
    def n(self) -> int:
        """Length of the row, or number of anchors."""
        return int(self.values.shape[-1])


def top_k_task(n: int, k: int) -> TopKTask:
    """The k best of a row of uniform noise."""
    return TopKTask("top_k", np.random.default_rng(0).random(n, np.float32), k)


def selection_task(n: int, k: int) -> TopKTask:
    """Detections of a head like a detector's."""
    return TopKTask("selection", detector_head(np.random.default_rng(0), CLASSES, n), k)


def detector_head(generator: np.random.Generator, classes: int, anchors: int) -> Floats:
    """A head `(4 + C, N)` like a detector's: low scores, but high ones near a few objects."""
    head = generator.random((4 + classes, anchors), np.float32)
    scores = head[4:]
    np.power(scores, 24, out=scores)
    scores *= np.float32(0.2)
    width = min(NEIGHBOURS, anchors)
    for _ in range(OBJECTS):
        place = generator.integers(0, anchors - width + 1)
        scores[generator.integers(classes), place : place + width] = generator.uniform(
            0.3, 0.95, width
        )
    return head


def require_agreement(answer: Answer, expected: Answer, *, exactly: bool) -> None:
    """Compare an answer with that of a stable sort; `exactly` includes the order of equal values.

    Raises:
        DisagreementError: The answer is wrong.
    """
    values, wanted = answer[0], expected[0]
    if not np.array_equal(values, wanted):
        raise DisagreementError("its values are not those of a stable sort")
    if not len(wanted):
        return
    # In a sorted row a value occurs once where it differs from both neighbours; the last one may
    # be tied with values that are not in the answer.
    changes = np.diff(wanted) != 0
    unique = np.append(True, changes) & np.append(changes, False)
    rows = np.full(len(wanted), True) if exactly else unique  # noqa: FBT003
    for part, right in zip(answer[1:], expected[1:], strict=True):
        if not np.array_equal(part[rows], right[rows]):
            raise DisagreementError("what belongs to its values differs from a stable sort")


# Measurement


def measure_top_k(
    sizes: Sequence[int], k: int, on: str, seconds: float, limit: Limit | None = None
) -> Measured[TopKReport]:
    """Measure both tasks on a device at each size; the samples are detcli's own.

    Raises:
        UsageError: The device is unknown, or the baseline has other conditions.
        DeviceError: The device cannot be used.
        CheckError: detcli's own answer is wrong.
    """
    with ExitStack() as stack:
        watch = GpuWatch(Device.parse(on))
        stack.callback(watch.stop)
        ranker = stack.enter_context(closing(open_ranker(on)))
        used = ranker.device
        machine = describe_machine(watch.before if Device.parse(used).is_gpu else None)
        given = {"mode": Mode.TOPK, "device": used, "gpu": machine.gpu, "n": sizes, "k": k}
        identity = identity_of(machine, **given)
        if limit is not None:
            require_same(limit.baseline, identity)
        noise = NoiseMeter()
        cases, samples = [], {}
        for size, make_task in itertools.product(sizes, (top_k_task, selection_task)):
            task = make_task(size, k)
            case, own = measure_case(task, ranker, seconds / (2 * len(sizes)), noise)
            cases.append(case)
            samples[f"{task.name}, {size} to {k}"] = own
        found = noise.finish(None, watch.stop())
    summaries = (timing.summary for case in cases for timing in case.ways)
    shortest = min(summary.p50_s for summary in summaries if summary is not None)
    report = TopKReport(
        kind="topk",
        machine=machine,
        software=describe_software(),
        device=used,
        cases=tuple(cases),
        clock_share=sampling_share(shortest),
        noise=found,
        comparison=compare(limit, samples, found.taken) if limit else None,
    )
    return Measured(report, samples, identity)


def measure_case(
    task: TopKTask, ranker: Ranker, seconds: float, noise: NoiseMeter
) -> tuple[TopKCase, list[float]]:
    """Check and time all implementations; returns detcli's samples too.

    Raises:
        CheckError: detcli's own answer is wrong.
    """
    device = Device.parse(ranker.device)
    expected = answer_by(stable_argsort, task)
    ours = _ours(task, ranker)
    try:
        require_agreement(ours(), expected, exactly=True)
    except DisagreementError as error:
        raise CheckError(
            f"detcli's {task.name} of {task.n} on {ranker.device} is wrong: {error}",
            "please report this, with the output of detcli doctor",
        ) from error
    peers: dict[str, Callable[[], Implementation]] = {
        "stable argsort": lambda: partial(answer_by, stable_argsort, task),
        "argpartition": lambda: partial(answer_by, argpartition, task),
        "PyTorch": partial(_in_torch, task, device),
        "CuPy": partial(_in_cupy, task, device),
        "ONNX Runtime TopK": partial(_in_onnxruntime, task, device),
    }
    ready, missing = {OURS: ours}, {}
    for name, make in peers.items():
        try:
            implementation = make()
            require_agreement(implementation(), expected, exactly=False)
            ready[name] = implementation
        except (DeviceError, DisagreementError, MissingError) as error:
            missing[name] = str(error)
        except Exception as error:  # noqa: BLE001 - what a library raises has no common type
            missing[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    taken = take_turns(ready, seconds, between=noise.look)
    median = Summary.of(taken[OURS]).p50_s
    timings = []
    for name in (OURS, *peers):
        summary = Summary.of(taken[name]) if name in taken else None
        times_ours = summary.p50_s / median if summary else None
        timings.append(TopKTiming(name, summary, times_ours, missing.get(name)))
    return TopKCase(task.name, task.n, task.k, tuple(timings)), taken[OURS]


# Implementations


def _ours(task: TopKTask, ranker: Ranker) -> Implementation:
    values = ranker.upload(task.values)
    if task.name == "top_k":
        return lambda: ranker.top_k(values, task.k)
    options = SelectionOptions(CONFIDENCE, task.k, None, None)

    def select() -> Answer:
        found = ranker.select(values, options)
        return found.score, found.class_id, found.boxes

    return select


Ranking = Callable[[Floats, int], npt.NDArray[np.int64]]
"""Indices of the k largest values of a row, best first."""


def stable_argsort(row: Floats, k: int) -> npt.NDArray[np.int64]:
    """Sort everything; of equal values the lower index comes first."""
    return np.argsort(-row, kind="stable")[:k]


def argpartition(row: Floats, k: int) -> npt.NDArray[np.int64]:
    """Partition, then sort the k best; equal values come in any order."""
    if k >= len(row):
        return stable_argsort(row, k)
    best = np.argpartition(row, -k)[-k:]
    order: npt.NDArray[np.int64] = best[np.argsort(-row[best])]
    return order


def answer_by(order: Ranking, task: TopKTask) -> Answer:
    """Values and indices; or scores, class ids and boxes, as `v10postprocess` of YOLOv10."""
    if task.name == "top_k":
        best = order(task.values, task.k)
        return task.values[best], best
    boxes, scores = task.values[:4], task.values[4:]
    anchors = order(scores.max(axis=0), task.k)  # (K,)
    kept = scores[:, anchors].T.ravel()  # (K * C,)
    best = order(kept, task.k)
    best = best[kept[best] > np.float32(CONFIDENCE)]
    rank, class_id = np.divmod(best, len(scores))
    return kept[best], class_id, boxes[:, anchors[rank]].T


def import_optional(package: str, name: str) -> Any:  # noqa: ANN401 - optional, so not typed
    """Import a package.

    Raises:
        MissingError: The package is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingError(f"{name} is not installed") from error


def _in_cupy(task: TopKTask, device: Device) -> Implementation:
    """CuPy's argpartition and argsort; NumPy's functions dispatch to CuPy's."""
    if not device.is_gpu:
        raise MissingError("CuPy needs a GPU")
    cupy = import_optional("cupy", "CuPy")
    cupy.cuda.Device(device.ordinal or 0).use()
    uploaded = replace(task, values=cupy.asarray(task.values))
    return lambda: [cupy.asnumpy(part) for part in answer_by(argpartition, uploaded)]


def _in_torch(task: TopKTask, device: Device) -> Implementation:
    """`torch.topk` once, or twice as the YOLOv10 authors do."""
    torch = import_optional("torch", "PyTorch")
    if device.is_gpu and not torch.cuda.is_available():
        raise MissingError("PyTorch does not find the GPU")
    values = torch.from_numpy(task.values).to(str(device))

    def select() -> Any:  # noqa: ANN401
        boxes, scores = values[:4], values[4:]
        classes, anchors = scores.shape
        _, best = torch.topk(scores.amax(dim=0), min(task.k, anchors))  # (K,)
        kept = scores[:, best].T.flatten()  # (K * C,)
        score, place = torch.topk(kept, min(task.k, len(kept)))
        above = score > CONFIDENCE
        score, place = score[above], place[above]
        return score, place % classes, boxes[:, best[place // classes]].T

    run = partial(torch.topk, values, min(task.k, task.n)) if task.name == "top_k" else select
    return lambda: [part.cpu().numpy() for part in run()]


def _in_onnxruntime(task: TopKTask, device: Device) -> Implementation:
    """A graph with one TopK node, or the tail that exporters append, with two."""
    from detcli.backend.runtime import onnxruntime
    from detcli.backend.runtime.libraries import CUDA, require_provider
    from detcli.backend.runtime.session import CPU, open_session

    providers, place = CPU, ("cpu", 0)
    if device.is_gpu:
        require_provider(CUDA)
        ordinal = device.ordinal or 0
        providers, place = [(CUDA, {"device_id": str(ordinal)})], ("cuda", ordinal)
    session = open_session(top_k_graph(task), providers, "a graph of TopK")
    values = onnxruntime.OrtValue.ortvalue_from_numpy(task.values, *place)

    def run() -> Answer:
        binding = session.io_binding()
        binding.bind_ortvalue_input("values", values)
        for output in session.get_outputs():
            binding.bind_output(output.name)  # on the host
        session.run_with_iobinding(binding)
        found = binding.copy_outputs_to_cpu()
        if task.name == "top_k":
            return list(found)
        above = found[0] > np.float32(CONFIDENCE)
        return [part[above] for part in found]

    return run


def top_k_graph(task: TopKTask) -> bytes:
    """An ONNX graph from "values" to "best" and "indices"; or scores, class ids and boxes."""
    from onnx import parser

    shape, keep = ", ".join(map(str, task.values.shape)), min(task.k, task.n)
    if task.name == "top_k":
        graph = f"""ranking (float[{shape}] values) => (float[] best, int64[] indices)
            <int64[1] k = {{{keep}}}>
            {{ best, indices = TopK <axis = -1> (values, k) }}"""
    else:
        graph = f"""ranking (float[{shape}] values)
            => (float[] best, int64[] class_id, float[] rows)
            <int64[2] parts = {{4, {CLASSES}}}, int64[1] classes = {{{CLASSES}}},
             int64[1] first = {{0}}, int64[1] flat = {{-1}},
             int64[1] anchor_k = {{{keep}}}, int64[1] k = {{{min(task.k, keep * CLASSES)}}}>
            {{
                boxes, scores = Split <axis = 0> (values, parts)
                anchor_score = ReduceMax <keepdims = 0> (scores, first)
                anchor_best, anchors = TopK <axis = -1> (anchor_score, anchor_k)
                class_major = Gather <axis = 1> (scores, anchors)
                anchor_major = Transpose <perm = [1, 0]> (class_major)
                kept = Reshape (anchor_major, flat)
                best, place = TopK <axis = -1> (kept, k)
                class_id = Mod (place, classes)
                rank = Div (place, classes)
                anchor = Gather <axis = 0> (anchors, rank)
                columns = Gather <axis = 1> (boxes, anchor)
                rows = Transpose <perm = [1, 0]> (columns)
            }}"""
    # Opset 18 is the first whose ReduceMax takes its axes as an input.
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {graph}')
    return bytes(model.SerializeToString())
