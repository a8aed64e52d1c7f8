"""One section of the benchmark, in its own process: a GPU is unusable after a failed kernel.

    PYTHONPATH=.:tests python -m benchmarks.gpu.bench selection --out selection.json

The file is rewritten after each case, so that a later crash loses nothing.
"""

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.gpu import PROVIDER_OPTIONS, letterbox, nms, selection, top_k
from benchmarks.gpu.clock import GpuClock
from benchmarks.gpu.end_to_end import (
    FULL_COUNT,
    QUICK_COUNT,
    STARTING_IMAGES,
    end_to_end_records,
)
from benchmarks.gpu.measure import Plan, failures, measure
from detcli.backend.providers import cuda_provider
from detcli.commands.bench.run import measure as measure_model
from detcli.config.config import Config, Runtime
from detcli.config.device import Device
from detcli.config.inputs import InputOptions
from detcli.config.values import BenchMode
from detcli.core.errors import DetcliError

KERNELS = {"selection": selection, "top_k": top_k, "letterbox": letterbox, "nms": nms}
SECTIONS = list(KERNELS) + ["network", "end_to_end"]
BATCHES = (1, 8, 32)
FULL, QUICK = Plan(200, 0.6), Plan(40, 0.2)


def kernel_records(
    gpu, make_clock, plan: Plan, section: str, size: str
) -> Iterator[dict[str, Any]]:
    """One record for each case of a section that needs no network.

    Args:
        gpu: On which.
        make_clock: Makes the clock.
        plan: How many samples.
        section: Of KERNELS.
        size: Which cases, "ALL", "QUICK" or "TINY".
    """
    clock, module = make_clock(gpu), KERNELS[section]
    yield {
        "bandwidth": clock.bandwidth,
        "empty": clock.empty,
        "empty_kernel": clock.empty_kernel,
    }
    generator = np.random.default_rng(0)
    for case in getattr(module, size):
        with ExitStack() as scope:
            yield measure(clock, plan, module.case_of(gpu, case, generator, scope))


def network_records(
    device: str,
    models: dict[str, Path],
    images: list[Path],
    plan: Plan,
    batches: Sequence[int] = BATCHES,
    switches: Sequence[str] = (),
) -> Iterator[dict[str, Any]]:
    """`detcli bench` of each model and batch, with and without CUDA graph.

    Args:
        device: Where.
        models: Files by the names of their types.
        images: What is detected in.
        plan: How long.
        batches: Their sizes.
        switches: Of PROVIDER_OPTIONS; each is switched on in another way of the same case.
    """
    if not models:
        reason = "no model was given: MODEL=path/to/yolov10n.onnx"
        yield {"case": "a real model", "ways": [{"way": "detcli", "missing": reason}]}
    graphs = {"with": True, "without": False} if device.startswith("cuda") else {"without": False}
    for (name, model), graph, batch in itertools.product(models.items(), graphs, batches):
        runtime = Runtime(str(model), (Device.parse(device),), batch, cuda_graph=graphs[graph])
        config = Config(InputOptions(source=tuple(map(str, images))), runtime)
        entries = [_network_way("detcli", config, plan)]
        if alone := entries[0].get("network"):
            rate = batch / alone["p50_s"]
            entries.append({"way": "its network alone", "host": alone, "images_a_second": rate})
        for switch in switches:
            with switched_on(switch):
                entries.append(_network_way(f"detcli, {switch}", config, plan))
        case = f"batch {batch}, {name}, {graph} CUDA graph"
        yield {"case": case, "batch": batch, "ways": entries}


def _network_way(title: str, config: Config, plan: Plan) -> dict[str, Any]:
    entry: dict[str, Any] = {"way": title}
    try:
        latency = measure_model(config, seconds=plan.seconds)[0].latency
        paced = measure_model(config, BenchMode.THROUGHPUT, plan.seconds)[0].throughput
    except DetcliError as error:
        return entry | {"error": str(error)}
    stages = {}
    around_s = 0.0
    for stage in latency.stages:
        if stage.summary:
            stages[stage.name] = asdict(stage.summary)
            if stage.name in {"decode", "draw"}:
                around_s += stage.summary.p50_s
    entry["host"] = {"p50_s": latency.undisturbed.p50_s - around_s}  # nothing overlaps there
    entry["images_a_second"] = paced.pictures_per_second
    return entry | stages


@contextmanager
def switched_on(option: str) -> Iterator[None]:
    """Let networks that are opened on a GPU have an option of PROVIDER_OPTIONS on."""

    def provider(*arguments, **keywords):
        name, provider_options = cuda_provider(*arguments, **keywords)
        return name, provider_options | {option: "1"}

    with mock.patch("detcli.backend.cuda.network.cuda_provider", provider):
        yield


def write(path: Path, records: Iterator[dict[str, Any]], tell: Callable[[str], None]) -> list[str]:
    """Write records to a file as they come.

    Returns:
        What went wrong with our own way.
    """
    cases: list[dict[str, Any]] = []
    figures: dict[str, Any] = {}
    for record in records:
        if "case" in record:
            cases.append(record)
            tell(f"  {record['case']}")
        else:
            figures = record
        content = {**figures, "cases": cases, "failed": failures(cases)}
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(content, indent=1), encoding="utf-8")
        unfinished.replace(path)
    return failures(cases)


def main() -> None:
    """Measure one section on the first GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("section", choices=SECTIONS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--model-fp16", type=Path)
    parser.add_argument("--images", type=Path, nargs="*", default=[Path("detcli/pictures")])
    parser.add_argument("--provider-options", action="store_true")
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else FULL
    models = {}
    if arguments.model:
        models["float32"] = arguments.model
    if arguments.model_fp16:
        models["float16"] = arguments.model_fp16
    if arguments.section == "end_to_end":
        counts = STARTING_IMAGES, QUICK_COUNT if arguments.quick else FULL_COUNT
        records = end_to_end_records("cuda:0", models, arguments.images, counts)
    elif arguments.section == "network":
        switches = PROVIDER_OPTIONS if arguments.provider_options else ()
        records = network_records("cuda:0", models, arguments.images, plan, switches=switches)
    else:
        from detcli.backend.cuda.driver import Gpu

        size = "QUICK" if arguments.quick else "ALL"
        records = kernel_records(Gpu(0), GpuClock, plan, arguments.section, size)
    failed = write(arguments.out, records, print)
    for failure in failed:
        print(failure)
    sys.stdout.flush()
    os._exit(1 if failed else 0)  # libraries sharing a GPU may clean up in conflict


if __name__ == "__main__":
    main()
