"""Command lines of detcli, for what is measured in a process of its own."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from detcli.bench.request import Request


def predict_command(request: Request, picture: Path) -> list[str]:
    """`detcli predict` on one picture, as the request would run it."""
    quiet = ("--quiet", "--format", "jsonl")
    return [*_detcli("predict"), str(picture), *_shared(request), *quiet]


def bench_command(request: Request) -> list[str]:
    """`detcli bench` that measures this request and prints its report as JSON."""
    options = {
        "--mode": request.mode,
        "--batch": request.batch,
        "--workers": request.workers,
        "--seconds": request.seconds,
        "--cold-starts": request.cold_starts,
        "--format": "json",
    }
    return [*_detcli("bench"), *_shared(request), *_given(options), "--", *request.sources]


def _detcli(command: str) -> tuple[str, ...]:
    return sys.executable, "-m", "detcli", command


def _shared(request: Request) -> Iterator[str]:
    """Options that both commands have."""
    settings, options = request.settings, request.options
    yield from _given(
        {
            "--model": request.model,
            "--device": request.device,
            "--imgsz": settings.imgsz,
            "--nms": settings.nms,
            "--box-format": settings.box_format,
            "--gpu-mem-limit": options.gpu_mem_limit,
        }
    )
    if options.half:
        yield "--half"
    if options.cuda_graph is not None:
        yield "--cuda-graph" if options.cuda_graph else "--no-cuda-graph"


def _given(options: Mapping[str, object]) -> Iterator[str]:
    for name, value in options.items():
        if value is not None:
            yield from (name, str(value))
