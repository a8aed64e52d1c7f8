"""`detcli models`: the models that go by name."""

from typing import Annotated

import typer

from detcli.commands.shared import options
from detcli.commands.shared.messages import say, set_verbosity
from detcli.commands.shared.progress import fetching
from detcli.model import zoo

app = typer.Typer(
    help="List, fetch, locate and remove the models that go by name.", no_args_is_help=True
)


def _names(incomplete: str) -> list[str]:
    """Complete a name in the shell."""
    return [name for name in zoo.MODELS if name.startswith(incomplete)]


NameOption = Annotated[
    str,
    typer.Argument(metavar="NAME", help="As `detcli models list` shows it.", autocompletion=_names),
]
NamesOption = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME...", help="As `detcli models list` shows them.", autocompletion=_names
    ),
]
HalfFileOption = Annotated[
    bool, typer.Option("--half", help="The float16 file, not the float32 one.")
]


@app.command("list")
def list_models(report_format: options.ReportFormatOption = None) -> None:
    """List the models, where they are, their sizes and licences.

    No hub is asked: a model that has not been fetched has no size yet, only an estimate from
    the published number of its parameters.
    """
    from detcli.commands.models.listing import listing
    from detcli.commands.models.render import render
    from detcli.commands.shared.reports import write_report

    write_report(listing(), report_format, render)


@app.command()
def pull(
    names: NamesOption,
    *,
    half: HalfFileOption = False,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Fetch models, and print where they are.

    Those that are there are checked, and fetched anew where they are damaged. They come from
    Hugging Face, or the hub that HF_ENDPOINT names, into its cache, which HF_HOME moves. A
    download that was interrupted goes on where it stopped.
    """
    set_verbosity(quiet=quiet, verbose=verbose)
    for name in dict.fromkeys(names):
        with fetching() as show:
            path = zoo.pull(name, half=half, show=show)
        typer.echo(path)


@app.command()
def path(name: NameOption, *, half: HalfFileOption = False) -> None:
    """Print where a model's file is."""
    typer.echo(zoo.where(name, half=half))


@app.command()
def remove(names: NamesOption, *, quiet: options.QuietOption = False) -> None:
    """Remove fetched models, with their float16 files.

    What other programs keep in the Hugging Face cache stays.
    """
    set_verbosity(quiet=quiet, verbose=0)
    for name in dict.fromkeys(names):
        freed = zoo.remove(name)
        if not quiet:
            say(f"{name} is removed, {freed / 1e6:.1f} MB are free")
