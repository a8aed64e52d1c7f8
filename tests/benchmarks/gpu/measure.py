"""One case, several implementations: first whether they agree, then how long each takes."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from benchmarks import in_turns
from benchmarks.gpu.peers import MissingError
from detcli.commands.bench.sampling import Summary


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        samples: Of each figure.
        seconds: When to stop sampling, once there are five samples.
    """

    samples: int = 200
    seconds: float = 1.0


@dataclass
class Way:
    """One way to do something with input number i.

    Attributes:
        enqueue: Enqueues the work on the GPU's stream; for a way of the host, does nothing.
        fetch: Takes what `enqueue` returned, waits, and returns the answer on the host.
        on_gpu: Whether there is work on the GPU to time separately.
        finish: Waits like `fetch` but leaves the answer on the GPU, where that is its place.
        kernels: Name and launch of each kernel of the work, where there are several.
    """

    enqueue: Callable[[int], Any]
    fetch: Callable[[Any], Any]
    on_gpu: bool = True
    finish: Callable[[Any], Any] | None = None
    kernels: Sequence[tuple[str, Callable[[], Any]]] = ()


@dataclass
class Case:
    """What several ways do.

    Attributes:
        name: What is done, to what.
        inputs: How many there are, in memory of their own; they take turns.
        implementations: Makers of each; ours is the first. One that raises is not measured.
        check: Takes an input number, an answer to it, and whether it is ours; raises
            DisagreementError where the answer is wrong.
        bytes: That must be read and written at least; 0 if that says nothing.
    """

    name: str
    inputs: int
    implementations: Mapping[str, Callable[[], Way]]
    check: Callable[[int, Any, bool], None]
    bytes: int = 0
    more: dict[str, Any] = field(default_factory=dict)


def measure(clock, plan: Plan, case: Case) -> dict[str, Any]:
    """Check and time all ways of a case; returns its record, figures in seconds."""
    record = {"case": case.name, "bytes": case.bytes, **case.more, "ways": []}
    if case.bytes and clock.bandwidth:
        record["floor"] = case.bytes / clock.bandwidth
    for number, (name, make) in enumerate(case.implementations.items()):
        entry: dict[str, Any] = {"way": name}
        record["ways"].append(entry)
        try:
            implementation = make()
            for index in range(case.inputs):
                case.check(index, implementation.fetch(implementation.enqueue(index)), number == 0)
            entry |= _figures(clock, plan, implementation, case.inputs)
        except MissingError as error:
            entry["missing"] = str(error)
        except Exception as error:  # noqa: BLE001 - the others are measured all the same
            entry["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    return record


def failures(records) -> list[str]:
    """What went wrong with our own way, which makes the whole check fail."""
    messages = []
    for record in records:
        our_way = record["ways"][0]
        if "error" in our_way:
            messages.append(f"{record['case']}: {our_way['error']}")
    return messages


def sample(plan: Plan, take: Callable[[int], float]) -> dict[str, Any]:
    """Call `take` with 0, 1, 2, ... and summarise what it returns."""
    seconds: list[float] = []
    start = time.perf_counter()
    while len(seconds) < plan.samples:
        seconds.append(take(len(seconds)))
        if len(seconds) >= min(5, plan.samples) and time.perf_counter() - start > plan.seconds:
            break
    return asdict(Summary.of(seconds))


def _figures(clock, plan: Plan, implementation: Way, inputs: int) -> dict[str, Any]:
    """Four times of a way.

    cold: the GPU's, when the input has to come from memory.
    warm: the GPU's, when the same input has just been read.
    call: between events around the call, with the gaps that launching leaves.
    host: from the call until the answer is where it is wanted, by the host's clock.
    """

    def work(number: int) -> Callable[[], Any]:
        return partial(implementation.enqueue, number % inputs)

    clock.relax()
    for number in range(3 * inputs):
        implementation.fetch(implementation.enqueue(number % inputs))
    figures = {}
    if implementation.on_gpu:
        flush = clock.flush
        figures["cold"] = sample(plan, lambda n: clock.queued(work(n), before=flush)[0])
        figures["warm"] = sample(plan, lambda n: clock.queued(work(n), before=work(n))[0])
        figures["call"] = sample(plan, lambda n: clock.call(work(n)))
    if implementation.kernels:  # one after the other, the first with a cold cache
        steps = [launch for _, launch in implementation.kernels]
        rounds = []
        for _ in range(min(plan.samples, 50)):
            rounds.append(clock.queued(*steps, before=clock.flush))
        figures["kernels"] = {}
        for number, (name, _) in enumerate(implementation.kernels):
            seconds = [seconds_of_steps[number] for seconds_of_steps in rounds]
            figures["kernels"][name] = asdict(Summary.of(seconds))
    finish = implementation.finish or implementation.fetch
    figures["host"] = sample(plan, lambda n: in_turns.sample(lambda: finish(work(n)())))
    return figures
