"""Requests, as the command makes them of its options, and measurements that are soon over."""

from dataclasses import fields

from detcli.commands.bench import run, sampling
from detcli.commands.bench.request import BenchRequest, Mode
from detcli.core.config import Config
from detcli.core.options import build, rows


def shorten(monkeypatch):
    """Shorten measurements: their tests check reports, not timings."""
    monkeypatch.setattr(sampling, "MIN_WARM_UP_S", 0.0)
    monkeypatch.setattr(sampling, "MAX_WARM_UP_S", 0.05)
    # The small models find hundreds of cells in a photograph, and each label looks for a place.
    annotate = run.annotate
    monkeypatch.setattr(run, "annotate", lambda image, found: annotate(image, found[:3]))


def bench_request(model="a.onnx", mode="latency", device="auto", **given):
    """A request; `given` are options and the request's own fields."""
    given |= {"model": str(model), "device": device, "mode": mode}
    own = {one.name for one in fields(BenchRequest)}
    known = rows(Config)
    read = {name: known[name].read(value) for name, value in given.items() if name not in own}
    given = {name: value for name, value in given.items() if name in own}
    return BenchRequest(build(Config, read), **given | {"mode": Mode(mode)})
