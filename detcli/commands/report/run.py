"""Makes a page from records."""

from itertools import chain
from pathlib import Path

from detcli.commands.shared.finder import Finder
from detcli.commands.shared.messages import say
from detcli.commands.shared.page import settings_facts, settings_places
from detcli.commands.shared.progress import count, progress
from detcli.commands.shared.saved import read_records
from detcli.errors import UsageError
from detcli.interrupts import interrupts
from detcli.sink.page.page import About, Page
from detcli.source.decode import DecodeOptions
from detcli.source.item import STDIN
from detcli.text import public_name


def make_page(
    records: str, images: Path | None, output: Path, decode: DecodeOptions, *, quiet: bool
) -> None:
    """Make a page from the records of an earlier run.

    Args:
        records: A file, a folder of parts, or a hyphen.
        images: Where the pictures are now.
        output: The page's folder.
        decode: How pictures are decoded.
        quiet: Whether only fatal errors are printed.

    Raises:
        UsageError: The records are something else, the folder has something else in it, or the one
            of the pictures is none.
        SourceError: The records cannot be read.
        OutputError: The page cannot be written.
    """
    if images is not None and not images.is_dir():
        raise UsageError(f"--images {images} is not a folder", "name one, or leave the option out")
    source = "standard input" if records == STDIN else public_name(records)
    reading = read_records(records)
    first = next(reading, None)  # before a page is begun
    finder = Finder(images, decode)
    settings = {} if first is None else first.get("settings", {})
    conf = settings.get("conf")  # any JSON may stand there
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
                page.add(record, rendering)
                advance(record["source"])
                done += 1
    finally:
        with interrupts.held():
            page.close()
    if not quiet:
        say(f"wrote a page of {count(done, 'record')}: {output / 'index.html'}")
        if finder.lost:
            say(f"{count(finder.lost, 'picture')} not found, or changed since", prefix="")
            if images is None:
                say("  hint: name their folder with --images", prefix="")
