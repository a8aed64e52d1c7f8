"""Commands from options: a Typer signature, and how a Config is made from what was typed.

    @command(Runtime, override_option("conf", default=0.001), "tile")
    def evaluate(config: Config, data: Path = option(REQUIRED, "--data DATA", "...")):

Typer only splits the line into strings: options parse them, as they parse the same values from
variables, from the user's file and from JSON.
"""

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass, replace
from typing import Annotated, Any

import typer

from detcli.cli.command_help import CommandHelp
from detcli.cli.completion import complete_classes, complete_device, complete_model
from detcli.cli.defaults import (
    TUNED,
    RawValue,
    collect_values,
    describe_sources,
    read_defaults,
    report_stray_variables,
    report_unblurred_page,
)
from detcli.cli.help import MOVED
from detcli.config.config import Config
from detcli.config.option import REQUIRED, Option, bind, check_combination, config_from, options_of
from detcli.core.errors import DetcliError, DeviceMemoryError, UsageError
from detcli.core.text import public_name

DECIDING = ("device", "half", "cuda_graph", "gpu_mem_limit")
"""Options that invalidate what was measured without them."""

RAW_VALUES = "detcli.raw_values"
"""Key in Click's `context.meta`: the options that are set, each with its raw value."""

MAX_QUOTED_WORDS = 3
"""The maximum number of unexpected arguments that an error quotes; a glob may make thousands."""


COMPLETE: Mapping[str, Callable[..., Iterable[str]]] = {
    "blur": complete_classes,
    "classes": complete_classes,
    "device": complete_device,
    "model": complete_model,
}
"""Shell completion of options of Config, which is in a lower layer than the completion."""


OptionOverride = tuple[str, Mapping[str, Any]]
"""The name of an option that a command takes with changes, and the changes."""


def override_option(name: str, **changes: Any) -> OptionOverride:
    """Select an option of Config for `command`, with a different default, help or declaration."""
    return name, changes


MODEL_ARGUMENT = override_option("model", declaration="MODEL", default=REQUIRED)


def command(
    *selection: type | str | OptionOverride,
    without: str = "",
    all_configurable: bool = False,
    configurable: str = "",
    examples: str = "",
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a decorator that turns a function into a command of the command line.

    The function may have these parameters:

    - Any whose default is an `option(...)`. It is an option of this command alone.
    - Any whose type is a dataclass with a field `config`. Its other fields are such options.
    - `config`, which gets the Config.
    - `value_sources`, which says where the value of each option that the user has set comes from.
    - `tuned`, which gets the tables that `detcli tune` wrote into detcli.toml.

    Args:
        selection: The options of Config that the command takes: groups, names of individual
            options, or options with changes.
        without: Names of options to leave out of the selected groups, separated by spaces.
        all_configurable: Whether detcli.toml can set all selected options. Without this, it can set
            those that several commands share, and those of `configurable`. With it, each flag has a
            form --no-..., to turn off a flag that is on in detcli.toml.
        configurable: Names of other options that detcli.toml can set, separated by spaces.
        examples: Lines at the end of the help.
    """
    config_options = selected_options(selection, without.split())
    configurable_names = set(configurable.split())
    for name, option in config_options.items():
        if all_configurable or option.shared:
            configurable_names.add(name)

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        call = _CommandCall(function, config_options, configurable_names)
        # What detcli.toml may turn on can be turned off on the command line.
        return call.typer_function(examples, flags_are_negatable=all_configurable)

    return decorate


class _CommandCall:
    """Calls the function of a command with the values that are typed or set for its options."""

    def __init__(
        self,
        function: Callable[..., None],
        config_options: Mapping[str, Option],
        configurable_names: Collection[str],
    ) -> None:
        """Collect the options of the command.

        Args:
            function: The function of the command.
            config_options: The options of Config that the command takes, by name.
            configurable_names: Names of the options that detcli.toml can set.
        """
        self._function = function
        self._parameters = inspect.signature(function, eval_str=True).parameters

        # Only this command has these options, so they are not in `Config`. Some are declared by
        # dataclasses, which are stored by the name of the function's parameter.
        self._option_classes = _option_classes_of_command(self._parameters)
        self._command_options = _options_of_command(self._parameters, self._option_classes)

        self._all_options = {**config_options, **self._command_options}
        self._configurable_names = set(configurable_names) - self._command_options.keys()

        # Some options cannot be typed, as another option sets them: `class_conf`, by --conf.
        self._typeable_options: dict[str, Option] = {}
        for name, option in self._all_options.items():
            if option.declaration:
                self._typeable_options[name] = option

    def typer_function(self, examples: str, *, flags_are_negatable: bool) -> Callable[..., None]:
        """Make the function that Typer calls, with a parameter for each option.

        Typer makes the options of the command line from the function's signature, so this gets the
        attribute `__signature__`. It gets two more attributes: `Command` reads `options`, and the
        help shows `examples`.

        Args:
            examples: Lines at the end of the help.
            flags_are_negatable: Whether each flag has a form --no-..., see `_typer_parameter`.
        """

        def run(context: typer.Context, **typed: Any) -> None:
            self(context, typed)

        typer_parameters = [_parameter("context", typer.Context, inspect.Parameter.empty)]
        for option in self._typeable_options.values():
            typer_parameters.append(
                _typer_parameter(option, flags_are_negatable=flags_are_negatable)
            )
        signature = inspect.Signature(typer_parameters)

        run.__name__ = self._function.__name__
        run.__doc__ = self._function.__doc__
        # Not as `run.options = ...`: to type checkers a function has no such attributes.
        vars(run).update(__signature__=signature, options=self._typeable_options, examples=examples)
        return run

    def __call__(self, context: typer.Context, typed: Mapping[str, Any]) -> None:
        """Collect and parse the values of all options, and call the function with them.

        The options that are set are also stored in `context.meta`, with where their values come
        from: `Command.invoke` reads them if the function raises an error.

        Args:
            context: Click's context of the call.
            typed: The values that Typer has read from the command line, by name of the option.

        Raises:
            UsageError: A value cannot be parsed, or options do not go together.
        """
        toml_entries: dict[str, Any] = {}
        if self._configurable_names:
            toml_entries = read_defaults()
        raw_values = self._collect_values(context, typed, toml_entries)

        options_with_values = []
        value_sources = {}
        for name, raw_value in raw_values.items():
            options_with_values.append((self._typeable_options[name], raw_value))
            value_sources[name] = raw_value.source
        context.meta[RAW_VALUES] = options_with_values

        values = {name: option.default for name, option in self._all_options.items()}
        hint = f"see: {context.command_path} --help"
        values |= _parse_values(self._typeable_options, raw_values, hint)
        config = self._make_config(values, raw_values)

        # All arguments that a command's function can take; each function takes some of them.
        available_arguments: dict[str, Any] = {
            **values,
            **self._make_option_objects(config, values),
            "config": config,
            "value_sources": value_sources,
            "tuned": toml_entries.get(TUNED, {}),  # what `detcli tune` wrote into detcli.toml
        }
        arguments = {name: available_arguments[name] for name in self._parameters}
        self._function(**arguments)

    def _make_option_objects(self, config: Config, values: Mapping[str, Any]) -> dict[str, Any]:
        """Make the dataclasses with options of this command, by the parameters that take them."""
        option_objects = {}
        for parameter_name, option_class in self._option_classes.items():
            option_names = [field.name for field in _option_fields(option_class)]
            class_values = {name: values[name] for name in option_names}
            option_objects[parameter_name] = option_class(config=config, **class_values)
        return option_objects

    def _make_config(self, values: Mapping[str, Any], raw_values: Mapping[str, RawValue]) -> Config:
        """Make the Config, then refuse options of the command that do not go together.

        Args:
            values: The values of all options, by name.
            raw_values: The values that are set on the command line, in environment variables or in
                detcli.toml.

        Raises:
            UsageError: An option needs another one that is not set, or excludes one that is.
        """
        config_values = {
            name: value for name, value in values.items() if name not in self._command_options
        }
        config = config_from(Config, config_values)

        # An option counts as set even if its value is the default, but not if it is turned off.
        set_names = []
        for name in raw_values:
            is_turned_off = values[name] is False
            if not is_turned_off:
                set_names.append(name)
        check_combination(self._typeable_options, set_names)
        return config

    def _collect_values(
        self, context: typer.Context, typed: Mapping[str, Any], toml_entries: Mapping[str, Any]
    ) -> dict[str, RawValue]:
        """Collect the options set on the command line, in environment variables and detcli.toml.

        Unless --quiet was typed, this also warns of environment variables that set nothing, and of
        a page that shows images unblurred although detcli.toml sets --blur.

        Args:
            context: Click's context of the call.
            typed: The values that Typer has read from the command line, by name of the option.
            toml_entries: The entries of detcli.toml, by name of the option. Those that this command
                does not take are ignored.
        """
        is_quiet = typed.get("quiet")
        if self._configurable_names and not is_quiet:
            report_stray_variables()

        defaults = {}
        for name in self._configurable_names & toml_entries.keys():
            defaults[name] = toml_entries[name]
        raw_values = collect_values(self._typeable_options, typed, defaults)

        writes_page = "report" in raw_values
        command_ignores_blur = "blur" in toml_entries and "blur" not in self._typeable_options
        if writes_page and command_ignores_blur and not is_quiet:
            report_unblurred_page(context.command_path)
        return raw_values


def selected_options(
    selection: Iterable[type | str | OptionOverride], excluded_names: Collection[str] = ()
) -> dict[str, Option]:
    """Select the options of Config that a command takes.

    Args:
        selection: Groups of options by their class, individual options by their name, and options
            with changes as `override_option` makes them.
        excluded_names: Names of options to leave out.

    Returns:
        The options by name, in the order of Config, with the changes applied.
    """
    selected_groups: set[type] = set()
    selected_names: set[str] = set()
    changes_by_name: dict[str, Mapping[str, Any]] = {}
    for group_or_option in selection:
        if isinstance(group_or_option, type):
            selected_groups.add(group_or_option)
        elif isinstance(group_or_option, str):
            selected_names.add(group_or_option)
        else:
            name, changes = group_or_option
            selected_names.add(name)
            changes_by_name[name] = changes

    options = {}
    for name, option in options_of(Config).items():
        is_selected = name in selected_names or option.group in selected_groups
        if not is_selected or name in excluded_names:
            continue
        changes = changes_by_name.get(name, {})
        if changes:
            options[name] = replace(option, **changes)
        else:
            options[name] = option
    return options


def _option_classes_of_command(parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """Find the parameters of a command's function whose type is a dataclass of options.

    Returns:
        The dataclasses by name of the parameter, without the one of type Config.
    """
    option_classes = {}
    for name, parameter in parameters.items():
        if is_dataclass(parameter.annotation) and parameter.annotation is not Config:
            option_classes[name] = parameter.annotation
    return option_classes


def _options_of_command(
    parameters: Mapping[str, inspect.Parameter], option_classes: Mapping[str, Any]
) -> dict[str, Option]:
    """List the options that only one command has.

    Args:
        parameters: The parameters of the command's function, by name.
        option_classes: The dataclasses of options among their types, by name of the parameter.

    Returns:
        The options by name: first the parameters that are options themselves, whose default is
        `option(...)`, then the fields of the dataclasses.
    """
    options = {}
    for name, parameter in parameters.items():
        if isinstance(parameter.default, Field):
            options[name] = bind(parameter.default, name, parameter.annotation)

    for option_class in option_classes.values():
        for field in _option_fields(option_class):
            options[field.name] = bind(field, field.name, field.type)
    return options


def _option_fields(option_class: Any) -> list[Field[Any]]:
    """List the fields of a dataclass that are options."""
    return [field for field in fields(option_class) if "option" in field.metadata]


def _parse_values(
    options: Mapping[str, Option], raw_values: Mapping[str, RawValue], hint: str
) -> dict[str, Any]:
    """Parse the values that are set on the line, in variables or in the file.

    Args:
        options: The options of the command, by name.
        raw_values: What they are set to; options that are not set are missing.
        hint: The hint for an error that has none.

    Returns:
        The values by name; one raw value may set several options, as --conf does.

    Raises:
        UsageError: A string is not a value of its option, or a required option is missing.
    """
    values: dict[str, Any] = {}
    for name, option in options.items():
        if name in raw_values:
            raw = raw_values[name].value
            try:
                if option.parse_fields:
                    values |= option.parse_fields(str(raw))
                else:
                    values[name] = option.parse_value(raw)
            except UsageError as error:
                # A value that an earlier version accepted, such as topk, has a hint of its own.
                error.hint = error.hint or MOVED.get(str(raw), hint)
                raise
        elif option.default is REQUIRED:
            missing = f"argument '{option.declaration}'"
            if option.names:
                missing = f"option '{option.flag}'"
            raise UsageError(f"missing {missing}", hint)
    return values


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def _typer_parameter(option: Option, *, flags_are_negatable: bool) -> inspect.Parameter:
    """Make the parameter that declares an option to Typer.

    Typer only learns its names, and whether it is an argument, a flag, a flag that is counted, or
    an option with a value. It takes values as strings, which `_parse_values` parses.

    Args:
        option: The option.
        flags_are_negatable: Whether every flag gets a form --no-..., to turn off a flag that is on
            in detcli.toml. Otherwise only a flag whose default is None gets this form, as None
            leaves it open whether the flag is on.
    """
    typer_arguments = _shared_typer_arguments(option)
    is_argument = not option.names
    if is_argument:
        return _typer_argument(option, typer_arguments)

    names = option.names
    annotation: Any
    if option.value_type is bool:
        annotation = bool | None
        if flags_are_negatable or option.default is None:
            *short_names, long_name = names  # as in -q and --quiet
            negated_name = f"--no-{long_name.removeprefix('--')}"
            names = [*short_names, f"{long_name}/{negated_name}"]
    elif not option.metavar:
        # A number that is typed without a value: Typer counts how many times -v is typed.
        annotation = int | None
        typer_arguments["count"] = True
    else:
        # A list even for one value: `Option.combine_texts` decides whether it may be typed twice.
        annotation = list[str] | None
    typer_option = typer.Option(*names, metavar=option.metavar or None, **typer_arguments)
    return _parameter(option.name, Annotated[annotation, typer_option])


def _typer_argument(option: Option, typer_arguments: Mapping[str, Any]) -> inspect.Parameter:
    """Make the parameter that declares to Typer an option typed without a name, such as SOURCE.

    Args:
        option: The option.
        typer_arguments: The arguments of `typer.Argument` from `_shared_typer_arguments`.
    """
    annotation: Any = str | None
    if option.is_list:
        annotation = list[str] | None
    argument = typer.Argument(metavar=option.declaration, **typer_arguments)
    return _parameter(option.name, Annotated[annotation, argument])


def _shared_typer_arguments(option: Option) -> dict[str, Any]:
    """Collect the arguments that both `typer.Option` and `typer.Argument` get for an option.

    They are its help, the panel of the help that shows it, and what completes its value in the
    shell.
    """
    arguments: dict[str, Any] = {
        "help": option.help_text,
        "show_default": False,  # `help_text` has it
        "rich_help_panel": option.panel,
    }
    complete = option.complete or COMPLETE.get(option.name)
    if complete is None and option.choices:
        complete = _completion_of_choices(option)
    if complete:
        arguments["autocompletion"] = complete
    return arguments


def _completion_of_choices(option: Option) -> Callable[[str], list[str]]:
    """Make the function that completes a value of an enumeration in the shell."""

    def complete(incomplete: str) -> list[str]:
        return [choice for choice in option.choices if choice.startswith(incomplete)]

    return complete


MIN_ADDRESS_SPACE = 1 << 30
"""Bytes of address space with which a small model runs; with less, libraries end the process."""


def _require_address_space() -> None:
    """Refuse a limit of the address space within which no model runs."""
    if sys.platform == "win32":
        return
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < MIN_ADDRESS_SPACE:
        raise DeviceMemoryError(
            f"out of memory: the address space is limited to {limit >> 20} MiB",
            "raise the limit, to 2 GiB or more: ulimit -v 2097152",
        )


def _reword_for_command_line(
    error: DetcliError, raw_values: Sequence[tuple[Option, RawValue]]
) -> None:
    """Let an error name options by their flags, and say where they are set if not on the line.

    The library's "max_det is 0" becomes "--max-det is 0". The hint says, for example, that
    "--device is from DETCLI_DEVICE".

    Args:
        error: The error, which is changed.
        raw_values: The options that are set, each with its value and where that comes from.
    """
    message = str(error)
    for option, _ in raw_values:
        if message.startswith(f"{option.name} is "):
            error.args = (option.flag + message.removeprefix(option.name),)
            break

    sources = describe_sources(error, raw_values)
    if sources:
        error.hint = f"{error.hint} ({sources})".strip()


class Command(CommandHelp):
    """Click's object for one command, made from a function that `command` has decorated.

    An error of a run names the options that it is about.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error that ends it is worded for the command line."""
        try:
            if "model" in self.options:
                _require_address_space()
            return super().invoke(ctx)
        except DetcliError as error:
            _reword_for_command_line(error, ctx.meta.get(RAW_VALUES, ()))
            raise

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the command.

        Raises:
            UsageError: There are more arguments without an option than the command takes.
        """
        ctx.allow_extra_args = True  # refused below, in words that say what the command takes
        extra_arguments = super().parse_args(ctx, args)
        if extra_arguments and not ctx.resilient_parsing:
            raise self._extra_arguments_error(ctx, extra_arguments)
        return extra_arguments

    def _extra_arguments_error(self, ctx: Any, extra_arguments: Sequence[str]) -> UsageError:
        """Make the error for words that are neither options nor arguments that the command takes.

        Args:
            ctx: Click's context.
            extra_arguments: Those words.
        """
        _, *arguments = self.collect_usage_pieces(ctx)  # after [OPTIONS]
        taken = "options only"
        if arguments:
            taken = f"{' '.join(arguments)} and options"
        quoted_words = [f"'{public_name(word)}'" for word in extra_arguments[:MAX_QUOTED_WORDS]]
        if len(extra_arguments) > MAX_QUOTED_WORDS:
            quoted_words.append("...")
        noun = "argument"
        if len(extra_arguments) > 1:
            noun = "arguments"
        return UsageError(
            f"unexpected {noun} {' '.join(quoted_words)}: {ctx.command_path} takes {taken}",
            f"see: {ctx.command_path} --help",
        )

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return candidates for a word, without options that are on the line and take one value."""
        complete_names: set[str] = set()
        for name, option in self.options.items():
            if ctx.params.get(name) and option.metavar and not option.is_repeatable:
                complete_names.update(option.names)
        candidates = super().shell_complete(ctx, incomplete)
        return [item for item in candidates if item.value not in complete_names]
