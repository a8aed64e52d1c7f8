"""Whole measurements."""

import threading
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands.bench.requests import bench_request

from detcli.commands.bench import run
from detcli.commands.bench.report import RegressionVerdict
from detcli.commands.bench.run import measure
from detcli.core.errors import DeviceError, ModelError, SourceError, UsageError
from detcli.core.record import Origin
from detcli.run.detector import Detector
from detcli.source.fetch import load_file
from detcli.source.loading import Item


def asked(model, **options):
    given = {"device": "cpu", "seconds": 0.05, "cold_starts": 0} | options
    return bench_request(model, **given)


def test_latency_without_a_source(make_model):
    report, own = measure(asked(make_model(size=None)))
    assert report.kind == "run"
    conditions = report.conditions
    assert (conditions.batch, conditions.workers, conditions.sources) == (1, 1, ())
    assert conditions.canvas == (640, 640)
    assert report.latency is not None
    assert report.throughput is report.cold_start is report.comparison is None
    assert report.memory.host_peak_bytes > 20e6
    assert report.memory.device_bytes is None
    assert (own.software, own.taken) == (report.software, report.noise.taken)


def test_throughput_with_workers(make_model, make_picture):
    sources = (str(make_picture("a.png")),)
    report, _ = measure(asked(make_model(), mode="throughput", workers=2, source=sources))
    assert report.conditions.workers == 2
    assert report.throughput.pictures > 0
    assert report.latency is None


def test_cold_starts_and_a_fixed_batch(make_model):
    report, _ = measure(asked(make_model(batch=2), cold_starts=1))
    assert report.cold_start.processes == 1
    assert report.conditions.batch == 2


def test_passwords_are_not_reported(make_model, monkeypatch):
    monkeypatch.setattr(run, "check_repeatable", lambda _: None)
    address = "http://user:secret@127.0.0.1:9/a.jpg"
    with pytest.raises(SourceError) as caught:
        measure(asked(make_model(), source=(address,)))
    assert "secret" not in str(caught.value)
    detector = SimpleNamespace(
        contract=SimpleNamespace(batch=1), device="cpu", workers=1, canvas=(64, 64)
    )
    assert "secret" not in run.conditions_of(asked("a", source=(address,)), detector).sources[0]


def test_a_baseline_decides(make_model):
    model = make_model()
    _, old = measure(asked(model))
    report, own = measure(asked(model), old, 1000.0)
    assert report.comparison.verdict is RegressionVerdict.WITHIN
    assert own.identity == old.identity
    faster = {name: [one / 1000 for one in taken] for name, taken in old.samples.items()}
    report, _ = measure(asked(model), replace(old, samples=faster))
    assert report.comparison.verdict is RegressionVerdict.REGRESSION
    for changed in ("processor", "model", "batch", "gpu"):
        other = replace(old, identity=old.identity | {changed: "another"})
        with pytest.raises(UsageError, match=f"{changed} was another"):
            measure(asked(model), other)


def test_another_model_is_refused_before_it_is_opened(make_model, tmp_path):
    _, old = measure(asked(make_model()))
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(UsageError, match="model was"):
        measure(asked(broken), old)


def test_errors_before_measuring(make_model, tmp_path):
    with pytest.raises(ModelError):
        measure(asked(tmp_path / "none.onnx"))
    with pytest.raises(DeviceError):
        measure(asked(make_model(), device="cuda"))
    with pytest.raises(UsageError, match="again and again"):
        measure(asked(make_model(), source=("-",)))
    with pytest.raises(SourceError, match=r"none\.jpg"):
        measure(asked(make_model(), source=("none.jpg",)))


@pytest.fixture
def hang():
    """Something that hangs until the end of the test, as native code does."""
    release = threading.Event()
    yield lambda *_: release.wait(60)
    release.set()


@pytest.mark.parametrize("healthy", [0, 3])
def test_a_picture_that_never_loads_is_an_error(
    make_model, make_picture, monkeypatch, hang, healthy
):
    """The first one, and one that hangs while the latency is measured."""
    sound = iter([load_file] * healthy)
    monkeypatch.setattr(run, "TIMEOUT_S", 0.3)
    monkeypatch.setattr(run.Sources, "__iter__", lambda _: repeat(item))
    name = str(make_picture("a.png"))
    item = Item(Origin(name), lambda: next(sound, hang)(Path(name)))
    with pytest.raises(SourceError, match=r"a\.png: not read and decoded after 0\.3 s"):
        measure(asked(make_model(), source=(name,)))


def test_a_network_that_never_ends_is_an_error(make_model, make_picture, monkeypatch, hang):
    monkeypatch.setattr(run, "RUN_TIMEOUT_S", 1)
    monkeypatch.setattr(Detector, "submit", hang)
    with pytest.raises(ModelError, match="colours did not finish within 1 seconds"):
        measure(asked(make_model(), source=(str(make_picture("a.png")),)))
