"""`detcli count`: how many images and boxes there are, by class, folder, day, hour, zone or burst.

keys.py reads from a record what images and boxes are counted by; groups.py counts them; table.py
writes the counts.
"""

from collections.abc import Iterator
from functools import partial

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
    GroupKey.BURST: "no record says of which burst it is, so every burst is unknown: "
    "merge --burst 60s adds it",
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
    require_output(other_results=())  # the counts on standard output are the only result
    require_different(records)  # a file that is named twice would count twice

    box_filter = BoxFilter(config.settings, with_repeated=repeated)
    unique_keys = tuple(dict.fromkeys(by))
    groups = Groups(unique_keys, box_filter)

    # The total is None: how many records there are is not known before they are read.
    with progress(total=lambda: None, enabled=not quiet) as advance:
        for name in records:
            # Every file numbers its bursts from 0. So if there are several files, the name of the
            # file tells its bursts from those of the others, as in "may.jsonl:7".
            burst_prefix = ""
            if len(records) > 1:
                burst_prefix = f"{public_name(name)}:"
            count_record = partial(groups.add, burst_prefix=burst_prefix)
            take_records(name, count_record, advance)

    if not quiet:
        for line in _notes(groups, box_filter):
            print_line(line)
    write_counts(groups, count_format)


def _notes(groups: Groups, box_filter: BoxFilter) -> Iterator[str]:
    """Yield what a person should know about the counts: what no record has, and misspelt classes.

    Args:
        groups: The counts of all records.
        box_filter: Which boxes were counted.
    """
    if not groups.image_count:
        return
    for key in groups.keys:
        if key in MISSING_HINTS and key not in groups.seen_keys:
            yield MISSING_HINTS[key]
    if box_filter.selects_classes and GroupKey.CLASS not in groups.keys:
        keys = ",".join([GroupKey.CLASS, *groups.keys])
        yield (
            "every image counts, also those without the classes of --classes; "
            f"--by {keys} counts those with them"
        )
    for class_name in box_filter.unseen:
        line = f"no box is of the class {public_name(class_name)}"
        suggestion = closest(class_name, box_filter.seen_classes)
        if suggestion:
            line += f"; did you mean {suggestion}?"
        yield line
