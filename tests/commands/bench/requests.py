"""Requests, as the command makes them of its options."""

from detcli.commands.bench.request import BenchRequest, Mode
from detcli.commands.shared.setup import run_options

DEFAULTS = dict.fromkeys("batch cuda_graph gpu_mem_limit nms imgsz box_format".split())
DEFAULTS |= {"half": False, "workers": 1}


def bench_request(model="a.onnx", mode=Mode.LATENCY, device="auto", **given):
    """A request; `given` are options and the request's own fields."""
    options = {name: given.pop(name, default) for name, default in DEFAULTS.items()}
    return BenchRequest(run_options(str(model), device, **options), mode, **given)
