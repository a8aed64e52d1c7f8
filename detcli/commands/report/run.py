"""Makes a page from records."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import cast

import numpy as np

from detcli.commands.shared.finder import Finder
from detcli.commands.shared.messages import say
from detcli.commands.shared.page import settings_facts, settings_places
from detcli.commands.shared.progress import count, progress
from detcli.commands.shared.saved import read_records
from detcli.errors import UsageError
from detcli.geometry import Image
from detcli.interrupts import interrupts
from detcli.record import DetectionJson, RecordJson
from detcli.sink.image import hidden
from detcli.sink.page import About, Page
from detcli.source.decode import DecodeOptions
from detcli.source.loading import STDIN
from detcli.text import printable, public_name


class Blur:
    """Hides classes in the pictures of a page.

    Attributes:
        unseen: Those of which there was no detection yet.

    Args:
        classes: By name or id.
        way: A key of `sink.privacy.WAYS`.
    """

    def __init__(self, classes: Sequence[str], way: str) -> None:
        self._classes, self._way = frozenset(classes), way
        self.unseen = [*classes]

    def pixels(self, record: RecordJson, image: Image) -> Image:
        """The picture of a record without what is hidden."""
        boxes = [one["box"] for one in record["detections"] if self._hides(one)]
        return hidden(image, np.array(boxes, np.float32).reshape(-1, 4), self._way)

    def record(self, record: RecordJson) -> RecordJson:
        """The record without what hidden symbols say."""
        detections = record.get("detections", [])
        for one in detections:
            names = {one["class_name"], str(one["class_id"])}
            self.unseen = [name for name in self.unseen if name not in names]
        if not any("text" in one and self._hides(one) for one in detections):
            return record
        kept = [{**one, "text": None} if self._hides(one) else one for one in detections]
        return cast("RecordJson", {**record, "detections": kept})

    def _hides(self, one: DetectionJson) -> bool:
        return not self._classes.isdisjoint({one["class_name"], str(one["class_id"])})


def make_page(  # noqa: PLR0913 - what a page is made from
    records: str,
    images: Path | None,
    output: Path,
    decode: DecodeOptions,
    blur: Blur | None = None,
    *,
    quiet: bool,
) -> None:
    """Make a page from the records of an earlier run.

    Args:
        records: A file, a folder of parts, or a hyphen.
        images: Where the pictures are now.
        output: The page's folder.
        decode: How pictures are decoded.
        blur: What is hidden in them.
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
    finder = Finder(images, decode, None if blur is None else blur.pixels)
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
                page.add(record if blur is None else blur.record(record), rendering)
                advance(record["source"])
                done += 1
    finally:
        with interrupts.held():
            page.close()
    if blur is not None and blur.unseen:
        say(f"nothing to hide was found of {', '.join(map(printable, blur.unseen))}")
    if not quiet:
        say(f"wrote a page of {count(done, 'record')}: {output / 'index.html'}")
        if finder.lost:
            say(f"{count(finder.lost, 'picture')} not found, or changed since", prefix="")
            if images is None:
                say("  hint: name their folder with --images", prefix="")
