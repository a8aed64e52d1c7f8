"""How the options of two runs differ, in sentences."""

from collections.abc import Container, Mapping
from typing import Any

from detcli.config.config import Config
from detcli.config.option import options_of

MAX_SHOWN = 80  # characters of a value that an error shows


def differences(
    before: Mapping[str, Any], current: Mapping[str, Any], implied: Container[str] = ()
) -> list[str]:
    """Compare the settings of an earlier run with those of this one, and describe each difference.

    Both have only settings that detections depend on. One of the runs may lack a setting, if its
    version of detcli did not have it yet. If that is an option, the run had its default; if not, it
    cannot be compared and is left out.

    Args:
        before: The settings of the earlier run, as it recorded them.
        current: The settings of this run.
        implied: Names of settings that follow from others, which are not compared.

    Returns:
        Strings such as "conf 0.25 instead of 0.4": the earlier value and the current one.
    """
    defaults = {}
    for name, option in options_of(Config).items():
        if option.default is not None:
            defaults[name] = option.default
    all_before = {**defaults, **before}
    all_current = {**defaults, **current}
    sentences = []
    for name in {**current, **before}:
        is_comparable = name in all_before and name in all_current
        if name in implied or not is_comparable:
            continue
        if all_before[name] != all_current[name]:
            sentences.append(_describe_difference(name, all_before[name], all_current[name]))
    return sentences


def _describe_difference(name: str, earlier_value: object, current_value: object) -> str:
    """Describe the difference in a setting; long values and hashes of models are not shown."""
    import json  # `--help` does without

    if name == "model_sha256":
        return "another file of the model"
    longest = max(len(str(earlier_value)), len(str(current_value)))
    if longest > MAX_SHOWN:
        return f"another {name}"
    return f"{name} {json.dumps(earlier_value)} instead of {json.dumps(current_value)}"
