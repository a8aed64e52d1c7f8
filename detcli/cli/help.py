"""What all commands and groups share; it loads no options, which `--help` of all does without."""

import inspect
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup, TyperOption

from detcli.core.errors import UsageError
from detcli.storage.files import StandardOutput

MOVED = {
    "--data": "see: detcli eval --help",
    "--gpu-decode": "leave it out: the CPU decodes all images",
    "--plot": "leave it out: --format json has the figures",
    "--sweep": "see: detcli tune --help",
    "topk": "no command measures it any more",
}
"""What to do in place of options that are gone, and of a value."""


MOVED_COMMANDS = {
    "remove": "remove its files with: hf cache rm model/onnx-community/NAME",
}
"""What to do in place of commands of a group that are gone."""


class Help:
    """A command whose help is written as its results are: what cannot be written is an error."""

    def get_help_option(self, ctx: Any) -> TyperOption | None:
        """The option --help."""
        help_option: TyperOption | None = super().get_help_option(ctx)  # type: ignore[misc]
        if help_option is not None:  # Typer 0.29 and later would load pydantic to read its value
            vars(help_option)["process_value"] = _show_help
        return help_option

    def get_short_help_str(self, limit: int = 45) -> str:  # noqa: ARG002 - as in Typer
        """The first paragraph, whole: Typer would shorten it to fit on a line."""
        help_text: str = self.help or ""  # type: ignore[attr-defined]
        first_paragraph = inspect.cleandoc(help_text).partition("\n\n")[0]
        return " ".join(first_paragraph.split())


def _show_help(context: Any, value: Any) -> Any:
    """Print the help and end, if --help was typed."""
    if value and not context.resilient_parsing:
        StandardOutput().write(f"{context.get_help()}\n")
        raise typer.Exit
    return value


class Group(Help, TyperGroup):
    """A group of commands, whose own options are flags."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options, with those of completion that Typer adds."""
        params = super().get_params(ctx)
        for param in params:
            vars(param).setdefault("process_value", _callback_of(param))
        return params

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command, or explain what has replaced one that is gone."""
        name = args[0]
        if name in MOVED_COMMANDS and name not in self.commands and not ctx.resilient_parsing:
            raise UsageError(f"no such command '{name}'", MOVED_COMMANDS[name])
        return super().resolve_command(ctx, args)


def _callback_of(param: Any) -> Callable[[Any, Any], Any]:
    """Make what processes a flag of a group: it calls its callback, without pydantic before."""

    def process_value(context: Any, value: Any) -> Any:
        return param.callback(context, param, value)

    return process_value
