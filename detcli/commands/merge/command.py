"""`detcli merge`: the parts of a run in shards as one output."""

import os
from typing import Annotated

import typer

from detcli.commands.shared import options
from detcli.commands.shared.formats import Format, choose_format, read_target
from detcli.commands.shared.layout import OUTPUT
from detcli.commands.shared.messages import set_verbosity
from detcli.commands.shared.options import option
from detcli.errors import UsageError

EXAMPLES = """
detcli merge boxes/ -o all.jsonl
detcli merge boxes/ --format csv | head
"""


def merge(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER/",
            help="What was given to predict --output.",
            show_default=False,
        ),
    ],
    *,
    output_format: Annotated[
        Format | None,
        option(
            "|".join(Format),
            "Default: by the suffix of --output, else table on a terminal and jsonl in a pipe.",
            "--format",
            panel=OUTPUT,
        ),
    ] = None,
    output: Annotated[
        str | None,
        option(
            "FILE",
            "Write records to this file; - is standard output.",
            "--output",
            "-o",
            panel=OUTPUT,
        ),
    ] = None,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Merge the parts of a sharded run.

    The output is what one run on one machine writes. Each name of the run's manifest is there once;
    what is missing or damaged is listed, nothing is written, and the exit code is 6.
    """
    set_verbosity(quiet=quiet, verbose=verbose)
    from detcli.commands.merge.run import merge_parts  # which loads NumPy

    if not folder:
        raise UsageError("no folder given", "name what was given to predict --output")
    if output is not None and output.endswith(("/", os.sep)):
        raise UsageError(f"--output {output} is a folder", "name a file or an object")
    target = read_target(output)
    merge_parts(folder, choose_format(output_format, target), target, quiet=quiet)
