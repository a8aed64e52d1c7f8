"""Whole measurements."""

from dataclasses import replace
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands.bench.requests import bench_config
from made_jpegs import encode, image

from detcli.commands.bench import run
from detcli.config.values import BenchMode
from detcli.core.errors import ModelError, SourceError, UsageError
from detcli.data.record import Origin
from detcli.run.batches import BatchDetector
from detcli.source.loading import Item
from detcli.source.reading import load_file

pytestmark = pytest.mark.slow


def measure(model, mode="latency", baseline=None, **options):
    config = bench_config(model, device="cpu", **options)
    return run.measure(config, BenchMode(mode), 0.05, baseline=baseline)


def test_throughput_with_workers(make_model, make_image):
    sources = (str(make_image("a.png")),)
    report, _ = measure(make_model(), "throughput", workers=2, source=sources)
    assert report.conditions.workers == 2
    assert report.throughput.pictures > 0
    assert report.latency is None


@pytest.mark.parametrize("mode", ["latency", "throughput"])
def test_images_are_decoded_into_the_devices_memory(make_model, tmp_path, allocated, mode):
    """As by predict: on a GPU, that is page-locked."""
    pytest.importorskip("simplejpeg")
    path = tmp_path / "a.jpg"
    path.write_bytes(encode(image(40, 24)))
    report, _ = measure(make_model(), mode, source=(str(path),))
    # The very first is read before there is a device, to see that it can be.
    runs = report.throughput.pictures if mode == "throughput" else 2 * report.latency.wall.samples
    assert set(allocated) == {(40, 24)}
    assert len(allocated) >= runs


def test_passwords_are_not_reported(make_model):
    address = "http://user:secret@127.0.0.1:9/a.jpg"
    with pytest.raises(SourceError) as caught:
        measure(make_model(), source=(address,))
    assert "secret" not in str(caught.value)
    contract = SimpleNamespace(batch=1)
    detector = SimpleNamespace(contract=contract, placement="cpu", workers=1, canvas=(64, 64))
    conditions = run.conditions_of(bench_config(source=(address,)), BenchMode.LATENCY, detector)  # type: ignore[arg-type]
    assert "secret" not in conditions.sources[0]


def test_a_baseline_was_measured_under_the_same_conditions(make_model, monkeypatch):
    model = make_model(batch=2)
    _, old = measure(model)
    report, new_baseline = measure(model, baseline=old)
    assert report.conditions.batch == 2
    assert new_baseline.identity == old.identity
    assert new_baseline.software == report.software
    assert new_baseline.taken == report.noise.taken
    for changed in ("processor", "model", "batch", "gpu"):
        changed_baseline = replace(old, identity=old.identity | {changed: "another"})
        with pytest.raises(UsageError, match=f"{changed} was another"):
            measure(model, baseline=changed_baseline)
    monkeypatch.setattr(run, "measure_cold_start", None)  # another model is refused before it
    with pytest.raises(UsageError, match="model was"):
        measure(make_model("another.onnx", "transposed"), baseline=old)


@pytest.mark.parametrize("healthy", [0, 3])
def test_an_image_that_never_loads_is_an_error(make_model, make_image, monkeypatch, hang, healthy):
    """The first one, and one that hangs while the latency is measured."""
    sound = iter([load_file] * healthy)
    monkeypatch.setattr(run, "TIMEOUT_S", 0.3)
    monkeypatch.setattr(run.Sources, "__iter__", lambda _: repeat(item))
    name = str(make_image("a.png"))
    item = Item(Origin(name), lambda: next(sound, hang)(Path(name)))
    with pytest.raises(SourceError, match=r"a\.png: not read and decoded after 0\.3 s"):
        measure(make_model(), source=(name,))


def test_a_network_that_never_ends_is_an_error(make_model, make_image, monkeypatch, hang):
    monkeypatch.setattr(run, "RUN_TIMEOUT_S", 1)
    monkeypatch.setattr(BatchDetector, "submit", hang)
    with pytest.raises(ModelError, match="colours did not finish within 1 seconds"):
        measure(make_model(), source=(str(make_image("a.png")),))
