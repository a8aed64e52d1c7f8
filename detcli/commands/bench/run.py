"""One measurement of the whole path, from beginning to end."""

from contextlib import ExitStack
from dataclasses import dataclass, replace

from detcli.backend.device import Device, available_cores
from detcli.commands.bench.baseline import Identity, Limit, compare, identity_of, require_same
from detcli.commands.bench.cold_start import measure_cold_start
from detcli.commands.bench.gpu import GpuWatch
from detcli.commands.bench.inputs import Feed, check_repeatable, digest
from detcli.commands.bench.latency import Path, measure_latency
from detcli.commands.bench.machine import (
    describe_machine,
    describe_model,
    describe_software,
    peak_memory,
)
from detcli.commands.bench.modes import Mode
from detcli.commands.bench.noise import NoiseMeter
from detcli.commands.bench.report import Conditions, Latency, Machine, Memory, RunReport, Throughput
from detcli.commands.bench.request import Request
from detcli.commands.bench.statistics import Samples
from detcli.commands.bench.throughput import measure_throughput, summary
from detcli.detector import Detector
from detcli.model.zoo import LocatedModel, find
from detcli.source.address import public_name


@dataclass(frozen=True, slots=True)
class Measured:
    """A report, what it was made of, and what it can be compared with."""

    report: RunReport
    samples: Samples
    identity: Identity


def measure(request: Request, limit: Limit | None = None) -> Measured:
    """Measure what is asked for, and hold it against a baseline.

    Raises:
        UsageError: A source can be read only once, or the baseline is of something else.
        ModelError: The model cannot be used.
        DeviceError: The device cannot be used.
        InputError: A picture cannot be read.
        InferenceError: The runtime failed.
    """
    check_repeatable(request.sources)
    with Feed(request.sources) as feed:
        feed.take(1)  # a mistake in its name is not to be told of after a minute of cold starts
    located = find(
        request.model, half=request.options.wants_half_file(Device.parse(request.device))
    )
    model = describe_model(request.model, located.path)
    known = identity_of(describe_machine(None), model)
    if limit is not None:
        require_same(limit.baseline, known)
    cold_start = measure_cold_start(request)
    with ExitStack() as stack:
        watch = GpuWatch(request.device)
        stack.callback(watch.stop)
        detector = stack.enter_context(_open(request, located))
        conditions = _conditions(request, detector)
        machine = describe_machine(watch.before if Device.parse(detector.device).is_gpu else None)
        identity = known | identity_of(None, None, conditions, gpu=machine.gpu)
        if limit is not None:
            require_same(limit.baseline, identity)
        noise = NoiseMeter()
        figures, samples = _measure(request, detector, conditions.batch, stack, noise)
        host_peak = peak_memory()
        states = watch.stop()
    wall = figures.undisturbed if isinstance(figures, Latency) else summary(samples)
    found = noise.finish(wall, states)
    report = RunReport(
        kind="run",
        machine=machine,
        software=describe_software(),
        model=model,
        conditions=conditions,
        latency=figures if isinstance(figures, Latency) else None,
        throughput=figures if isinstance(figures, Throughput) else None,
        cold_start=cold_start,
        memory=Memory(host_peak, _taken(watch, [state.memory_bytes for state in states], machine)),
        noise=found,
        comparison=compare(limit, samples, found.taken) if limit else None,
    )
    return Measured(report, samples, identity)


def _open(request: Request, model: LocatedModel) -> Detector:
    """Load the model on the device, for as many detectors as will work."""
    workers = request.workers or (1 if request.mode is Mode.LATENCY else available_cores())
    options = replace(request.options, workers=workers)
    return Detector(model, request.device, request.settings, options)


def _conditions(request: Request, detector: Detector) -> Conditions:
    alone = detector.contract.batch or 1
    return Conditions(
        mode=request.mode,
        device=detector.device,
        batch=request.batch or (alone if request.mode is Mode.LATENCY else detector.batch),
        workers=detector.workers,
        sources=tuple(map(public_name, request.sources)),
        inputs_sha256=digest(request.sources),
        canvas=detector.canvas,
    )


def _measure(
    request: Request, detector: Detector, batch: int, stack: ExitStack, noise: NoiseMeter
) -> tuple[Latency | Throughput, Samples]:
    feed = stack.enter_context(Feed(request.sources))
    if request.mode is Mode.THROUGHPUT:
        return measure_throughput(detector, batch, feed, request.seconds, noise)
    path = Path(detector, batch, feed, stack.enter_context(Feed(request.sources)))
    return measure_latency(path, detector.device, request.seconds, noise)


def _taken(watch: GpuWatch, used: list[int | None], machine: Machine) -> int | None:
    """The most that the GPU held, less what it held before; None without a GPU."""
    known = [one for one in used if one is not None]
    before = watch.before.memory_bytes if watch.before else None
    return max(known) - before if machine.gpu and known and before is not None else None
