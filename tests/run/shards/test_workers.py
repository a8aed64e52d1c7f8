from shard_headers import header, written

from detcli.run.counts import Counts
from detcli.run.shards.schedule import Schedule
from detcli.run.shards.work import Done, Ready
from detcli.run.shards.workers import Ended, More, Workers


class Worker:
    """Does nothing, and says that it is done."""

    def __init__(self, number, tell):
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

        def begin(number, tell, started=started):
            started.append(number)
            return Worker(number, tell)

        with Workers(5, begin) as workers:
            workers.ready()
            worked = [*workers.run(Schedule(store, manifest, shards))]
        assert started == [*range(expected)]
        assert len(worked) == len(shards)
