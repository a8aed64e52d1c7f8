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
    "predict": "Detect objects in images and videos.",
    "merge": "Merge the parts of a sharded run, or write a file of records in a different format.",
    "status": "Show how far a sharded run is: shards, failures by reason, rate and expected end.",
    "report": "Make an HTML report from the records of an earlier run.",
    "count": "Count images and boxes in records, by class, folder, day, hour, zone or burst.",
    "sort": "Sort images into folders by what they show, as links, copies or lists.",
    "promise": "Promise below which score no image needs eyes, from a sample that one looks at.",
    "inspect": "Describe a model: layout, classes, size, where it runs, what deserves attention.",
    "convert": "Convert a model file: cut, float16, 8 bits, batch, size, names, selection.",
    "verify": "Compare the detections of two models, two devices, two selections, "
    "or two saved runs.",
    "eval": "Measure a model on labelled images: COCO's mAP and recall, by class and size.",
    "bench": "Measure latency by stage, or throughput.",
    "tune": "Find the fastest way to run a model here that keeps its boxes.",
    "doctor": "Report which devices work here, and how to make the others work.",
    "schema": "Print the JSON Schema of a command's JSON output.",
    "models": "List, fetch and locate the models with names.",
}
"""The commands and the first sentence of their help, in the order in which help lists them."""

FUNCTIONS = {
    "eval": "eval.evaluate",
    "models": "models.app",
    "promise": "promise.app",
}
"""Where commands are that are not the function of their name in the module of their name."""

MAX_WORDS = 4  # of a command line in a hint; a glob may have made thousands

OTHER_NAMES = {"benchmark": "bench", "detect": "predict", "export": "convert", "val": "eval"}
"""The names of these commands in other programs."""


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
            formatter.write_dl(list(COMMANDS.items()))

    def main(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as in Typer
        """Run detcli and exit; a line that cannot be parsed ends with a message like other errors.

        Errors of a running command are not raised here: `invoke` has turned them into exit codes.
        """
        kwargs["standalone_mode"] = False  # so that Typer raises errors instead of printing them
        try:
            with bash_words():
                code = super().main(*args, **kwargs)
        except typer.TyperException as error:
            # If nothing was typed after `detcli`, Typer raises an error whose message is the help.
            context = getattr(error, "ctx", None)
            is_help = context is not None and error.message == context.get_help()
            if is_help:
                sys.stderr.write(f"{error.message}\n")
                sys.exit(error.exit_code)
            usage_error = _as_usage_error(error)
            print_error(usage_error)
            sys.exit(usage_error.exit_code)
        except DetcliError as error:  # from `parse_args` or `resolve_command`
            print_error(error)
            sys.exit(error.exit_code)
        sys.exit(code)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Parse what comes before the name of the command, such as --version.

        Raises:
            UsageError: An option of a command comes before its name.
        """
        typed = list(args)  # parsing removes words from `args`
        remember_typed(typed)
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            name = getattr(error, "option_name", None)
            if _is_option(name) and not ctx.resilient_parsing:
                hint = f"options follow their command: {_predict_line(typed)}"
                raise UsageError(f"no command before {name}", hint) from error
            raise
        except BrokenPipeError:  # the reader of --help has seen enough
            raise typer.Exit(0) from None
        except OSError as error:  # a script for completion cannot be written
            raise unwritable(error.filename or "standard output", error) from error

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
        """Find the command that the first word names.

        Raises:
            UsageError: The command is unknown; the hint is `detcli predict` with the same words
                if the word looks like an input, else the command that it may be a typo of.
        """
        name = args[0]
        if name in COMMANDS or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        message = f"'{public_name(name)}' is not a command"
        if _is_input(name):
            raise UsageError(message, f"to detect objects in it: {_predict_line(args)}")
        similar_name = closest(name, [*COMMANDS, *OTHER_NAMES])
        suggestion = OTHER_NAMES.get(similar_name, similar_name)
        hint = "see: detcli --help"
        if suggestion:
            hint = f"did you mean detcli {suggestion}?"
        raise UsageError(message, hint)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - Typer's own context type is private
        """Run the command, and turn the exception that ends it into a message and an exit code.

        Any exception is reported as a DetcliError, except for those of Typer, which handles them.
        """
        interrupts.begin()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(interrupts.exit_code) from None
        except BrokenPipeError:  # the reader has seen enough, as `head` has
            raise typer.Exit(0) from None
        except Exception as error:
            if type(error).__module__.startswith(("typer", "click")):
                raise  # an exit or a usage error, which Typer handles
            raise typer.Exit(_report_failure(error)) from error


def _report_failure(error: Exception) -> int:
    """Print the error that ended a command, and return the exit code.

    After an interrupt most errors are not printed: the interrupt may have caused them, for example
    by stopping a library from loading. An OutputError is printed even then, as it has a different
    cause, such as a full disk. With -vv, the traceback is logged in any case.
    """
    if isinstance(error, DetcliError):
        log.debug("%s", error, exc_info=error)
        is_caused_by_interrupt = interrupts.caught and not isinstance(error, OutputError)
        if not is_caused_by_interrupt:
            print_error(error)
        return error.exit_code

    unexpected_error = as_error(error)  # logs the traceback
    if interrupts.caught:
        return interrupts.exit_code
    print_error(unexpected_error)
    return unexpected_error.exit_code


@functools.cache
def _load(name: str) -> Any:  # noqa: ANN401 - private to Typer
    """Import a command's module, and return the object by which Typer runs the command.

    Args:
        name: The name of the command, such as "predict", which is the function `predict` of the
            module `detcli.commands.predict` unless FUNCTIONS says otherwise.
    """
    module_name, _, attribute_name = FUNCTIONS.get(name, f"{name}.{name}").partition(".")
    module = importlib.import_module(f"detcli.commands.{module_name}")
    function_or_group = getattr(module, attribute_name)
    if isinstance(function_or_group, typer.Typer):  # a group of commands, such as `models`
        application = function_or_group
    else:
        from detcli.cli.command import Command  # slow to import, and not needed for --help of all

        function = function_or_group
        application = typer.Typer(add_completion=False, rich_markup_mode=None)
        application.command(name, cls=Command, epilog=function.examples)(function)
    command = typer.main.get_command(application)
    command.name = name
    return command


def _as_usage_error(error: Any) -> UsageError:  # noqa: ANN401 - the classes of Typer's errors are private
    """Convert Typer's error about a line that cannot be parsed to an error of detcli.

    Its hint names a similar option, or what took the place of one that is gone; otherwise it names
    the help.
    """
    command_path = "detcli"
    if error.ctx:
        command_path = error.ctx.command_path
    hint = f"see: {command_path} --help"

    message = error.format_message()
    option_name = getattr(error, "option_name", None)
    if option_name and hasattr(error, "possibilities"):  # the option is unknown
        message = f"no such option: {option_name}"
        hint = _hint_for_unknown_option(option_name, error, hint)
    elif type(error) is typer.BadParameter and error.param is not None:
        message = f"{error.param.opts[0]}: {error.message}"
    return UsageError(_in_own_style(message), hint)


def _in_own_style(message: str) -> str:
    """Return a message of Typer in detcli's style: without a capital letter or a full stop.

    Addresses in it lose their passwords.
    """
    words_and_brackets = r"[^\s()'\"]+"
    message = re.sub(words_and_brackets, lambda word: public_name(word[0]), public_text(message))
    return message[:1].lower() + message[1:].rstrip(".")


def _hint_for_unknown_option(option_name: str, error: Any, help_hint: str) -> str:  # noqa: ANN401
    """Suggest what to type in place of an unknown option.

    Args:
        option_name: The option as it was typed, with hyphens.
        error: Typer's error.
        help_hint: Where the help is, for an option that resembles no other.
    """
    suggestion = _suggest_option(option_name.lstrip("-"), error)
    if suggestion:
        return f"did you mean --{suggestion}?"
    if option_name in MOVED:
        return MOVED[option_name]
    if not option_name.startswith("--"):
        return f"{help_hint}; a file whose name begins with - needs ./ in front"
    return help_hint


def _suggest_option(typed: str, error: Any) -> str:  # noqa: ANN401 - as above
    """Find the option that was probably meant by one that does not exist.

    That is an option that has this name in other tools, or else one with a similar name.

    Args:
        typed: What was typed, without hyphens.
        error: Typer's error, with the command and its options.

    Returns:
        The name of the option, without hyphens; empty if there is none.
    """
    options = getattr(error.ctx.command, "options", {})
    for option in options.values():
        if typed in option.other_names.split():
            return str(option.flag[2:])
    flags = error.possibilities or ()
    return closest(typed, [flag[2:] for flag in flags])


def _is_option(name: str | None) -> bool:
    """Whether a word is one of the options of `predict`, which most commands share."""
    from detcli.config.config import Config  # only errors need them
    from detcli.config.option import options_of

    return any(name in option.names for option in options_of(Config).values())


def _is_input(name: str) -> bool:
    """Whether a name that is not a command looks like an image, a folder, a camera or a stream."""
    has_sign_of_path = any(sign in name for sign in "./\\:*?[")
    # `Path.exists` would raise an error for a name that is too long, for example.
    return name == "-" or has_sign_of_path or os.path.exists(name)  # noqa: PTH110


def _predict_line(arguments: list[str]) -> str:
    """Format the command line that runs detection on these inputs, shortened if it is long."""
    names = [public_name(argument) for argument in arguments[:MAX_WORDS]]
    line = shell_line(["detcli", "predict", *names])
    if len(arguments) > MAX_WORDS:
        line += " ..."
    return line


def _print_version(is_typed: bool) -> None:  # noqa: FBT001 - Typer calls it
    if is_typed:
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
            "--version",
            "-V",
            callback=_print_version,
            is_eager=True,
            help="Print the version.",
        ),
    ] = False,
) -> None:
    """Object detection for the shell: images and an ONNX file in, boxes out."""
