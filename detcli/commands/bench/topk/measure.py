"""All ways to the same answer: first whether they agree, then how long each takes."""

import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from detcli.backend import Device, open_ranker
from detcli.backend.postprocess import SelectionOptions
from detcli.backend.protocol import Ranker
from detcli.commands.bench.baseline import Identity, Limit, compare, identity_of, require_same
from detcli.commands.bench.gpu import GpuWatch
from detcli.commands.bench.machine import describe_machine, describe_software
from detcli.commands.bench.modes import Mode
from detcli.commands.bench.noise import NoiseMeter
from detcli.commands.bench.request import check_seconds
from detcli.commands.bench.statistics import Samples, Summary
from detcli.commands.bench.topk.cases import (
    CONFIDENCE,
    Answer,
    DisagreementError,
    Do,
    MissingError,
    Task,
    selection_task,
    top_k_task,
)
from detcli.commands.bench.topk.cases import (
    compare as hold_against,
)
from detcli.commands.bench.topk.report import Case, TopKReport, Way
from detcli.commands.bench.topk.sorts import answer_by, argpartition, cupy_way, stable_argsort
from detcli.commands.bench.topk.torch import torch_way
from detcli.errors import CheckError, UsageError

OURS = "detcli"

LEAST_ROUNDS = 5
BLOCK_S, LONGEST_BLOCK = 0.02, 20
"""Samples of one way in a row: for so many seconds, so many at most."""

SAMPLE_S, MOST_REPEATS = 1e-4, 1000
"""A sample takes about so long at least."""

TRIALS = 200


@dataclass(frozen=True, slots=True)
class TopKRequest:
    """Which sizes, where, and for how long in all.

    Raises:
        UsageError: A size makes no sense.
    """

    sizes: tuple[int, ...] = (8400, 33600, 1_000_000)
    k: int = 300
    device: str = "auto"
    seconds: float = 10.0

    def __post_init__(self) -> None:
        check_seconds(self.seconds)
        if not self.sizes or min(self.sizes) < 1:
            raise UsageError("--n takes lengths of 1 or more", "as in --n 8400,33600")
        if self.k < 1:
            raise UsageError(f"--k is {self.k}", "ask for one or more")


@dataclass(frozen=True, slots=True)
class TopKMeasured:
    """A report, detcli's own samples, and what they can be compared with."""

    report: TopKReport
    samples: Samples
    identity: Identity


def measure_top_k(request: TopKRequest, limit: Limit | None = None) -> TopKMeasured:
    """Measure both tasks at each size.

    Raises:
        UsageError: There is no such device, or the baseline is of something else.
        DeviceError: The device cannot be used.
        CheckError: detcli's own answer is wrong.
    """
    watch = GpuWatch(request.device)
    try:
        ranker = open_ranker(request.device)
        try:
            return _measure(request, ranker, watch, limit)
        finally:
            ranker.close()
    finally:
        watch.stop()


def _measure(
    request: TopKRequest, ranker: Ranker, watch: GpuWatch, limit: Limit | None
) -> TopKMeasured:
    machine = describe_machine(watch.before if Device.parse(ranker.device).is_gpu else None)
    sizes = {"n": request.sizes, "k": request.k}
    identity = identity_of(machine, mode=Mode.TOPK, device=ranker.device, gpu=machine.gpu, **sizes)
    if limit is not None:
        require_same(limit.baseline, identity)
    noise = NoiseMeter()
    seconds = request.seconds / (2 * len(request.sizes))
    cases, samples = [], {}
    for size in request.sizes:
        for make in (top_k_task, selection_task):
            task = make(size, request.k)
            case, own = measure_case(task, ranker, seconds, noise)
            cases.append(case)
            samples[f"{task.name}, {size} to {request.k}"] = own
    found = noise.finish(None, watch.stop())
    report = TopKReport(
        kind="topk",
        machine=machine,
        software=describe_software(),
        device=ranker.device,
        cases=tuple(cases),
        clock_share=own_share(cases),
        noise=found,
        comparison=compare(limit, samples, found.taken) if limit else None,
    )
    return TopKMeasured(report, samples, identity)


def measure_case(
    task: Task, ranker: Ranker, seconds: float, noise: NoiseMeter
) -> tuple[Case, list[float]]:
    """Check and time all ways; returns detcli's samples too.

    Raises:
        CheckError: detcli's own answer is wrong.
    """
    device = Device.parse(ranker.device)
    expected = answer_by(stable_argsort, task)
    ways: dict[str, Callable[[], Do]] = {
        OURS: lambda: _own(task, ranker),
        "stable argsort": lambda: partial(answer_by, stable_argsort, task),
        "argpartition": lambda: partial(answer_by, argpartition, task),
        "PyTorch": lambda: torch_way(task, device),
        "CuPy": lambda: cupy_way(task, device),
        "ONNX Runtime TopK": lambda: _runtime(task, device),
    }
    ready: dict[str, Do] = {}
    missing: dict[str, str] = {}
    for name, make in ways.items():
        try:
            do = make()
            hold_against(do(), expected, exactly=name == OURS)
            ready[name] = do
        except (DisagreementError, MissingError) as error:
            missing[name] = str(error)
        except Exception as error:
            if name == OURS:
                raise
            missing[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    if OURS in missing:
        raise CheckError(
            f"detcli's {task.name} of {task.n} on {ranker.device} is wrong: {missing[OURS]}",
            "please report this, with what detcli doctor prints",
        )
    taken = take_turns(ready, seconds, noise)
    summaries = {name: Summary.of(samples) for name, samples in taken.items()}
    own = summaries[OURS].p50_s
    rows = tuple(
        Way(
            name,
            summaries.get(name),
            summaries[name].p50_s / own if name in summaries else None,
            missing.get(name),
        )
        for name in ways
    )
    return Case(task.name, task.n, task.k, rows), taken[OURS]


def take_turns(ways: dict[str, Do], seconds: float, noise: NoiseMeter) -> Samples:
    """Time all ways in small blocks, one after the other, so that they share what disturbs them.

    Each block begins with a call that is not timed, which fetches the data back into the caches.
    What is over sooner than the clock can tell is called several times for one sample. Every round
    has another order: ONNX Runtime's threads go on spinning for a while, at the cost of the next.
    """
    generator = np.random.default_rng(0)
    repeats = {name: repeats_of(do) for name, do in ways.items()}
    taken: Samples = {name: [] for name in ways}
    start, rounds = time.perf_counter(), 0
    while rounds < LEAST_ROUNDS or time.perf_counter() - start < seconds:
        for name in map(str, generator.permutation(list(ways))):
            do = ways[name]
            do()
            until = time.perf_counter() + BLOCK_S
            for _ in range(LONGEST_BLOCK):
                taken[name].append(sample(do, repeats[name]))
                if time.perf_counter() > until:
                    break
        rounds += 1
        noise.look()
    return taken


def sample(do: Do, repeats: int) -> float:
    """Seconds of a call, the mean of some."""
    start = time.perf_counter()
    for _ in range(repeats):
        do()
    return (time.perf_counter() - start) / repeats


def repeats_of(do: Do) -> int:
    """Calls for one sample, so that the clock's own time is nothing beside theirs."""
    do()
    shortest = min(sample(do, 1) for _ in range(3))
    return max(1, min(MOST_REPEATS, math.ceil(SAMPLE_S / shortest)))


def own_share(cases: Iterable[Case]) -> float:
    """The most that timing took of any figure: what a call of nothing takes, of the shortest."""
    summaries = (way.summary for case in cases for way in case.ways)
    shortest = min(summary.p50_s for summary in summaries if summary is not None)
    repeats = max(1, math.ceil(SAMPLE_S / shortest))
    return statistics.median(sample(tuple, repeats) for _ in range(TRIALS)) / shortest


def _own(task: Task, ranker: Ranker) -> Do:
    values = ranker.upload(task.values)
    if task.name == "top_k":
        return lambda: ranker.top_k(values, task.k)
    options = SelectionOptions(CONFIDENCE, task.k, None, None)

    def do() -> Answer:
        found = ranker.select(values, options)
        return found.score, found.class_id, found.boxes

    return do


def _runtime(task: Task, device: Device) -> Do:
    from detcli.commands.bench.topk.runtime import runtime_way  # imports onnx

    return runtime_way(task, device)
