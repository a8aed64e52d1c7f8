"""The schedule, with workers that die as the test says."""

import random as rng
from collections import Counter

import pytest
from json_lines import column_of, records_with
from sample_records import image
from shard_headers import written

from detcli.core.errors import InferenceError
from detcli.data.record import Origin, Record
from detcli.run.counts import Counts
from detcli.run.shards.parts import Merge, PartWriter
from detcli.run.shards.schedule import DEATHS, MAX_GIVEN_UP, Schedule
from detcli.run.shards.store import LocalFolder
from detcli.run.shards.work import Done, Task
from detcli.source.names import ListedInput


def numbered_names(count):
    return [str(number) for number in range(count)]


@pytest.fixture
def make_schedule(tmp_path_factory):
    """A schedule of shards with so many names."""

    def make(names=10, size=5, workers=2, shards=None):
        store = LocalFolder(tmp_path_factory.mktemp("boxes"))
        manifest = written(store, numbered_names(names), size)
        shard_numbers = range(len(manifest)) if shards is None else shards
        return Game(store, manifest, Schedule(store, manifest, shard_numbers), workers)

    return make


class Game:
    """Workers that do at once what they are given, unless it kills them."""

    def __init__(self, store, manifest, schedule, workers):
        self.store = store
        self.manifest = manifest
        self.schedule = schedule
        self.held = {number: [] for number in range(workers)}
        self.completed = []
        self.alone = []  # tasks that were processed while their worker had no other

    def play(self, kills, draw=lambda _: True):
        """Until nothing is left; `kills` tells whether a worker dies over its tasks."""
        for _ in range(10_000):
            for worker, tasks in self.held.items():
                if len(tasks) < 2 and draw("wants more"):
                    task = self.schedule.next_task(worker)
                    if task is not None:
                        tasks.append(task)
                if tasks and draw("works"):
                    self._work(worker, tasks, kills)
            if self.schedule.over:
                return
        raise AssertionError("it never ends")

    def _work(self, worker, tasks, kills):
        names = []
        for task in tasks:
            names += self.names(task)
        if any(kills(name) for name in names):
            self.held[worker] = []
            counts = self.schedule.died(worker, "SIGSEGV")
        else:
            counts = self.schedule.done(worker, self.done(tasks.pop(0)))
        if counts is not None:
            self.completed.append(counts)

    @staticmethod
    def names(task):
        return task.shard.names[task.start : task.stop]

    def done(self, task):
        names = self.names(task)
        zones_and_lines = Counter()
        messages = []
        for name in names:
            zones_and_lines["door", name] = 1
            messages.append((name, "odd"))
        counts = Counts(
            len(names),
            detections_by_class=Counter(names),
            zones_and_lines=zones_and_lines,
            messages=messages,  # type: ignore[arg-type]
        )
        with PartWriter(task.shard) as writer:
            for name in names:
                writer.add(image(name).to_json())
            if task.part is None:
                return Done(task, counts, writer.content())
            writer.publish(self.store, task.part)
            return Done(task, counts)

    def records(self):
        merge = Merge(self.store, self.manifest)
        records = list(merge)
        assert merge.faults == []
        return records


def test_all_shards_are_processed_once(make_schedule):
    game = make_schedule(names=23)
    game.play(lambda _: False)
    assert column_of(game.records(), "source") == numbered_names(23)
    assert column_of(game.records(), "index") == list(range(23))
    assert sum(counts.images for counts in game.completed) == 23
    assert game.schedule.deaths == 0


@pytest.mark.parametrize("seed", range(60))
def test_whatever_kills_workers_each_name_has_a_record(make_schedule, seed):
    """The names that kill have an error, and all others were processed."""
    random = rng.Random(seed)  # noqa: S311 - no secret
    count = random.randrange(40)
    deadly = set()
    for _ in range(random.randrange(6)):
        deadly.add(str(random.randrange(40)))
    game = make_schedule(count, random.randint(1, 50), random.randint(1, 4))
    game.play(deadly.__contains__, lambda _: random.random() < 0.7)
    records = game.records()
    assert column_of(records, "source") == numbered_names(count)
    failed = set(column_of(records_with(records, "error"), "source"))
    assert failed == deadly & set(numbered_names(count))
    input_count = 0
    crossings = 0
    names_of_messages = []
    for counts in game.completed:
        input_count += counts.images + counts.failed
        crossings += counts.zones_and_lines.total()
        for name, _ in counts.messages:
            names_of_messages.append(name)
    assert input_count == count
    assert crossings == count - len(failed)
    assert sorted(names_of_messages) == sorted(numbered_names(count))


def test_the_names_of_a_shard_that_kills_are_processed_one_by_one(make_schedule):
    game = make_schedule(names=64, size=16, workers=1)
    game.play("37".__eq__)
    (failed,) = records_with(game.records(), "error")
    assert failed["source"] == "37"
    assert failed["error"]["type"] == "InferenceError"
    assert "died 3 times: SIGSEGV" in failed["error"]["message"]
    assert game.schedule.deaths == DEATHS + DEATHS  # as a shard, and alone


def test_an_image_that_kills_keeps_what_a_list_says_of_it(tmp_path):
    store = LocalFolder(tmp_path)
    manifest = written(store, [ListedInput("a.png", None, '{"id": 7}')], 1)
    game = Game(store, manifest, Schedule(store, manifest, [0]), workers=1)
    game.play(lambda _: True)
    (failed,) = game.records()
    assert failed["source"] == "a.png"
    assert failed["meta"] == {"id": 7}


def test_a_death_by_chance_costs_no_record(make_schedule):
    """A worker that is killed now and then: nothing has an error."""
    deaths = iter([True, False, True, True, False, True, True, True, False, True])
    game = make_schedule(names=20)
    game.play(lambda _: next(deaths, False))
    assert records_with(game.records(), "error") == []
    assert game.schedule.deaths == 7


def test_a_suspect_is_processed_by_a_worker_of_its_own(make_schedule):
    schedule = make_schedule(names=30, size=5).schedule
    first = schedule.next_task("a")
    second = schedule.next_task("a")
    schedule.next_task("b")
    schedule.died("a", "SIGKILL")
    assert schedule.next_task("b") is None  # it has something in hand
    assert schedule.total == 6
    assert schedule.deaths == 1
    assert schedule.over is False
    assert schedule.next_task("c") in {first, second}
    assert schedule.next_task("c") is None  # it has a suspect
    assert schedule.next_task("d") in {first, second}
    assert schedule.next_task("c") is None  # also when no other is left
    assert schedule.next_task("e") not in {first, second, None}


def test_a_worker_that_dies_before_it_says_what_it_has_published_is_no_suspect(make_schedule):
    game = make_schedule(names=10, size=5)
    task = game.schedule.next_task(0)
    game.done(task)
    assert game.schedule.died(0, "SIGKILL") is None
    game.play(lambda _: False)
    assert game.schedule.elsewhere == 1
    assert len(game.completed) == 1


def test_what_another_run_has_published_is_left_out(make_schedule):
    game = make_schedule(names=30, size=5, workers=1)
    for number in (1, 4):
        game.done(Task.whole(game.manifest.shard(number), game.manifest.part(number)))
    game.play(lambda _: False)
    assert game.schedule.total == 6
    assert game.schedule.elsewhere == 2
    assert len(game.completed) == 4
    assert len(game.records()) == 30


def test_a_run_works_its_share(make_schedule):
    game = make_schedule(names=30, size=5, shards=range(1, 6, 2))
    game.play(lambda _: False)
    assert game.manifest.last_attempts().keys() == {1, 3, 5}


def test_workers_that_die_over_everything_end_the_run(make_schedule):
    game = make_schedule(names=100, size=50, workers=1)
    with pytest.raises(InferenceError, match="workers keep dying"):
        game.play(lambda _: True)
    assert game.schedule.deaths < DEATHS * MAX_GIVEN_UP + 200


def test_the_record_of_a_killer_is_as_pipelines_write_it(make_schedule):
    game = make_schedule(names=1, size=1, workers=1)
    game.play("0".__eq__)
    (record,) = game.records()
    error = InferenceError("x")
    assert list(record) == list(Record(Origin("0"), 0, "", "", error=error).to_json())


def test_the_order_is_not_the_same_in_two_runs(make_schedule):
    game = make_schedule(names=200, size=1)
    orders = []
    for _ in range(2):
        schedule = Schedule(game.store, game.manifest, range(200))
        order = []
        for worker in range(200):
            order.append(schedule.next_task(worker).shard.number)
        orders.append(order)
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


@pytest.mark.parametrize("seed", range(5))
def test_a_success_resets_the_count_of_names_that_kill(make_schedule, seed):
    """Many names kill in one run, but those between them succeed: it is not the machine."""
    rng.seed(seed)
    game = make_schedule(names=4 * MAX_GIVEN_UP, size=4, workers=1)
    game.play(lambda name: int(name) % 2 == 0)
    assert len(records_with(game.records(), "error")) == 2 * MAX_GIVEN_UP


@pytest.mark.parametrize(("deaths", "ends"), [(15, False), (16, True)])
def test_a_run_ends_at_the_sixteenth_name_in_a_row_that_kills(make_schedule, deaths, ends):
    game = make_schedule(names=deaths, size=1, workers=1)
    if ends:
        with pytest.raises(InferenceError, match="workers keep dying"):
            game.play(lambda _: True)
    else:
        game.play(lambda _: True)
        assert len(game.completed) == deaths


@pytest.mark.parametrize(("deaths", "fails"), [(2, False), (3, True)])
def test_a_name_fails_at_its_third_death(make_schedule, deaths, fails):
    game = make_schedule(names=1, size=1, workers=1)
    kills = iter([True] * deaths)
    game.play(lambda _: next(kills, False))
    (record,) = game.records()
    assert ("error" in record) == fails


def test_after_a_success_sixteen_names_in_a_row_that_kill_end_the_run(make_schedule):
    game = make_schedule(names=17, size=1, workers=1)
    kills = iter([False])
    with pytest.raises(InferenceError, match="workers keep dying"):
        game.play(lambda _: next(kills, True))
    assert len(game.completed) == 16


def test_the_shards_that_workers_hold_are_named_in_their_order(make_schedule):
    schedule = make_schedule(names=15, size=5).schedule
    assert schedule.held == []
    first = schedule.next_task("a")
    second = schedule.next_task("a")
    schedule.next_task("b")
    assert schedule.held == [0, 1, 2]
    schedule.died("b", "SIGKILL")
    assert schedule.held == sorted([first.shard.number, second.shard.number])
