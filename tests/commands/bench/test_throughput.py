# mypy: disable-error-code=arg-type
"""Throughput: images per second of the whole pipeline."""

import time
from types import SimpleNamespace

import pytest

from detcli import DeviceOptions
from detcli.commands.bench import sampling
from detcli.commands.bench import throughput as module
from detcli.commands.bench.run import repeat
from detcli.commands.bench.sampling import WALL
from detcli.commands.bench.throughput import measure_throughput
from detcli.core.errors import DecodeError, InferenceError
from detcli.core.timing import Stage
from detcli.run.batches import BatchDetector
from detcli.run.pipeline import Pipeline


def test_images_a_second(make_model, make_image):
    names = (str(make_image("a.png", ("red", 1, 1))),)
    options = DeviceOptions(workers=2)
    with BatchDetector(make_model(batch=None), "cpu", options=options) as detector:
        throughput, samples = measure_throughput(
            Pipeline(detector, 2, ["cpu"]), 4, repeat(names), 0.3
        )
    assert throughput.pictures_per_second == throughput.pictures / throughput.seconds
    assert throughput.pictures % 4 == 0
    assert throughput.seconds > 0.3
    assert set(throughput.work_s) >= {"decode", "preprocess", "network", "selection"}
    assert throughput.interval.low <= throughput.interval.estimate <= throughput.interval.high
    mean = sum(samples[WALL]) / len(samples[WALL])
    assert mean == pytest.approx(1 / throughput.pictures_per_second, rel=0.2)


def test_an_image_or_a_network_that_fails_ends_the_run(make_model, make_image, tmp_path):
    torn = tmp_path / "torn.jpg"
    torn.write_bytes(b"\xff\xd8\xff torn")
    with BatchDetector(make_model(), "cpu") as detector:
        with pytest.raises(DecodeError, match=r"torn\.jpg: "):
            measure_throughput(Pipeline(detector, 1), 1, repeat((str(torn),)), 0.1)
        detector._backend.close()  # noqa: SLF001 - a network that fails
        with pytest.raises(InferenceError):
            measure_throughput(Pipeline(detector, 1), 1, repeat((str(make_image("a.png")),)), 0.1)


class MadeUp:
    """Stands for a pipeline, whose records arrive after these seconds on a clock of its own."""

    def __init__(self, monkeypatch, waits):
        self.now, self.waits, self.times = 0.0, waits, {Stage.NETWORK: 6.0}
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(sampling, "clock_cost", lambda _: 1e-6)

    def run(self, items):
        record = SimpleNamespace(error=None)
        next(items), next(items)  # two are in flight
        for wait in self.waits:
            self.now += wait
            yield record
            if next(items, None) is None:
                break
        yield from [record] * 2


@pytest.mark.parametrize("step", [1, 2])
def test_the_warm_up_is_not_measured(monkeypatch, step):
    monkeypatch.setattr(sampling, "MAX_WARM_UP_S", 1e9)
    waits = [9.0] * 4 + [0.5] * 1000  # opening the second detector
    inputs = iter(range(2000))
    throughput, samples = measure_throughput(MadeUp(monkeypatch, waits), step, inputs, 100.0)
    assert throughput.warm_up.stable
    assert (throughput.warm_up.runs - 1) % step == 0
    assert throughput.warm_up.seconds == 9.0 * 4 + 0.5 * (throughput.warm_up.runs - 4)
    assert throughput.warm_up.first_s == 9.0
    assert throughput.pictures_per_second == 2.0
    assert throughput.pictures == 200 + step
    assert samples[WALL] == pytest.approx([0.5] * len(samples[WALL]))
    assert module.WINDOWS <= len(samples[WALL]) < 2 * module.WINDOWS
    assert throughput.work_s["network"] == 6.0 / (throughput.warm_up.runs + throughput.pictures + 2)


def test_a_pace_that_never_settles_is_measured_all_the_same(monkeypatch):
    monkeypatch.setattr(sampling, "MAX_WARM_UP_S", 100.0)
    waits = [1.3**n for n in range(60)]
    throughput, samples = measure_throughput(MadeUp(monkeypatch, waits), 1, iter(range(99)), 0.0)
    assert not throughput.warm_up.stable
    assert throughput.pictures == len(samples[WALL]) == module.MIN_STEPS


def test_decoding_a_video_counts_as_decoding(make_model, make_image):
    """Its frames are decoded where they are read, not where images are loaded."""

    def slow():
        for item in repeat((str(make_image("a.png")),)):
            time.sleep(0.01)
            yield item

    with BatchDetector(make_model(), "cpu") as detector:
        throughput, _ = measure_throughput(Pipeline(detector, 1), 1, slow(), 0.1)
    assert throughput.work_s["decode"] >= 0.01
