"""`detcli promise check`: says what the answers so far promise."""

import os
from collections.abc import Callable
from pathlib import Path

from detcli.cli.command import command
from detcli.cli.console import print_line, progress, set_verbosity
from detcli.cli.report import require_output
from detcli.config.config import INPUT, Config, Verbosity
from detcli.config.option import REQUIRED, option
from detcli.config.values import parse_writable
from detcli.core import Fields
from detcli.core.errors import CheckError, UsageError
from detcli.storage.files import StandardOutput

RECORDS: str | None = option(
    None,
    "--records FILE",
    "Where the records are now; default: where they were when the review was dealt.",
    panel=INPUT,
)

REVIEW: Path = option(REQUIRED, "REVIEW", "The folder that deal made.", parse=parse_writable)


@command(
    Verbosity,
    examples="""
detcli promise check review labels-anna.jsonl
detcli promise check review
""",
)
def check(
    config: Config,
    review: Path = REVIEW,
    labels: tuple[str, ...] = option(
        (), "LABELS...", "What the page saved: it is added to labels.jsonl in the folder."
    ),
    records: str | None = RECORDS,
    *,
    correct: bool = option(
        False,
        "--correct",
        "Allow for animals that reviewers overlook, by in how many of the best-scoring units they "
        "saw one.",
    ),
) -> None:
    """Say what a review promises, after each round; exit code 0 if it promises something.

    It is 3 if a round is incomplete: nothing is computed before its end. It is 6 if nothing is
    promised, and 2 if the records have changed. promise.json in the folder has all numbers.
    """
    quiet = config.verbosity.quiet
    set_verbosity(quiet=quiet, verbose=config.verbosity.verbose)
    require_output(())
    from detcli.commands.promise.deck import read_deck, review_id_of
    from detcli.commands.promise.labels import add_labels, read_labels_of_review

    folders = reviews_in(review)
    if labels and len(folders) > 1:
        raise UsageError(
            "labels are of one of the reviews", f"name its folder, such as {folders[0]}"
        )
    if labels:
        review_id = review_id_of(read_deck(folders[0]))
        files = []
        for path in labels:
            if not Path(path).exists():
                raise UsageError(
                    f"there is no file {path}", "name a file that the review page saved"
                )
            files.append(read_labels_of_review(Path(path), review_id))
        for lines in sorted(files, key=_first_time):
            add_labels(folders[0], lines)

    thresholds = {}
    for folder in folders:
        with progress(lambda: None, enabled=not quiet) as advance:
            threshold = _check_review(
                folder, records, advance, is_corrected=correct, is_one_of_several=len(folders) > 1
            )
        if threshold is not None:
            thresholds[folder.name] = threshold
    if len(folders) > 1:
        _report_classes(thresholds, len(folders))


def _first_time(lines: list[Fields]) -> str:
    """Return when the first label of a file was given, so that earlier files are added first."""
    if not lines:
        return ""
    return str(lines[0]["at"])


def reviews_in(folder: Path) -> list[Path]:
    """Return the folder of a review, or the folders of the reviews that are in a folder.

    Several reviews are in one folder after deal --each, which makes one for each class. If the
    folder is that of a review's page for a third look, its review is returned.

    Raises:
        UsageError: There is no review.
    """
    from detcli.commands.promise.deck import DECK, DISPUTED

    if folder.name == DISPUTED and (folder.parent / DECK).is_file():
        return [folder.parent]
    if os.path.isfile(folder / DECK):  # noqa: PTH113 - raises nothing
        return [folder]
    folders = []
    if os.path.isdir(folder):  # noqa: PTH112 - raises nothing
        folders = sorted(path.parent for path in folder.glob(f"*/{DECK}"))
    if not folders:
        raise UsageError(f"{folder} is not a review", "name a folder that detcli promise deal made")
    return folders


def _check_review(
    folder: Path,
    records: str | None,
    advance_progress: Callable[[str], object],
    *,
    is_corrected: bool,
    is_one_of_several: bool,
) -> float | None:
    """Check one review, print what it promises, and return the promised threshold.

    Args:
        folder: The folder of the review.
        records: Where the records are now; None for where they were.
        advance_progress: Is called with the source of each record.
        is_corrected: Whether the bound allows for animals that the reviewers overlook.
        is_one_of_several: Whether other reviews are checked as well. Then lines begin with the
            name of the folder. If nothing is promised, the reason is printed and no error raised,
            so that the other reviews are checked all the same.

    Returns:
        None if nothing is promised.

    Raises:
        CheckError: Nothing is promised, and it is the only review. Other errors are those of
            `Checker.check`.
    """
    from detcli.commands.promise.checking import Checker

    checker = Checker(folder, records, advance_progress)
    checked = checker.check(is_corrected=is_corrected)

    line_start = ""
    if is_one_of_several:
        line_start = f"{folder.name}: "
    output = StandardOutput()
    for line in checked.lines:
        output.write(f"{line_start}{line}\n")
    for warning in checked.warnings:
        print_line(f"{line_start}{warning}", label="warning:")

    if checked.promise is not None:
        return checked.promise.row.threshold
    if checked.failure is not None:
        if not is_one_of_several:
            raise checked.failure
        print_line(f"{line_start}{checked.failure}; {checked.failure.hint}")
    return None


def _report_classes(thresholds: dict[str, float], class_count: int) -> None:
    """Print the highest --conf with which predict keeps all classes, and the class that decides it.

    It is the lowest of the promised thresholds, as predict drops all boxes below --conf.

    Args:
        thresholds: The promised threshold of each class that has a promise.
        class_count: How many classes there are, each with a review.

    Raises:
        CheckError: Some class has no promise.
    """
    if len(thresholds) < class_count:
        raise CheckError(
            f"{class_count - len(thresholds)} of {class_count} classes have no promise",
            "images need eyes for these; go on with their rounds",
        )
    decisive_class = min(thresholds, key=lambda name: thresholds[name])
    StandardOutput().write(
        f"{decisive_class} decides: --conf {thresholds[decisive_class]} keeps all classes\n"
    )
