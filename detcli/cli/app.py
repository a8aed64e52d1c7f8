"""The `detcli` command: its subcommands, and the one place where exceptions become exit codes.

Each error has its exit code, see `detcli.core.errors`. Besides, 3 means that some inputs failed,
whose records carry the error while the rest is complete; and 128 and a signal's number mean that
it interrupted the run, and what was written is complete and readable.
"""

import functools
import importlib
import logging
import os
import re
import sys
from typing import Annotated, Any

import typer

from detcli import __version__
from detcli.cli.completion import bash_words
from detcli.cli.console import print_error
from detcli.cli.help import MOVED, Group
from detcli.core.errors import DetcliError, OutputError, UsageError, as_error
from detcli.core.interrupts import interrupts
from detcli.core.text import closest, public_name, public_text, remember_typed, shell_line
from detcli.storage.files import StandardOutput, unwritable

log = logging.getLogger(__name__)


COMMANDS = {
    "predict": "Detect objects in pictures and videos.",
    "merge": "Merge the parts of a sharded run.",
    "status": "Show how far a sharded run is: shards, failures by reason, rate and expected end.",
    "report": "Make a page to look at, from the records of an earlier run.",
    "inspect": "Describe a model: layout, classes, size, where it runs, what deserves attention.",
    "convert": "Convert a model file: cut, float16, 8 bits, batch, size, names, selection.",
    "verify": "Compare the detections of two models, two devices, two selections, "
    "or two saved runs.",
    "eval": "Measure a model on labelled pictures: COCO's mAP and recall, by class and size.",
    "bench": "Measure latency by stage, or throughput.",
    "tune": "Find the fastest way to run a model here that keeps its boxes.",
    "doctor": "Report which devices work here, and how to make the others work.",
    "schema": "Print the JSON Schema of a command's JSON output.",
    "models": "List, fetch and locate the models with names.",
}
"""The commands and the first sentence of their help, in the order in which help lists them."""

PLACES = {
    "eval": "eval.evaluate",
    "models": "models.app",
}
"""Where commands are that are not the function of their name in the module of their name."""

SHOWN_WORDS = 4  # of a command line in a hint; a glob may have made thousands

ELSEWHERE = {"benchmark": "bench", "detect": "predict", "export": "convert", "val": "eval"}
"""What other programs call these commands."""


class Commands(Group):
    """Loads the command that is asked for, and turns the exception that ends it into an exit code.

    An exception's message goes to stderr.
    """

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - as in Typer
        """Names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401, ARG002
        """Load a command."""
        if cmd_name not in self.commands and cmd_name in COMMANDS:
            self.commands[cmd_name] = _load(cmd_name)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002
        """Write the list of commands, without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])

    def main(self, *args: Any, **more: Any) -> Any:  # noqa: ANN401 - as in Typer
        """Run, and report a request that cannot be parsed as any other error."""
        try:
            with bash_words():
                code = super().main(*args, **more | {"standalone_mode": False})
        except typer.TyperException as error:
            context = getattr(error, "ctx", None)
            if context is not None and error.message == context.get_help():  # there was no word
                sys.stderr.write(f"{error.message}\n")
                sys.exit(error.exit_code)
            refused = _refusal(error)
            print_error(refused)
            sys.exit(refused.exit_code)
        except DetcliError as error:  # of the words before a command
            print_error(error)
            sys.exit(error.exit_code)
        sys.exit(code)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Parse what comes before the command."""
        given = list(args)  # parsing takes them out
        remember_typed(given)
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            from detcli.config.config import Config  # only errors need them
            from detcli.config.option import options_of

            unknown = getattr(error, "option_name", None)
            known = any(unknown in row.names for row in options_of(Config).values())
            if known and not ctx.resilient_parsing:
                hint = f"options follow their command: {_predicting(given)}"
                raise UsageError(f"no command before {unknown}", hint) from error
            raise
        except BrokenPipeError:  # of --help
            raise typer.Exit(0) from None
        except OSError as error:  # of the scripts for completion
            raise unwritable(error.filename or "standard output", error) from error

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
        """Find the command, or suggest one."""
        name = args[0]
        if name in COMMANDS or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        refused = f"'{public_name(name)}' is not a command"
        if _is_input(name):
            raise UsageError(refused, f"to detect objects in it: {_predicting(args)}")
        close = closest(name, [*COMMANDS, *ELSEWHERE])
        meant = ELSEWHERE.get(close, close)
        hint = f"did you mean detcli {meant}?" if meant else "see: detcli --help"
        raise UsageError(refused, hint)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - Typer's own context type is private
        """Run the subcommand."""
        interrupts.begin()
        try:
            return super().invoke(ctx)
        except DetcliError as error:
            log.debug("%s", error, exc_info=True)
            # An interrupt may stop a library from loading: not worth a message. A full disk is.
            if not interrupts.caught or isinstance(error, OutputError):
                print_error(error)
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt:
            raise typer.Exit(interrupts.exit_code) from None
        except BrokenPipeError:  # the reader has seen enough, as `head` has
            raise typer.Exit(0) from None
        except Exception as error:
            if type(error).__module__.startswith(("typer", "click")):
                raise  # an exit or a usage error, which Typer handles
            failure = as_error(error)
            if interrupts.caught:
                raise typer.Exit(interrupts.exit_code) from error
            print_error(failure)
            raise typer.Exit(failure.exit_code) from error


@functools.cache
def _load(name: str) -> Any:  # noqa: ANN401 - private to Typer
    """Load a command's module."""
    module, _, function = PLACES.get(name, f"{name}.{name}").partition(".")
    found = getattr(importlib.import_module(f"detcli.commands.{module}"), function)
    if not isinstance(found, typer.Typer):
        from detcli.cli.command import Command  # loads what options may hold

        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name, cls=Command, epilog=found.examples)(found)
        found = alone
    command = typer.main.get_command(found)
    command.name = name
    return command


def _refusal(error: Any) -> UsageError:  # noqa: ANN401 - the classes of Typer's errors are private
    """Typer's usage error in the words of detcli."""
    message, unknown = error.format_message(), getattr(error, "option_name", None)
    hint = f"see: {error.ctx.command_path if error.ctx else 'detcli'} --help"
    if unknown and hasattr(error, "possibilities"):
        message = f"no such option: {unknown}"
        if meant := _meant(unknown.lstrip("-"), error):
            hint = f"did you mean --{meant}?"
        elif unknown in MOVED:
            hint = MOVED[unknown]
        elif not unknown.startswith("--"):
            hint += "; a file whose name begins with - needs ./ in front"
    elif type(error) is typer.BadParameter and error.param is not None:
        message = f"{error.param.opts[0]}: {error.message}"
    message = public_text(message)
    message = re.sub(r"[^\s()'\"]+", lambda word: public_name(word[0]), message)
    return UsageError(message[:1].lower() + message[1:].rstrip("."), hint)


def _meant(typed: str, error: Any) -> str:  # noqa: ANN401 - as above
    """The option that goes by another name elsewhere, or has a name of which this is a typo."""
    for row in getattr(error.ctx.command, "options", {}).values():
        if typed in row.other_names.split():
            return str(row.flag[2:])
    return closest(typed, (one[2:] for one in error.possibilities or ()))


def _is_input(name: str) -> bool:
    """Whether a name that is not a command looks like a picture, a folder, a camera or a stream."""
    # Not `Path.exists`, which does not take every name.
    return name == "-" or any(sign in name for sign in "./\\:*?[") or os.path.exists(name)  # noqa: PTH110


def _predicting(arguments: list[str]) -> str:
    """The command line that detects in what was named, shortened if it is long."""
    line = shell_line(["detcli", "predict", *map(public_name, arguments[:SHOWN_WORDS])])
    return line if len(arguments) <= SHOWN_WORDS else f"{line} ..."


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - Typer calls it
    if wanted:
        StandardOutput().write(f"detcli {__version__}\n")
        raise typer.Exit


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help starts twice as fast
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def detcli(
    *,
    version: Annotated[
        bool,
        typer.Option(
            *("--version", "-V"),
            callback=_print_version,
            is_eager=True,
            help="Print the version.",
        ),
    ] = False,
) -> None:
    """Object detection for the shell: pictures and an ONNX file in, boxes out."""
