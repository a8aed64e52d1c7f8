"""Throughput: pictures per second of the whole pipeline."""

import time

import pytest

from detcli import DeviceOptions
from detcli.commands.bench import run as module
from detcli.commands.bench import sampling
from detcli.commands.bench.run import RepeatedInputs, TimeLimit, _Arrivals, measure_throughput
from detcli.commands.bench.sampling import WALL
from detcli.core.errors import DecodeError, InferenceError
from detcli.run.detector import Detector


@pytest.mark.parametrize(("batch", "workers"), [(1, 1), (2, 2)])
def test_pictures_a_second(batch, workers, make_model, make_picture):
    names = (str(make_picture("a.png", ("red", 1, 1))),)
    options = DeviceOptions(workers=workers)
    with (
        Detector(make_model(batch=None), "cpu", options=options) as detector,
        RepeatedInputs(names, TimeLimit()) as inputs,
    ):
        found, samples = measure_throughput(detector, batch, inputs, 0.3)
    assert found.pictures_per_second == found.pictures / found.seconds
    assert found.seconds > 0.3
    assert found.warm_up.runs > 0
    assert set(found.work_s) >= {"decode", "preprocess", "network", "selection"}
    assert found.interval.low <= found.interval.estimate <= found.interval.high
    window = found.pictures / len(samples[WALL])
    assert window >= 1
    assert sum(samples[WALL]) / len(samples[WALL]) == pytest.approx(
        1 / found.pictures_per_second, rel=0.2
    )


def test_a_picture_or_a_network_that_fails_ends_the_run(make_model, make_picture, tmp_path):
    torn = tmp_path / "torn.jpg"
    torn.write_bytes(b"\xff\xd8\xff torn")
    with Detector(make_model(), "cpu") as detector:
        with (
            RepeatedInputs((str(torn),), TimeLimit()) as inputs,
            pytest.raises(DecodeError, match=r"torn\.jpg: "),
        ):
            measure_throughput(detector, 1, inputs, 0.1)
        detector._backend.close()  # noqa: SLF001 - a network that fails
        with (
            RepeatedInputs((str(make_picture("a.png")),), TimeLimit()) as inputs,
            pytest.raises(InferenceError),
        ):
            measure_throughput(detector, 1, inputs, 0.1)


class Clock:
    """A clock that a test moves."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.now)

    def records(self, times, count, step_s):
        told = 0.0
        for _ in range(count):
            self.now += step_s
            told = times.add()
        return told


def test_the_warm_up_is_not_measured(monkeypatch):
    monkeypatch.setattr(sampling, "MAX_WARM_UP_S", 1e9)
    clock = Clock(monkeypatch)
    slow = _Arrivals(2)
    clock.records(slow, 4, 9.0)  # opening the second detector
    assert slow.warm == 0
    clock.records(slow, 200, 0.5)
    assert slow.stable
    assert slow.warm % 2 == 0
    assert slow.samples() == pytest.approx([0.5] * len(slow.samples()))
    assert len(slow.samples()) >= module.WINDOWS


def test_a_pace_that_never_settles_is_measured_all_the_same(monkeypatch):
    monkeypatch.setattr(sampling, "MAX_WARM_UP_S", 100.0)
    clock = Clock(monkeypatch)
    times = _Arrivals(1)
    step = 1.0
    while not times.warm:
        step *= 1.3
        clock.records(times, 1, step)
    assert not times.stable


def test_decoding_a_video_counts_as_decoding(make_model, make_picture):
    """Its frames are decoded where they are read, not where pictures are loaded."""

    class SlowInputs(RepeatedInputs):
        def next_item(self):
            time.sleep(0.01)
            return super().next_item()

    with (
        Detector(make_model(), "cpu") as detector,
        SlowInputs((str(make_picture("a.png")),), TimeLimit()) as inputs,
    ):
        found, _ = measure_throughput(detector, 1, inputs, 0.1)
    assert found.work_s["decode"] >= 0.01
