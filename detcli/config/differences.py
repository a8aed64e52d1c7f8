"""How the options of two runs differ, in sentences."""

from collections.abc import Container, Mapping
from typing import Any

from detcli.config.config import Config
from detcli.config.option import options_of

MAX_SHOWN = 80  # characters of a value that an error shows


def differences(
    before: Mapping[str, Any], current: Mapping[str, Any], implied: Container[str] = ()
) -> list[str]:
    """How what detections depended on differs from what they depend on now, in a sentence each.

    An option that one side does not have yet has its default there; other names that only one side
    has are left out, as an earlier version did not note them. So are those that are `implied` by
    the others now: where these are equal, detections do not depend on them.
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
        earlier = before.get(name, defaults.get(name))
        value = current.get(name, defaults.get(name))
        if earlier == value:
            continue
        if name == "model_sha256":
            sentences.append("another file of the model")
        elif max(len(str(earlier)), len(str(value))) > MAX_SHOWN:
            sentences.append(f"another {name}")
        else:
            sentences.append(f"{name} {json.dumps(earlier)} instead of {json.dumps(value)}")
    return sentences
