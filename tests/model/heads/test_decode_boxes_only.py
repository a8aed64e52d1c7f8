"""--boxes-only is an option of the commands that its hint names, and of no others."""

import importlib
import inspect

import pytest

from detcli.model.heads.decode import BOXES_ONLY


@pytest.mark.parametrize("name", ["predict", "inspect", "bench", "eval", "convert", "verify"])
def test_the_hint_names_the_commands_that_have_the_option(name):
    module = importlib.import_module(f"detcli.commands.{name}")
    commands = [one for one in vars(module).values() if inspect.isfunction(one)]
    options = {option for one in commands for option in inspect.signature(one).parameters}
    assert ("boxes_only" in options) == (name in BOXES_ONLY)
