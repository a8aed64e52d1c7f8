"""Options as data: a field of a frozen dataclass carries its option, and all else reads that.

    max_det: int = option(300, "--max-det N", "Keep at most N detections per picture.")

A `Config` is a dataclass whose fields are groups of such options. The command line and its help,
the environment variables, the file of defaults, the JSON that workers of a run in shards exchange,
and the settings that detections depend on are all derived from these declarations. A value is
parsed by `Option.parse`, by its type's `parse`, or by its type; `str` turns it back into text.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import cache
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Concatenate, ParamSpec, TypeVar, Union, cast, get_args, get_origin

from detcli.core import Fields
from detcli.core.errors import UsageError
from detcli.core.text import looks_like_address, public_name

P = ParamSpec("P")
T = TypeVar("T")

REQUIRED: Any = ...  # the default of an option that must be given

WORDS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Option:
    """What a field is on the command line, and everywhere else; see `options_of`."""

    declaration: (
        str  # as help shows it: `-o, --output FILE`; `SOURCE...`, an argument; empty: neither
    )
    help: str = ""
    _: KW_ONLY
    affects_detections: bool | None = (
        None  # whether another value can lead to other boxes; else as its group
    )
    panel: str = ""  # of the help; else that of its group
    range: tuple[float | None, float | None] = (None, None)
    common: bool = False  # among the dozen usual ones, which -h shows
    other_names: str = ""  # what people call it elsewhere: who types one is told its own
    shared: bool = False  # every command takes its default from the file, and from a variable
    sharded: bool = True  # whether a run in shards can have it
    parse: Callable[[str], Any] | None = (
        None  # reads it, instead of its type; a list is many values
    )
    parse_fields: Callable[[str], Mapping[str, Any]] | None = (
        None  # what is typed sets several fields
    )
    complete: Callable[[str], Iterable[str]] | None = None  # candidates for what is typed
    separator: str = ""  # between the entries of a list; a tuple without one has one entry a flag
    # Options, each with a hint; of several, with spaces between them, one is enough.
    needs: Mapping[str, str] = field(default_factory=dict)
    excludes: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # an error and its hint
    # Options, and which values of theirs, once typed, make a default of this one pointless.
    overridden_by: Mapping[str, Callable[[str], object]] = field(default_factory=dict)
    name: str = ""  # of the field; this and what follows is filled in by `bind`
    type: Any = None
    default: Any = None
    group: Any = None

    def missing_needs(self, given: Iterable[str]) -> list[tuple[list[str], str]]:
        """What it needs and is not given: options of which one is enough, and the hint."""
        wanted = [(names.split(), hint) for names, hint in self.needs.items()]
        return [(names, hint) for names, hint in wanted if {*names}.isdisjoint(given)]

    def is_overridden(self, typed: Mapping[str, Any]) -> bool:
        """Whether a default of it does, to options on the line, by name."""
        held = {**dict.fromkeys(self.excludes, bool), **self.overridden_by}
        return any(name in typed and is_reason(typed[name]) for name, is_reason in held.items())

    @property
    def names(self) -> list[str]:
        """What may be typed: -o and --output."""
        return [word for word in self.declaration.replace(",", "").split() if word[0] == "-"]

    @property
    def metavar(self) -> str:
        """What the help calls its value; empty for a flag."""
        return " ".join(word for word in self.declaration.split() if word[0] != "-")

    @property
    def flag(self) -> str:
        """Its long name, in the file without hyphens before it: --max-det, max-det."""
        return [f"--{self.name.replace('_', '-')}", *self.names][-1]

    @property
    def is_in_brief_help(self) -> bool:
        """Whether -h shows it: the table says so, or only this command has it."""
        return self.common or self.group is None or self.default is REQUIRED

    @property
    def variable(self) -> str:
        """The environment variable that sets it; empty if none does."""
        return f"DETCLI_{self.name.upper()}" if self.shared else ""

    @property
    def value_type(self) -> Any:
        """The type of a value, or of the entries of a tuple; of several, the last."""
        kind = self.type
        while get_origin(kind) in {Union, UnionType, tuple}:
            kind = [one for one in get_args(kind) if one not in (NoneType, ...)][-1]
        return kind

    @property
    def is_list(self) -> bool:
        """Whether it has any number of values."""
        return get_origin(self.type) is tuple

    @property
    def is_repeatable(self) -> bool:
        """Whether it is a list, to which each further flag adds."""
        return self.is_list or bool(self.separator)

    @property
    def choices(self) -> list[str]:
        """The only values, of an enumeration."""
        return list(getattr(self.value_type, "__members__", {}).values())

    @property
    def default_text(self) -> str:
        """Its default, as it would be typed."""
        return self.separator.join(map(str, self.default if self.is_list else [self.default]))

    @property
    def help_text(self) -> str:
        """Its help, with default, range and variable."""
        least, most = self.range
        facts = [f"env var: {self.variable}"] if self.variable else []
        if self.metavar and self.default not in {None, (), REQUIRED}:
            facts.append(f"default: {self.default_text}")
        if (least, most) != (None, None):
            facts.append(self._range_text())
        return f"{self.help}  [{'; '.join(facts)}]" if facts else self.help

    def _range_text(self) -> str:
        least, most = self.range
        if least is None or most is None:
            return f"x>={least}" if most is None else f"x<={most}"
        return f"{least}<=x<={most}"

    def combine(self, texts: Sequence[str]) -> Any:
        """The value of an option from all texts that were typed for it, in their order.

        The entries of lists add up.

        Raises:
            UsageError: It takes one value and got several, or a list is empty.
        """
        if self.is_list and not self.separator:
            return list(texts)
        if len(texts) == 1:
            return texts[0]
        if not self.is_repeatable:
            raise self._repeated(texts)
        for text in texts:
            self._entries(text)
        return self.separator.join(texts)

    def _repeated(self, texts: Sequence[str]) -> UsageError:
        """The error for an option that takes one value and was typed several times."""
        times = "twice" if len(texts) == 2 else f"{len(texts)} times"
        values = f"{', '.join(texts[:-1])} and {texts[-1]}"
        hint = "give one of them"
        if self.shared:
            hint += (
                f"; {self.variable} and detcli.toml hold a default that the command line replaces"
            )
        return UsageError(f"{self.flag} is given {times}: {values}", hint)

    def _entries(self, text: str) -> list[str]:
        """Split a list that was typed as one text; it has at least one entry."""
        entries = [entry.strip() for entry in text.split(self.separator)]
        entries = [entry for entry in entries if entry]
        if not entries:
            raise UsageError(f"{self.flag}: '{text}' is an empty list", "leave the option out")
        return entries

    def parse_value(self, given: Any) -> Any:
        """The value of a text, or of a value of TOML or JSON."""
        if given is None:
            return None
        if not self.declaration:
            return _frozen(given)
        if not self.is_list:
            return self._read(given)
        if isinstance(given, str) and self.separator:
            given = self._entries(given)
        values: list[Any] = []
        for one in given if isinstance(given, list | tuple) else [given]:
            value = self._read(one)
            values += value if isinstance(value, list) else [value]
        return tuple(values)

    def _read(self, given: Any) -> Any:
        kind, text, (least, most) = self.value_type, str(given), self.range
        if self.is_list and kind is str and type(given) is int:
            return given  # of --classes, which Python can name by their ids
        try:
            if kind is bool:
                value: Any = WORDS[text.lower()]
            else:
                value = (self.parse or getattr(kind, "parse", kind))(text)
        except (KeyError, ValueError) as error:
            if self.parse and len(error.args) == 2:
                raise UsageError(f"{self.flag} {error.args[0]}", error.args[1]) from None
            value = None
        except UsageError as error:
            if self.flag in str(error):
                raise
            raise UsageError(f"{self.flag}: {error}", error.hint) from None
        if isinstance(value, Path) and looks_like_address(text):
            raise UsageError(
                f"{self.flag} {public_name(text)} is an address, and it takes a place on a disk",
                "copy the file to a disk, and name it there",
            )
        unfit = isinstance(given, bool) != (kind is bool) and not isinstance(given, str)
        if value is None or unfit or (isinstance(value, float) and not isfinite(value)):
            wanted = f"a valid {getattr(kind, '__name__', kind)}"
            if self.choices:
                wanted = f"one of {', '.join(map(repr, map(str, self.choices)))}"
            raise UsageError(f"{self.flag}: {text!r} is not {wanted}")
        if (least is not None and value < least) or (most is not None and value > most):
            raise UsageError(f"{self.flag}: {value} is not in the range {self._range_text()}")
        return value

    def to_json(self, value: Any) -> Any:
        """A value in JSON, which `read` reads."""
        if isinstance(value, tuple):
            return [self.to_json(one) for one in value]
        return value if type(value) in (NoneType, bool, int, float) else str(value)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _field_of(make: Callable[P, Option]) -> Callable[Concatenate[T, P], T]:
    def option(default: T, /, *about: P.args, **more: P.kwargs) -> T:
        return field(default=default, metadata={"option": make(*about, **more)})

    return option


option = _field_of(Option)  # a field of a group: its default, then what `Option` takes


def panel(default: T, title: str, *, affects_detections: bool) -> T:
    """Declare a group of a Config: its panel, and the default of `Option.affects_detections`."""
    return field(
        default=default, metadata={"panel": title, "affects_detections": affects_detections}
    )


def bind(found: Any, name: str, kind: Any, group: Any = None) -> Option:
    """The option of a field of a group, or of a parameter of a command, in its place."""
    row: Option = found.metadata["option"]
    about = {"panel": "Options", "affects_detections": False} if group is None else group.metadata
    own = {key: one for key in about if (one := getattr(row, key)) not in {None, ""}}
    placed = {"name": name, "type": kind, "default": found.default, "group": group and group.type}
    return replace(row, **{**about, **own, **placed})


@cache
def options_of(cls: Any) -> Mapping[str, Option]:
    """The options of a Config, by name."""
    return {
        one.name: bind(one, one.name, one.type, group)
        for group in fields(cls)
        for one in fields(cast("Any", group.type))
    }


def values_of(config: Any) -> Fields:
    """The values of a Config by name."""
    groups = [getattr(config, one.name) for one in fields(config)]
    return {one.name: getattr(group, one.name) for group in groups for one in fields(group)}


def arguments_of(config: Any, names: Iterable[str]) -> list[str]:
    """Options of a Config as one types them; those that are None are left out."""
    kind: Any = type(config)
    known, values, typed = options_of(kind), values_of(config), list[str]()
    for name in names:
        row, value = known[name], values[name]
        if isinstance(value, bool):
            typed.append(row.flag if value else f"--no-{row.flag[2:]}")
        elif value is not None:
            typed += [row.flag, ",".join(map(str, value)) if row.is_list else str(value)]
    return typed


def config_from(cls: type[T], values: Mapping[str, Any]) -> T:
    """A Config of values by name; those that are missing get their defaults."""
    groups: Fields = {one.name: one.type for one in fields(cast("Any", cls))}
    return cls(
        **{
            name: group(
                **{one.name: values[one.name] for one in fields(group) if one.name in values}
            )
            for name, group in groups.items()
        }
    )


def check_combination(known: Mapping[str, Option], given: Iterable[str]) -> None:
    """Refuse options that need one that is not given, or exclude one that is."""
    names = {*given}
    for name in (name for name in known if name in names):
        for wanted, hint in known[name].missing_needs(names):
            others = " or ".join(known[one].flag for one in wanted)
            raise UsageError(f"{known[name].flag} needs {others}", hint)
        for other, (message, hint) in known[name].excludes.items():
            if other in names:
                raise UsageError(message, hint)


def changed_options(config: Any) -> list[str]:
    """The names of the options that differ from their defaults."""
    kind: Any = type(config)
    known, values = options_of(kind), values_of(config)
    given = [name for name, row in known.items() if values[name] != row.default]
    for name in given:
        written = known[name].to_json(values[name])
        if known[name].to_json(known[name].parse_value(written)) != written:
            raise UsageError(f"{known[name].flag}: {values[name]!r} is of another type")
    return given
