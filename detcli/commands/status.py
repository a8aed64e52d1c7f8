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
    from collections.abc import Iterator

    from rich.text import Text

    from detcli.run.shards.store import Store

RECENT = 20
"""How many of the last parts tell the rate."""


@frozen
class RunStatus:
    """How far a run in shards is."""

    inputs: int
    shards: int
    done: int  # shards whose part is there
    working: int  # shards that are being worked, as far as the runs at work say
    failed: dict[str, int]  # how many records have an error, by its kind
    last_s: float | None  # seconds since the last part
    inputs_per_s: float | None  # of the last parts; None if nobody works, or few are done
    left_s: float | None  # seconds that the rest takes at this rate

    def lines(self) -> "Iterator[Text]":
        """What people read."""
        from rich.text import Text

        shards = f"{self.done} of {pluralize(self.shards, 'shard')} done, {self.working} at work"
        yield Text(f"{shards}, {self.inputs} inputs")
        if self.last_s is not None:
            yield Text(f"last part {self.last_s:.0f} s ago")
        if self.left_s:
            yield Text(
                f"{self.inputs_per_s:.1f} inputs/s; the rest takes {self.left_s / 60:.0f} min"
            )
        for kind, number in self.failed.items():
            yield Text(f"{pluralize(number, 'record')} with an error: {kind}")


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
    from detcli.run.shards.parts import survey
    from detcli.run.shards.store import open_store

    store = open_store(folder)
    manifest = Manifest(store)
    done = survey(store, manifest, range(len(manifest)))
    times = store.times()
    ends = sorted(times[name] for name in map(manifest.part, done) if name in times)
    working = len(_worked(store, times) - done.keys())
    recent, rate, left = [min(times.values()), *ends][-RECENT - 1 :], None, None  # manifest first
    if 0 < working < len(done) and recent[-1] > recent[0]:  # fewer may end at the same moment
        size = manifest.names / len(manifest)  # of a shard, about
        rate = size * (len(recent) - 1) / (recent[-1] - recent[0])
        left = size * (len(manifest) - len(done)) / rate
    found = RunStatus(
        inputs=manifest.names,
        shards=len(manifest),
        done=len(done),
        working=working,
        failed=dict(sum(done.values(), Counter()).most_common()),
        last_s=time.time() - ends[-1] if ends else None,
        inputs_per_s=rate,
        left_s=left,
    )
    write_report(found, report_format, RunStatus.lines)


def _worked(store: "Store", times: dict[str, float]) -> set[int]:
    """The shards that runs have in hand, as far as these say so and have done lately."""
    from detcli.run.shards.store import NOTE, RENEW_S, noted_shards

    found: set[int] = set()
    for name, time_s in times.items():
        if name.startswith(NOTE) and time.time() - time_s < 3 * RENEW_S:
            found |= noted_shards(store, name)
    return found
