import pytest
from shard_headers import header, written

from detcli.core.errors import InferenceError
from detcli.run.counts import Counts
from detcli.run.shards.schedule import STARTS, Schedule
from detcli.run.shards.work import Done, Ready
from detcli.run.shards.workers import Ended, More, Workers


class Worker:
    """Does nothing, and says that it is done."""

    def __init__(self, number, tell, _=()):
        self._tell = tell
        self.number = number
        tell(Ready("here", header()["settings"], "1.0"))
        tell(More())

    def send(self, task):
        if task is None:
            self._tell(Ended(""))
        else:
            self._tell(Done(task, Counts()))
            self._tell(More())

    def release(self):
        pass

    end = release


def test_there_are_no_more_workers_than_shards(store):
    manifest = written(store, ["a", "b", "c"], 1)
    for shards, expected in (([], 1), ([0], 1), ([0, 1, 2], 3)):
        started = []

        def begin(number, tell, _, started=started):
            started.append(number)
            return Worker(number, tell)

        with Workers(5, begin) as workers:
            workers.ready()
            worked = [*workers.run(Schedule(store, manifest, shards))]
        assert started == [*range(expected)]
        assert len(worked) == len(shards)


@pytest.mark.parametrize(
    ("lost", "nodes", "ends"),
    [
        (6 * (STARTS - 1), 1, False),
        (20 * STARTS, 10_000, False),
        (10_000, 1, True),
        (10_000, 2, True),
    ],
)
def test_the_run_ends_when_no_worker_can_be_had(store, lost, nodes, ends):
    """Six workers are lost again and again before they have a shard, as with their node.

    Each node that comes in its place may be lost, too.
    """
    manifest = written(store, map(str, range(30)), 1)
    started = []

    def begin(number, tell, lost_on):
        if not (there := [str(one) for one in range(nodes) if str(one) not in lost_on]):
            return None
        started.append(number)
        if len(started) > lost + 1 or (len(started) == 1 and not ends):
            return Worker(number, tell)
        if len(started) == 1:
            tell(Ready("here", header()["settings"], "1.0"))
        tell(Ended("SIGTERM", there[len(started) % len(there)]))
        return Worker(number, lambda _: None)

    with Workers(6, begin) as workers:
        workers.ready()
        if ends:
            with pytest.raises(InferenceError, match="keep dying: SIGTERM; the last one had no sh"):
                [*workers.run(Schedule(store, manifest, range(30)))]
            assert len(started) == 6 * STARTS * nodes
        else:
            assert len([*workers.run(Schedule(store, manifest, range(30)))]) == 30


def test_a_worker_that_hangs_is_named_and_replaced(store, monkeypatch, caplog):
    """Its shard goes to another; what it says later is of no interest."""
    monkeypatch.setattr("detcli.run.shards.workers.SILENT_S", 0.1)
    manifest = written(store, ["a", "b", "c"], 1)
    hanging = []

    class Hanging(Worker):
        def send(self, task):
            if hanging or task is None:
                super().send(task)
            else:
                hanging.append((self, task))

        def end(self):
            if hanging and hanging[0][0] is self:
                self._tell(Done(hanging[0][1], Counts()))
                self._tell(Ended("SIGKILL"))

    with Workers(1, Hanging, 0.6) as workers:
        workers.ready()
        schedule = Schedule(store, manifest, range(3))
        assert len([*workers.run(schedule)]) == 3
    assert "a worker on here has given no sign of life for" in caplog.text
    assert schedule.deaths == 1
