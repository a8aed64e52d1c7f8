"""The exception tree in the module's docstring."""

import inspect
import re

from detcli.core import errors

CLASSES = dict(inspect.getmembers(errors, inspect.isclass))
TREE = [line for line in errors.__doc__.splitlines() if re.search(r"\d  ", line)]


def test_the_tree_shows_every_error_with_its_exit_code_and_parent():
    drawn, parents = {}, ["DetcliError"]
    for line in TREE:
        indent, name, code = re.match(r" {4}([│ ├└─]*)(\w+) +(\d)", line).groups()
        depth = len(indent) // 4
        parents[depth:] = [name]
        drawn[name] = (int(code), parents[depth - 1] if depth else "Exception")
    expected = {
        name: (error.exit_code, error.__base__.__name__)
        for name, error in CLASSES.items()
        if issubclass(error, errors.DetcliError)
    }
    assert drawn == expected


def test_an_error_carries_a_hint():
    error = errors.ModelError("no", "do this")
    assert str(error) == "no"
    assert error.hint == "do this"
    assert errors.ModelError("no").hint == ""
