"""Rerun: the command that detects as an earlier run did, to be typed or pasted into a shell."""

from typing import Any

from detcli.config.config import Config
from detcli.config.option import Option, options_of, values_of
from detcli.core.text import public_name


def rerun_words(config: Config) -> list[str]:
    """Write the words of a `detcli predict` that finds the same detections, without its inputs.

    The model and the files of options are named as in the run, so the words fit its folder.

    Returns:
        The words; none if they would have a password or another secret of an address.
    """
    options = options_of(Config)
    values = values_of(config)
    words = ["detcli", "predict", options["model"].flag, str(values["model"])]
    for name, option in options.items():
        value = values[name]
        is_written_apart = name in {"model", "conf", "class_conf"}
        if option.affects_detections and not is_written_apart and value != option.default:
            words += _option_words(option, value)

    # One option has both: --conf 0.25,person=0.5
    confidences = []
    if values["conf"] is not None:
        confidences.append(f"{values['conf']}")
    for class_name, conf in values["class_conf"]:
        confidences.append(f"{class_name}={conf}")
    if confidences:
        words += [options["conf"].flag, ",".join(confidences)]

    has_secret = any(public_name(word) != word for word in words)
    if has_secret:
        return []
    return words


def _option_words(option: Option, value: Any) -> list[str]:  # noqa: ANN401 - of any option
    """Write an option that differs from its default."""
    if value is True:
        return [option.flag]
    if not option.is_list:
        return [option.flag, str(value)]
    if option.separator:
        return [option.flag, option.separator.join(str(item) for item in value)]
    words = []
    for item in value:
        words += [option.flag, str(item)]
    return words
