"""Latency: the stages add up; timed and untimed runs see the same images, in turns."""

import itertools

import pytest

from detcli.commands.bench import run as module
from detcli.commands.bench import sampling
from detcli.commands.bench.run import BatchRunner, TimeLimit, measure_latency
from detcli.commands.bench.sampling import WALL
from detcli.run.batches import BatchDetector

pytestmark = pytest.mark.slow

CPU_STAGES = ["decode", "preprocess", "network", "selection", "draw", "remainder"]


def names_of_images(make_image):
    """The names of three images, each with its square further from the corner."""
    first = make_image("0.png", ("red", 0, 0))
    second = make_image("1.png", ("red", 1, 1))
    third = make_image("2.png", ("red", 2, 2))
    return str(first), str(second), str(third)


def test_batches_of_two(make_model, make_image):
    names = names_of_images(make_image)
    with BatchDetector(make_model(batch=None), "cpu") as detector:
        runner = BatchRunner(detector, 2, names, TimeLimit())
        latency, samples = measure_latency(runner, 0.05)
    assert [stage.name for stage in latency.stages] == module.STAGES  # empty where a CPU lacks them
    measured_names = []
    means_s = []
    shares = []
    for stage in latency.stages:
        if stage.summary is not None:
            measured_names.append(stage.name)
            means_s.append(stage.summary.mean_s)
            shares.append(stage.share)
        else:
            assert stage.share is None
    assert measured_names == CPU_STAGES
    assert sum(means_s) == pytest.approx(latency.wall.mean_s, rel=1e-12)
    assert sum(shares) == pytest.approx(1)
    for seconds in samples.values():
        assert min(seconds) >= 0
    assert list(samples) == [WALL] + CPU_STAGES
    assert not latency.synchronised
    assert latency.warm_up.runs >= 2 * sampling.BLOCK
    assert latency.warm_up.runs % 2 == 0
    assert latency.wall.samples == latency.undisturbed.samples == len(samples[WALL]) >= 10
    assert latency.undisturbed_median.estimate == latency.undisturbed.p50_s
    assert 0 < latency.overhead.clock_share < 1
    assert latency.overhead.observed.low <= latency.overhead.observed.high


class Recorder:
    """Stands for a BatchRunner and notes the order of its runs."""

    def __init__(self):
        self.asked = []
        self.synchronised = True
        self.clock = sampling.StageClock(itertools.count(0, 1_000_000).__next__)

    def run_both(self, *, timed_first=False):
        self.asked.append(timed_first)
        self.clock.start()
        self.clock.stop()
        return 1.0


def test_timed_and_untimed_runs_alternate():
    runner = Recorder()
    latency, _ = measure_latency(runner, 0.0)  # type: ignore[arg-type]
    runs = runner.asked[latency.warm_up.runs // 2 :]
    assert runs == [False, True] * 5
    assert latency.synchronised


def test_timed_and_untimed_runs_see_the_same_images(make_model, make_image, monkeypatch):
    names = names_of_images(make_image)
    drawn = []
    monkeypatch.setattr(
        module, "annotate", lambda _, detections: drawn.append(detections.xyxy.tolist())
    )
    with BatchDetector(make_model(), "cpu") as detector:
        runner = BatchRunner(detector, 1, names, TimeLimit())
        for number in range(4):
            runner.run_both(timed_first=number % 2 == 1)
    assert drawn[::2] == drawn[1::2]
    assert [int(detections[0][0] // 8) for detections in drawn[::2]] == [0, 1, 2, 0]


def test_the_observer_is_removed_after_a_failure(make_model, tmp_path):
    with BatchDetector(make_model(), "cpu") as detector:
        runner = BatchRunner(detector, 1, (str(tmp_path / "none.jpg"),), TimeLimit())
        with pytest.raises(Exception, match="no such file"):
            runner.run_timed()
        assert detector._observer is None  # noqa: SLF001
