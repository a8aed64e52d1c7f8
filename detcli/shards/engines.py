"""Engines: what works the shards of a run, and does nothing else. Each has a branch here."""

from contextlib import AbstractContextManager

from detcli.core.values import ShardEngine
from detcli.shards.work import WorkRequest
from detcli.shards.workers import Workers


def open_engine(request: WorkRequest) -> AbstractContextManager[Workers]:
    """Start the workers that --on asks for; see the engines for errors."""
    engine = request.config.shards.on or ShardEngine("local", 1)
    if engine.count:
        from detcli.shards.local import open_local

        return open_local(engine.count, request)
    from detcli.shards.ray import open_ray

    return open_ray(request, engine.address)
