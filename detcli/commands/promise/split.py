"""`detcli promise split`: parts what needs eyes from what does not."""

from pathlib import Path
from typing import TYPE_CHECKING

from detcli.cli.command import command
from detcli.cli.console import print_line, progress, set_verbosity
from detcli.cli.sorting import HOW
from detcli.commands.promise.check import RECORDS, REVIEW, reviews_in
from detcli.config.config import OUTPUT, Config, Verbosity
from detcli.config.option import REQUIRED, option
from detcli.config.values import parse_writable
from detcli.core.errors import InputError, UsageError
from detcli.core.text import pluralize
from detcli.sink.sorted_files import How
from detcli.storage.files import make_folder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from detcli.sink.sort_log import SortLog

SHOWN_NAMES = 5
"""How many names of images that have no place are printed."""


@command(
    Verbosity,
    examples="""
detcli promise split review -o sorted
detcli promise split review -o lists --how list
detcli predict --files-from lists/eyes.txt -m species.onnx -o species.jsonl
""",
)
def split(
    config: Config,
    review: Path = REVIEW,
    output: Path = option(
        REQUIRED,
        "-o, --output DIR",
        "Make the folders eyes and no-eyes here, or the lists eyes.txt and no-eyes.txt.",
        parse=parse_writable,
        panel=OUTPUT,
    ),
    how: How = HOW,
    records: str | None = RECORDS,
) -> None:
    """Part the images that need eyes from those that do not, as check has promised.

    Inputs that failed need eyes, and so does what a reviewer saw an animal in, or doubted. Nothing
    is written over, and detcli sort -o DIR --undo takes it back.
    """
    quiet = config.verbosity.quiet
    set_verbosity(quiet=quiet, verbose=config.verbosity.verbose)
    from detcli.commands.promise.splitting import EYES, NO_EYES, promised_threshold, split_files
    from detcli.sink.sort_log import SortLog

    reviews = reviews_in(review)
    if len(reviews) > 1:
        folders = ", ".join(str(folder) for folder in reviews)
        raise UsageError(
            f"{review} has a review for each class: {folders}",
            "split each with --how list: an image needs eyes if any eyes.txt has it",
        )
    review_folder = reviews[0]

    # Each file goes into one of two folders: images for somebody's eyes, and those without need.
    with progress(lambda: None, enabled=not quiet) as advance:
        threshold = promised_threshold(review_folder, records, advance)
        files_with_folders = split_files(review_folder, records, threshold, advance)

    folder = make_folder(output)
    log = SortLog(folder, [f"promise {threshold}"], how)
    try:
        counts = _put_files(files_with_folders, folder, log, how)
    finally:
        log.close()

    if not quiet:
        images_for_eyes = pluralize(counts[EYES], "image")
        print_line(
            f"wrote {output}: {images_for_eyes} for eyes, {counts[NO_EYES]:,} that need none"
        )


def _put_files(
    files_with_folders: "Iterable[tuple[str, str]]", folder: Path, log: "SortLog", how: How
) -> dict[str, int]:
    """Link, copy or list files, and return how many went into each of the two folders.

    Files that cannot be put anywhere are skipped. Some of their names are printed at the end.

    Args:
        files_with_folders: The name of each file, and the folder it goes to: "eyes" or "no-eyes".
        folder: The folder that has these two.
        log: Gets a line for each file and folder that is made.
        how: Whether files are linked, copied or listed.

    Raises:
        InputError: Some files were skipped: they are not on this machine, the folder has other
            files with their names, or no list can hold their names.
    """
    from detcli.commands.promise.splitting import EYES, NO_EYES
    from detcli.sink.sorted_files import Placer, write_lists

    if how is How.LIST:
        counts, skipped_names = write_lists(files_with_folders, [EYES, NO_EYES], folder, log)
        reason = "no list can hold this name"
        hint = "split files instead: leave out --how list"
    else:
        placer = Placer(folder, log, how)
        for name, class_folder in files_with_folders:
            placer.place(name, class_folder)
        counts = placer.counts
        skipped_names = placer.missing + placer.blocked
        reason = "no such file here, or another file is at its destination"
        hint = (
            "run this in the folder where predict ran, so that names lead to files; existing files "
            "are not overwritten"
        )

    if skipped_names:
        for name in skipped_names[:SHOWN_NAMES]:
            print_line(f"{name}: {reason}", prefix="")
        images = pluralize(len(skipped_names), "image")
        raise InputError(f"{images} not put into {folder}", hint)
    return counts
