"""Defaults of options that are not on the command line: variables, and the user's file."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from detcli.cli.console import print_line
from detcli.config.config import Config
from detcli.config.option import Option, options_of
from detcli.core.errors import DetcliError, UsageError, system_reason
from detcli.core.text import closest
from detcli.storage.cache import CACHE_VARIABLE
from detcli.storage.files import read_text

COMMAND_LINE = "the command line"

FILE_VARIABLE = "DETCLI_CONFIG"

TUNED = "tuned"
"""The tables of the user's file that `detcli tune` writes: what is the fastest, by model."""


class RawValue(NamedTuple):
    """What an option was given, not yet read, and where."""

    value: Any
    source: str


def collect_values(
    taken: Mapping[str, Option], typed: Mapping[str, Any], entries: Mapping[str, Any]
) -> dict[str, RawValue]:
    """What a command's options are given: on the line, else in a variable, else in the file.

    What is not on the line goes where it needs an option that is not given, and so is for other
    runs, or where what is on the line contradicts it.
    """
    file, found = str(defaults_file()), dict[str, RawValue]()
    for name, row in taken.items():
        variable = os.environ.get(row.variable) or None
        on_line = _combine_typed(row, typed.get(name))
        layers = ((on_line, COMMAND_LINE), (variable, row.variable), (entries.get(name), file))
        for value, origin in layers:
            if value not in (None, (), []):
                found[name] = RawValue(value, origin)
                break
    typed = {name: one.value for name, one in found.items() if one.source == COMMAND_LINE}
    for name, one in [*found.items()]:  # in the order of rows: what one needs comes before it
        row = taken[name]
        if one.source != COMMAND_LINE and (row.missing_needs(found) or row.is_overridden(typed)):
            del found[name]
    return found


def report_sharp_page(command_path: str) -> None:
    """Say that the user's default of --blur does not hold for the page of a comparison."""
    print_line(f"the page of {command_path} shows pictures as they are")
    print_line(
        f"  hint: blur in {defaults_file()} holds for detcli predict and detcli report", prefix=""
    )


def _combine_typed(row: Option, typed: Any) -> Any:
    """What was typed for an option, of which Typer lists all values, as one value."""
    if typed and row.names and isinstance(typed, list | tuple):
        return row.combine(typed)
    return typed


def report_stray_variables() -> None:
    """Say which variables look like defaults, and are none."""
    known = [row.variable for row in options_of(Config).values() if row.variable]
    known += [FILE_VARIABLE, CACHE_VARIABLE]
    for name in sorted(os.environ):
        if name.startswith("DETCLI_") and name not in known:
            print_line(f"the variable {name} sets nothing; those that do are {', '.join(known)}")
            print_line("  hint: detcli.toml has the defaults of the other options", prefix="")


def sources_of_mentioned(error: DetcliError, given: Iterable[tuple[Option, RawValue]]) -> str:
    """Where the values that an error mentions come from, if they are the user's defaults."""
    return "; ".join(
        f"{row.flag} is from {one.source}"
        for row, one in given
        if one.source != COMMAND_LINE
        and (row.flag in f"{error} {error.hint}" or str(one.value) in str(error))
    )


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


def read_defaults() -> dict[str, Any]:
    """The entries of the user's file, by row; a file that does not exist has none."""
    path = defaults_file()
    if path is None or {str(path).lower(), path.as_posix()} & {os.devnull, "/dev/null"}:
        return {}
    try:
        text = read_text(path)
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
    return dict(_check_entries(path, entries))


def _check_entries(path: Path, entries: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Check the entries of a file one after the other."""
    known = {row.flag[2:]: row for row in options_of(Config).values() if row.names}
    for name, value in entries.items():
        if name == TUNED and isinstance(value, dict):
            yield name, value
            continue
        row = known.get(name)
        if row is not None:
            yield row.name, _as_raw_value(path, row, value)
            continue
        hint = f"remove the line [{name}]; the file has no sections"
        if not isinstance(value, dict):
            close = closest(name, known)
            guess = f"did you mean {close}? " if close else ""
            hint = f"{guess}the names are those of predict's options, as in max-det = 100"
        raise UsageError(f"{path}: predict has no option '{name}'", hint)


TOML_TYPES: Mapping[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    Path: ((str,), "a text"),
}
"""Types of values in the file for those of rows."""


def _as_raw_value(path: Path, row: Option, value: Any) -> Any:
    """A value as the command line would give it."""
    name, hint = row.flag[2:], "correct the file"
    if row.is_list and not row.separator:
        if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            return value
        if isinstance(value, str):
            hint = f"write {name} = [{value!r}]"
        raise UsageError(f"{path}: {name} must be a list of texts, not {value!r}", hint)
    if row.separator and isinstance(value, list):
        return _entries_as_raw_value(path, row, value)
    kind = (
        None
        if row.parse_fields or (row.parse and row.value_type in {int, float})
        else row.value_type
    )
    types, title = TOML_TYPES.get(
        Path if row.choices else kind, ((str, int, float), "a text or a number")
    )
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise UsageError(f"{path}: {name} must be {title}, not {value!r}", hint)
    if isinstance(value, str) and value.startswith("~/"):  # which a shell would expand
        return str(Path(value).expanduser())
    return str(value) if row.is_list else value


def _entries_as_raw_value(path: Path, row: Option, entries: list[Any]) -> str | None:
    """A list in the file as the command line would give it: one text; None for an empty one."""
    for entry in entries:
        if isinstance(entry, bool) or not isinstance(entry, str | int | float):
            raise UsageError(
                f"{path}: {row.flag[2:]} must be a list of texts or numbers, not {entries!r}",
                "correct the file",
            )
    if not entries:
        return None
    texts = [str(entry) for entry in entries]
    return str(row.combine(texts))


def _unusable(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"the defaults in {path} cannot be used: {reason}",
        'correct or remove the file; it has lines such as model = "yolov10s" and conf = 0.4',
    )
