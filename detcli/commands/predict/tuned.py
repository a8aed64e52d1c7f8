"""What `detcli tune --write` found for a model on this machine, in place of the defaults."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from detcli.cli.options import TUNED, defaults_file
from detcli.core.config import Config
from detcli.core.errors import ModelError, UsageError
from detcli.core.options import rows, words
from detcli.core.text import shell_line
from detcli.model.zoo import find
from detcli.run import is_one_picture
from detcli.run.batches import prepare_for
from detcli.run.machine import machine_name
from detcli.source.names import is_live

log = logging.getLogger(__name__)

SETS = ("model", "device", "half", "batch", "workers")
"""The options that a table sets."""

DECIDING = ("device", "half", "cuda_graph", "gpu_mem_limit")
"""Where one of these is given, what was measured without it says nothing."""


def use_tuned(config: Config, given: Mapping[str, str], tables: Mapping[str, Any]) -> Config:
    """A Config with what is the fastest for its model here, as far as options are not given.

    Raises:
        UsageError: A table has something that no option takes.
    """
    try:
        named = find(config.running.model, fetch=False)
    except ModelError:  # which may have to be fetched
        return config
    name, kind = config.running.model, "start" if is_one_picture(config) else "many"
    if any(map(is_live, config.inputs.source)):
        kind = "one"
    found: Any = tables
    for key in (prepare_for(named, config.settings).sha256, machine_name(), kind):
        found = found.get(key) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping):
        log.info("nothing was tuned for %s on this machine", name)
        return config
    if decided := [rows(Config)[one].flag for one in DECIDING if one in given]:
        log.info("what was tuned for %s gives way to %s", name, decided[0])
        return config
    if unknown := {*found} - {*SETS}:
        what = f"{defaults_file()}: [{TUNED}] sets '{unknown.pop()}'"
        raise UsageError(what, "run detcli tune --write again")
    values = {option: rows(Config)[option].read(value) for option, value in found.items()}
    if "model" in values and not Path(values["model"]).exists():
        log.warning("%s, tuned for %s, is gone: run detcli tune --write", values["model"], name)
        return config
    for option in {"batch", "workers"} & given.keys():
        values.pop(option, None)
    tuned = replace(config, running=replace(config.running, **values))
    log.info("tuned for %s on this machine: %s", name, shell_line(words(tuned, values)))
    return tuned
