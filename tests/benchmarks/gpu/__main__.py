"""Checks the CUDA backend on this machine's GPU, then times it: `make gpu-check`.

    PYTHONPATH=.:tests python -m benchmarks.gpu --out build/gpu-check

Writes gpu-check.json, gpu-check.md and gpu-check.log after each part, and continues when a part
fails. Exits with 1 if a check failed, with 5 if no GPU can be used.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu import parts, report

BENCHMARKS = {"selection": 120, "top_k": 75, "letterbox": 75, "nms": 60, "network": 120}
SANITIZERS = {"memcheck": 90, "racecheck": 90, "synccheck": 30, "initcheck": 30}
TESTS = 150
MIN_SECONDS = 15
"""Seconds. No part starts with less time left."""


def look(seconds: float = 120) -> tuple[dict[str, Any], str]:
    """Describe the machine, in another process so that no context stays on the GPU.

    Returns:
        The machine, and why its GPU cannot be used; one of the two is empty.
    """
    command = [sys.executable, "-m", "benchmarks.gpu.devices"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {}, f"no answer for {seconds:.0f} s"
    if done.returncode:
        return {}, done.stderr.strip().rpartition("\n")[2]
    return json.loads(done.stdout.splitlines()[-1]), ""


def run_all(runner: parts.Runner, arguments: argparse.Namespace) -> Iterator[parts.Part]:
    """Run all parts: checks first, then timings."""
    options = ["--quick"] if arguments.quick else []
    models = [*_option("--model", arguments.model), *_option("--model-fp16", arguments.model_fp16)]
    yield parts.run_tests(runner, TESTS, arguments.tests)
    for tool in ("memcheck", "racecheck"):
        yield _in_time(runner, tool, parts.run_sanitizer, SANITIZERS[tool], tool)
    for section, limit in BENCHMARKS.items():
        more = [*models, "--images", *arguments.images] if section == "network" else []
        yield _in_time(runner, section, parts.run_section, limit, section, [*options, *more])
    for tool in ("synccheck", "initcheck"):
        yield _in_time(runner, tool, parts.run_sanitizer, SANITIZERS[tool], tool)


def _in_time(runner, name, part, limit, *arguments) -> parts.Part:
    if runner.left() < MIN_SECONDS:
        return parts.Part(name, parts.NOT_RUN, "no time was left")
    return part(runner, limit, *arguments)


def _option(name: str, value: str) -> list[str]:
    return [name, value] if value else []


def main() -> int:
    """Check, time, report."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/gpu-check"), help="a folder")
    parser.add_argument("--quick", action="store_true", help="fewer cases and samples")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which no part starts")
    parser.add_argument("--model", default="", help="an ONNX file, for the section network")
    parser.add_argument("--model-fp16", default="", help="the same in float16")
    parser.add_argument("--images", nargs="*", default=["detcli/pictures"], help="pictures for it")
    parser.add_argument("--tests", nargs="*", default=["tests/backend"], help="for pytest")
    arguments = parser.parse_args()
    about, reason = look()
    if reason:
        print(f"gpu-check needs an NVIDIA GPU: {reason}", file=sys.stderr)
        return 5
    arguments.out.mkdir(parents=True, exist_ok=True)
    runner = parts.Runner(arguments.out, 60 * arguments.minutes)
    done: list[parts.Part] = []
    for part in run_all(runner, arguments):
        done.append(part)
        print(f"{part.name}: {part.outcome} {part.reason}".rstrip(), flush=True)
        report.write(arguments.out, report.build(about, done))
    print((arguments.out / "gpu-check.md").read_text(encoding="utf-8"))
    return 1 if any(part.outcome == parts.FAILED for part in done) else 0


if __name__ == "__main__":
    sys.exit(main())
