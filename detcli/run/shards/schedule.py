"""The schedule: which worker gets which shard, and what happens to a shard whose worker dies.

A shard whose worker died is worked again, by a worker that has nothing else in hand. After three
deaths its names are worked one by one; a name whose worker has died three times over it alone gets
a record with an error. The others are worked as usual.

An engine calls `next_task` for each worker that wants one, and `done`, `failed` or `died` when the
worker has finished one, given one up or died. A schedule is not thread-safe.
"""

import json
import random
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterable, Mapping

from detcli.core.errors import InferenceError
from detcli.data.record import Origin, Record
from detcli.run.counts import Counts
from detcli.run.shards.manifest import Manifest, Shard
from detcli.run.shards.parts import PartWriter
from detcli.run.shards.store import Store
from detcli.run.shards.work import Done, Task
from detcli.source.listing import meta_of, source_of

DEATHS = 3
"""Deaths after which a shard is worked name by name, and a single name counts as their cause."""

STARTS = 5
"""How often in a row a worker may be lost without a shard in hand before it is not replaced."""

FRUITLESS = 16
"""Names in a row that count as the cause of deaths, after which the run fails: more likely the
machine is the cause."""

WorkerId = Hashable
"""An engine's identifier of a worker."""


class Schedule:
    """The shards that are left to do, in random order: a run beside this one works others."""

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        shards: Iterable[int],
        retried: Mapping[int, Shard] | None = None,
    ) -> None:
        """Put the shards in a random order.

        Args:
            store: Where the parts are published.
            manifest: The names of each shard.
            shards: The numbers of the shards that are to be worked.
            retried: By number, the shards of which --retry-failed works only the failed names.
                They have only these names.
        """
        self.manifest = manifest
        self._store = store
        self._retried = retried or {}
        shuffled = list(shards)
        random.shuffle(shuffled)
        self.total = len(shuffled)  # shards that this run has to work

        self._waiting = deque(shuffled)  # the numbers of shards that no worker has begun
        self._held: dict[WorkerId, list[Task]] = defaultdict(list)  # what each worker has in hand
        self.elsewhere = 0  # shards that another run, or a worker that then died, has published

        # Tasks over which a worker has died wait here; each is worked while nothing else is.
        self._suspects: deque[Task] = deque()
        self._strikes: Counter[Task] = Counter()  # how many workers have died over each task
        self.deaths = 0  # of workers

        # Shards over which workers died again are worked name by name, to find the cause. These are
        # the names that are done, by shard and position in it.
        self._done_names: dict[int, dict[int, Done]] = defaultdict(dict)
        self._fruitless = 0  # how many names in a row counted as the cause of deaths

    @property
    def over(self) -> bool:
        """Whether nothing is left to do, or being done."""
        return not (self._waiting or self._suspects or any(self._held.values()))

    @property
    def held(self) -> list[int]:
        """The shards that are being worked."""
        numbers: set[int] = set()
        for tasks in self._held.values():
            numbers.update(task.shard.number for task in tasks)
        return sorted(numbers)

    def holds(self, worker: WorkerId) -> bool:
        """Whether a worker has a task in hand."""
        return bool(self._held.get(worker))

    def next_task(self, worker: WorkerId) -> Task | None:
        """Choose the next task of a worker, and count it as held by the worker.

        A worker asks early: it may still hold the task before, whose records are on their way.
        But a suspect, a task over which a worker has died, is worked while nothing else is held:
        so another death tells which task is the cause. Suspects go first.

        Returns:
            The task; None if the worker has to wait until another one has finished or died, or if
            nothing is left.

        Raises:
            StoreError: It cannot be found out whether the task has been done.
        """
        if not self._may_get_task(worker):
            return None
        while self._suspects or self._waiting:
            queue: deque[Task] | deque[int]
            if self._suspects:
                queue = self._suspects
                task = self._suspects[0]
            else:
                queue = self._waiting
                task = self._whole(self._waiting[0])
            is_published = self._is_published(task)
            queue.popleft()  # only now: if the store cannot be asked, the task must not be lost
            if not is_published:
                self._held[worker].append(task)
                return task
            self.elsewhere += 1  # another run was faster, or the worker died before it said so
        return None

    def _may_get_task(self, worker: WorkerId) -> bool:
        """Tell whether a worker may get a task beside those that it holds.

        It may not while it holds a suspect, or while suspects wait: these are worked alone.
        """
        held_tasks = self._held[worker]
        if not held_tasks:
            return True
        holds_suspect = any(self._is_suspect(task) for task in held_tasks)
        return not self._suspects and not holds_suspect

    def _is_published(self, task: Task) -> bool:
        """Ask the store whether the part of a task, the file of its records, is there already."""
        return task.part is not None and self._store.exists(task.part)

    def _whole(self, number: int) -> Task:
        """Make the task of a whole shard."""
        shard = self._retried.get(number) or self.manifest.shard(number)
        return Task.whole(shard, self.manifest.part(number, shard.attempt))

    def done(self, worker: WorkerId, done: Done) -> Counts | None:
        """A worker has finished a task; returns the shard's counts, once all of it is done."""
        self._held[worker].remove(done.task)
        self._fruitless = 0
        if done.task.part is None:
            return self._add_name(done)
        return done.counts

    def failed(self, worker: WorkerId, task: Task) -> None:
        """A worker has given up a task, which stays to be done."""
        self._held[worker].remove(task)
        if self._is_suspect(task):
            self._suspects.append(task)
        else:
            self._waiting.append(task.shard.number)

    def died(self, worker: WorkerId, cause: str) -> Counts | None:
        """Put back the tasks of a worker that has died, each as a suspect.

        After DEATHS deaths over the same shard, its names become tasks of their own. After DEATHS
        deaths over a single name, the name gets a record with an error.

        Args:
            worker: The worker.
            cause: What ended it, for the message of the error.

        Returns:
            The counts of a shard, if the record of an error has completed it.

        Raises:
            InferenceError: Workers keep dying.
        """
        self.deaths += 1
        counts_of_shard = None
        for task in self._held.pop(worker, []):
            self._strikes[task] += 1
            if self._strikes[task] < DEATHS:
                self._suspects.append(task)
            elif task.size > 1:
                for position in range(task.start, task.stop):
                    self._suspects.append(Task(task.shard, None, position, position + 1))
            else:
                counts_of_shard = self._give_up_name(task, cause)
        return counts_of_shard

    def _give_up_name(self, task: Task, cause: str) -> Counts | None:
        """Give a name, over which workers have died, the record of an error.

        Args:
            task: The task of this single name.
            cause: What ended the last of the workers.

        Returns:
            The counts of its shard, if all other names of it are done.

        Raises:
            InferenceError: So many names in a row were given up that the machine is the cause.
        """
        name = task.shard.names[task.start]
        source = source_of(name)
        self._fruitless += 1
        if self._fruitless >= FRUITLESS:
            raise repeated_deaths_error(cause, f"the last image was {source}")
        error = InferenceError(
            f"the process that worked it died {DEATHS} times: {cause}",
            "look at it alone, with detcli predict",
        )
        origin = Origin(source, input=task.shard.numbers[task.start], meta=meta_of(name))
        record = Record(origin, 0, "", "", error=error)
        counts = Counts()
        counts.add(record)
        line = json.dumps(record.to_json()).encode()
        return self._add_name(Done(task, counts, line))

    def _is_suspect(self, task: Task) -> bool:
        """Tell whether a worker has died over a task.

        A task without a part is a single name of a shard over which workers have died.
        """
        return task.part is None or self._strikes[task] > 0

    def _add_name(self, done_name: Done) -> Counts | None:
        """Collect the records of one name of a shard that is worked name by name.

        Returns:
            None until the last name: then the records are published as the shard's part, and the
            counts of all of it are returned.
        """
        shard = done_name.task.shard
        done_names = self._done_names[shard.number]
        done_names[done_name.task.start] = done_name
        if len(done_names) < len(shard.names):
            return None

        del self._done_names[shard.number]
        counts = Counts()
        with PartWriter(shard) as writer:
            for position in sorted(done_names):
                counts.include(done_names[position].counts)
                for line in done_names[position].lines.splitlines():
                    writer.add(json.loads(line))
            writer.publish(self._store, self.manifest.part(shard.number, shard.attempt))
        return counts


def repeated_deaths_error(cause: str, when: str) -> InferenceError:
    """Make the error of a run whose workers keep dying."""
    return InferenceError(
        f"workers keep dying: {cause}; {when}",
        "check the memory and the device; detcli doctor looks at the device",
    )
