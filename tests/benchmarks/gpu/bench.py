"""One section of the benchmark, in a process of its own: a GPU that failed is of no use after.

    PYTHONPATH=.:tests python -m benchmarks.gpu.bench selection --out selection.json

The file is written anew after each case, so that what was measured is there whatever follows.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu import letterbox, network, nms, selection, top_k
from benchmarks.gpu.clock import GpuClock
from benchmarks.gpu.machine import clocks
from benchmarks.gpu.measure import Plan, failures, measure

KERNELS = {"selection": selection, "top_k": top_k, "letterbox": letterbox, "nms": nms}
SECTIONS = (*KERNELS, "network")
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
    clock = make_clock(gpu)
    yield {"bandwidth": clock.bandwidth, "empty": clock.empty, "clocks": clocks()}
    for case in KERNELS[section].cases(gpu, getattr(KERNELS[section], size)):
        yield measure(clock, plan, case)


def write(path: Path, records: Iterator[dict[str, Any]], tell: Callable[[str], None]) -> list[str]:
    """Write records to a file as they come.

    Returns:
        What went wrong with our own way.
    """
    cases: list[dict[str, Any]] = []
    about: dict[str, Any] = {}
    for record in records:
        if "case" in record:
            cases.append(record)
            tell(f"  {record['case']}")
        else:
            about = record
        content = {**about, "cases": cases, "failed": failures(cases)}
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
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else FULL
    if arguments.section == "network":
        models = {"float32": arguments.model, "float16": arguments.model_fp16}
        models = {name: path for name, path in models.items() if path}
        records = network.records(network.Setting(models, arguments.images, GpuClock, plan=plan))
    else:
        from detcli.backend.cuda.driver import Gpu

        size = "QUICK" if arguments.quick else "ALL"
        records = kernel_records(Gpu(0), GpuClock, plan, arguments.section, size)
    failed = write(arguments.out, records, print)
    for failure in failed:
        print(failure)
    sys.stdout.flush()
    os._exit(1 if failed else 0)  # libraries that share a GPU may not agree on who cleans up first


if __name__ == "__main__":
    main()
