"""Messages on stderr."""

import logging
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
    assert capsys.readouterr() == ("", "detcli: it broke\n  hint: mend it\ndetcli: it broke\n")


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


SAID = "detcli: warning: x\ndetcli: what is wrong\n  hint: do that\n"


@pytest.mark.parametrize(
    ("code", "stderr", "kind", "message", "hint"),
    [
        *(
            (kind.exit_code, SAID, kind, "what is wrong", "do that")
            for kind in (DetcliError, UsageError, InputError, ModelError, DeviceError, CheckError)
        ),
        (4, "detcli: x\n  hint: y\ndetcli: what is wrong\n", ModelError, "what is wrong", ""),
        (-9, "", DetcliError, "exited with status -9", ""),
        (-11, "odd\nSegmentation fault\n\n", DetcliError, "Segmentation fault", ""),
    ],
)
def test_a_failure_keeps_its_exit_code(code, stderr, kind, message, hint):
    error = process_error(code, stderr)
    assert type(error) is kind
    assert str(error) == message
    assert error.hint == hint
