"""The schedule: which worker gets which shard, and what happens to a shard whose worker dies.

A shard whose worker died is processed again, by a worker that holds no other task. After three
deaths its names are processed one by one, and a name that three workers died over, while they held
no other task, gets a record with an error. The others are processed as usual.

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
"""Deaths after which a shard is processed name by name, and one name is taken as their cause."""

STARTS = 5
"""How often in a row a worker may be lost while it holds no shard, before it is not replaced."""

MAX_GIVEN_UP = 16
"""Names that may be given up in a row as the cause of deaths. At this number the run fails, as the
cause is more likely the machine."""

WorkerId = Hashable
"""An engine's identifier of a worker."""


class Schedule:
    """The shards that are left to process, in random order, so that a parallel run takes others."""

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        shards: Iterable[int],
        retried: Mapping[int, Shard] | None = None,
    ) -> None:
        """Create a schedule with all shards waiting, in random order.

        Args:
            store: The output folder of the run, where the records of each shard are published.
            manifest: The list of all shards, with the names of the inputs of each.
            shards: The indices of the shards to process.
            retried: By index, shards with only those names that failed before, for --retry-failed.
                Other shards are processed as the manifest lists them.
        """
        self.manifest = manifest
        self._store = store
        self._retried = retried or {}
        shuffled = list(shards)
        random.shuffle(shuffled)

        self.total = len(shuffled)  # how many shards there are to process
        # How many of them were found to be already done, by another run, or by a worker that died
        # after it had published the records and before it said so.
        self.elsewhere = 0

        # A shard waits until a worker gets it; the worker then holds it as a task.
        self._waiting = deque(shuffled)
        self._held: dict[WorkerId, list[Task]] = defaultdict(list)

        # A task whose worker has died is a suspect: it may be what killed the worker. It waits
        # here, to be processed by a worker that holds nothing else.
        self._suspects: deque[Task] = deque()
        self._deaths_over: Counter[Task] = Counter()  # how many workers died while they held a task
        self.deaths = 0  # of workers in all

        # To find the input that kills, a shard over which workers died again and again is processed
        # input by input. These are the inputs that are done: by shard, then by position in it.
        self._done_inputs: dict[int, dict[int, Done]] = defaultdict(dict)
        self._given_up_in_a_row = 0  # names that were regarded as the cause of deaths

    @property
    def over(self) -> bool:
        """Whether nothing is left to do, or being done."""
        return not (self._waiting or self._suspects or any(self._held.values()))

    @property
    def held(self) -> list[int]:
        """The shards that are being processed."""
        numbers: set[int] = set()
        for tasks in self._held.values():
            numbers.update(task.shard.number for task in tasks)
        return sorted(numbers)

    def holds(self, worker: WorkerId) -> bool:
        """Whether a worker holds a task."""
        return bool(self._held.get(worker))

    def next_task(self, worker: WorkerId) -> Task | None:
        """Choose the next task of a worker, and record that the worker holds it.

        Suspects, the tasks over which a worker has died, come before the shards that wait. A task
        whose records are already published, by another run or by a worker that died before it said
        so, is dropped.

        Args:
            worker: The worker. It may still hold the previous task, as it asks for the next one
                when all images of that are read.

        Returns:
            The task; None if there is none, or none that this worker may get for now.

        Raises:
            StoreError: The store does not answer whether the records are published. The task
                stays first in its queue.
        """
        if not self._may_get_task(worker):
            return None
        while self._suspects or self._waiting:
            if self._suspects:
                task = self._suspects[0]
            else:
                task = self._whole(self._waiting[0])

            # Asked before the task leaves its queue: if this raises an error, it is not lost.
            is_published = self._is_published(task)
            if self._suspects:
                self._suspects.popleft()
            else:
                self._waiting.popleft()

            if not is_published:
                self._held[worker].append(task)
                return task
            self.elsewhere += 1
        return None

    def _may_get_task(self, worker: WorkerId) -> bool:
        """Return whether a worker may get a task now.

        One that holds nothing may get any. One that holds a task may get a second, but not if
        either is a suspect: a suspect is processed alone, so that it is known which task killed the
        worker if it dies again.
        """
        held_tasks = self._held[worker]
        if not held_tasks:
            return True
        holds_suspect = any(self._is_suspect(task) for task in held_tasks)
        next_is_suspect = bool(self._suspects)
        return not holds_suspect and not next_is_suspect

    def _is_published(self, task: Task) -> bool:
        """Ask the store whether the part of a task, the file of its records, already exists."""
        return task.part is not None and self._store.exists(task.part)

    def _whole(self, number: int) -> Task:
        """Make the task of a whole shard."""
        shard = self._retried.get(number) or self.manifest.shard(number)
        return Task.whole(shard, self.manifest.part(number, shard.attempt))

    def done(self, worker: WorkerId, finished: Done) -> Counts | None:
        """A worker has finished a task; returns the shard's counts, once all of it is done."""
        self._held[worker].remove(finished.task)
        self._given_up_in_a_row = 0
        if finished.task.part is None:
            return self._add_done_input(finished)
        return finished.counts

    def failed(self, worker: WorkerId, task: Task) -> None:
        """A worker has given up a task, which remains to be done."""
        self._held[worker].remove(task)
        if self._is_suspect(task):
            self._suspects.append(task)
        else:
            self._waiting.append(task.shard.number)

    def died(self, worker: WorkerId, cause: str) -> Counts | None:
        """Take back the tasks that a worker held when it died, and decide how each is done again.

        After the first and the second death over a shard, it is processed again, as a suspect.
        After the third, each of its names becomes a separate task, to find the one that kills. A
        single name is tried three times, too. Then it is given up: its record has an error.

        Args:
            worker: The worker.
            cause: What ended it, for the message of the error.

        Returns:
            What became of the inputs of a shard, if it is complete because its last name was
            given up; else None.

        Raises:
            InferenceError: Workers keep dying.
        """
        self.deaths += 1
        counts_of_shard = None
        for task in self._held.pop(worker, []):
            self._deaths_over[task] += 1
            if self._deaths_over[task] < DEATHS:
                self._suspects.append(task)
            elif task.size > 1:
                for position in range(task.start, task.stop):
                    # Without a part: the records of individual names are sent back, and published
                    # together, see `_add_done_input`.
                    task_of_name = Task(task.shard, part=None, start=position, stop=position + 1)
                    self._suspects.append(task_of_name)
            else:
                counts_of_shard = self._give_up_name(task, cause)
        return counts_of_shard

    def _give_up_name(self, task: Task, cause: str) -> Counts | None:
        """Give up an input over which workers have died: its record is an error.

        Args:
            task: The task of this single input.
            cause: What ended the last of the workers.

        Returns:
            What became of all inputs of its shard, if this was the last; else None.

        Raises:
            InferenceError: So many inputs in a row were given up that the machine is the cause.
        """
        name = task.shard.names[task.start]
        source = source_of(name)
        self._given_up_in_a_row += 1
        if self._given_up_in_a_row >= MAX_GIVEN_UP:
            raise repeated_deaths_error(cause, f"the last image was {source}")

        error = InferenceError(
            f"the process that handled it died {DEATHS} times: {cause}",
            "try it alone, with detcli predict",
        )
        origin = Origin(source, input=task.shard.numbers[task.start], meta=meta_of(name))
        # No detector has seen it, so there is no name of a model or a device. When the records of
        # the shard are put together, each gets its index.
        record = Record(origin, index=0, model="", device="", error=error)
        counts = Counts()
        counts.add(record)
        line = json.dumps(record.to_json()).encode()
        return self._add_done_input(Done(task, counts, line))

    def _is_suspect(self, task: Task) -> bool:
        """Return whether a worker has died over a task.

        A task without a part is a single name of a shard over which workers have died.
        """
        return task.part is None or self._deaths_over[task] > 0

    def _add_done_input(self, done_input: Done) -> Counts | None:
        """Collect the records of an input of a shard; after the last input, publish the shard.

        This is for shards whose inputs are processed one by one, since workers have died over them.
        The file of the shard has the records in the order of its inputs.

        Args:
            done_input: The records of the input, as JSON Lines, and their counts.

        Returns:
            The counts of the whole shard if this was its last input, else None.
        """
        shard = done_input.task.shard
        results_by_position = self._done_inputs[shard.number]  # position of the input in the shard
        results_by_position[done_input.task.start] = done_input
        if len(results_by_position) < len(shard.names):
            return None

        del self._done_inputs[shard.number]
        counts = Counts()
        with PartWriter(shard) as writer:
            for position in sorted(results_by_position):
                result = results_by_position[position]
                counts.include(result.counts)
                for line in result.lines.splitlines():
                    writer.add(json.loads(line))
            writer.publish(self._store, self.manifest.part(shard.number, shard.attempt))
        return counts


def repeated_deaths_error(cause: str, circumstances: str) -> InferenceError:
    """Make the error of a run whose workers keep dying.

    Args:
        cause: What ended the last of them.
        circumstances: A clause that says more, such as "none has started".
    """
    return InferenceError(
        f"workers keep dying: {cause}; {circumstances}",
        "check the memory and the device; detcli doctor looks at the device",
    )
