"""`detcli promise verify`: recomputes a promise from the records."""

from pathlib import Path

from detcli.cli.command import command
from detcli.cli.console import progress, set_verbosity
from detcli.cli.report import require_output
from detcli.config.config import Config, Verbosity
from detcli.config.option import REQUIRED, option
from detcli.storage.files import StandardOutput


@command(
    Verbosity,
    examples="""
detcli promise verify review/promise.json boxes.jsonl
""",
)
def verify(
    config: Config,
    promise: Path = option(REQUIRED, "PROMISE", "The promise.json of a review."),
    records: str = option(REQUIRED, "RECORDS", "The records that it is about."),
) -> None:
    """Recompute a promise from the records and the answers that it lists.

    The exit code is 6 if it does not follow from them, and 2 if the records have other
    names or scores.
    """
    quiet = config.verbosity.quiet
    set_verbosity(quiet=quiet, verbose=config.verbosity.verbose)
    require_output(())
    from detcli.commands.promise.verifying import verify_promise

    with progress(lambda: None, enabled=not quiet) as advance:
        sentence = verify_promise(promise, records, advance)
    StandardOutput().write(f"{sentence}\n")
