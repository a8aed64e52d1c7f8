"""The command `report`: a page from the records of an earlier run."""

from contextlib import closing
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcli.cli.command import command, override_option
from detcli.cli.console import print_line, progress, set_verbosity
from detcli.config.config import INPUT, Config, Verbosity
from detcli.config.option import REQUIRED, option
from detcli.config.values import parse_writable
from detcli.core.errors import UsageError
from detcli.core.interrupts import interrupts
from detcli.core.text import escape_unprintable, pluralize, public_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from detcli.data.record import RecordJson
    from detcli.page.find_images import Finder
    from detcli.page.page import Page, RunInfo
    from detcli.run.hidden import HiddenClasses
    from detcli.run.marks import Marks


@command(
    "max_pixels",
    override_option("blur", help="Hide these classes in the images: person,car. Boxes stay."),
    "blur_with",
    "blur_margin",
    override_option(
        "report",
        declaration="-o, --output DIR",
        default=REQUIRED,
        help="Write the page to this folder; open its index.html.",
    ),
    "apply",
    "report_link",
    Verbosity,
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
        "Where the images and videos are now; default: where the records say.",
        panel=INPUT,
        parse=parse_writable,
    ),
) -> None:
    """Make an HTML report from the records of an earlier run.

    The page opens from the disk, without a server. Images that are not found are left out of it,
    and their boxes stay.
    """
    quiet = config.verbosity.quiet
    set_verbosity(quiet=quiet, verbose=config.verbosity.verbose)
    from detcli.page.find_images import Finder
    from detcli.page.page import Page
    from detcli.run import set_up_process  # these load OpenCV
    from detcli.run.hidden import HiddenClasses
    from detcli.run.marks import Marks
    from detcli.run.saved import read_records

    set_up_process()
    if images is not None and not images.is_dir():
        raise UsageError(f"--images {images} is not a folder", "name one, or leave the option out")
    hidden = HiddenClasses(config.outputs)
    marks = None
    if config.outputs.apply is not None:
        marks = Marks(config.outputs.apply)
    remaining_records = hidden.checked(read_records(records))
    # The first record says what the page is about. No page is begun if it cannot be read.
    first_records = list(islice(remaining_records, 1))  # empty if there is no record at all
    finder = Finder(images, config.inputs)
    settings: Mapping[str, object] = {}
    if first_records:
        settings = first_records[0].get("settings", {})
    output: Any = config.outputs.report  # a required option
    page = Page(output, _run_info(records, settings), linked=config.outputs.report_link)
    page_of_records = _PageOfRecords(page, finder, hidden, marks)
    try:
        with closing(finder), progress(lambda: None, enabled=not quiet) as advance:
            for record in chain(first_records, remaining_records):
                page_of_records.add(record)
                advance(record["source"])
            if marks is not None:
                marks.require_fit()
    finally:
        with interrupts.held():
            page.close()
    if hidden.unseen:
        unseen_classes = ", ".join(escape_unprintable(class_name) for class_name in hidden.unseen)
        print_line(f"nothing to hide was found of {unseen_classes}")
    if quiet:
        return
    for line in page_of_records.summary(output / "index.html"):
        print_line(line)
    if finder.lost:
        print_line(f"{pluralize(finder.lost, 'image')} not found, or changed since", prefix="")
        if images is None:
            print_line("  hint: name their folder with --images", prefix="")


def _run_info(records: str, settings: "Mapping[str, object]") -> "RunInfo":
    """Collect what the page says of the earlier run that wrote the records.

    Args:
        records: The option's value: a file or folder of records, or "-".
        settings: The settings in the first record; may be empty. The file may be from anyone, so
            the values may be of any type.
    """
    from detcli.page.page import RunInfo, settings_facts, zones_and_lines_of

    source = public_name(records)
    if records == "-":
        source = "standard input"
    min_score = 0.0
    conf = settings.get("conf")
    if isinstance(conf, float) and 0 <= conf <= 1:
        min_score = conf
    return RunInfo(
        "report",
        [("records", source), *settings_facts(settings)],
        min_score=min_score,
        zones_and_lines=list(zones_and_lines_of(settings)),
    )


class _PageOfRecords:
    """Adds the records of an earlier run to a page, with the options --blur and --apply.

    --blur hides classes in the images. --apply leaves out what a person has marked as wrong on an
    earlier page, and saved in a file of marks: single detections, or whole records.
    """

    def __init__(
        self, page: "Page", finder: "Finder", hidden: "HiddenClasses", marks: "Marks | None"
    ) -> None:
        """Begin without records.

        Args:
            page: The page.
            finder: Finds the images of the records.
            hidden: The classes to hide.
            marks: What a person has marked as wrong; None without --apply.
        """
        self._page = page
        self._finder = finder
        self._hidden = hidden
        self._marks = marks
        self._record_count = 0
        self._dropped_hidden_count = 0  # detections of hidden classes that marks dropped

    def add(self, record: "RecordJson") -> None:
        """Add a record to the page, without the detections that marks drop.

        If a mark drops the whole record, nothing is added. What --blur hides is made unrecognisable
        in the image even if a mark drops its detection, since the image still shows the object.

        Args:
            record: The record, as it was read.
        """
        boxes_to_hide = self._hidden.boxes(record)
        if self._marks is not None:
            corrected = self._marks.corrected(record)
            if corrected is None:
                return
            record = corrected
        edit_image = None
        if self._hidden:
            edit_image = partial(self._hidden.in_image, boxes_to_hide)
            record = self._hidden.without_texts(record, boxes_to_hide)
        # The page calls this for the image, if and when it needs it.
        load_image = partial(self._finder.shown, record, edit_image)
        self._page.add(record, load_image)
        self._record_count += 1
        remaining_hidden_count = len(self._hidden.boxes(record))
        self._dropped_hidden_count += len(boxes_to_hide) - remaining_hidden_count

    def summary(self, address: Path) -> "Iterator[str]":
        """Yield the lines to print at the end: what was written, and what of it is hidden.

        Args:
            address: The file to open in a browser.
        """
        without_dropped = ""
        if self._marks is not None:
            without_dropped = f", without what {pluralize(self._marks.drops, 'mark')} dropped"
        records = pluralize(self._record_count, "record")
        yield f"wrote a page of {records}{without_dropped}: {address}"
        if self._dropped_hidden_count:
            detections = pluralize(self._dropped_hidden_count, "detection")
            yield f"{detections} dropped by marks, and blurred on the page all the same"
        if self._hidden and self._finder.unproven:
            images = pluralize(self._finder.unproven, "image")
            yield (
                f"{images} compared with the records by size only, as these have no hash; "
                "predict --provenance writes one"
            )
