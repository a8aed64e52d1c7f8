"""What commands have in common: the layout of their help, and the user's defaults.

Help shows options in panels, whole sentences for commands, and examples at the end. Typer has
panels too, but only with rich, which takes as long to import as the rest of `--help`.
"""

import inspect
import re
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup, TyperOption

from detcli.commands.shared.defaults_file import PREDICT, DefaultsContext
from detcli.errors import DetcliError
from detcli.files import StandardOutput

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typer._click import Context, HelpFormatter
    from typer._click.core import Parameter

INPUT, MODEL, SELECTION = "Input", "Model", "Selection"
SCENE, OUTPUT, DEVICES, SHARDS = "Tracks and zones", "Output", "Devices", "Runs in shards"

PANELS = (INPUT, MODEL, SELECTION, SCENE, OUTPUT, DEVICES, SHARDS)
"""Titles of panels, in the order in which help shows them; an option names its own."""


class _Help:
    """A command whose help is written as its results are: what cannot be written is an error."""

    def get_help_option(self, ctx: "Context") -> TyperOption | None:
        """The option --help."""
        option: TyperOption | None = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.callback = _show_help
        return option


def _show_help(ctx: "Context", param: "Parameter", value: bool) -> None:  # noqa: ARG001, FBT001 - as in Typer
    if value and not ctx.resilient_parsing:
        StandardOutput().write(f"{ctx.get_help()}\n")
        ctx.exit()


class Command(_Help, TyperCommand):
    """A command whose help shows its options in panels; its epilog is a list of examples."""

    context_class = DefaultsContext

    def __init__(self, *args: Any, **more: Any) -> None:  # noqa: ANN401 - as in Typer
        super().__init__(*args, **more)
        if self.name == PREDICT:
            _add_opposites(self.params)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - as in Typer
        """Run; an error about a value that was not typed says where the value comes from."""
        try:
            return super().invoke(ctx)
        except DetcliError as error:
            if origin := ctx.blame(str(error)):
                error.hint = f"{error.hint} ({origin})".strip()
            raise

    def format_options(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write the arguments, the panels, and the options without a panel."""
        sections: dict[str, list[tuple[str, str]]] = {
            title: [] for title in ("Arguments", *PANELS, "Options")
        }
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx)
            if row is not None:
                panel = getattr(param, "rich_help_panel", None) or "Options"
                title = "Arguments" if param.param_type_name == "argument" else panel
                names, text = row
                names = re.sub(r"--(\S+) / --no-\1", r"--[no-]\1", names)
                sections[title].append((names, text))
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: "Context", formatter: "HelpFormatter") -> None:  # noqa: ARG002 - as in Typer
        """Write the examples."""
        if self.epilog:
            with formatter.section("Examples"):
                formatter.write_text(f"\b\n{inspect.cleandoc(self.epilog)}")  # \b: keep the lines

    def get_short_help_str(self, limit: int = 45) -> str:  # noqa: ARG002 - as in Typer
        """The first sentence, for the list of commands and for completion."""
        return _first_sentence(self.help)


class Group(_Help, TyperGroup):
    """A group of commands."""

    def get_short_help_str(self, limit: int = 45) -> str:  # noqa: ARG002 - as in Typer
        """The first sentence, for the list of commands and for completion."""
        return _first_sentence(self.help)


def _add_opposites(params: "Iterable[Parameter]") -> None:
    """Give each flag a `--no-` form, which undoes what the user's file of defaults sets."""
    for param in params:
        if isinstance(param, TyperOption) and param.is_bool_flag and not param.secondary_opts:
            (name,) = (name for name in param.opts if name.startswith("--"))
            param.secondary_opts = [f"--no-{name.removeprefix('--')}"]
            param.show_default = False


def _first_sentence(text: str | None) -> str:
    """The first paragraph of a docstring, whole: Typer would cut it to fit into a line."""
    return " ".join(inspect.cleandoc(text or "").partition("\n\n")[0].split())
