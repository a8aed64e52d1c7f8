"""The command `status`: how far a run in shards is."""

import time
from collections import Counter
from typing import TYPE_CHECKING

from detcli.cli.command import command
from detcli.cli.report import REPORT_FORMAT, ReportFormat, write_report
from detcli.config.option import REQUIRED, option
from detcli.core import frozen
from detcli.core.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.text import Text

    from detcli.run.shards.manifest import Manifest
    from detcli.run.shards.store import Store

RECENT = 20
"""How many of the last parts tell the rate."""


@frozen
class RunStatus:
    """How far a run in shards is."""

    inputs: int
    shards: int
    done: int  # shards whose part has been written
    working: int  # shards being processed, according to the runs at work
    failed: dict[str, int]  # how many records have an error, by its kind
    last_s: float | None  # seconds since the last part
    inputs_per_s: float | None  # of the last parts; None if no process is at work, or few are done
    left_s: float | None  # seconds that the rest takes at this rate

    def lines(self) -> "Iterator[Text]":
        """Yield the lines to print, unless the report is printed as JSON.

        They say how many shards are done, when the last part was written, the rate with the time
        that is left at this rate, and the number of errors of each kind.
        """
        from rich.text import Text

        shards = f"{self.done} of {pluralize(self.shards, 'shard')} done, {self.working} at work"
        yield Text(f"{shards}, {self.inputs} inputs")

        if self.last_s is not None:
            yield Text(f"last part {self.last_s:.0f} s ago")
        if self.left_s:
            minutes_left = self.left_s / 60
            yield Text(f"{self.inputs_per_s:.1f} inputs/s; the rest takes {minutes_left:.0f} min")

        for error_kind, record_count in self.failed.items():
            yield Text(f"{pluralize(record_count, 'record')} with an error: {error_kind}")


@command(
    examples="""
detcli status boxes/
detcli status s3://bucket/boxes/ --format json
"""
)
def status(
    folder: str = option(REQUIRED, "FOLDER/", "What was given to predict --output."),
    report_format: ReportFormat | None = REPORT_FORMAT,
) -> None:
    """Show how far a sharded run is: shards, failures by reason, rate and expected end.

    From any machine that sees the folder, also while the run goes on.
    """
    from detcli.run.shards.manifest import Manifest
    from detcli.run.shards.parts import count_failures
    from detcli.run.shards.store import open_store

    store = open_store(folder)
    manifest = Manifest(store)
    failures_by_shard = count_failures(store, manifest, range(len(manifest)))
    file_times = store.times()

    done_shards = failures_by_shard.keys()
    part_times = _times_of_parts(manifest, done_shards, file_times)
    last_s = None
    if part_times:
        last_s = time.time() - part_times[-1]

    working_count = len(_shards_at_work(store, file_times) - done_shards)
    rate = None
    left_s = None
    # A few parts say little about the rate, and without workers there is none.
    if 0 < working_count < len(done_shards):
        inputs_per_shard = manifest.name_count / len(manifest)
        started_s = min(file_times.values())  # when the manifest was written
        rate = _inputs_per_second([started_s, *part_times], inputs_per_shard)
        if rate is not None:
            left_shards = len(manifest) - len(done_shards)
            left_s = inputs_per_shard * left_shards / rate

    failures = Counter[str]()
    for failures_of_shard in failures_by_shard.values():
        failures += failures_of_shard
    run_status = RunStatus(
        inputs=manifest.name_count,
        shards=len(manifest),
        done=len(done_shards),
        working=working_count,
        failed=dict(failures.most_common()),
        last_s=last_s,
        inputs_per_s=rate,
        left_s=left_s,
    )
    write_report(run_status, report_format, RunStatus.lines)


def _times_of_parts(
    manifest: "Manifest", done_shards: "Iterable[int]", file_times: dict[str, float]
) -> list[float]:
    """List when the parts of a run were written, in seconds since 1970, the earliest first.

    A part is the file with the records of a shard that is done.

    Args:
        manifest: The manifest of the run, which knows the names of the parts.
        done_shards: The indices of the shards that are done.
        file_times: When each file in the folder of the run was written.
    """
    times = []
    for shard in done_shards:
        part = manifest.part(shard)
        if part in file_times:
            times.append(file_times[part])
    return sorted(times)


def _inputs_per_second(times: list[float], inputs_per_shard: float) -> float | None:
    """Estimate how many inputs a run processes per second, from the times of its last parts.

    Args:
        times: When the manifest was written, then when each part was, in seconds and ascending.
        inputs_per_shard: How many inputs a part has, on average.

    Returns:
        The rate; None if all these files were written at the same moment.
    """
    recent_times = times[-(RECENT + 1) :]  # RECENT parts, and where the first of them began
    elapsed_s = recent_times[-1] - recent_times[0]
    if elapsed_s <= 0:
        return None
    part_count = len(recent_times) - 1
    return inputs_per_shard * part_count / elapsed_s


def _shards_at_work(store: "Store", file_times: dict[str, float]) -> set[int]:
    """Collect the indices of the shards that processes are working on now.

    Each process that works on a run keeps a note in the folder of the run: a small file that lists
    its shards. It rewrites the note as long as it runs, so a note that is older than MAX_NOTE_AGE_S
    was left behind by a process that was killed, and is ignored.

    Args:
        store: The folder of the run.
        file_times: When each file in it was written, in seconds since 1970.
    """
    from detcli.run.shards.store import MAX_NOTE_AGE_S, NOTE, noted_shards

    shards: set[int] = set()
    for name, time_s in file_times.items():
        is_fresh = time.time() - time_s < MAX_NOTE_AGE_S
        if name.startswith(NOTE) and is_fresh:
            shards |= noted_shards(store, name)
    return shards
