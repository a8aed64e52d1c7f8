"""`detcli sort`: puts images into folders by what they show.

rules.py reads the rules; assignment.py applies them to records. `detcli.sink.sorted_files` makes
links, copies or lists; `detcli.sink.sort_log` notes each, and takes it back.
"""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from detcli.cli.command import command
from detcli.cli.console import print_line, progress, set_verbosity
from detcli.cli.records import RECORDS_HELP, require_different, take_records
from detcli.cli.sorting import HOW
from detcli.commands.sort.assignment import Assignment
from detcli.commands.sort.rules import SortRules, parse_rules
from detcli.config.config import OUTPUT, Config, Verbosity
from detcli.config.option import REQUIRED, option
from detcli.config.values import parse_writable
from detcli.core.errors import InputError, OutputError, UsageError
from detcli.core.text import closest, pluralize, public_name
from detcli.sink.sort_log import LOG_NAME, SortLog, take_back
from detcli.sink.sorted_files import How, Placer, write_lists
from detcli.storage.files import make_folder

SHOWN_NAMES = 5
"""How many names of images that could not be sorted are printed."""

SHOWN_CLASSES = 10
"""How many classes of the records are named where that of a rule is not among them."""


@command(
    Verbosity,
    examples="""
detcli sort boxes.jsonl --by 'animal>=0.2,person>=0.3' -o sorted
detcli sort boxes.jsonl --by 'animal>=0.2' -o lists --how list
detcli predict --files-from lists/animal.txt -m species.onnx -o species.jsonl
detcli sort -o sorted --undo
""",
)
def sort(
    config: Config,
    records: tuple[str, ...] = option((), "RECORDS...", RECORDS_HELP),
    by: tuple[str, ...] = option(
        (),
        "--by RULES",
        "Rules, as in animal>=0.2,person>=0.3: the first that an image meets names its folder. "
        "Images that meet none go to empty, failed inputs to failed.",
        separator=",",
        panel=OUTPUT,
    ),
    output: Path = option(
        REQUIRED,
        "-o, --output DIR",
        "Make the folders here: animal, person, empty, failed.",
        parse=parse_writable,
        panel=OUTPUT,
    ),
    how: How = HOW,
    *,
    undo: bool = option(
        False,
        "--undo",
        "Take back what was sorted into the folder, by its log.",
        panel=OUTPUT,
        excludes={
            "records": ("--undo takes no records", "the log in the folder says what to take back"),
            "by": ("--undo takes no rules", "the log in the folder says what to take back"),
        },
    ),
) -> None:
    """Sort images into folders by what they show, as links, copies or lists.

    Below these, images keep the folders of their names. The images of a burst stay together, in the
    folder of the best of them. Nothing is written over. Relative names are looked up from here.
    """
    quiet = config.verbosity.quiet
    set_verbosity(quiet=quiet, verbose=config.verbosity.verbose)
    if undo:
        _undo(output, quiet=quiet)
        return
    if not by:
        raise UsageError("--by is missing", "write --by 'animal>=0.2,person>=0.3'")
    require_different(records)
    rules = parse_rules(by)
    assignment = Assignment(rules)
    with progress(lambda: None, enabled=not quiet) as advance:
        for file_number, name in enumerate(records):
            _assign_file(assignment, name, file_number, advance)
    if not quiet:
        for class_name in rules.unseen_classes:
            print_line(_unseen_line(class_name, rules))
    folder = make_folder(output)
    log = SortLog(folder, rules.texts, how)
    try:
        if how is How.LIST:
            _list_images(assignment, rules, folder, log, quiet=quiet)
        else:
            _place_images(assignment, rules, Placer(folder, log, how), folder, quiet=quiet)
    finally:
        log.close()


def _assign_file(
    assignment: Assignment, name: str, file_number: int, advance: Callable[..., object]
) -> None:
    """Assign the images of a file of records to folders.

    Args:
        assignment: Collects the folders of images.
        name: The name of the file as it was typed.
        file_number: Its index among the files, which tells its bursts from those of others: every
            file numbers its bursts from 0.
        advance: Is called with the source of each record.

    Raises:
        UsageError: The burst of a record is not a number.
    """
    take_records(name, lambda record: assignment.add(record, file_number), advance)


def _unseen_line(class_name: str, rules: SortRules) -> str:
    """Report that no box belongs to the class of a rule, which may be misspelt."""
    line = f"no box is of the class {public_name(class_name)}"
    suggestion = closest(class_name, rules.seen_classes)
    class_names = sorted(name for name in rules.seen_classes if not name.isdecimal())
    if suggestion:
        line += f"; did you mean {suggestion}?"
    elif class_names:
        names_text = ", ".join(public_name(name) for name in class_names[:SHOWN_CLASSES])
        line += f"; --by takes classes of the records, such as {names_text}"
    return line


def _place_images(
    assignment: Assignment, rules: SortRules, placer: Placer, folder: Path, *, quiet: bool
) -> None:
    """Link or copy all images, and print how many are where.

    Raises:
        InputError: Some are not files here, or their place has a different file.
        OutputError: An image cannot be written.
    """
    with progress(lambda: len(assignment), enabled=not quiet) as advance:
        for name, class_folder in assignment:
            placer.place(name, class_folder)
            advance(name)
    if not quiet:
        print_line(_summary(placer.counts, rules, folder))
    _require_all_placed(placer)


def _require_all_placed(placer: Placer) -> None:
    """Require that all images were linked or copied, and print the first that were not.

    Raises:
        InputError: Some are not files here, or their place has a different file.
    """
    for name in placer.blocked[:SHOWN_NAMES]:
        print_line(f"{name}: another file is at its destination", prefix="")
    for name in placer.missing[:SHOWN_NAMES]:
        print_line(f"{name}: no such file here", prefix="")
    problems = []
    if placer.missing:
        problems.append(f"{pluralize(len(placer.missing), 'image')} not found")
    if placer.blocked:
        problems.append(f"{pluralize(len(placer.blocked), 'image')} whose destination is taken")
    if problems:
        raise InputError(
            f"not sorted: {', '.join(problems)}",
            "run this in the folder where predict ran, so that names lead to files; existing files "
            "are not overwritten",
        )


def _list_images(
    assignment: Assignment, rules: SortRules, folder: Path, log: SortLog, *, quiet: bool
) -> None:
    """Write the lists of names, and say how many are in which.

    Raises:
        InputError: Images have names that no list can hold, as those of standard input.
        OutputError: A list cannot be written, or exists.
    """
    listed = write_lists(assignment, rules.folders, folder, log)
    if not quiet:
        print_line(_summary(listed.counts, rules, folder))
    if listed.unlisted:
        images = pluralize(len(listed.unlisted), "image")
        raise InputError(f"{images} not listed: {listed.unlisted[0]!r}", "sort files instead")


def _summary(counts: Counter[str], rules: SortRules, folder: Path) -> str:
    """Describe how many images are in which folder, as in `3 animal, 1 empty`."""
    parts = [f"{counts[class_folder]} {class_folder}" for class_folder in rules.folders]
    images = pluralize(counts.total(), "image")
    return f"sorted {images} into {folder}: {', '.join(parts)}"


def _undo(output: Path, *, quiet: bool) -> None:
    """Take back what was sorted into a folder.

    Raises:
        SourceError: It has no log.
        OutputError: Some files were not taken back, or cannot be removed.
    """
    taken_back = take_back(Path(os.path.realpath(output)))
    if not quiet:
        print_line(f"took back {pluralize(taken_back.removed_count, 'file')} of {output}")
    if taken_back.left:
        for name in taken_back.left[:SHOWN_NAMES]:
            print_line(f"{name}: changed, or its original is gone", prefix="")
        raise OutputError(
            f"{pluralize(len(taken_back.left), 'file')} left in {output}",
            f"look at them, and remove them by hand; {LOG_NAME} stays",
        )
