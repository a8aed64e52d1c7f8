"""`detcli models`: the models with names."""

from typing import Annotated

import typer

from detcli.commands.shared import options
from detcli.commands.shared.layout import Command, Group
from detcli.commands.shared.messages import say, set_verbosity
from detcli.commands.shared.progress import fetching
from detcli.files import StandardOutput

app = typer.Typer(
    cls=Group,
    help="List, fetch, locate and remove the models with names.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


def _names(incomplete: str) -> list[str]:
    """Complete a name in the shell."""
    from detcli.model import zoo

    return [name for name in zoo.MODELS if name.startswith(incomplete)]


NameOption = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A name from `detcli models list`.", autocompletion=_names),
]
ModelNamesOption = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME...", help="Names from `detcli models list`.", autocompletion=_names
    ),
]
HalfFileOption = Annotated[
    bool, typer.Option("--half", help="Take the float16 file instead of the float32 one.")
]


@app.command("list", cls=Command)
def list_models(
    *,
    licence: Annotated[
        str | None,
        typer.Option(
            "--licence",
            metavar="TEXT",
            help="Only those whose licence begins with this, as in apache; case does not matter.",
        ),
    ] = None,
    report_format: options.ReportFormatOption = None,
) -> None:
    """List the models with their state, size and licence.

    This needs no network: the size of a model that has not been fetched is estimated from its
    number of parameters.
    """
    from detcli.commands.models.listing import listing, render
    from detcli.commands.shared.reports import write_report

    write_report(listing(licence), report_format, render)


@app.command(cls=Command)
def pull(
    names: ModelNamesOption,
    *,
    half: HalfFileOption = False,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Fetch models, and print the paths of their files.

    Files that exist already are checked, and fetched again if they are damaged. Models come from
    Hugging Face, or the hub in HF_ENDPOINT, and are kept in its cache, which HF_HOME moves.
    """
    set_verbosity(quiet=quiet, verbose=verbose)
    from detcli.model import zoo

    for name in dict.fromkeys(names):
        with fetching() as show:
            path = zoo.pull(name, half=half, show=show)
        StandardOutput().write(f"{path}\n")


@app.command(cls=Command)
def path(name: NameOption, *, half: HalfFileOption = False) -> None:
    """Print the path of a model's file."""
    from detcli.model import zoo

    StandardOutput().write(f"{zoo.model_path(name, half=half)}\n")


@app.command(cls=Command)
def remove(names: ModelNamesOption, *, quiet: options.QuietOption = False) -> None:
    """Remove fetched models, including their float16 files.

    Files of other programs in the Hugging Face cache are kept.
    """
    set_verbosity(quiet=quiet, verbose=0)
    from detcli.model import zoo

    for name in dict.fromkeys(names):
        freed = zoo.remove(name)
        if not quiet:
            say(f"removed {name}, freed {freed / 1e6:.1f} MB")
