"""Rerun: commands that repeat a run, to be typed or pasted into a shell."""

from pathlib import Path
from typing import Any

from detcli.config.config import Config
from detcli.config.option import Option, options_of, values_of
from detcli.core.text import public_name


def command_to_rerun(config: Config) -> list[str]:
    """Format a `detcli predict` command that finds the same detections, without its inputs.

    The model and the files of options are named as in the run, so the command works in its folder.

    Returns:
        Its words, from "detcli" on; none if one would have a password or another secret of an
        address.
    """
    options = options_of(Config)
    values = values_of(config)
    words = ["detcli", "predict", options["model"].flag, str(values["model"])]
    for name, option in options.items():
        value = values[name]
        is_written_apart = name in {"model", "conf", "class_conf"}
        if option.affects_detections and not is_written_apart and value != option.default:
            words += _option_arguments(option, value)
    words += _conf_arguments(config)
    return _without_secrets(words)


MAX_WORDS = 60
"""Maximum number in a suggested command; a longer one, from an expanded pattern, is not read."""


def command_to_resume(config: Config, path: Path) -> list[str]:
    """Format a `detcli predict` command that repeats a run, and can be continued.

    Options that --resume excludes are left out.

    Args:
        config: The options of the run, which has no --resume.
        path: The file of --resume.

    Returns:
        Its words, from "detcli" on. There are none where it would not help the user: inputs or
        their names came from standard input, which cannot be read again; there would be very many
        words; or one has a secret.
    """
    options = options_of(Config)
    values = values_of(config)
    reads_stdin = "-" in values["source"] or values["files_from"] == "-"
    if reads_stdin:
        return []

    words = ["detcli", "predict", *values["source"]]
    written_apart = {"source", "conf", "class_conf"}
    replaced_by_resume = {"output", "format", "base"}
    unneeded_names = {*written_apart, *replaced_by_resume, *excluded_by_resume(), "verbose"}
    for name, option in options.items():
        value = values[name]
        if name not in unneeded_names and value != option.default:
            words += _option_arguments(option, value)
    words += _conf_arguments(config)
    words += [options["resume"].flag, str(path)]

    if len(words) > MAX_WORDS:
        return []
    return _without_secrets(words)


def excluded_by_resume() -> list[str]:
    """List the names of the options that cannot be combined with --resume."""
    options = options_of(Config)
    names = [*options["resume"].excludes]
    for name, option in options.items():
        if "resume" in option.excludes:
            names.append(name)
    return names


def _conf_arguments(config: Config) -> list[str]:
    """Format --conf with the confidence of all classes and the per-class ones, if any is set."""
    conf_texts = []
    if config.settings.conf is not None:
        conf_texts.append(f"{config.settings.conf}")
    for class_name, conf in config.settings.class_conf:
        conf_texts.append(f"{class_name}={conf}")
    if not conf_texts:
        return []
    return [options_of(Config)["conf"].flag, ",".join(conf_texts)]


def _without_secrets(words: list[str]) -> list[str]:
    """Return the words of a command; none if one of them has a password or another secret."""
    has_secret = any(public_name(word) != word for word in words)
    if has_secret:
        return []
    return words


def _option_arguments(option: Option, value: Any) -> list[str]:  # noqa: ANN401 - of any option
    """Format an option that differs from its default."""
    if value is True:
        return [option.flag]
    if value is False:
        return [f"--no-{option.flag[2:]}"]
    if not option.is_list:
        return [option.flag, str(value)]
    if option.separator:
        return [option.flag, option.separator.join(str(item) for item in value)]
    words = []
    for item in value:
        words += [option.flag, str(item)]
    return words
