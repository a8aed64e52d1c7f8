"""The command `report`: a page from the records of an earlier run."""

from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcli.cli.command import command, override_option
from detcli.cli.console import print_line, progress, set_verbosity
from detcli.config.config import INPUT, Config, Verbosity
from detcli.config.option import REQUIRED, option
from detcli.config.values import Sampling, parse_writable
from detcli.core import frozen
from detcli.core.errors import UsageError
from detcli.core.interrupts import interrupts
from detcli.core.text import escape_unprintable, pluralize, public_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from detcli.data.geometry import Boxes
    from detcli.data.record import RecordJson
    from detcli.data.sampling import StratifiedSample
    from detcli.page.find_images import Finder
    from detcli.page.run_info import RunInfo
    from detcli.run.hidden import HiddenClasses
    from detcli.run.marks import Marks


@frozen
class ReportRequest:
    """What a page is made of, besides its records."""

    config: Config
    images: Path | None = option(
        None,
        "--images FOLDER",
        "Where the images and videos are now; default: where the records say.",
        panel=INPUT,
        parse=parse_writable,
    )
    existing: bool = option(
        False, "--existing", "Leave out the rows of images that are gone.", panel=INPUT
    )
    sample: Sampling | None = option(
        None,
        "--sample N",
        "Show N rows only, as many of each score as there are, with images without detections and "
        "failures; 200,seed=7 draws others.",
        panel=INPUT,
        parse=Sampling.parse,
    )
    repeated: bool = option(
        False,
        "--repeated",
        "Show boxes of one class that are at one place in ten images or more of a camera, a tile "
        "for each group: drop stones, keep parked cars; then merge --apply marks.json.",
        panel=INPUT,
        excludes={
            "sample": ("--repeated counts in all records, and --sample shows some", "leave one out")
        },
    )

    def __post_init__(self) -> None:
        """Refuse a folder of images that is none."""
        if self.images is not None and not self.images.is_dir():
            raise UsageError(
                f"--images {self.images} is not a folder", "name one, or leave the option out"
            )


@command(
    "max_pixels",
    override_option("blur", help="Hide these classes in the images: person,car. Boxes stay."),
    "blur_with",
    "blur_margin",
    override_option(
        "report",
        declaration="-o, --output DIR|FILE.html",
        default=REQUIRED,
        help="Write the page to this folder, and open its index.html; or to one file to send, of "
        "up to 500 images.",
    ),
    "apply",
    "report_link",
    override_option(
        "only_detections", help="Keep no image without detections; its row stays.", needs={}
    ),
    Verbosity,
    configurable="blur blur_with blur_margin",
    examples="""
detcli report boxes.jsonl --images pics -o page
detcli report boxes.jsonl --sample 300 -o page.html
detcli predict pics | detcli report - -o page
detcli report boxes.jsonl --apply marks.json -o corrected
detcli report boxes.jsonl --repeated -o repeats
""",
)
def report(
    config: Config,
    request: ReportRequest,
    records: str = option(
        REQUIRED,
        "RECORDS",
        "JSON Lines, CSV or Parquet of detcli predict or merge, the folder of a run in shards, or "
        "MegaDetector's results; - is standard input.",
    ),
) -> None:
    """Make an HTML report from the records of an earlier run.

    The page opens from the disk, without a server. Images that are not found are left out of it,
    and their boxes stay.
    """
    quiet = config.verbosity.quiet
    set_verbosity(quiet=quiet, verbose=config.verbosity.verbose)
    from detcli.page.find_images import Finder
    from detcli.run import set_up_process  # these load OpenCV
    from detcli.run.hidden import HiddenClasses
    from detcli.run.marks import Marks
    from detcli.run.saved import read_records

    set_up_process()
    hidden = HiddenClasses(config.outputs)
    marks = None
    if config.outputs.apply is not None:
        marks = Marks(config.outputs.apply)
    finder = Finder(request.images, config.inputs, existing_only=request.existing)
    if request.repeated:
        _report_repeats(request, records, finder, hidden, marks)
        return
    if marks is not None and not _is_pipe(records):
        # The page may take minutes, so marks of other records are refused first.
        with closing(finder):
            for record in read_records(records, finder):
                marks.corrected(record)
        marks.require_fit()
        finder.gone = 0  # they are counted again
    with closing(finder), progress(lambda: None, enabled=not quiet) as advance:
        all_records = hidden.noting_tracks(hidden.checked(read_records(records, finder)))
        existing_records = _existing_records(all_records, finder, marks)
        shown = _select_records(existing_records, request.sample, marks)
        page_of_records = _PageOfRecords(request, records, shown, finder, hidden, marks)
        page_of_records.write(advance)
    _print_unseen_classes(hidden)
    if not quiet:
        page_of_records.print_summary()


def _print_unseen_classes(hidden: "HiddenClasses") -> None:
    """Print the classes that were to be hidden, but that no detection belongs to."""
    if hidden.unseen:
        unseen_classes = ", ".join(escape_unprintable(class_name) for class_name in hidden.unseen)
        print_line(f"no detection of {unseen_classes} to hide")


def _report_repeats(
    request: ReportRequest,
    name: str,
    finder: "Finder",
    hidden: "HiddenClasses",
    marks: "Marks | None",
) -> None:
    """Make a page of the boxes that repeat, a tile for each group.

    Args:
        request: What the page is made of.
        name: The name of the file or folder of records.
        finder: Finds the images of the records.
        hidden: The classes to hide in these.
        marks: What a person has marked before, which is not grouped again; None unless --apply is
            set.

    Raises:
        UsageError: The records cannot be read twice.
    """
    from detcli.page.one_file import address_of_page
    from detcli.page.page import Page
    from detcli.run.repeats import RepeatsPage, find_repeats
    from detcli.run.saved import read_records

    _require_rereadable(name)

    def remaining_records() -> "Iterator[RecordJson]":
        for record in _existing_records(read_records(name, finder), finder, marks):
            corrected = _corrected(record, marks)
            if corrected is not None:
                yield corrected

    def records_to_show() -> "Iterator[tuple[RecordJson, Boxes]]":
        """Yield the remaining records, each with the boxes to hide, even those that marks drop."""
        all_records = hidden.noting_tracks(hidden.checked(read_records(name, finder)))
        for record in _existing_records(all_records, finder, marks):
            boxes_to_hide = hidden.boxes_to_hide(record)
            corrected = _corrected(record, marks)
            if corrected is not None:
                yield corrected, boxes_to_hide

    quiet = request.config.verbosity.quiet
    with closing(finder):
        settings: Mapping[str, object] = {}
        for first_record in read_records(name, finder):
            settings = first_record.get("settings", {})
            break
        with progress(lambda: None, enabled=not quiet) as advance:
            repeats = find_repeats(remaining_records(), advance)
        if marks is not None:
            marks.require_fit()

        outputs = request.config.outputs
        output: Any = outputs.report  # a required option
        run_info = replace(_run_info(name, settings, None), records_are_repeats=True)
        page = Page(output, run_info, linked=outputs.report_link)
        finder.gone = 0  # they are counted again
        repeats_page = RepeatsPage(page, repeats, finder, hidden)
        try:
            repeats_page.write(records_to_show())
        finally:
            with interrupts.held():
                repeats_page.close()
    _print_unseen_classes(hidden)
    if not quiet:
        groups = pluralize(len(repeats.groups), "group")
        records = pluralize(repeats.record_count, "record")
        print_line(f"wrote a page of {groups} of repeats in {records}: {address_of_page(output)}")
        if repeats.groups:
            print_line(
                "mark groups there with x (drop) and k (keep), save marks.json, and then: "
                "detcli merge RECORDS --apply marks.json -o corrected.jsonl"
            )
        _print_lost_images(request, finder)


def _require_rereadable(name: str) -> None:
    """Require that records can be read twice: to find the groups, and to show their images.

    Args:
        name: The file or folder of the records; "-" for standard input.

    Raises:
        UsageError: They come from standard input or a pipe.
    """
    if _is_pipe(name):
        raise UsageError(
            "--repeated reads the records twice, and they come from a pipe",
            "write them to a file first, as with detcli predict -o boxes.jsonl",
        )


def _is_pipe(name: str) -> bool:
    """Return whether records come from standard input or a pipe, and can be read only once."""
    if name == "-":
        return True
    path = Path(name)
    return path.exists() and not path.is_file() and not path.is_dir()


def _print_lost_images(request: ReportRequest, finder: "Finder") -> None:
    """Print how many records or images are not shown, as they are gone or changed."""
    if finder.gone:
        records = pluralize(finder.gone, "record")
        print_line(f"  {records} left out, as their images are gone", prefix="")
    if finder.lost:
        images = pluralize(finder.lost, "image")
        print_line(f"{images} not found, or changed since", prefix="")
        if request.images is None:
            print_line("name their folder with --images", prefix="  ", label="hint:")


def _existing_records(
    records: "Iterator[RecordJson]", finder: "Finder", marks: "Marks | None"
) -> "Iterator[RecordJson]":
    """Yield records; with --existing, leave out those whose images are gone.

    The records that are left out are counted in `finder.gone`. Their marks are recorded as used,
    since a mark that matches no record is an error.

    Args:
        records: The records of the earlier run.
        finder: Finds their images.
        marks: What a person has marked as wrong, maybe in an image that is gone by now; None
            unless --apply is set.
    """
    from detcli.data.record import name_of

    for record in records:
        is_left_out = finder.existing_only and finder.is_gone(name_of(record))
        if not is_left_out:
            yield record
            continue
        finder.gone += 1
        if marks is not None:
            marks.corrected(record)  # called only to record the marks as used


@frozen
class _ShownRecords:
    """The records that a page shows."""

    records: "Iterator[RecordJson]"
    settings: "Mapping[str, object]"  # in the first record of the earlier run, may be empty
    sampled_count: int | None = None  # how many records a sample was drawn from; None for all


def _select_records(
    records: "Iterator[RecordJson]", sample: Sampling | None, marks: "Marks | None"
) -> _ShownRecords:
    """Choose the records that a page shows: all, or a sample, for which all are read.

    The first record is read in any case: no page is begun if that fails.

    Args:
        records: All records.
        sample: How many to draw, and the seed; None for all.
        marks: What a person has marked as wrong, which is ignored; None unless --apply is set.
    """
    settings: Mapping[str, object] = {}
    first_records = list(islice(records, 1))  # one record, or none
    if first_records:
        settings = first_records[0].get("settings", {})
    all_records = chain(first_records, records)
    if sample is None:
        return _ShownRecords(all_records, settings)
    drawn = _draw_sample(all_records, sample, marks)
    return _ShownRecords(iter(drawn.records()), settings, drawn.record_count)


def _draw_sample(
    records: "Iterator[RecordJson]", sampling: Sampling, marks: "Marks | None"
) -> "StratifiedSample":
    """Read all records, and draw a sample of them by their best scores.

    Args:
        records: The records.
        sampling: How many to draw, and the seed.
        marks: What a person has marked as wrong. The scores of such detections are ignored, and
            records that are wrong as a whole are not drawn. None unless --apply is set.
    """
    from detcli.data.sampling import StratifiedSample

    drawn_sample = StratifiedSample(sampling.size, sampling.seed)
    for record in records:
        corrected = _corrected(record, marks)
        if corrected is None:
            continue
        scores = [detection["score"] for detection in corrected.get("detections", ())]
        best_score = max(scores, default=None)
        # The sample has the record as it was read: the page corrects it when it is added there.
        drawn_sample.add(record, best_score)
    return drawn_sample


def _corrected(record: "RecordJson", marks: "Marks | None") -> "RecordJson | None":
    """Return a record without the detections that marks drop; None if they drop all of it."""
    if marks is None:
        return record
    return marks.corrected(record)


def _run_info(records: str, settings: "Mapping[str, object]", sample: Sampling | None) -> "RunInfo":
    """Collect what the page says about the earlier run that wrote the records.

    Args:
        records: The option's value: a file or folder of records, or "-".
        settings: The settings in the first record; may be empty. The file may be from anyone, so
            the values may be of any type.
        sample: Which records the page shows; None for all.
    """
    from detcli.page.run_info import RunInfo, ignored_of, settings_facts, zones_and_lines_of

    source = public_name(records)
    if records == "-":
        source = "standard input"
    facts = [("records", source)]
    if sample is not None:
        facts.append(("sample", str(sample)))
    facts += settings_facts(settings)
    min_score = 0.0
    conf = settings.get("conf")
    if isinstance(conf, float) and 0 <= conf <= 1:
        min_score = conf
    return RunInfo(
        "report",
        facts,
        min_score=min_score,
        zones_and_lines=list(zones_and_lines_of(settings)),
        ignored=list(ignored_of(settings)),
    )


class _PageOfRecords:
    """Adds the records of an earlier run to a page, with the options --blur and --apply.

    --blur hides classes in the images. --apply leaves out what a person has marked as wrong on an
    earlier page, and saved in a file of marks: individual detections, or whole records.
    """

    def __init__(
        self,
        request: ReportRequest,
        name: str,
        shown: _ShownRecords,
        finder: "Finder",
        hidden: "HiddenClasses",
        marks: "Marks | None",
    ) -> None:
        """Begin the page, without records.

        Args:
            request: What the page is made of.
            name: The name of the file or folder of records; "-" for standard input.
            shown: The records to show.
            finder: Finds the images of the records.
            hidden: The classes to hide.
            marks: What a person has marked as wrong; None unless --apply is set.
        """
        from detcli.page.one_file import address_of_page
        from detcli.page.page import Page

        outputs = request.config.outputs
        output: Any = outputs.report  # a required option
        run_info = _run_info(name, shown.settings, request.sample)
        self._page = Page(output, run_info, linked=outputs.report_link)
        self._address = address_of_page(output)
        self._request = request
        self._shown = shown
        self._finder = finder
        self._hidden = hidden
        self._marks = marks
        self._record_count = 0
        self._dropped_hidden_count = 0  # detections of hidden classes that marks dropped

    def write(self, advance: "Callable[[str], None]") -> None:
        """Add all records, and end the page, even after an error.

        Args:
            advance: Shows the progress; it is called with the name of each input.

        Raises:
            CheckError: A mark matches no record.
        """
        try:
            for record in self._shown.records:
                self.add(record)
                advance(record["source"])
            if self._marks is not None:
                self._marks.require_fit()
        finally:
            with interrupts.held():
                self._page.close()

    def add(self, record: "RecordJson") -> None:
        """Add a record to the page, without the detections that marks drop.

        If a mark drops the whole record, nothing is added. What --blur hides is made unrecognisable
        in the image even if a mark drops its detection, since the image still shows the object.

        Args:
            record: The record, as it was read.
        """
        boxes_to_hide = self._hidden.boxes_to_hide(record)  # including those that marks drop
        shown_record = _corrected(record, self._marks)
        if shown_record is None:
            return

        hide_in_image = None
        hides_any_class = bool(self._hidden)
        if hides_any_class:
            hide_in_image = partial(self._hidden.in_image, boxes_to_hide)
            shown_record = self._hidden.without_texts(shown_record, boxes_to_hide)

        # The page loads the image only if it shows it.
        load_image = None
        only_detections = self._request.config.outputs.only_detections
        if shown_record.get("detections") or not only_detections:
            load_image = partial(self._finder.shown, shown_record, hide_in_image)
        self._page.add(shown_record, load_image)

        self._record_count += 1
        remaining_boxes_to_hide = self._hidden.boxes_to_hide(shown_record)
        self._dropped_hidden_count += len(boxes_to_hide) - len(remaining_boxes_to_hide)

    def print_summary(self) -> None:
        """Print what was written, what is hidden, and which records or images are not shown."""
        for line in self._summary():
            print_line(line)
        if self._shown.sampled_count is not None:
            records = pluralize(self._shown.sampled_count, "record")
            print_line(f"  a sample of {records}, by score", prefix="")
        _print_lost_images(self._request, self._finder)

    def _summary(self) -> "Iterator[str]":
        """Yield the lines that say what was written, and what marks and --blur did to it."""
        records = pluralize(self._record_count, "record")
        yield f"wrote a page of {records}{self._marks_text()}: {self._address}"

        if self._marks is not None:
            marks_path = self._request.config.outputs.apply
            yield (
                "count and sort read records, not this page: detcli merge RECORDS --apply "
                f"{marks_path} -o corrected.jsonl writes them"
            )

        if self._dropped_hidden_count:
            detections = pluralize(self._dropped_hidden_count, "detection")
            yield f"{detections} dropped by marks, and blurred on the page all the same"

        # An image without a hash may be a different one of the same size. Then --blur has hidden
        # the wrong parts of it.
        unproven_count = self._finder.unproven
        if self._hidden and unproven_count:
            images = pluralize(unproven_count, "image")
            yield (
                f"{images} compared with the records by size only, as these have no hash; "
                "predict --provenance writes one"
            )

    def _marks_text(self) -> str:
        """Describe what the marks of --apply changed on the page, as a part of a sentence.

        It is empty unless --apply is set.
        """
        if self._marks is None:
            return ""
        return self._marks.effect
