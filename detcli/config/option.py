"""Options as data: a field of a frozen dataclass carries its option, and all else reads that.

    max_det: int = option(300, "--max-det N", "Keep at most N detections per image.")

A `Config` is a dataclass whose fields are groups of such options. The command line and its help,
the environment variables, the file of defaults, the JSON that workers of a run in shards exchange,
and the settings that detections depend on are all derived from these declarations. A value is
parsed by `Option.parse`, by its type's `parse`, or by its type; `str` turns it back into text.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, field, fields, replace
from functools import cache
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    Concatenate,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from detcli.core import Fields, frozen
from detcli.core.errors import UsageError
from detcli.core.text import closest, looks_like_address, public_name

P = ParamSpec("P")
T = TypeVar("T")

REQUIRED: Any = ...  # the default of an option that must be given

BOOLEANS = {"true": True, "false": False}


class MissingNeed(NamedTuple):
    """What an option needs and the user has not given."""

    alternatives: list[str]  # names of options; one of them is enough
    hint: str  # for the error message


@frozen(eq=False)
class Option:
    """An option, as the command line, the help, the environment and files of settings use it."""

    # As in the help: `-o, --output FILE`, or `SOURCE...` of an argument; empty for neither.
    declaration: str
    help: str = ""
    _: KW_ONLY
    affects_detections: bool | None = None  # None: as the group says
    panel: str = ""  # panel of the help; empty: the group's
    range: tuple[float | None, float | None] = (None, None)  # minimum and maximum
    common: bool = False  # shown by -h, the brief help
    other_names: str = ""  # names in other tools; whoever types one is shown ours
    shared: bool = False  # every command reads its default from detcli.toml and the environment
    sharded: bool = True  # allowed in a run in shards
    parse: Callable[[str], Any] | None = None  # instead of its type; a list means several values
    # Parses one string into the values of several fields.
    parse_fields: Callable[[str], Mapping[str, Any]] | None = None
    complete: Callable[[str], Iterable[str]] | None = None  # shell completion
    separator: str = ""  # between the items of a list; without one, the option is repeated
    uncertified: str = ""  # why certificates of verify do not hold it; empty: they do
    # Names of options that it needs, each with a hint; for "save show", one of them is enough.
    needs: Mapping[str, str] = field(default_factory=dict)
    # Names of options that it excludes, each with the error message and its hint.
    excludes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    # Names of options that override a default of this one, if the predicate accepts their value.
    overridden_by: Mapping[str, Callable[[str], object]] = field(default_factory=dict)
    # Filled in by `bind`:
    name: str = ""  # name of the field
    type: Any = None
    default: Any = None
    group: Any = None  # class of its group

    def missing_needs(self, set_names: Iterable[str]) -> list[MissingNeed]:
        """List what this option needs and the user has not set.

        Args:
            set_names: Names of all options that the user has set.
        """
        set_names = set(set_names)
        missing = []
        for names, hint in self.needs.items():
            alternatives = names.split()
            if set_names.isdisjoint(alternatives):
                missing.append(MissingNeed(alternatives, hint))
        return missing

    def is_overridden(self, typed: Mapping[str, Any]) -> bool:
        """Return whether a default in the user's file gives way to what was typed on the line.

        It does if an option was typed that excludes this one, or that it is `overridden_by`: with
        --resume typed, an `output` in detcli.toml is ignored.

        Args:
            typed: What was typed, by name of the option.
        """
        for name, overrides in self.overridden_by.items():
            if name in typed and overrides(typed[name]):
                return True
        for name in self.excludes:
            is_turned_on = bool(typed.get(name))  # turned off, an option excludes nothing
            if is_turned_on:
                return True
        return False

    @property
    def names(self) -> list[str]:
        """What may be typed, such as -o and --output; empty for an argument."""
        words = self.declaration.replace(",", "").split()
        return [word for word in words if word.startswith("-")]

    @property
    def metavar(self) -> str:
        """What the help calls its value; empty for a flag."""
        words = self.declaration.split()
        return " ".join(word for word in words if not word.startswith("-"))

    @property
    def flag(self) -> str:
        """Its long name, such as --max-det; without the hyphens, its key in detcli.toml."""
        if self.names:
            return self.names[-1]
        return "--" + self.name.replace("_", "-")

    @property
    def is_in_brief_help(self) -> bool:
        """Whether -h shows it: a common option, a required one, or one of this command alone."""
        return self.common or self.group is None or self.default is REQUIRED

    @property
    def variable(self) -> str:
        """The environment variable that sets it; empty if there is none."""
        if not self.shared:
            return ""
        return f"DETCLI_{self.name.upper()}"

    @property
    def value_type(self) -> Any:
        """The type of its value, or of the items of a list: `Shape` for `tuple[Shape, ...] | None`.

        For a union, it is the last type that is not None: `float` for `Literal["none"] | float`.
        """
        value_type = self.type
        while get_origin(value_type) in {Union, UnionType, tuple}:
            arguments = [arg for arg in get_args(value_type) if arg not in (NoneType, ...)]
            value_type = arguments[-1]
        return value_type

    @property
    def is_repeatable(self) -> bool:
        """Whether it is a list, to which each repeated flag adds."""
        return self.is_list or bool(self.separator)

    @property
    def is_list(self) -> bool:
        """Whether it takes any number of values."""
        return get_origin(self.type) is tuple

    @property
    def choices(self) -> list[str]:
        """The values of an enumeration; empty for other types."""
        members = getattr(self.value_type, "__members__", {})
        return list(members.values())

    @property
    def default_text(self) -> str:
        """Its default, as it would be typed."""
        if self.is_list:
            return self.separator.join(str(item) for item in self.default)
        return str(self.default)

    @property
    def help_text(self) -> str:
        """The help of the option, then its environment variable, default and range in brackets."""
        notes = []
        if self.variable:
            notes.append(f"env var: {self.variable}")
        if self.metavar and self.default not in {None, (), REQUIRED}:
            notes.append(f"default: {self.default_text}")
        if self.range != (None, None):
            notes.append(self._range_text())
        if not notes:
            return self.help
        return f"{self.help}  [{'; '.join(notes)}]"

    def _range_text(self) -> str:
        minimum, maximum = self.range
        if maximum is None:
            return f"x>={minimum}"
        if minimum is None:
            return f"x<={maximum}"
        return f"{minimum}<=x<={maximum}"

    def combine_texts(self, texts: Sequence[str]) -> Any:
        """Combine the strings that were typed for an option into one raw value, for `parse_value`.

        An option may be typed several times. The items of lists add up: `--classes car --classes
        bus` is the same as `--classes car,bus`.

        Args:
            texts: What was typed each time, in order.

        Returns:
            One string. For a list without a separator, such as --zone, it is a list of strings.

        Raises:
            UsageError: The option takes one value and got several, or one of several lists is
                empty.
        """
        if self.is_list and not self.separator:
            return list(texts)
        if len(texts) == 1:
            return texts[0]
        if not self.is_repeatable:
            raise self._repetition_error(texts)

        # `parse_value` could not see an empty list once the strings are joined. `_split` refuses
        # it.
        for text in texts:
            self._split(text)
        return self.separator.join(texts)

    def _repetition_error(self, texts: Sequence[str]) -> UsageError:
        """Make the error for an option that takes one value and was typed several times."""
        times = f"{len(texts)} times"
        if len(texts) == 2:
            times = "twice"
        values = f"{', '.join(texts[:-1])} and {texts[-1]}"
        hint = "give one of them"
        if self.shared:
            hint += (
                f"; {self.variable} and detcli.toml hold a default that the command line replaces"
            )
        return UsageError(f"{self.flag} is given {times}: {values}", hint)

    def _split(self, text: str) -> list[str]:
        """Split a list that was typed as one string.

        Raises:
            UsageError: It has no items.
        """
        items = [item.strip() for item in text.split(self.separator)]
        items = [item for item in items if item]
        if not items:
            raise UsageError(f"{self.flag}: '{text}' is an empty list", "leave the option out")
        return items

    def parse_value(self, raw: Any) -> Any:
        """Convert what was typed, or read from TOML or JSON, to the option's value.

        Args:
            raw: A string, bool, number or list from TOML or JSON; None stays None.

        Returns:
            A value of the option's type; a tuple if it is a list.

        Raises:
            UsageError: It is not a value of this option.
        """
        if raw is None:
            return None
        if not self.declaration:  # it cannot be typed: it comes from JSON, and was checked before
            return _as_tuples(raw)
        if not self.is_list:
            return self._parse_item(raw)
        values: list[Any] = []
        for item in self._raw_items(raw):
            value = self._parse_item(item)
            if isinstance(value, list):  # a string may stand for several values, as @FILE does
                values.extend(value)
            else:
                values.append(value)
        return tuple(values)

    def _raw_items(self, raw: Any) -> list[Any]:
        """List the raw values of a list's items; a string is split at the separator, if any."""
        if isinstance(raw, list | tuple):
            return list(raw)
        if isinstance(raw, str) and self.separator:
            return self._split(raw)
        return [raw]

    def _parse_item(self, raw: Any) -> Any:
        """Convert a raw value, or one item of a list, and refuse it if it is out of range.

        An int in a list of strings stays an int, a class id: `Settings(classes=[0, 2])`.

        Args:
            raw: A string, bool or number from TOML or JSON.

        Raises:
            UsageError: It does not have the option's type, is not finite, is out of range, or is an
                address where the option takes the path of a file.
        """
        is_class_id = self.is_list and self.value_type is str and type(raw) is int
        if is_class_id:
            return raw

        text = str(raw)
        # A string in detcli.toml can contain a NUL; an argument on the command line cannot.
        if "\0" in text:
            name = public_name(text)
            raise UsageError(f"{self.flag}: {name!r} has a NUL character", "leave it out")
        value = self._convert(text)
        if isinstance(value, Path) and looks_like_address(text):
            raise UsageError(
                f"{self.flag} {public_name(text)} is an address, but the option takes a path on a "
                "disk",
                "copy the file to a disk, and name it there",
            )

        is_not_finite = isinstance(value, float) and not isfinite(value)
        is_of_other_type = value is None or self._is_bool_of_other_type(raw)
        if is_of_other_type or is_not_finite:
            raise self._invalid_value_error(text)
        if not self._is_in_range(value):
            raise UsageError(f"{self.flag}: {value} is not in the range {self._range_text()}")
        return value

    def _invalid_value_error(self, text: str) -> UsageError:
        """Make the error for a string that is not a value of the option's type.

        The hint is the choice of the option that resembles the string most, if there is one.
        """
        hint = ""
        similar_choice = closest(text, [str(choice) for choice in self.choices])
        if similar_choice:
            hint = f"did you mean {similar_choice}?"
        return UsageError(f"{self.flag}: {text!r} is not {self._expected()}", hint)

    def _is_bool_of_other_type(self, raw: Any) -> bool:
        """Whether a value from TOML or JSON is a bool though the option is no flag, or vice versa.

        `_convert` would not notice it, as Python takes True for 1. A string is left to `_convert`.
        """
        if isinstance(raw, str):
            return False
        is_flag = self.value_type is bool
        return isinstance(raw, bool) != is_flag

    def _is_in_range(self, value: Any) -> bool:
        """Whether a value is neither below the option's minimum nor above its maximum, if any."""
        minimum, maximum = self.range
        if minimum is not None and value < minimum:
            return False
        return maximum is None or value <= maximum

    def _convert(self, text: str) -> Any:
        """Convert text with the option's parser; None if it is not a value of its type.

        The parser is the option's `parse`, else the `parse` of its type, else the type itself. A
        parser refuses a string by raising one of these errors:

        - A ValueError or KeyError with any message, as `int` raises it: this returns None.
        - A ValueError(message, hint) from the option's `parse`: the flag is put before the message.
        - A UsageError: the flag is put before its message, unless it already has the flag.

        Raises:
            UsageError: The parser says what is wrong; the message names the option.
        """
        if self.value_type is bool:
            return BOOLEANS.get(text.lower())

        parser = self.parse or getattr(self.value_type, "parse", self.value_type)
        try:
            return parser(text)
        except (KeyError, ValueError) as error:
            has_message_and_hint = self.parse is not None and len(error.args) == 2
            if not has_message_and_hint:
                return None
            message, hint = error.args
            raise UsageError(f"{self.flag} {message}", hint) from None
        except UsageError as error:
            if self.flag in str(error):
                raise
            raise UsageError(f"{self.flag}: {error}", error.hint) from None

    def _expected(self) -> str:
        """What an error message says was expected."""
        if self.choices:
            return "one of " + ", ".join(repr(str(choice)) for choice in self.choices)
        return f"a valid {getattr(self.value_type, '__name__', self.value_type)}"

    def to_json(self, value: Any) -> Any:
        """Convert a value to JSON, which `parse_value` accepts."""
        if isinstance(value, tuple):
            return [self.to_json(item) for item in value]
        if type(value) in (NoneType, bool, int, float):
            return value
        return str(value)


def _as_tuples(value: Any) -> Any:
    """Replace lists with tuples, at every level."""
    if isinstance(value, list):
        return tuple(_as_tuples(item) for item in value)
    return value


def _field_declaration(option_class: Callable[P, Option]) -> Callable[Concatenate[T, P], T]:
    """Make the function `option`, which declares a dataclass field as an option.

    It takes the field's default and then the arguments of Option. This detour lets type checkers
    know these arguments, and that the field has the type of its default.
    """

    def option(default: T, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return field(default=default, metadata={"option": option_class(*args, **kwargs)})

    return option


option = _field_declaration(Option)
"""Declare a field as an option: its default, then the arguments of `Option`."""


def panel(default: T, title: str, *, affects_detections: bool) -> T:
    """Declare a group of a Config: the title of its panel, and what its options affect."""
    metadata = {"panel": title, "affects_detections": affects_detections}
    return field(default=default, metadata=metadata)


def bind(declaration: Any, name: str, value_type: Any, group: Any = None) -> Option:
    """Complete the Option that a field declares: with the field's name, type, default and group.

    The group also says in which panel of the help the option is shown, and whether detections
    depend on it, unless the option says so itself.

    Args:
        declaration: The dataclass field, or default of a command's parameter, that `option` made.
        name: Name of the field or parameter.
        value_type: Its annotation.
        group: The group that it is in, a field that `panel` made; None for an option that only one
            command has.
    """
    declared_option: Option = declaration.metadata["option"]
    changes: Fields = {"name": name, "type": value_type, "default": declaration.default}
    panel_title = "Options"
    affects_detections = False
    if group is not None:
        changes["group"] = group.type
        panel_title = group.metadata["panel"]
        affects_detections = group.metadata["affects_detections"]
    if not declared_option.panel:
        changes["panel"] = panel_title
    if declared_option.affects_detections is None:
        changes["affects_detections"] = affects_detections
    return replace(declared_option, **changes)


@cache
def options_of(config_type: Any) -> Mapping[str, Option]:
    """List the options of a Config class by name, in the order of their declaration.

    The fields of a Config are groups, which are dataclasses; the fields of a group are options.
    """
    options = {}
    for group in fields(config_type):
        group_type: Any = group.type
        for declaration in fields(group_type):
            name = declaration.name
            options[name] = bind(declaration, name, declaration.type, group)
    return options


def values_of(config: Any) -> Fields:
    """List the values of all options of a Config by the option's name, without the groups."""
    values: Fields = {}
    for group_field in fields(config):
        group = getattr(config, group_field.name)
        for option_field in fields(group):
            values[option_field.name] = getattr(group, option_field.name)
    return values


def arguments_of(config: Any, names: Iterable[str]) -> list[str]:
    """Format options of a Config as arguments of the command line, as in ["--batch", "4"].

    Args:
        config: The Config.
        names: Names of the options to format; those that are None are left out.
    """
    config_type: Any = type(config)
    options = options_of(config_type)
    values = values_of(config)
    arguments: list[str] = []
    for name in names:
        option = options[name]
        value = values[name]
        if value is None:
            continue
        if value is True:
            arguments.append(option.flag)
        elif value is False:
            arguments.append(f"--no-{option.flag[2:]}")
        elif option.is_list:
            arguments += [option.flag, ",".join(str(item) for item in value)]
        else:
            arguments += [option.flag, str(value)]
    return arguments


def config_from(config_type: type[T], values: Mapping[str, Any]) -> T:
    """Make a Config from the values of its options; options without a value get their default.

    It is the reverse of `values_of`: each value goes to the group that has its option.

    Args:
        config_type: The class of the Config, whose fields are groups of options.
        values: The values by option name, such as {"conf": 0.4, "batch": 8}.
    """
    groups: Fields = {}
    for group_field in fields(cast("Any", config_type)):
        group_type: Any = group_field.type
        option_names = [option_field.name for option_field in fields(group_type)]
        group_values = {name: values[name] for name in option_names if name in values}
        groups[group_field.name] = group_type(**group_values)
    return config_type(**groups)


def check_combination(options: Mapping[str, Option], set_names: Iterable[str]) -> None:
    """Refuse options that exclude each other, or that lack one that they need.

    Args:
        options: The options of a command, by name.
        set_names: Names of those that the user has set.

    Raises:
        UsageError: An option needs another one that is not set, or excludes one that is. The error
            is that of the first such option, in the order of `options`.
    """
    set_names = set(set_names)
    for name, option in options.items():
        if name not in set_names:
            continue
        for need in option.missing_needs(set_names):
            flags = " or ".join(options[alternative].flag for alternative in need.alternatives)
            raise UsageError(f"{option.flag} needs {flags}", need.hint)
        for excluded, (message, hint) in option.excludes.items():
            if excluded in set_names:
                raise UsageError(message, hint)


def changed_options(config: Any) -> list[str]:
    """List the names of the options of a Config whose values are not their defaults.

    Raises:
        UsageError: A value does not have its option's type, such as a list for a tuple.
    """
    config_type: Any = type(config)
    values = values_of(config)
    changed_names = []
    for name, option in options_of(config_type).items():
        value = values[name]
        if value != option.default:
            _require_option_type(option, value)
            changed_names.append(name)
    return changed_names


def _require_option_type(option: Option, value: Any) -> None:
    """Refuse a value that does not have the option's type.

    The value is written as JSON and parsed again by the option. One of a different type fails to
    parse, or comes back as something else. A type checker finds most such values; this is for those
    who call detcli from Python without one.

    Raises:
        UsageError: The value has the wrong type, or parsing its JSON fails.
    """
    json_value = option.to_json(value)
    parsed_value = option.parse_value(json_value)
    if option.to_json(parsed_value) != json_value:
        raise UsageError(f"{option.flag}: {value!r} is of another type")
