"""`detcli report`: a page from the records of an earlier run."""

from pathlib import Path
from typing import Annotated

import typer

from detcli.commands.shared import options
from detcli.commands.shared.layout import INPUT, OUTPUT
from detcli.commands.shared.messages import set_verbosity
from detcli.commands.shared.options import option

EXAMPLES = """
detcli report boxes.jsonl --images pics -o page
detcli predict pics | detcli report - -o page
"""


def report(  # noqa: PLR0913 - one parameter an option
    records: Annotated[
        str,
        typer.Argument(
            metavar="RECORDS",
            help="JSON Lines of detcli predict or merge, or the folder of a run in shards; - is "
            "standard input.",
            show_default=False,
        ),
    ],
    *,
    output: Annotated[
        Path,
        option(
            "DIR",
            "Write the page to this folder; open its index.html.",
            "--output",
            "-o",
            show_default=False,
            panel=OUTPUT,
        ),
    ],
    images: Annotated[
        Path | None,
        option(
            "FOLDER",
            "Where the pictures and videos are now; default: where the records say.",
            panel=INPUT,
        ),
    ] = None,
    blur: Annotated[
        str | None,
        option("LIST", "Hide these classes in the pictures: person,car. Boxes stay.", panel=OUTPUT),
    ] = None,
    blur_with: options.BlurWithOption = options.Hiding.BLUR,
    max_pixels: options.MaxPixelsOption = 200_000_000,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Make a page to look at, from the records of an earlier run.

    The page opens from the disk, without a server. Pictures that are not found are left out of it,
    and their boxes stay.
    """
    set_verbosity(quiet=quiet, verbose=verbose)
    from detcli.commands.report.run import Blur, make_page  # which load OpenCV
    from detcli.commands.shared.formats import require_disk
    from detcli.commands.shared.setup import set_up_process
    from detcli.source.decode import DecodeOptions

    require_disk({"--output": output, "--images": images})
    set_up_process()
    hide = None if blur is None else Blur(options.parse_list(blur), blur_with)
    decode = DecodeOptions(max_pixels=max_pixels)
    make_page(records, images, output, decode, hide, quiet=quiet)
