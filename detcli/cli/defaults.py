"""Defaults of options that are not on the command line: variables, and the user's file."""

import os
from collections.abc import Iterable, Mapping
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
    """A value that an option is set to, not yet parsed, and where it comes from."""

    value: Any
    source: str

    @property
    def is_set(self) -> bool:
        """Whether there is a value: None and empty lists set nothing."""
        return self.value not in (None, (), [])


def collect_values(
    options: Mapping[str, Option], typed: Mapping[str, Any], entries: Mapping[str, Any]
) -> dict[str, RawValue]:
    """Collect what a command's options are set to on the line, else in a variable or the file.

    A value in a variable or the file is a default for many runs, which does not suit all of them.
    It is dropped in a run that does not set another option that it needs, and in a run where an
    option on the line overrides it.

    Args:
        options: The options of the command, by name.
        typed: The values that Typer has read from the command line, by name of the option.
        entries: The entries of the user's file, by name of the option.

    Returns:
        The values by name, not parsed yet, each with where it comes from.
    """
    # The first source that sets an option takes precedence.
    file = str(defaults_file())
    raw_values: dict[str, RawValue] = {}
    for name, option in options.items():
        candidates = (
            RawValue(_combine_typed(option, typed.get(name)), COMMAND_LINE),
            RawValue(os.environ.get(option.variable) or None, option.variable),
            RawValue(entries.get(name), file),
        )
        for candidate in candidates:
            if candidate.is_set:
                raw_values[name] = candidate
                break

    typed_values = {}
    for name, raw_value in raw_values.items():
        if raw_value.source == COMMAND_LINE:
            typed_values[name] = raw_value.value

    # Drop defaults that do not suit this run. An option is declared after those that it needs, so
    # these have been dropped before it is checked.
    for name in list(raw_values):
        if name in typed_values:
            continue
        option = options[name]
        if option.missing_needs(raw_values) or option.is_overridden(typed_values):
            del raw_values[name]
    return raw_values


def report_unblurred_page(command_path: str) -> None:
    """Print that the page of a comparison is not blurred, though detcli.toml sets --blur."""
    print_line(f"the page of {command_path} shows images as they are")
    print_line(
        f"  hint: blur in {defaults_file()} holds for detcli predict and detcli report", prefix=""
    )


def _combine_typed(option: Option, typed: Any) -> Any:
    """Combine what was typed for an option into one raw value: Typer lists all strings."""
    if typed and option.names and isinstance(typed, list | tuple):
        return option.combine_texts(typed)
    return typed


def report_stray_variables() -> None:
    """Print which environment variables begin with DETCLI_ but set no option."""
    variables = [option.variable for option in options_of(Config).values() if option.variable]
    variables += [FILE_VARIABLE, CACHE_VARIABLE]
    for name in sorted(os.environ):
        if name.startswith("DETCLI_") and name not in variables:
            print_line(
                f"the environment variable {name} sets nothing; those that do are "
                f"{', '.join(variables)}"
            )
            print_line("  hint: detcli.toml has the defaults of the other options", prefix="")


def describe_sources(error: DetcliError, raw_values: Iterable[tuple[Option, RawValue]]) -> str:
    """Explain where the options that an error mentions are set.

    Options that were typed on the command line are left out, as the user knows of them.

    Args:
        error: The error. It may mention an option by its flag or by its value.
        raw_values: The options that are set, each with its value and where that comes from.

    Returns:
        A string such as "--device is from DETCLI_DEVICE"; empty if there is nothing to say.
    """
    sentences = []
    for option, raw in raw_values:
        if raw.source == COMMAND_LINE:
            continue
        mentions_flag = option.flag in f"{error} {error.hint}"
        mentions_value = str(raw.value) in str(error)
        if mentions_flag or mentions_value:
            sentences.append(f"{option.flag} is from {raw.source}")
    return "; ".join(sentences)


def defaults_file() -> Path | None:
    """Return the path of the user's detcli.toml, even if missing; None without a home folder."""
    path = os.environ.get(FILE_VARIABLE)
    if path:
        return Path(path)
    import platformdirs

    try:
        folder = platformdirs.user_config_path("detcli", appauthor=False)
    except RuntimeError:
        return None
    if not folder.is_absolute():
        return None
    return folder / "detcli.toml"


def read_defaults() -> dict[str, Any]:
    """Read the user's detcli.toml; neither a missing file nor the null device sets any defaults.

    Returns:
        The raw values by name of the option, and the tables of `detcli tune` under TUNED.

    Raises:
        UsageError: The file cannot be read, or an entry in it is not a default of an option.
    """
    path = defaults_file()
    if path is None:
        return {}
    # Windows has the null device NUL, in any case; /dev/null is also meant there.
    is_null_device = str(path).lower() == os.devnull or path.as_posix() == "/dev/null"
    if is_null_device:
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
        raise _unusable_file_error(path, system_reason(error)) from error

    import tomllib  # only here, as most users have no such file

    try:
        entries = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unusable_file_error(path, f"not TOML: {error}") from error

    return _check_entries(path, entries)


def _check_entries(path: Path, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Check the entries of detcli.toml, and convert them to what the command line would give.

    Args:
        path: The file, for error messages.
        entries: Its entries by key; the key of an option is its long name without the hyphens.

    Returns:
        The raw values by name of the option, and the tables of `detcli tune` under TUNED.

    Raises:
        UsageError: An entry has no option, or its value has the wrong type.
    """
    options = {option.flag[2:]: option for option in options_of(Config).values() if option.names}
    raw_values = {}
    for key, value in entries.items():
        if key == TUNED and isinstance(value, dict):
            raw_values[key] = value
        elif key in options:
            option = options[key]
            raw_values[option.name] = _from_toml(path, option, value)
        else:
            hint = _hint_for_unknown_key(key, value, options)
            raise UsageError(f"{path}: predict has no option '{key}'", hint)
    return raw_values


def _hint_for_unknown_key(key: str, value: object, keys: Iterable[str]) -> str:
    """Explain what to do about an entry of detcli.toml that sets no option.

    Args:
        key: The key of the entry.
        value: Its value; a mapping for a section.
        keys: The keys of all options.
    """
    if isinstance(value, dict):
        return f"remove the line [{key}]; the file has no sections"
    hint = "the names are those of predict's options, as in max-det = 100"
    similar_key = closest(key, keys)
    if similar_key:
        return f"did you mean {similar_key}? {hint}"
    return hint


class TomlTypes(NamedTuple):
    """The types that a TOML value of an option may have."""

    types: tuple[type, ...]
    description: str  # for error messages


TEXT = TomlTypes((str,), "a text")
TEXT_OR_NUMBER = TomlTypes((str, int, float), "a text or a number")

TOML_TYPES: Mapping[Any, TomlTypes] = {
    bool: TomlTypes((bool,), "true or false"),
    int: TomlTypes((int,), "a whole number"),
    float: TomlTypes((int, float), "a number"),
    Path: TEXT,
}
"""By type of option, the types of its TOML value; all others take a string or a number."""


def _from_toml(path: Path, option: Option, value: Any) -> Any:
    """Convert a value of detcli.toml to the raw value that the command line would give.

    A list with a separator becomes one string: `classes = ["car", "bus"]` and `classes = "car,bus"`
    both give "car,bus". A list without one, whose option is typed once for each item, stays a list
    of strings.

    Args:
        path: The file, for error messages.
        option: The option.
        value: A value of TOML.

    Raises:
        UsageError: It has a different type from the option's.
    """
    key = option.flag[2:]
    is_typed_repeatedly = option.is_list and not option.separator
    if is_typed_repeatedly:
        return _as_texts(path, key, value)
    if option.separator and isinstance(value, list):
        return _join_toml_list(path, option, value)

    types, description = _toml_types(option)
    is_wrong_bool = isinstance(value, bool) and bool not in types  # a bool is an int to Python
    if not isinstance(value, types) or is_wrong_bool:
        raise UsageError(f"{path}: {key} must be {description}, not {value!r}", "correct the file")

    if isinstance(value, str) and value.startswith("~/"):  # a shell would expand it
        return str(Path(value).expanduser())
    if option.is_list:
        return str(value)  # a single item may be a number, as in classes = 2
    return value


def _as_texts(path: Path, key: str, value: Any) -> list[str]:
    """Require a list of strings, for an option that is repeated on the command line."""
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return value
    hint = "correct the file"
    if isinstance(value, str):
        hint = f"write {key} = [{value!r}]"
    raise UsageError(f"{path}: {key} must be a list of texts, not {value!r}", hint)


def _toml_types(option: Option) -> TomlTypes:
    """Return the types that a TOML value of an option may have; lists are not among them.

    An option whose value is a number also takes a string if it parses its values itself. So both
    gpu-mem-limit = "2GiB" and conf = "0.5,person=0.3" are possible.
    """
    if option.choices:
        return TEXT

    value_type = option.value_type
    is_parsed_number = option.parse is not None and value_type in {int, float}
    sets_several_options = option.parse_fields is not None  # as --conf does
    if is_parsed_number or sets_several_options:
        return TEXT_OR_NUMBER
    return TOML_TYPES.get(value_type, TEXT_OR_NUMBER)


def _join_toml_list(path: Path, option: Option, entries: list[Any]) -> str | None:
    """Join a TOML list into the string that would be typed on the command line: "car,bus".

    Args:
        path: The file, for error messages.
        option: The option, whose separator joins the entries.
        entries: The list.

    Returns:
        The string; None for an empty list, which sets nothing.

    Raises:
        UsageError: An entry is neither a string nor a number.
    """
    for entry in entries:
        if isinstance(entry, bool) or not isinstance(entry, str | int | float):
            raise UsageError(
                f"{path}: {option.flag[2:]} must be a list of texts or numbers, not {entries!r}",
                "correct the file",
            )
    if not entries:
        return None
    texts = [str(entry) for entry in entries]
    return str(option.combine_texts(texts))


def _unusable_file_error(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"the defaults in {path} cannot be used: {reason}",
        'correct or remove the file; it has lines such as model = "yolov10s" and conf = 0.4',
    )
