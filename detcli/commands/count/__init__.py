"""`detcli count`: how many images and boxes there are, by class, folder, day, hour, zone or burst.

keys.py reads from a record what images and boxes are counted by; groups.py counts them; table.py
writes the counts.
"""

from collections.abc import Callable, Iterator

from detcli.cli.command import command, override_option
from detcli.cli.console import print_line, progress, set_verbosity
from detcli.cli.records import RECORDS_HELP, require_different, take_records
from detcli.cli.report import require_output
from detcli.commands.count.groups import Groups
from detcli.commands.count.keys import BoxFilter, GroupKey
from detcli.commands.count.table import CountFormat, write_counts
from detcli.config.config import OUTPUT, Config, Verbosity
from detcli.config.option import REQUIRED, option
from detcli.core.text import closest, public_name

KEYS = ",".join(GroupKey)
FORMATS = "|".join(CountFormat)

MISSING_HINTS = {
    GroupKey.DAY: "no record says when its image was taken, so every day is unknown",
    GroupKey.HOUR: "no record says when its image was taken, so every hour is unknown",
    GroupKey.ZONE: "no box has zones: predict --zone adds them",
    GroupKey.CLASSIFIED: "no box is classified: merge --classified adds it",
    GroupKey.BURST: "no record says of which burst it is, so every burst is unknown",
}
"""What is said where no record has what it is to be counted by."""


@command(
    override_option(
        "conf",
        help="Count boxes with scores above this; 0.25,person=0.5 sets single classes. Default: "
        "all boxes that the records have.",
    ),
    override_option("classes", help="Count only these classes, by name or id: person,car or 0,2."),
    Verbosity,
    examples="""
detcli count boxes.jsonl
detcli count boxes.jsonl --by class,folder,day --format csv > counts.csv
detcli count may.jsonl june.jsonl --by hour --classes deer --conf 0.5
""",
)
def count(
    config: Config,
    records: tuple[str, ...] = option(REQUIRED, "RECORDS...", RECORDS_HELP),
    by: tuple[GroupKey, ...] = option(
        (GroupKey.CLASS,),
        f"--by {KEYS}",
        "What to count by, one or several of these.",
        separator=",",
        panel=OUTPUT,
    ),
    count_format: CountFormat | None = option(
        None,
        f"--format {FORMATS}",
        "Default: table on a terminal and json in a pipe.",
        panel=OUTPUT,
    ),
    *,
    repeated: bool = option(
        False,
        "--repeated",
        "Count boxes that are marked as repeated, too; see detcli report --repeated.",
        panel=OUTPUT,
    ),
) -> None:
    """Count images and boxes in records, by class, folder, day, hour, zone or burst.

    A frame of a video counts as an image. An image that shows two classes counts for both of them.
    """
    quiet = config.verbosity.quiet
    set_verbosity(quiet=quiet, verbose=config.verbosity.verbose)
    require_output(())
    require_different(records)
    box_filter = BoxFilter(config.settings, with_repeated=repeated)
    groups = Groups(tuple(dict.fromkeys(by)), box_filter)
    with progress(lambda: None, enabled=not quiet) as advance:
        for name in records:
            burst_prefix = ""
            if len(records) > 1:
                burst_prefix = f"{public_name(name)}:"
            _count_file(groups, name, burst_prefix, advance)
    if not quiet:
        for line in _notes(groups, box_filter):
            print_line(line)
    write_counts(groups, count_format)


def _count_file(
    groups: Groups, name: str, burst_prefix: str, advance: Callable[..., object]
) -> None:
    """Count the images and boxes of one file of records.

    Args:
        groups: Where they are counted.
        name: The name of the file as it was typed.
        burst_prefix: Comes before the numbers of bursts, such as "may.jsonl:", as every file
            numbers its bursts from 0; empty if there is only one file.
        advance: Is called with the source of each record.

    Raises:
        UsageError: A record has a time that is not one, or a burst that is not a number.
    """
    take_records(name, lambda record: groups.add(record, burst_prefix), advance)


def _notes(groups: Groups, box_filter: BoxFilter) -> Iterator[str]:
    """Yield what a person should know of the counts: what no record has, and misspelt classes.

    Args:
        groups: The counts of all records.
        box_filter: Which boxes were counted.
    """
    if not groups.images:
        return
    for key in groups.by:
        if key in MISSING_HINTS and key not in groups.seen_keys:
            yield MISSING_HINTS[key]
    for class_name in box_filter.unseen:
        line = f"no box is of the class {public_name(class_name)}"
        suggestion = closest(class_name, box_filter.seen_classes)
        if suggestion:
            line += f"; did you mean {suggestion}?"
        yield line
