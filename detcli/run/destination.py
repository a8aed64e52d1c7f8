"""Chooses where the records of a run go, and in which format."""

import os
import stat
import sys
from pathlib import Path

from detcli.config.config import Config
from detcli.config.values import Format, Target
from detcli.core import frozen
from detcli.core.errors import UsageError
from detcli.core.text import is_pipe, is_terminal, public_name
from detcli.sink.formats import (
    FORMATS,
    check_format_options,
    choose_format,
    is_special,
    require_bursts,
)
from detcli.source.names import is_live


@frozen
class Destination:
    """Where the records of a run go, and in which format; chosen before the run begins."""

    format: Format
    target: "Target | None" = None  # None for standard output
    resumed: bool = False  # records go to the file of --resume instead
    endless: bool = False  # the run may never end: records are added to a file, if the format can

    @property
    def show_errors(self) -> bool:
        """Whether failures are visible among the results, on a terminal."""
        return self.format is Format.TABLE and self.target is None and not self.resumed

    @property
    def appends(self) -> bool:
        """Whether records are appended to an existing file, as for a run that may never end."""
        return (
            self.endless
            and isinstance(self.target, Path)
            and FORMATS[self.format].is_appendable
            and not is_special(self.target)
        )

    @property
    def on_terminal(self) -> bool:
        """Whether the records probably appear on a terminal, and so show the progress of the run.

        They do if they go to a terminal. If they go to a pipe, the program that reads it probably
        prints them there: `detcli ... | jq`.
        """
        if self.resumed:  # they go to the file of --resume
            return False
        if self.target is None:
            return is_terminal(sys.stdout) or is_pipe(sys.stdout)
        if not isinstance(self.target, Path):  # an object in a bucket
            return False

        try:
            mode = self.target.stat().st_mode
        except (OSError, ValueError):  # the file does not exist yet, or cannot have such a name
            return False
        is_null_device = str(self.target) == os.devnull  # a character device like terminals
        is_terminal_device = stat.S_ISCHR(mode) and not is_null_device
        is_named_pipe = stat.S_ISFIFO(mode)
        return is_terminal_device or is_named_pipe


def choose_destination(config: Config) -> Destination:
    """Choose where the records of a run go, according to `--output`, `--format` and other options.

    Args:
        config: All options of the run.

    Raises:
        UsageError: The format cannot be written there, or cannot have what was asked for.
        DependencyError: The library for the format is missing.
    """
    outputs = config.outputs
    target = outputs.target
    _refuse_folder(target)
    record_format = choose_format(outputs.format, target)
    has_live_source = any(is_live(name) for name in config.inputs.source)
    destination = Destination(
        format=record_format,
        target=target,
        resumed=outputs.resume is not None,
        endless=config.inputs.follow or has_live_source,
    )
    _require_suitable_format(config, destination)

    if outputs.burst is not None:  # --burst: which photographs are one burst
        _require_output_at_end(destination)
        require_bursts(record_format)
    return destination


def _refuse_folder(target: "Target | None") -> None:
    """Refuse a target of --output that is a folder.

    Raises:
        UsageError: It is one.
    """
    if isinstance(target, Path) and os.path.isdir(target):  # noqa: PTH112 - raises nothing
        raise UsageError(
            f"--output {target} is a folder, and records go to a file",
            f"name a file in it; annotated images go to a folder with --save {target}",
        )


def _require_suitable_format(config: Config, destination: Destination) -> None:
    """Require a format that can hold the records of the run, and can be written to its target.

    Raises:
        UsageError: The format cannot.
        DependencyError: The library for the format is missing.
    """
    outputs = config.outputs
    record_format = destination.format
    # With --resume, records go to a journal in place of the target, and that can hold everything.
    can_hold_provenance = destination.resumed or FORMATS[record_format].has_provenance
    can_hold_streams = destination.resumed or FORMATS[record_format].takes_streams

    if outputs.provenance and not can_hold_provenance:
        raise UsageError(
            f"--provenance is not part of the format {record_format}",
            "add -o FILE.jsonl, --resume FILE or --format jsonl",
        )
    check_format_options(record_format, destination.target, outputs.base)
    if not can_hold_streams:
        _require_file_inputs(config, record_format)


def _require_output_at_end(destination: Destination) -> None:
    """Require, for --burst, that no record has to be written before the run has ended.

    Any later photograph may belong to the burst of an earlier one, so no record can be written
    before all have arrived.

    Raises:
        UsageError: The run may never end, or records go to standard output as they come.
    """
    if destination.endless:
        raise UsageError(
            "--burst takes all records to say which photographs are one burst, and this run may "
            "never end",
            "leave it out, or name folders and files without --follow",
        )
    if destination.target is None:
        raise UsageError(
            "--burst takes all records to say which photographs are one burst, and standard output "
            "gets each as it comes",
            "write them to a file, with -o boxes.jsonl or boxes.csv",
        )


def _require_file_inputs(config: Config, record_format: Format) -> None:
    """Refuse inputs that a format of files cannot name: streams, and names outside --base.

    Raises:
        UsageError: There is one.
    """
    from detcli.sink.megadetector import name_below
    from detcli.source.loading import STDIN

    base = config.outputs.base
    for name in config.inputs.source:
        if is_live(name):
            raise UsageError(
                f"{public_name(name)} is a live stream, and --format {record_format} takes files",
                "write records of streams with -o FILE.jsonl",
            )
        if base is not None and name != STDIN and name_below(name, base) is None:
            raise UsageError(
                f"{public_name(name)} is not below --base {public_name(base)}",
                "name the folder that all inputs are in, as Timelapse's root folder is",
            )
