"""The help of a command: all its options in panels, or the most common ones on a screen."""

import inspect
import re
from collections.abc import Collection, Sequence
from typing import Any

from typer.core import TyperCommand

from detcli.cli.help import Help
from detcli.config.config import PANELS
from detcli.config.option import REQUIRED, Option

SECTIONS = ("Arguments", *PANELS, "Options")
"""Titles of the sections of the help, in its order."""

HelpEntry = tuple[str, str]
"""An option as the help shows it, and what it does."""

MIN_HIDDEN_OPTIONS = 10
"""The brief help of -h hides options if they are at least this many."""


class CommandHelp(Help, TyperCommand):
    """A command with two forms of its help, which it writes from its options.

    --help shows its options in panels, and -h only the common options and those that only this
    command has.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_brief = False
        self.options: dict[str, Option] = getattr(self.callback, "options", {})
        for param in self.params:
            if param.name in self.options:  # otherwise Typer 0.29 and later loads pydantic
                vars(param)["process_value"] = lambda _, value: value

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return what follows the command's name in the usage: MODEL, or [SOURCE]..."""
        pieces = ["[OPTIONS]"]
        for option in self.options.values():
            if option.names:
                continue
            if option.default is REQUIRED:
                pieces.append(option.declaration)
            else:
                pieces.append(f"[{option.declaration}]")
        return pieces

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the command, and record which help is asked for, if any."""
        self._is_brief = "--help" not in args
        extra_arguments: list[str] = super().parse_args(ctx, args)
        return extra_arguments

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help: all of it for --help, and what fits on a screen for -h."""
        hidden_names = []
        for name, option in self.options.items():
            if option.names and not option.is_in_brief_help:
                hidden_names.append(name)
        if self._is_brief and len(hidden_names) >= MIN_HIDDEN_OPTIONS:
            self._format_brief_help(ctx, formatter, hidden_names)
        else:
            super().format_help(ctx, formatter)

    def _format_brief_help(self, ctx: Any, formatter: Any, hidden_names: Sequence[str]) -> None:
        """Write the help without some options, each of the others in one sentence."""
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(self.get_short_help_str())
        self.format_epilog(ctx, formatter)
        arguments: list[HelpEntry] = []
        options: list[HelpEntry] = []
        for title, entries in self._sections(ctx, hidden_names, is_brief=True).items():
            brief_entries = [(declaration, _first_sentence(text)) for declaration, text in entries]
            if title == "Arguments":
                arguments = brief_entries
            else:
                options += brief_entries
        with formatter.section("Arguments"):
            formatter.write_dl(arguments)
        with formatter.section("Options"):
            formatter.write_dl(options)
        formatter.write_paragraph()
        formatter.write_text(f"{ctx.command_path} --help shows {len(hidden_names)} more options.")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the panels, and the options without a panel."""
        for title, entries in self._sections(ctx).items():
            if entries:
                with formatter.section(title):
                    formatter.write_dl(entries)

    def _sections(
        self, ctx: Any, hidden_names: Collection[str] = (), *, is_brief: bool = False
    ) -> dict[str, list[HelpEntry]]:
        """Sort the options that the help shows into its sections.

        Args:
            ctx: Click's context.
            hidden_names: Names of options to leave out.
            is_brief: Whether this is for the brief help, which shows a flag as --flag. The whole
                help shows it as --[no-]flag if it has a form --no-...

        Returns:
            By title of the section, each option as it is typed, with its help text.
        """
        sections: dict[str, list[HelpEntry]] = {title: [] for title in SECTIONS}
        for param in self.get_params(ctx):
            option = self.options.get(param.name or "")
            if option is None:  # one of Typer's, such as --help
                sections["Options"].append(param.get_help_record(ctx) or ("", ""))
                continue
            if option.name in hidden_names:
                continue

            declaration = option.declaration  # such as "-q, --quiet" or "--conf NUMBER"
            has_negated_form = bool(param.secondary_opts)  # --no-...
            if has_negated_form and not is_brief:
                declaration = declaration.replace("--", "--[no-]")

            title = option.panel
            is_argument = not option.names
            if is_argument:
                title = "Arguments"
            sections[title].append((declaration, option.help_text))
        return sections

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the examples."""
        if self.epilog:
            with formatter.section("Examples"):
                formatter.write_text(f"\b\n{inspect.cleandoc(self.epilog)}")  # \b: keep the lines


def _first_sentence(text: str) -> str:
    """A help text up to its first full stop or semicolon."""
    return re.sub("[.;] .*", ".", text)
