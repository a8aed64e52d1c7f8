"""Commands from rows: a Typer signature, its help, and how a Config is made of what was given.

    @command(Runtime, override_option("conf", default=0.001), "tile")
    def evaluate(config: Config, data: Path = option(REQUIRED, "--data DATA", "...")):

Typer only cuts the line into texts: rows read them, as they read the same values from variables,
from the user's file and from JSON.
"""

import inspect
import logging
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import Field, fields, is_dataclass, replace
from itertools import chain
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand

from detcli.cli.completion import complete_device, complete_model
from detcli.cli.defaults import (
    TUNED,
    collect_values,
    read_defaults,
    report_sharp_page,
    report_stray_variables,
    sources_of_mentioned,
)
from detcli.cli.help import MOVED, Help
from detcli.config.config import PANELS, Config
from detcli.config.option import (
    REQUIRED,
    Option,
    bind,
    check_combination,
    config_from,
    options_of,
)
from detcli.core.errors import DetcliError, DeviceMemoryError, UsageError

DECIDING = ("device", "half", "cuda_graph", "gpu_mem_limit")
"""Where one of these is given, what was measured without it says nothing."""

RAW_VALUES = "detcli.given"
"""What a command was given, in a context's `meta`: rows, and what is not read yet."""

SECTIONS = ("Arguments", *PANELS, "Options")
"""Of the help, in its order."""

WORTH_LEAVING_OUT = 10
"""From this many unusual options on, -h leaves them out."""


def complete_classes(ctx: Any, incomplete: str) -> list[str]:
    """The classes of the model in the line, or of the usual one, if its file is here."""
    from detcli.model.file import prepare
    from detcli.model.zoo import find

    if ctx.params.get("names"):  # of others
        return []
    logging.disable()  # which would be printed into the line
    row, before = options_of(Config)["model"], incomplete[: incomplete.rfind(",") + 1]
    try:
        given = collect_values({"model": row}, ctx.params, read_defaults()).get("model")
        file = find(given.value if given else row.default, fetch=False)
        names = prepare(file.path).contract.names
    except DetcliError:
        return []
    finally:
        logging.disable(logging.NOTSET)
    return [one for one in (f"{before}{name}" for name in names) if one.startswith(incomplete)]


COMPLETE: Mapping[str, Callable[..., Iterable[str]]] = {
    "blur": complete_classes,
    "classes": complete_classes,
    "device": complete_device,
    "model": complete_model,
}
"""Candidates for values of rows, whose own rooms are below those that know them."""


OptionOverride = tuple[str, Mapping[str, Any]]
"""A row that a command takes with changes, and these."""


def override_option(name: str, **changes: Any) -> OptionOverride:
    """An option for `command`, with another default, help or spelling than in Config."""
    return name, changes


MODEL_ARGUMENT = override_option("model", declaration="MODEL", default=REQUIRED)


def command(
    *takes: type | str | OptionOverride,
    without: str = "",
    whole_file: bool = False,
    from_file: str = "",
    examples: str = "",
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function, whose parameters are options of its own.

    A parameter `config` gets the Config, `value_sources` where each value comes from that the user
    has set, by option, and `tuned` the tables that `detcli tune` wrote. A parameter whose type is a
    dataclass with a field `config` gets the options that are fields of it.

    Args:
        takes: Options of Config: groups, single names, or options with changes.
        without: Names of options of these groups to leave out.
        whole_file: Whether all entries of detcli.toml apply, not only those of shared options.
        from_file: Names of further options whose entries of detcli.toml apply.
        examples: Lines at the end of the help.
    """
    changes = dict(one for one in takes if isinstance(one, tuple))
    wanted = {one[0] if isinstance(one, tuple) else one for one in takes}
    taken = {
        name: replace(row, **changes.get(name, {}))
        for name, row in options_of(Config).items()
        if name not in without.split() and {row.group, name} & wanted
    }

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        given = inspect.signature(function, eval_str=True).parameters
        own = {
            name: bind(one.default, name, one.annotation)
            for name, one in given.items()
            if isinstance(one.default, Field)
        }
        groups: dict[str, Any] = {
            name: one.annotation
            for name, one in given.items()
            if is_dataclass(one.annotation) and one.annotation is not Config
        }
        for group in groups.values():
            own |= {one.name: bind(one, one.name, one.type) for one in _options(group)}
        options = {name: row for name, row in (taken | own).items() if row.declaration}
        shared = {name for name, row in taken.items() if whole_file or row.shared}
        shared |= {*from_file.split()}
        shared -= own.keys()

        def run(context: typer.Context, **typed: Any) -> None:
            entries = read_defaults() if shared else {}
            if shared and not typed.get("quiet"):
                report_stray_variables()
            found = collect_values(
                options, typed, {key: entries[key] for key in shared & entries.keys()}
            )
            is_sharp = "report" in found and "blur" in entries and "blur" not in options
            if is_sharp and not typed.get("quiet"):
                report_sharp_page(context.command_path)
            context.meta[RAW_VALUES] = [(options[name], one) for name, one in found.items()]
            hint = f"see: {context.command_path} --help"
            values = {name: row.default for name, row in (taken | own).items()}
            for name, row in options.items():
                if name in found:
                    value = found[name].value
                    try:
                        values |= (
                            row.parse_fields(str(value))
                            if row.parse_fields
                            else {name: row.parse_value(value)}
                        )
                    except UsageError as error:
                        error.hint = error.hint or MOVED.get(str(value), hint)
                        raise
                elif row.default is REQUIRED:
                    what = f"option '{row.flag}'" if row.names else f"argument '{row.declaration}'"
                    raise UsageError(f"missing {what}", hint)
            of_config = {name: value for name, value in values.items() if name not in own}
            made: dict[str, Any] = {"config": config_from(Config, of_config)}
            made["value_sources"] = {name: one.source for name, one in found.items()}
            made["tuned"] = entries.get(TUNED, {})
            # Also an option that was given its default needs another one.
            check_combination(options, [name for name in found if values[name] is not False])
            for name, group in groups.items():
                parts = {one.name: values[one.name] for one in _options(group)}
                made[name] = group(config=made["config"], **parts)
            function(**{name: made[name] if name in made else values[name] for name in given})

        run.__name__, run.__doc__ = function.__name__, function.__doc__
        parameters = [
            _parameter("context", typer.Context, inspect.Parameter.empty),
            *(_typer_parameter(row, undone=whole_file) for row in options.values()),
        ]
        signature = inspect.Signature(parameters)
        vars(run).update(__signature__=signature, options=options, examples=examples)
        return run

    return decorate


def _options(group: Any) -> list[Field[Any]]:
    return [one for one in fields(group) if "option" in one.metadata]


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def _typer_parameter(row: Option, *, undone: bool) -> inspect.Parameter:
    """What Typer knows of a row: its names, and that it is a text, a list of texts, or a flag."""
    about: dict[str, Any] = {
        "help": row.help_text,
        "show_default": False,
        "rich_help_panel": row.panel,
    }
    complete = row.complete or COMPLETE.get(row.name)
    if complete or row.choices:
        about["autocompletion"] = complete or (
            lambda incomplete: [one for one in row.choices if one.startswith(incomplete)]
        )
    if not row.names:
        kind = cast("Any", list[str] | None if row.is_list else str | None)
        return _parameter(
            row.name, Annotated[kind, typer.Argument(metavar=row.declaration, **about)]
        )
    names = row.names
    kind = cast("Any", list[str] | None)  # all that is typed for it, see `Option.combine`
    if row.value_type is bool:
        kind = bool | None
        if undone or row.default is None:  # the file sets it, or something happens without it
            names = [*names[:-1], f"{row.flag}/--no-{row.flag[2:]}"]
    elif not row.metavar:
        about["count"], kind = True, int | None
    made = typer.Option(*names, metavar=row.metavar or None, **about)
    return _parameter(row.name, Annotated[kind, made])


# The layers: the command line, variables, the user's file


MIN_ADDRESS_SPACE = 1 << 30
"""Bytes of address space with which a small model runs; with less, libraries end the process."""


def _require_addresses() -> None:
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


class Command(Help, TyperCommand):
    """A command whose --help shows its options in panels; its epilog is a list of examples.

    -h shows the usual options alone: those that the table marks, and the command's own.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._is_brief = False
        self.options: dict[str, Option] = getattr(self.callback, "options", {})
        for param in self.params:
            if param.name in self.options:  # else Typer from 0.29 on loads pydantic
                vars(param)["process_value"] = lambda _, value: value

    def invoke(self, ctx: Any) -> Any:
        """Run; an error names the option, and where its value comes from if it was not typed."""
        try:
            if "model" in self.options:
                _require_addresses()
            return super().invoke(ctx)
        except DetcliError as error:
            given = ctx.meta.get(RAW_VALUES, ())
            for row, _ in given:  # the library names its setting: max_det is 0
                error.args = (re.sub(f"^{row.name} is ", f"{row.flag} is ", str(error)),)
            if source := sources_of_mentioned(error, given):
                error.hint = f"{error.hint} ({source})".strip()
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """What follows the command's name."""
        words = (
            row.declaration if row.default is REQUIRED else f"[{row.declaration}]"
            for row in self.options.values()
            if not row.names
        )
        return ["[OPTIONS]", *words]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Note which help is asked for, if any."""
        self._is_brief = "--help" not in args
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Candidates for a word; an option that takes one value and has it is not among them."""
        complete_names: set[str] = set()
        for name, row in self.options.items():
            if ctx.params.get(name) and row.metavar and not row.is_repeatable:
                complete_names.update(row.names)
        candidates = super().shell_complete(ctx, incomplete)
        return [item for item in candidates if item.value not in complete_names]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help: all of it, or with -h what fits on a screen."""
        unusual = [
            name for name, row in self.options.items() if row.names and not row.is_in_brief_help
        ]
        if not self._is_brief or len(unusual) < WORTH_LEAVING_OUT:
            super().format_help(ctx, formatter)
            return
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(self.get_short_help_str())
        self.format_epilog(ctx, formatter)
        arguments, *panels = self._sections(ctx, unusual)
        for title, found in (("Arguments", arguments), ("Options", chain(*panels))):
            with formatter.section(title):
                formatter.write_dl([(name, re.sub("[.;] .*", ".", text)) for name, text in found])
        formatter.write_paragraph()
        formatter.write_text(f"{ctx.command_path} --help shows {len(unusual)} more options.")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the panels, and the options without a panel."""
        for title, found in zip(SECTIONS, self._sections(ctx), strict=True):
            if found:
                with formatter.section(title):
                    formatter.write_dl(found)

    def _sections(self, ctx: Any, left_out: Collection[str] = ()) -> list[list[tuple[str, str]]]:
        """Options and what they do, by SECTIONS."""
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in SECTIONS}
        for param in self.get_params(ctx):
            row = self.options.get(param.name or "")
            if row is None:
                sections["Options"].append(param.get_help_record(ctx) or ("", ""))
            elif row.name not in left_out:
                spelled = row.declaration
                if param.secondary_opts and not left_out:
                    spelled = spelled.replace("--", "--[no-]")
                sections[row.panel if row.names else "Arguments"].append((spelled, row.help_text))
        return [*sections.values()]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the examples."""
        if self.epilog:
            with formatter.section("Examples"):
                formatter.write_text(f"\b\n{inspect.cleandoc(self.epilog)}")  # \b: keep the lines
