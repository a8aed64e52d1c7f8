"""`detcli promise deal`: makes a review of units that are drawn from records."""

from dataclasses import replace
from pathlib import Path

from detcli.cli.command import command, override_option
from detcli.cli.console import print_line, progress, set_verbosity
from detcli.commands.promise.options import DealOptions
from detcli.config.config import Verbosity
from detcli.core.errors import UsageError
from detcli.storage.file_names import safe


@command(
    override_option(
        "classes",
        help="What is looked for, by name or id, as in animal; several count as one. Default: all.",
    ),
    Verbosity,
    examples="""
detcli predict card -r --conf 0.001 -o boxes.jsonl
detcli promise deal boxes.jsonl -o review --classes animal --lost 5%
detcli promise deal boxes.jsonl -o review --classes animal --lost 5% --unit burst:60s --above 400
""",
)
def deal(options: DealOptions) -> None:
    """Draw images to look at, so that others need no eyes: at most 5% of the animals are lost.

    The folder has a page on which one answers with keys. When its first round is complete, check
    says what is promised. Records need low scores, as predict writes with --conf 0.001.
    """
    verbosity = options.config.verbosity
    set_verbosity(quiet=verbosity.quiet, verbose=verbosity.verbose)
    classes = [str(name) for name in options.config.settings.classes]
    classes_by_folder = {options.output: classes}
    if options.each:
        classes_by_folder = _reviews_of_classes(options, classes)
        # All promises together hold with the certainty that was asked for, so they share the
        # probability of an error: with 95% for five classes, each promise holds with 99%.
        total_error = 1 - options.sure
        options = replace(options, sure=1 - total_error / len(classes))

    from detcli.commands.promise.dealing import Dealer  # it loads NumPy and OpenCV

    lines = []
    for folder, classes_of_review in classes_by_folder.items():
        with progress(lambda: None, enabled=not verbosity.quiet) as advance:
            dealt = Dealer(options, folder, classes_of_review, advance).deal()
        lines += dealt.lines
    if not verbosity.quiet:
        for line in lines:
            print_line(line)


def _reviews_of_classes(options: DealOptions, classes: list[str]) -> dict[Path, list[str]]:
    """Return the folder of each class's review, with the class.

    Raises:
        UsageError: There are fewer than two classes.
    """
    reviews = {options.output / safe(name): [name] for name in classes}
    if len(reviews) < 2:
        raise UsageError("--each needs several classes", "name them: --classes deer,fox --each")
    return reviews
