"""How to continue a run that was interrupted: the commands to type."""

from pathlib import Path
from typing import NamedTuple

from detcli.config.config import Config
from detcli.config.option import options_of, values_of
from detcli.config.rerun import command_to_resume, excluded_by_resume
from detcli.config.values import Format, Target
from detcli.core.text import public_name
from detcli.run.destination import Destination
from detcli.sink.formats import is_special

MERGED = frozenset({"output", "format", "burst", "apply"})
"""Options that --resume excludes, and with which `detcli merge` writes the same afterwards."""


class Continuation(NamedTuple):
    """How to continue a run."""

    sentence: str
    # words of the commands to type one after another; none if the sentence has to suffice
    commands: list[list[str]]


def how_to_continue(config: Config, destination: Destination) -> Continuation:
    """Explain how to continue an interrupted run that was begun without --resume.

    A file of JSON Lines can be continued with --resume, if it has the record of each input that was
    processed. For any other output, a new run is needed.

    Args:
        config: The options of the run.
        destination: Where its records went.
    """
    target = destination.target
    # --burst holds records back until all bursts are known, and --apply drops records.
    may_lack_records = bool(config.outputs.burst or config.outputs.apply)
    if (
        isinstance(target, Path)
        and not is_special(target)
        and destination.format is Format.JSONL
        and not may_lack_records
    ):
        return _continue_file(config, target)
    return _begin_anew(config, target)


def _continue_file(config: Config, file: Path) -> Continuation:
    """Explain how to continue a run's file of JSON Lines with --resume, which it began without."""
    without_flags = _without_excluded(config)
    words = command_to_resume(config, file)
    if words:
        return Continuation(f"continue{without_flags} with", [words])
    sentence = f"with --resume {file} in place of --output, the same command goes on"
    return Continuation(f"{sentence}{without_flags} from here", [])


def _begin_anew(config: Config, target: "Target | None") -> Continuation:
    """Explain how to start a run over with --resume, so that it can be continued next time.

    With --resume it writes JSON Lines. `detcli merge` then turns these into the output that the
    interrupted run should have written.

    Args:
        config: The options of the run.
        target: Its output; None for standard output.
    """
    without_text = _without_excluded(config)  # such as " and without --track", or empty
    resume_file = _unused_jsonl_path(target)
    resume_command = command_to_resume(config, resume_file)
    if not resume_command:  # it would be too long, show a secret, or read standard input again
        sentence = (
            f"this run cannot be continued; one with --resume {resume_file}{without_text} can"
        )
        return Continuation(sentence, [])

    commands = [resume_command]
    merge_command = _merge_command(config, resume_file, target)
    if merge_command:
        commands.append(merge_command)
    return Continuation(f"this run cannot be continued; one{without_text} that can", commands)


def _without_excluded(config: Config) -> str:
    """List a run's options that --resume excludes, as in " without --save-coco"; may be empty."""
    options = options_of(Config)
    values = values_of(config)
    flags = []
    for name in excluded_by_resume():
        if name not in MERGED and values[name] != options[name].default:
            flags.append(options[name].flag)
    if not flags:
        return ""
    return f" without {' and '.join(flags)}"


def _unused_jsonl_path(target: "Target | None") -> Path:
    """Choose the path of a file of JSON Lines that does not exist, beside the file of a run."""
    path = Path("boxes.jsonl")
    if isinstance(target, Path) and not is_special(target):
        path = target.with_suffix(".jsonl")
    stem = path.stem
    number = 1
    while path.exists():
        number += 1
        path = path.with_name(f"{stem}-{number}.jsonl")
    return path


def _merge_command(config: Config, resume_file: Path, target: "Target | None") -> list[str]:
    """Build the `detcli merge` command that turns the file of --resume into the output of a run.

    Args:
        config: The options of the run.
        resume_file: The JSON Lines to read.
        target: The output of the run; None for standard output.

    Returns:
        The words of the command; none if the output is not a file, or its URL has a secret.
    """
    if target is None or (isinstance(target, Path) and is_special(target)):
        return []
    target_name = str(target)
    has_secret = public_name(target_name) != target_name  # a password or token
    if has_secret:
        return []

    options = options_of(Config)
    values = values_of(config)
    words = ["detcli", "merge", str(resume_file)]
    for name in ("format", "base", "burst", "apply"):
        if values[name] is not None:
            words += [options[name].flag, str(values[name])]
    return [*words, "-o", target_name]
