import threading

import pytest
from shard_headers import header, written

from detcli.core.errors import InferenceError, StoreError
from detcli.run.counts import Counts
from detcli.run.shards.schedule import STARTS, Schedule
from detcli.run.shards.work import Done, Failed, Ready
from detcli.run.shards.workers import ATTEMPTS, Ended, More, Workers


def written_shards(store, count):
    """The manifest of a run of `count` shards, each of one name."""
    names = [str(number) for number in range(count)]
    return written(store, names, 1)


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


@pytest.mark.parametrize(
    ("shards", "expected_workers"),
    [([], [0]), ([0], [0]), ([0, 1, 2], [0, 1, 2])],
)
def test_there_are_no_more_workers_than_shards(store, shards, expected_workers):
    manifest = written(store, ["a", "b", "c"], 1)
    started = []

    def begin(number, tell, _):
        started.append(number)
        return Worker(number, tell)

    with Workers(5, begin) as workers:
        workers.ready()
        counts = list(workers.run(Schedule(store, manifest, shards)))
    assert started == expected_workers
    assert len(counts) == len(shards)


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
    manifest = written_shards(store, 30)
    started = []

    def begin(number, tell, lost_on):
        remaining_nodes = []
        for node_number in range(nodes):
            if str(node_number) not in lost_on:
                remaining_nodes.append(str(node_number))
        if not remaining_nodes:
            return None
        started.append(number)
        if len(started) > lost + 1 or (len(started) == 1 and not ends):
            return Worker(number, tell)
        if len(started) == 1:
            tell(Ready("here", header()["settings"], "1.0"))
        node = remaining_nodes[len(started) % len(remaining_nodes)]
        tell(Ended("SIGTERM", node))
        return Worker(number, lambda _: None)

    with Workers(6, begin) as workers:
        workers.ready()
        if ends:
            with pytest.raises(InferenceError, match="keep dying: SIGTERM; the last one had no sh"):
                list(workers.run(Schedule(store, manifest, range(30))))
            assert len(started) == 6 * STARTS * nodes
        else:
            counts = list(workers.run(Schedule(store, manifest, range(30))))
            assert len(counts) == 30


def test_a_worker_that_hangs_is_named_once_and_replaced_when_it_is_killed(
    store, monkeypatch, caplog
):
    """Its shard goes to another worker."""
    monkeypatch.setattr("detcli.run.shards.workers.SILENT_S", 0.1)
    manifest = written(store, ["a", "b", "c"], 1)
    hanging_workers = []

    class Hanging(Worker):
        def send(self, task):
            if hanging_workers or task is None:
                super().send(task)
            else:
                hanging_workers.append(self)
                kill = threading.Timer(0.6, self._tell, [Ended("SIGKILL")])
                kill.start()

    with Workers(1, Hanging) as workers:
        workers.ready()
        schedule = Schedule(store, manifest, range(3))
        counts = list(workers.run(schedule))
    assert len(counts) == 3
    assert caplog.text.count("a worker on here has given no sign of life for") == 1
    assert schedule.deaths == 1


class Unsteady:
    """Fares as a list of outcomes says, one after the other; with `done` where it is empty."""

    def __init__(self, tell, outcomes):
        self._tell = tell
        self._outcomes = outcomes
        tell(Ready("here", header()["settings"], "1.0"))
        self._ask_or_end()

    def _ask_or_end(self):
        if self._outcomes[:1] == ["lost"]:
            self._outcomes.pop(0)
            self._tell(Ended("SIGTERM", "here"))
        else:
            self._tell(More())

    def send(self, task):
        if task is None:
            self._tell(Ended(""))
            return
        outcome = self._outcomes.pop(0) if self._outcomes else "done"
        if outcome == "killed":  # with the task in hand
            self._tell(Ended("SIGKILL", "here"))
            return
        if outcome in {"failed", "failed mostly"}:
            error = StoreError("no answer")
            self._tell(Failed(task, error, mostly=outcome == "failed mostly"))
        else:
            self._tell(Done(task, Counts()))
        self._ask_or_end()

    def release(self):
        pass

    end = release


def work_all(store, outcomes, shards):
    """Process shards with one worker that fares like this; returns what each start had to avoid."""
    manifest = written_shards(store, shards)
    starts = []

    def begin(_, tell, lost_on):
        starts.append(lost_on)
        return Unsteady(tell, outcomes)

    with Workers(1, begin) as workers:
        workers.ready()
        counts = list(workers.run(Schedule(store, manifest, range(shards))))
    assert len(counts) == shards
    return starts


def test_a_success_resets_the_count_of_losses(store):
    """A worker that is lost now and then has not worn out its machine."""
    losses = ["lost"] * 4
    starts = work_all(store, losses + ["done"] + losses + ["done"], shards=3)
    assert len(starts) == 2 * len(losses) + 1
    assert not any(starts)


def test_a_death_over_a_shard_resets_the_count_of_losses(store):
    """The machine could start a worker, so what killed it is the shard's matter."""
    losses = ["lost"] * 4
    starts = work_all(store, losses + ["killed"] + losses + ["done"], shards=1)
    assert len(starts) == 2 * len(losses) + 2
    assert not any(starts)


def test_a_machine_is_avoided_after_the_fifth_loss_in_a_row(store):
    starts = work_all(store, ["lost"] * 5, shards=1)
    assert starts == [[], [], [], [], [], ["here"]]


def test_a_success_resets_the_count_of_outages(store):
    """An outage in the morning and one in the evening are two, not one long one."""
    outage = ["failed"] * (ATTEMPTS - 1)
    work_all(store, ["done"] + outage + ["done"] + outage + ["done"], shards=3)


def test_a_third_outage_in_a_row_ends_the_run(store):
    outcomes = ["done", "failed", "failed", "failed"]
    with pytest.raises(StoreError, match="no answer"):
        work_all(store, outcomes, shards=3)
    assert not outcomes


def test_a_store_that_cannot_be_asked_ends_the_run_at_the_third_attempt(store, monkeypatch):
    """A failure of the store is no death: it ends with the store's own error."""
    manifest = written_shards(store, 3)
    schedule = Schedule(store, manifest, range(3))
    store_exists = store.exists
    questions = []

    def exists(name):
        questions.append(name)
        if len(questions) > 1:
            raise StoreError("no answer")
        return store_exists(name)

    monkeypatch.setattr(store, "exists", exists)
    with Workers(1, Worker) as workers:
        workers.ready()
        with pytest.raises(StoreError, match="no answer"):
            list(workers.run(schedule))
    assert len(questions) == 1 + ATTEMPTS


def test_a_failure_of_most_names_ends_a_run_that_has_not_processed_any(store):
    with pytest.raises(StoreError, match="no answer"):
        work_all(store, ["failed mostly"], shards=2)


def test_a_failure_of_most_names_is_waited_for_after_a_success(store):
    work_all(store, ["done", "failed mostly", "done"], shards=2)
