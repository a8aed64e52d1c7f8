"""The user's defaults in commands that still declare their options themselves."""

import functools
from types import SimpleNamespace
from typing import Any

import typer

from detcli.cli.options import FILE_VARIABLE as FILE_VARIABLE
from detcli.cli.options import defaults_file as defaults_file
from detcli.cli.options import read_defaults
from detcli.core.config import Config
from detcli.core.options import rows

MODEL_VARIABLE, DEVICE_VARIABLE = "DETCLI_MODEL", "DETCLI_DEVICE"


class DefaultsContext(typer.Context):
    """A command being run, which takes model and device from `detcli.toml`."""

    def lookup_default(self, name: str, call: bool = True) -> Any:  # noqa: ANN401, ARG002, FBT001, FBT002 - as in Typer
        """The user's default of a parameter; help and completion do without."""
        params = {param.name: param for param in self.command.params}
        if self.resilient_parsing or name not in params or not params[name].envvar:
            return None
        return self.defaults.get(name)

    @functools.cached_property
    def defaults(self) -> dict[str, Any]:
        """The entries of the file."""
        return read_defaults()

    @functools.cached_property
    def known(self) -> dict[str, Any]:
        """The options that the file may set, by name."""
        return {
            row.flag[2:]: SimpleNamespace(
                name=row.name,
                envvar=row.variable or None,
                default=",".join(map(str, row.default)) if row.many else row.default,
            )
            for row in rows(Config).values()
            if row.names
        }

    def origin(self, name: str) -> str | None:
        """Where a parameter's value comes from; None if it was typed or is built in."""
        source = self.get_parameter_source(name)
        if source is None or source.name not in {"ENVIRONMENT", "DEFAULT_MAP"}:
            return None
        if source.name == "DEFAULT_MAP":
            return str(defaults_file())
        return str(next(param.envvar for param in self.command.params if param.name == name))

    def blame(self, message: str) -> str:
        """Where the values that a message mentions come from, if they are the user's defaults."""
        found = []
        for param in self.command.params:
            name, title = str(param.name), param.opts[0]
            origin = self.origin(name)
            if origin and (title in message or str(self.params.get(name)) in message):
                found.append(f"{title} is from {origin}")
        return "; ".join(found)
