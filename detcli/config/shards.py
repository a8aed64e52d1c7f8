"""Shards: how a run is processed in shards."""

# Not `from __future__ import annotations`: options read their types.
from detcli.config.option import option
from detcli.config.values import ShardEngine, ShardSelection
from detcli.core import frozen


@frozen
class Shards:
    """How a run in shards, which has a folder as --output, is processed."""

    on: ShardEngine | None = option(
        None,
        "--on ENGINE",
        "What runs the shards: local:N, for N processes here; ray, for actors of a Ray cluster "
        "started here or named by RAY_ADDRESS; ray://HOST:PORT; default: local:1.",
    )
    shards: ShardSelection | None = option(
        None,
        "--shards K/N",
        "Process every Nth shard, from the Kth on: 3/8 for the third of eight tasks.",
    )
    shard_size: int | None = option(
        None,
        "--shard-size N",
        "Inputs per shard; default: 1000, fewer for short lists.",
        range=(1, 10**9),
    )
    extend: bool = option(
        False,
        "--extend",
        "Add inputs that are new since the run began as further shards.",
    )
    retry_failed: bool = option(
        False,
        "--retry-failed",
        "Process again the inputs whose record is an error.",
    )
