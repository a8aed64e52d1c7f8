"""What bench is told, as the command reads its options, and measurements that are soon over."""

from detcli.commands.bench import run, sampling
from detcli.config.config import Config
from detcli.config.option import config_from, options_of


def shorten(monkeypatch):
    """Shorten measurements: their tests check reports, not timings."""
    monkeypatch.setattr(sampling, "MIN_WARM_UP_S", 0.0)
    monkeypatch.setattr(sampling, "MAX_WARM_UP_S", 0.05)
    # The small models find hundreds of cells in a photograph, and each label looks for a place.
    annotate = run.annotate
    monkeypatch.setattr(run, "annotate", lambda image, detections: annotate(image, detections[:3]))


def bench_config(model="a.onnx", **options):
    """A Config of options as they are typed."""
    values = {}
    for name, value in ({"model": str(model)} | options).items():
        values[name] = options_of(Config)[name].parse_value(value)
    return config_from(Config, values)
