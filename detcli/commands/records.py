"""What becomes of records later: they are merged, made a page of, and described by a schema."""

from collections.abc import Sequence
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, cast

from detcli.cli.messages import progress, say, set_verbosity
from detcli.cli.options import adapted, command
from detcli.core.config import INPUT, OUTPUT, Config, Messages
from detcli.core.errors import CheckError, UsageError
from detcli.core.files import StandardOutput
from detcli.core.interrupts import interrupts
from detcli.core.options import REQUIRED, option
from detcli.core.text import count, printable, public_name
from detcli.core.values import is_folder, parse_writable, read_target

if TYPE_CHECKING:
    from detcli.core.geometry import Image
    from detcli.core.record import DetectionJson, RecordJson
    from detcli.run.shards.manifest import Manifest
    from detcli.run.shards.parts import Merge

PAGES = {
    "bench": "benchmark.md",
    "convert": "convert.md",
    "inspect": "output.md",
    "models": "models.md",
    "verify": "verify.md",
}
"""Where the documentation shows a command's JSON by example."""


@command("format", Messages, examples="""
detcli merge boxes/ -o all.jsonl
detcli merge boxes/ --format csv | head
""")  # fmt: skip
def merge(
    config: Config,
    folder: str = option(REQUIRED, "FOLDER/", "What was given to predict --output.", boxes=False),
    output: str | None = option(
        None,
        "-o, --output FILE",
        "Write records to this file; - is standard output.",
        boxes=False,
        panel=OUTPUT,
    ),
) -> None:
    """Merge the parts of a sharded run.

    The output is what one run on one machine writes. Each name of the run's manifest is there once;
    what is missing or damaged is listed, nothing is written, and the exit code is 6.
    """
    set_verbosity(quiet=config.messages.quiet, verbose=config.messages.verbose)
    from detcli.core.record import OPTIONAL_FIELDS  # these load NumPy, which --help does not need
    from detcli.run.shards.manifest import NAME, PART, Manifest
    from detcli.run.shards.parts import DAMAGE, Merge, Stored
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
    store = open_store(folder if is_folder(folder) else f"{folder}/")
    manifest = Manifest(store)
    merging = Merge(store, manifest)
    _require_whole(merging, manifest)
    writing = StandardOutput() if target is None else open_target(target)
    wanted = target is not None and not config.messages.quiet
    try:
        settings = manifest.header["settings"]
        optional = [column for column, setting in OPTIONAL_FIELDS.items() if settings.get(setting)]
        sink = open_record_sink(chosen, writing, optional)
        records = iter(merging)
        try:
            with progress(lambda: manifest.names, wanted=wanted) as advance:
                for record in records:
                    sink.write(Stored(record))
                    advance(record["source"])
        except DAMAGE:  # a record whose part may turn out to be changed
            for _ in records:
                pass
            _require_whole(merging, manifest)
            raise
        _require_whole(merging, manifest)
    except BaseException:
        if not isinstance(writing, StandardOutput):
            writing.discard()
        raise
    with interrupts.held():
        sink.close()
    if wanted:
        say(f"wrote {count(merging.count, 'record')} of {count(len(manifest), 'part')} to {target}")


def _require_whole(merging: "Merge", manifest: "Manifest") -> None:
    """List the missing and damaged parts, if any, and raise."""
    if not merging.faults:
        return
    for fault in merging.faults:
        say(f"{fault.part}: {fault.reason}")
    damaged = sum(not fault.missing for fault in merging.faults)
    names = sum(fault.names for fault in merging.faults)
    raise CheckError(
        f"{len(merging.faults)} of {count(len(manifest), 'part')}, with {count(names, 'name')}, "
        "missing or damaged",
        ("remove the damaged parts, then " if damaged else "")
        + "run the command that made the parts again; it makes only the missing ones",
    )


@command(
    "max_pixels",
    adapted("blur", help="Hide these classes in the pictures: person,car. Boxes stay."),
    "blur_with",
    Messages,
    examples="""
detcli report boxes.jsonl --images pics -o page
detcli predict pics | detcli report - -o page
""",
)
def report(
    config: Config,
    records: str = option(
        REQUIRED,
        "RECORDS",
        "JSON Lines of detcli predict or merge, or the folder of a run in shards; - is standard "
        "input.",
        boxes=False,
    ),
    output: Path = option(
        REQUIRED,
        "-o, --output DIR",
        "Write the page to this folder; open its index.html.",
        boxes=False,
        panel=OUTPUT,
        parse=parse_writable,
    ),
    images: Path | None = option(
        None,
        "--images FOLDER",
        "Where the pictures and videos are now; default: where the records say.",
        boxes=False,
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
    from detcli.run import set_up_process
    from detcli.run.saved import read_records
    from detcli.sink.page import About, Page, settings_facts, settings_places
    from detcli.sink.page.finder import Finder  # these load OpenCV
    from detcli.source.decode import DecodeOptions

    set_up_process()
    if images is not None and not images.is_dir():
        raise UsageError(f"--images {images} is not a folder", "name one, or leave the option out")
    blur = _Blur(config.writing.blur, config.writing.blur_with)
    reading = read_records(records)
    first = next(reading, None)  # before a page is begun
    decode = DecodeOptions(max_pixels=config.inputs.max_pixels)
    finder = Finder(images, decode, blur.pixels if config.writing.blur else None)
    settings = {} if first is None else first.get("settings", {})
    conf = settings.get("conf")  # any JSON may stand there
    source = "standard input" if records == "-" else public_name(records)
    about = About(
        "report",
        [("records", source), *settings_facts(settings)],
        floor=conf if isinstance(conf, float) and 0 <= conf <= 1 else 0.0,
        places=[*settings_places(settings)],
    )
    page = Page(output, about)
    done = 0
    try:
        with progress(lambda: None, wanted=not quiet) as advance:
            everything = chain(() if first is None else [first], reading)
            for record, rendering in finder.with_pictures(everything):
                page.add(blur.record(record), rendering)
                advance(record["source"])
                done += 1
    finally:
        with interrupts.held():
            page.close()
    if blur.unseen:
        say(f"nothing to hide was found of {', '.join(map(printable, blur.unseen))}")
    if not quiet:
        say(f"wrote a page of {count(done, 'record')}: {output / 'index.html'}")
        if finder.lost:
            say(f"{count(finder.lost, 'picture')} not found, or changed since", prefix="")
            if images is None:
                say("  hint: name their folder with --images", prefix="")


class _Blur:
    """Hides classes, by name or id, in one of `sink.image.WAYS`; lists those not seen yet."""

    def __init__(self, classes: Sequence[str], way: str) -> None:
        self._classes, self._way = frozenset(classes), way
        self.unseen = [*classes]

    def pixels(self, record: "RecordJson", image: "Image") -> "Image":
        """The picture of a record without what is hidden."""
        import numpy as np

        from detcli.sink.image import hidden

        boxes = [one["box"] for one in record["detections"] if self._hides(one)]
        return hidden(image, np.array(boxes, np.float32).reshape(-1, 4), self._way)

    def record(self, record: "RecordJson") -> "RecordJson":
        """The record without what hidden symbols say."""
        detections = record.get("detections", [])
        for one in detections:
            names = {one["class_name"], str(one["class_id"])}
            self.unseen = [name for name in self.unseen if name not in names]
        if not any("text" in one and self._hides(one) for one in detections):
            return record
        kept = [{**one, "text": None} if self._hides(one) else one for one in detections]
        return cast("RecordJson", {**record, "detections": kept})

    def _hides(self, one: "DetectionJson") -> bool:
        return not self._classes.isdisjoint({one["class_name"], str(one["class_id"])})


@command()
def schema(
    name: str = option("predict", "COMMAND", "The command: predict or eval.", boxes=False),
) -> None:
    """Print the JSON Schema of a command's JSON output."""
    schemas = {
        folder.name: file
        for folder in resources.files("detcli.commands").iterdir()
        if (file := folder / "schema.json").is_file()
    }
    if name not in schemas:
        known = ", ".join(sorted(schemas))
        hint = f"these commands have one: {known}"
        if name in PAGES:
            hint = f"docs/{PAGES[name]} shows its JSON by example; {hint}"
        raise UsageError(f"'{name}' has no schema", hint)
    StandardOutput().write(schemas[name].read_text(encoding="utf-8"))
