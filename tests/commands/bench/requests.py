"""Requests, as the command makes them of its options, and measurements that are soon over."""

from detcli.commands.bench import run, sampling
from detcli.commands.bench.run import BenchRequest
from detcli.commands.shared.setup import run_options

DEFAULTS = dict.fromkeys("batch cuda_graph gpu_mem_limit nms imgsz box_format preprocess".split())
DEFAULTS |= {"half": False, "boxes_only": False, "workers": 1}


def shorten(monkeypatch):
    """Shorten measurements: their tests check reports, not timings."""
    monkeypatch.setattr(sampling, "MIN_WARM_UP_S", 0.0)
    monkeypatch.setattr(sampling, "MAX_WARM_UP_S", 0.05)
    # The small models find hundreds of cells in a photograph, and each label looks for a place.
    annotate = run.annotate
    monkeypatch.setattr(run, "annotate", lambda image, found: annotate(image, found[:3]))


def bench_request(model="a.onnx", mode="latency", device="auto", **given):
    """A request; `given` are options and the request's own fields."""
    options = {name: given.pop(name, default) for name, default in DEFAULTS.items()}
    return BenchRequest(run_options(str(model), device, **options), mode, **given)
