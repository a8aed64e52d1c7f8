"""The user's own defaults: `detcli.toml` and environment variables, below the command line."""

import functools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from detcli.errors import UsageError, system_reason

if TYPE_CHECKING:
    from typer._click.core import Parameter

MODEL_VARIABLE, DEVICE_VARIABLE = "DETCLI_MODEL", "DETCLI_DEVICE"
FILE_VARIABLE = "DETCLI_CONFIG"

PREDICT = "predict"
"""The command that takes all its defaults from the file."""

KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "boolean": ((bool,), "true or false"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "str": ((str, int, float), "a text or a number"),
    "path": ((str,), "a text"),
    "choice": ((str,), "a text"),
}
"""What TOML has for each type of option, and its name in messages."""


class DefaultsContext(typer.Context):
    """A command being run; what its user leaves out is looked up in `detcli.toml`.

    All entries hold for predict. Other commands take the model and the device, which have
    environment variables, too: a confidence means something else to each of them.
    """

    def lookup_default(self, name: str, call: bool = True) -> Any:  # noqa: ANN401, ARG002, FBT001, FBT002 - as in Typer
        """The user's default of a parameter; help and completion do without."""
        if self.resilient_parsing or not self._takes(name):
            return None
        return self.defaults.get(name)

    @functools.cached_property
    def defaults(self) -> dict[str, Any]:
        """The entries of the file, by parameter.

        Raises:
            UsageError: The file cannot be used.
        """
        path = defaults_file()
        return {} if path is None else read_defaults(path, self.known)

    @functools.cached_property
    def known(self) -> dict[str, "Parameter"]:
        """The options that the file may set, by name."""
        root = self.find_root().command
        predict = root.get_command(self, PREDICT) if isinstance(root, TyperGroup) else None
        return {
            name.removeprefix("--"): param
            for param in (predict.params if predict else ())
            for name in param.opts
            if name.startswith("--")
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

    def _takes(self, name: str) -> bool:
        """Whether this command takes a parameter's default from the file."""
        params = {param.name: param for param in self.command.params}
        return name in params and (self.command.name == PREDICT or bool(params[name].envvar))


def defaults_file() -> Path | None:
    """The user's file of defaults, existing or not; None without a home folder."""
    if named := os.environ.get(FILE_VARIABLE):
        return Path(named)
    import platformdirs

    try:
        folder = platformdirs.user_config_path("detcli", appauthor=False)
    except RuntimeError:
        return None
    return folder / "detcli.toml" if folder.is_absolute() else None


def read_defaults(path: Path, known: Mapping[str, "Parameter"]) -> dict[str, Any]:
    """The entries of a file, by parameter; a file that does not exist has none.

    Args:
        path: The file.
        known: The options that it may set, by name.

    Raises:
        UsageError: The file cannot be read, is not TOML, or sets something that is not an option or
            of another type.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if FILE_VARIABLE in os.environ:
            raise UsageError(
                f"{path} does not exist", f"it is named by {FILE_VARIABLE}: unset it"
            ) from None
        return {}
    except (OSError, ValueError) as error:
        raise _unusable(path, system_reason(error)) from error
    import tomllib  # most users have no such file

    try:
        entries = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unusable(path, f"not TOML: {error}") from error
    return dict(_parse(path, entries, known))


def _parse(
    path: Path, entries: Mapping[str, Any], known: Mapping[str, "Parameter"]
) -> Iterator[tuple[str, Any]]:
    """Check the entries of a file one after the other."""
    for name, value in entries.items():
        param = known.get(name)
        if param is None and isinstance(value, dict):
            hint = f"remove the line [{name}]; the file has no sections"
            raise UsageError(f"{path}: predict has no option '{name}'", hint)
        if param is None:
            import difflib  # only errors need it

            close = difflib.get_close_matches(name, known, n=1)
            guess = f"did you mean {close[0]}? " if close else ""
            hint = f"{guess}the names are those of predict's options, as in max-det = 100"
            raise UsageError(f"{path}: predict has no option '{name}'", hint)
        yield param.name or "", _checked(path, name, value, param)


def _checked(path: Path, name: str, value: Any, param: "Parameter") -> Any:  # noqa: ANN401 - TOML
    """A value as the command line would give it."""
    types, title = KINDS[param.type.name.split()[0]]
    hint = "correct the file"
    if getattr(param, "multiple", False):
        if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            return value
        title = "a list of texts"
        if isinstance(value, str):
            hint = f"write {name} = [{value!r}]"
    elif isinstance(value, types) and (bool in types or not isinstance(value, bool)):
        if isinstance(value, str) and value.startswith("~/"):  # which a shell would expand
            return str(Path(value).expanduser())
        return value
    raise UsageError(f"{path}: {name} must be {title}, not {value!r}", hint)


def _unusable(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"the defaults in {path} cannot be used: {reason}",
        'correct or remove the file; it has lines such as model = "yolov10s" and conf = 0.4',
    )
