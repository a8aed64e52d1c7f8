"""Engines: what works the shards of a run, and does nothing else. Each has a row here."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

from detcli.backend.device import Device
from detcli.errors import UsageError
from detcli.shards.schedule import Schedule
from detcli.shards.work import Counts, Job, Progress, Ready

Listen = Callable[[Progress | Counts], None]
"""Called with each worker's progress, and with what became of the inputs of each shard."""


class ShardEngine(AbstractContextManager["ShardEngine"], Protocol):
    """Workers; leaving the context ends them."""

    def ready(self) -> Ready:
        """Wait until a worker has opened its detectors.

        Raises:
            DetcliError: They cannot be opened.
        """

    def run(self, schedule: Schedule, listen: Listen) -> None:
        """Work all shards of a schedule.

        Raises:
            DetcliError: No worker can go on.
        """


OpenEngine = Callable[[Job, tuple[Device, ...], int | None, Callable[[], None]], ShardEngine]
"""Starts workers: for a job, on the devices of each machine, with this many detectors each (None
for a share of the cores); what sets a process up."""


def parse_engine(text: str) -> OpenEngine:
    """Read what `--on` says.

    Raises:
        UsageError: It names no engine.
    """
    kind, colon, rest = text.partition(":")
    if kind == "local" and colon and rest.isascii() and rest.isdecimal() and int(rest) > 0:
        from detcli.shards.local import Local

        return partial(Local, int(rest))
    raise UsageError(f"--on {text} names nothing to run on", "use local:N, for N processes here")
