"""Messages on stderr."""

import io
import logging
import sys
import warnings

import pytest

from detcli.cli.console import print_error, print_line, process_error, set_verbosity
from detcli.core.errors import (
    CheckError,
    DetcliError,
    DeviceError,
    InputError,
    ModelError,
    UsageError,
)


def test_an_error_and_its_hint(capsys):
    print_error(DetcliError("it broke", "mend it"))
    print_error(DetcliError("it broke"))
    lines = ["detcli: error: it broke", "  hint: mend it", "detcli: error: it broke", ""]
    assert capsys.readouterr() == ("", "\n".join(lines))


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("variable", "value", "is_coloured"),
    [
        ("NO_COLOR", "", True),
        ("NO_COLOR", "1", False),
        ("TERM", "dumb", False),
    ],
)
def test_labels_have_colours_on_a_terminal_that_takes_them(
    monkeypatch, variable, value, is_coloured
):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr(sys, "platform", "linux")
    print_error(DetcliError("error: it broke", "mend it"))
    print_line("odd", label="warning:")
    expected = "detcli: error: error: it broke\n  hint: mend it\ndetcli: warning: odd\n"
    if is_coloured:
        expected = (
            "detcli: \x1b[1;31merror:\x1b[0m error: it broke\n"
            "  \x1b[32mhint:\x1b[0m mend it\n"
            "detcli: \x1b[33mwarning:\x1b[0m odd\n"
        )
    assert terminal.getvalue() == expected


def test_no_colours_in_a_file(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.setenv("TERM", "xterm-256color")
    print_error(DetcliError("it broke"))
    assert file.getvalue() == "detcli: error: it broke\n"


def test_what_is_said_does_not_harm_the_terminal(capsys):
    print_line("no such file: \x1b]0;owned\x07\nnext")
    assert capsys.readouterr().err == "detcli: no such file: \\x1b]0;owned\\x07\\nnext\n"
    print_line("u:pw@host/a.jpg: no such file, see https://u:pw@host")
    assert "pw" not in capsys.readouterr().err


@pytest.mark.parametrize("part", ["a", "a:", "a:/", "a@", ":@", "x://"])
def test_long_messages_are_cut_off(capsys, part):
    print_line(part * 1_000_000)
    assert len(capsys.readouterr().err) < 9000


def test_log_lines_and_tracebacks_are_made_harmless(monkeypatch, capsys):
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with warnings.catch_warnings():
        set_verbosity(quiet=False, verbose=2)
        try:
            raise ValueError("\x1b[31m https://u:pw@host\ndetcli: all is well")  # noqa: TRY301
        except ValueError as error:
            logging.getLogger("detcli").debug("\x1b]0;owned\x07\n%s", error, exc_info=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == ("detcli: \\x1b]0;owned\\x07\\n\\x1b[31m https://host\\ndetcli: all is well")
    assert lines[-2:] == ["  ValueError: \\x1b[31m https://host", "  detcli: all is well"]
    assert "pw@" not in "".join(lines[:1] + lines[-2:])


def test_warnings_are_left_as_they_were_by_importing():
    assert warnings.showwarning.__module__ != "detcli.cli.console"


SAID = "detcli: warning: x\ndetcli: error: what is wrong\n  hint: do that\n"


@pytest.mark.parametrize(
    ("code", "stderr", "kind", "message", "hint"),
    [
        (DetcliError.exit_code, SAID, DetcliError, "what is wrong", "do that"),
        (UsageError.exit_code, SAID, UsageError, "what is wrong", "do that"),
        (InputError.exit_code, SAID, InputError, "what is wrong", "do that"),
        (ModelError.exit_code, SAID, ModelError, "what is wrong", "do that"),
        (DeviceError.exit_code, SAID, DeviceError, "what is wrong", "do that"),
        (CheckError.exit_code, SAID, CheckError, "what is wrong", "do that"),
        (
            4,
            "detcli: x\n  hint: y\ndetcli: error: what is wrong\n",
            ModelError,
            "what is wrong",
            "",
        ),
        (-9, "", DetcliError, "exited with status -9", ""),
        (-11, "odd\nSegmentation fault\n\n", DetcliError, "Segmentation fault", ""),
    ],
)
def test_a_failure_keeps_its_exit_code(code, stderr, kind, message, hint):
    error = process_error(code, stderr)
    assert type(error) is kind
    assert str(error) == message
    assert error.hint == hint
