"""Latency: the stages add up, both ways run the same pictures, and they take turns."""

import itertools

import pytest

from detcli.commands.bench import latency as module
from detcli.commands.bench.inputs import Feed
from detcli.commands.bench.latency import Path, measure_latency
from detcli.commands.bench.noise import NoiseMeter
from detcli.commands.bench.statistics import WALL
from detcli.detector import Detector

CPU_STAGES = ["decode", "preprocess", "network", "selection", "draw", "remainder"]


@pytest.fixture
def measured(make_model, make_picture):
    """A short measurement of batches of two."""
    names = tuple(str(make_picture(f"{n}.png", ("red", n, n))) for n in range(3))
    with (
        Detector(make_model(batch=None), "cpu") as detector,
        Feed(names) as watched,
        Feed(names) as unwatched,
    ):
        yield measure_latency(Path(detector, 2, watched, unwatched), "cpu", 0.05, NoiseMeter())


def test_the_means_of_the_stages_sum_to_that_of_the_wall_clock(measured):
    found, samples = measured
    means = [stage.summary.mean_s for stage in found.stages if stage.summary is not None]
    assert sum(means) == pytest.approx(found.wall.mean_s, rel=1e-12)
    shares = [stage.share for stage in found.stages if stage.share is not None]
    assert sum(shares) == pytest.approx(1)
    for run in zip(*(samples[name] for name in CPU_STAGES), strict=True):
        assert sum(run) > 0


def test_all_stages_are_there_and_those_that_a_cpu_lacks_are_empty(measured):
    found, samples = measured
    assert [stage.name for stage in found.stages] == module.STAGES
    assert [stage.name for stage in found.stages if stage.summary] == CPU_STAGES
    assert list(samples) == [WALL, *CPU_STAGES]
    assert not found.synchronised


def test_warm_up_and_runs_are_counted(measured):
    found, samples = measured
    assert found.warm_up.runs >= 20
    assert found.warm_up.runs % 2 == 0
    assert found.wall.samples == found.undisturbed.samples == len(samples[WALL]) >= 10
    assert found.undisturbed_median.estimate == found.undisturbed.p50_s


def test_its_own_cost_is_known(measured):
    found, _ = measured
    assert 0 < found.overhead.clock_share < 1
    assert found.overhead.observed.low <= found.overhead.observed.high


class Recorder:
    """Stands for a path: notes what it is asked for."""

    def __init__(self):
        self.asked = []
        self.clock = module.StageClock(itertools.count(0, 1_000_000).__next__)

    def both(self, *, watched_first=False):
        self.asked.append(watched_first)
        self.clock.start()
        self.clock.stop()
        return 1.0


def test_who_comes_first_changes_every_time():
    path = Recorder()
    found, _ = measure_latency(path, "cuda:0", 0.0, NoiseMeter())
    runs = path.asked[found.warm_up.runs // 2 :]
    assert runs == [False, True] * 5
    assert found.synchronised


def test_both_ways_run_the_same_pictures(make_model, make_picture, monkeypatch):
    names = tuple(str(make_picture(f"{n}.png", ("red", n, n))) for n in range(3))
    drawn = []
    monkeypatch.setattr(module, "annotate", lambda _, found: drawn.append(found.xyxy.tolist()))
    with (
        Detector(make_model(), "cpu") as detector,
        Feed(names) as watched,
        Feed(names) as unwatched,
    ):
        path = Path(detector, 1, watched, unwatched)
        for number in range(4):
            path.both(watched_first=number % 2 == 1)
    assert drawn[::2] == drawn[1::2]
    assert [int(found[0][0] // 8) for found in drawn[::2]] == [0, 1, 2, 0]


def test_nobody_watches_after_a_failure(make_model, tmp_path):
    detector = Detector(make_model(), "cpu")
    names = (str(tmp_path / "none.jpg"),)
    with Feed(names) as watched, Feed(names) as unwatched:
        path = Path(detector, 1, watched, unwatched)
        with pytest.raises(Exception, match="no such file"):
            path.watch()
    assert detector._observer is None  # noqa: SLF001
    detector.close()
