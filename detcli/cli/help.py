"""What all commands and groups share; it loads no options, which `--help` of all does without."""

import inspect
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup, TyperOption

from detcli.storage.files import StandardOutput

MOVED = {
    "--data": "see: detcli eval --help",
    "--gpu-decode": "leave it out: the CPU decodes all pictures",
    "--plot": "see: detcli tune --help",
    "--sweep": "see: detcli tune --help",
    "topk": "no command measures it any more",
}
"""What to do in place of options that are gone, and of a value."""


class Help:
    """A command whose help is written as its results are: what cannot be written is an error."""

    def get_help_option(self, ctx: Any) -> TyperOption | None:
        """The option --help."""
        found: TyperOption | None = super().get_help_option(ctx)  # type: ignore[misc]
        if found is not None:  # Typer from 0.29 on would load pydantic to read its value
            vars(found)["process_value"] = _show_help
        return found

    def get_short_help_str(self, limit: int = 45) -> str:  # noqa: ARG002 - as in Typer
        """The first paragraph, whole: Typer would cut it to fit into a line."""
        help_text: str = self.help or ""  # type: ignore[attr-defined]
        return " ".join(inspect.cleandoc(help_text).partition("\n\n")[0].split())


def _show_help(context: Any, value: Any) -> Any:
    if value and not context.resilient_parsing:
        StandardOutput().write(f"{context.get_help()}\n")
        raise typer.Exit
    return value


class Group(Help, TyperGroup):
    """A group of commands, whose own options are flags."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options, with those of completion that Typer adds."""
        found = super().get_params(ctx)
        for param in found:
            vars(param).setdefault("process_value", _called(param))
        return found


def _called(param: Any) -> Callable[[Any, Any], Any]:
    """What reads a flag of a group: its callback, without pydantic before it."""
    return lambda context, value: param.callback(context, param, value)
