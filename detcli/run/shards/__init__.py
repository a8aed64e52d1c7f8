"""Shards: a run that is cut into parts, each processed and published once, wherever.

    names -> _manifest.jsonl -> shards -> part-00000.jsonl, part-00001.jsonl, ... -> merge

The manifest is written down first. Engines only process shards, in processes of this machine or
elsewhere; whatever dies, each part is published once.

    manifest.py            what there is to do, even where a run is resumed
    store.py               where manifest and parts are: on a disk, in an object store
    workers.py             the workers, each replaced when it dies
    local.py, ray.py       where they run: processes of this machine, or a cluster
    work.py                how a worker processes a shard
    schedule.py            which worker gets which shard
    parts.py               the records of a shard, and of all
"""

from typing import TYPE_CHECKING

from detcli.config.values import ShardEngine

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from detcli.run.shards.work import WorkRequest
    from detcli.run.shards.workers import Workers


def open_engine(request: "WorkRequest") -> "AbstractContextManager[Workers]":
    """Start the workers that --on asks for; see the engines for errors."""
    engine = request.config.shards.on or ShardEngine("local", 1)
    if engine.count:
        from detcli.run.shards.local import open_local

        return open_local(engine.count, request)
    from detcli.run.shards.ray import open_ray

    return open_ray(request, engine.address)
