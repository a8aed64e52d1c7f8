"""The `detcli` command: its subcommands, and the one place where errors become exit codes.

Each error has its exit code, see `detcli.errors`. Besides, 3 means that some inputs failed, whose
records carry the error while the rest is complete; and 130 means that the run was interrupted, and
what was written is complete and readable.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from detcli import __version__
from detcli.commands import schema
from detcli.commands.bench import command as bench
from detcli.commands.convert import command as convert
from detcli.commands.doctor import command as doctor
from detcli.commands.eval import command as evaluation
from detcli.commands.inspect import command as inspect
from detcli.commands.models import command as models
from detcli.commands.predict import command as predict
from detcli.commands.shared.messages import report
from detcli.commands.verify import command as verify
from detcli.errors import DetcliError

INTERRUPTED = 130  # 128 + SIGINT, as shells count

log = logging.getLogger(__name__)


class Commands(TyperGroup):
    """Turns the exception that ends a subcommand into a message on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - Typer's own context type is private
        """Run the subcommand."""
        try:
            return super().invoke(ctx)
        except DetcliError as error:
            log.debug("%s", error, exc_info=True)
            report(error)
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # The reader has gone (`| head`), and flushing stdout at exit would raise again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except Exception as error:
            if type(error).__module__.startswith(("typer", "click")):
                raise  # an exit or a usage error, which Typer handles
            log.debug("%s", error, exc_info=True)
            bug = DetcliError(
                f"this is a bug in detcli: {type(error).__name__}: {error}",
                "run it again with -vv, and report what it prints",
            )
            report(bug)
            raise typer.Exit(bug.exit_code) from error


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - Typer calls it
    if wanted:
        typer.echo(f"detcli {__version__}")
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
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Object detection for the shell: pictures and a YOLOv10 ONNX file in, boxes out."""


app.command()(predict.predict)
app.command()(inspect.inspect)
app.command()(convert.convert)
app.command()(verify.verify)
app.command("eval")(evaluation.evaluate)
app.command()(bench.bench)
app.command()(doctor.doctor)
app.add_typer(models.app, name="models")
app.command()(schema.schema)


def main() -> None:
    """Entry point of the console script."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    code: Any = 0
    try:
        app(prog_name="detcli")
    except KeyboardInterrupt:  # before a subcommand has begun
        code = INTERRUPTED
    except SystemExit as end:
        code = end.code
    if threading.active_count() > 1:
        # The end of the interpreter would abort a thread that is still inside a native library,
        # and the process with it.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code if isinstance(code, int) else 0)
    sys.exit(code)


def _interrupt(*_: object) -> None:
    """Finish as after Ctrl-C; a second signal must not keep files from being closed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
