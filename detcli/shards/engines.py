"""Engines: what works the shards of a run, and does nothing else. Each has a row here."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from detcli.backend.device import Device
from detcli.errors import UsageError
from detcli.shards.work import Job
from detcli.shards.workers import Workers

OpenEngine = Callable[
    [Job, tuple[Device, ...], int | None, Callable[[], None]], AbstractContextManager[Workers]
]
"""Starts workers: for a job, on the devices of each machine, with this many detectors each (None
for what suits the engine); what sets a process up."""


def parse_engine(text: str, actors: tuple[int, int] | None = None) -> OpenEngine:
    """Read what `--on` says.

    Args:
        text: local:N, ray, or ray://HOST:PORT.
        actors: The least and the largest number of Ray's actors.

    Raises:
        UsageError: It names no engine.
    """
    kind, colon, rest = text.partition(":")
    if kind == "local" and re.fullmatch("0*[1-9][0-9]{0,5}", rest):
        if actors is not None:
            raise UsageError("--actors without Ray", "use --on ray, or leave it out")
        from detcli.shards.local import open_local

        return partial(open_local, int(rest))
    if text == "ray" or re.fullmatch(r"ray://[^/]+:[0-9]{1,5}", text):
        from detcli.shards.ray import open_ray

        return partial(open_ray, address=text if colon else None, actors=actors)
    raise UsageError(
        f"--on {text} names nothing to run on",
        "use local:N for N processes here, ray, or ray://HOST:10001",
    )
