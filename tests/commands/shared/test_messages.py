"""Messages on stderr."""

import warnings

from detcli.commands.shared.messages import report, say
from detcli.errors import DetcliError


def test_an_error_and_its_hint(capsys):
    report(DetcliError("it broke", "mend it"))
    assert capsys.readouterr() == ("", "detcli: it broke\n  hint: mend it\n")


def test_an_error_without_a_hint(capsys):
    report(DetcliError("it broke"))
    assert capsys.readouterr().err == "detcli: it broke\n"


def test_control_codes_in_names_do_not_reach_the_terminal(capsys):
    say("no such file: \x1b]0;owned\x07\nnext")
    assert capsys.readouterr().err == "detcli: no such file: \\x1b]0;owned\\x07\\nnext\n"


def test_warnings_are_left_as_they_were_by_importing():
    assert warnings.showwarning.__module__ != "detcli.commands.shared.messages"
