"""How the options of two runs differ, in sentences."""

from collections.abc import Container, Mapping
from typing import Any

from detcli.config.config import Config
from detcli.config.option import options_of

MAX_SHOWN = 80  # characters of a value that an error shows


def differences(
    before: Mapping[str, Any], current: Mapping[str, Any], implied: Container[str] = ()
) -> list[str]:
    """Compare the settings of an earlier run with those of this one, and word each difference.

    Only settings that detections depend on are noted. A setting that is noted on one side only was
    new in a later version: if it is an option, the other side had its default; if not, it cannot be
    compared and is left out.

    Args:
        before: The settings of the earlier run, as it noted them.
        current: The settings of this run.
        implied: Names of settings that follow from others, which are not compared.

    Returns:
        Texts such as "conf 0.25 instead of 0.4": the value before and the one now.
    """
    import json  # `--help` does without

    defaults = {}
    options = options_of(Config)
    for name in options:
        if options[name].default is not None:
            defaults[name] = options[name].default
    sentences = []
    for name in {**current, **before}:
        was_noted = name in before or name in defaults
        is_noted = name in current or name in defaults
        if name in implied or not was_noted or not is_noted:
            continue
        earlier_value = before.get(name, defaults.get(name))
        current_value = current.get(name, defaults.get(name))
        if earlier_value == current_value:
            continue
        longest = max(len(str(earlier_value)), len(str(current_value)))
        if name == "model_sha256":
            sentences.append("another file of the model")
        elif longest > MAX_SHOWN:
            sentences.append(f"another {name}")
        else:
            values = f"{json.dumps(earlier_value)} instead of {json.dumps(current_value)}"
            sentences.append(f"{name} {values}")
    return sentences
