"""What becomes of records later: they are merged, made a page of, and described by a schema."""

import time
from collections import Counter
from contextlib import closing
from functools import partial
from importlib import resources
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcli.cli.command import adapted, command
from detcli.cli.console import progress, say, set_verbosity
from detcli.cli.report import REPORT_FORMAT, ReportFormat, write_report
from detcli.config.config import INPUT, OUTPUT, Config, Messages
from detcli.config.option import REQUIRED, option
from detcli.config.values import is_folder, parse_writable, read_target
from detcli.core import frozen
from detcli.core.errors import CheckError, InputError, UsageError
from detcli.core.interrupts import interrupts
from detcli.core.text import count, printable, public_name
from detcli.storage.files import StandardOutput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

    from detcli.data.record import RecordJson
    from detcli.page.page import Page
    from detcli.run.hidden import HiddenClasses
    from detcli.run.saved import Finder, Marks
    from detcli.run.shards.manifest import Manifest
    from detcli.run.shards.parts import Merge
    from detcli.run.shards.store import Store
    from detcli.sink.protocol import RecordSink

PAGES = {
    "bench": "benchmark.md",
    "convert": "convert.md",
    "inspect": "output.md",
    "models": "models.md",
    "tune": "tune.md",
    "verify": "verify.md",
}
"""Where the documentation shows a command's JSON by example."""

SCHEMAS = ("eval", "predict")
"""Commands that have a schema."""


@command("format", Messages, examples="""
detcli merge boxes/ -o all.jsonl
detcli merge boxes/ --format csv | head
""")  # fmt: skip
def merge(
    config: Config,
    folder: str = option(REQUIRED, "FOLDER/", "What was given to predict --output."),
    output: str | None = option(
        None,
        "-o, --output FILE",
        "Write records to this file; - is standard output.",
        panel=OUTPUT,
    ),
) -> None:
    """Merge the parts of a sharded run.

    The output is what one run on one machine writes. Each name of the run's manifest is there once;
    what is missing or damaged is listed, nothing is written, and the exit code is 6. It is 3 if
    records are errors.
    """
    set_verbosity(quiet=config.messages.quiet, verbose=config.messages.verbose)
    from detcli.data.record import OPTIONAL_FIELDS  # these load NumPy, which --help does not need
    from detcli.run.shards.manifest import NAME, PART, Manifest
    from detcli.run.shards.parts import Merge, shown
    from detcli.run.shards.store import open_store
    from detcli.sink import choose_format, open_record_sink, open_target, require_file

    if not folder:
        raise UsageError("no folder given", "name what was given to predict --output")
    if is_folder(output):
        raise UsageError(f"--output {output} is a folder", "name a file or an object")
    target = read_target(output)
    chosen = choose_format(config.writing.format, target)
    require_file(chosen, target)
    name = str(target).rpartition("/")[2]
    if target is not None and any(one.fullmatch(name) for one in (NAME, PART)):
        raise UsageError(
            f"--output {target} has the name of a manifest or a part", "choose another name"
        )
    store = open_store(folder)
    manifest = Manifest(store)
    merging = Merge(store, manifest)
    _require_whole(merging, manifest)
    writing = StandardOutput() if target is None else open_target(target)
    wanted = target is not None and not config.messages.quiet
    try:
        settings = manifest.header["settings"]
        optional = [column for column, setting in OPTIONAL_FIELDS.items() if settings.get(setting)]
        sink = open_record_sink(chosen, writing, optional)
        _copy(merging, manifest, sink, shown=wanted)
    except BaseException:
        if not isinstance(writing, StandardOutput):
            writing.discard()
        raise
    with interrupts.held():
        sink.close()
    if wanted:
        say(f"wrote {count(merging.count, 'record')} of {count(len(manifest), 'part')} to {target}")
    if merging.failed:
        hint = "work them again with --retry-failed, added to the command that made the parts"
        raise InputError(shown(merging.failed), hint)


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

        shards = f"{self.done} of {count(self.shards, 'shard')} done, {self.working} at work"
        yield Text(f"{shards}, {self.inputs} inputs")
        if self.last_s is not None:
            yield Text(f"last part {self.last_s:.0f} s ago")
        if self.left_s:
            yield Text(
                f"{self.inputs_per_s:.1f} inputs/s; the rest takes {self.left_s / 60:.0f} min"
            )
        for kind, number in self.failed.items():
            yield Text(f"{count(number, 'record')} with an error: {kind}")


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


def _copy(merging: "Merge", manifest: "Manifest", sink: "RecordSink", *, shown: bool) -> None:
    """Write all records, if all of them are there and none is damaged."""
    from detcli.run.shards.parts import DAMAGE, Stored

    error: Exception | None = None
    with progress(lambda: manifest.names, wanted=shown) as advance:
        for record in merging:
            try:
                if error is None:
                    sink.write(Stored(record))
            except DAMAGE as caught:  # its part may turn out to be changed
                error = caught
            advance(record["source"])
    _require_whole(merging, manifest)
    if error is not None:
        raise error


def _require_whole(merging: "Merge", manifest: "Manifest") -> None:
    """List the missing and damaged parts, if any, and raise."""
    faults = merging.faults
    for fault in faults:
        say(f"{fault.part}: {fault.reason}")
    if not faults:
        return
    hint = "run the command that made the parts again; it makes only the missing ones"
    if not all(fault.missing for fault in faults):
        hint = f"remove the damaged parts, then {hint}"
    parts = f"{len(faults)} of {count(len(manifest), 'part')}"
    names = count(sum(fault.names for fault in faults), "name")
    raise CheckError(f"{parts}, with {names}, missing or damaged", hint)


@command(
    "max_pixels",
    adapted("blur", help="Hide these classes in the pictures: person,car. Boxes stay."),
    "blur_with",
    "blur_margin",
    adapted(
        "report",
        spelled="-o, --output DIR",
        default=REQUIRED,
        help="Write the page to this folder; open its index.html.",
    ),
    "apply",
    "report_link",
    Messages,
    from_file="blur blur_with blur_margin",
    examples="""
detcli report boxes.jsonl --images pics -o page
detcli predict pics | detcli report - -o page
detcli report boxes.jsonl --apply marks.json -o corrected
""",
)
def report(
    config: Config,
    records: str = option(
        REQUIRED,
        "RECORDS",
        "JSON Lines of detcli predict or merge, or the folder of a run in shards; - is standard "
        "input.",
    ),
    images: Path | None = option(
        None,
        "--images FOLDER",
        "Where the pictures and videos are now; default: where the records say.",
        panel=INPUT,
        parse=parse_writable,
    ),
) -> None:
    """Make a page to look at, from the records of an earlier run.

    The page opens from the disk, without a server. Pictures that are not found are left out of it,
    and their boxes stay.
    """
    quiet = config.messages.quiet
    set_verbosity(quiet=quiet, verbose=config.messages.verbose)
    from detcli.page.page import About, Page, settings_facts, settings_places
    from detcli.run import set_up_process  # these load OpenCV
    from detcli.run.hidden import HiddenClasses
    from detcli.run.saved import Finder, Marks, read_records

    set_up_process()
    if images is not None and not images.is_dir():
        raise UsageError(f"--images {images} is not a folder", "name one, or leave the option out")
    hidden = HiddenClasses(config.writing)
    marks = None if config.writing.apply is None else Marks(config.writing.apply)
    reading = hidden.checked(read_records(records))
    first = [*islice(reading, 1)]  # before a page is begun
    finder = Finder(images, config.inputs)
    settings = first[0].get("settings", {}) if first else {}
    conf = settings.get("conf")  # any JSON may stand there
    source = "standard input" if records == "-" else public_name(records)
    about = About(
        "report",
        [("records", source), *settings_facts(settings)],
        floor=conf if isinstance(conf, float) and 0 <= conf <= 1 else 0.0,
        places=[*settings_places(settings)],
    )
    output: Any = config.writing.report  # a required option
    page = Page(output, about, linked=config.writing.report_link)
    adding = _PageOfRecords(page, finder, hidden, marks)
    try:
        with closing(finder), progress(lambda: None, wanted=not quiet) as advance:
            for record in chain(first, reading):
                adding.add(record)
                advance(record["source"])
            if marks is not None:
                marks.require_fit()
    finally:
        with interrupts.held():
            page.close()
    if hidden.unseen:
        say(f"nothing to hide was found of {', '.join(map(printable, hidden.unseen))}")
    if not quiet:
        for line in adding.summary(output / "index.html"):
            say(line)
        if finder.lost:
            say(f"{count(finder.lost, 'picture')} not found, or changed since", prefix="")
            if images is None:
                say("  hint: name their folder with --images", prefix="")


class _PageOfRecords:
    """Adds records to a page, without what marks drop, and with classes hidden."""

    def __init__(
        self, page: "Page", finder: "Finder", hidden: "HiddenClasses", marks: "Marks | None"
    ) -> None:
        self._page = page
        self._finder = finder
        self._hidden = hidden
        self._marks = marks
        self._records = 0
        self._hidden_boxes_dropped = 0  # by marks

    def add(self, record: "RecordJson") -> None:
        """Add a record, unless a mark drops it; boxes that marks drop are hidden all the same."""
        boxes = self._hidden.boxes(record)
        if self._marks is not None:
            corrected = self._marks.corrected(record)
            if corrected is None:
                return
            record = corrected
        edit = None
        if self._hidden:
            edit = partial(self._hidden.in_picture, boxes)
            record = self._hidden.without_texts(record, boxes)
        self._page.add(record, partial(self._finder.shown, record, edit))
        self._records += 1
        self._hidden_boxes_dropped += len(boxes) - len(self._hidden.boxes(record))

    def summary(self, address: Path) -> "Iterator[str]":
        """What was written, and what of it is hidden."""
        without = ""
        if self._marks is not None:
            without = f", without what {count(self._marks.drops, 'mark')} dropped"
        yield f"wrote a page of {count(self._records, 'record')}{without}: {address}"
        if self._hidden_boxes_dropped:
            detections = count(self._hidden_boxes_dropped, "detection")
            yield f"{detections} dropped by marks, and blurred on the page all the same"
        if self._hidden and self._finder.unproven:
            pictures = count(self._finder.unproven, "picture")
            yield (
                f"{pictures} compared with the records by size only, as these have no hash; "
                "predict --provenance writes one"
            )


@command()
def schema(
    name: str = option("predict", "COMMAND", "The command: predict or eval."),
) -> None:
    """Print the JSON Schema of a command's JSON output."""
    if name not in SCHEMAS:
        hint = f"these commands have one: {', '.join(SCHEMAS)}"
        if name in PAGES:
            hint = f"docs/{PAGES[name]} shows its JSON by example; {hint}"
        raise UsageError(f"'{name}' has no schema", hint)
    file = resources.files("detcli.commands") / name / "schema.json"
    StandardOutput().write(file.read_text(encoding="utf-8"))
