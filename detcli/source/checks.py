"""Checks: names and options of inputs that cannot be used together, before any input is read."""

import os
from collections.abc import Sequence
from pathlib import Path

from detcli.config.inputs import InputOptions
from detcli.core.errors import UsageError
from detcli.core.text import is_object, public_name
from detcli.source.loading import STDIN
from detcli.source.names import identity, is_media


def check_inputs(names: Sequence[str], inputs: InputOptions) -> None:
    """Require that the names and options of inputs can be used together.

    Args:
        names: What the user named as inputs; "-" is standard input.
        inputs: The options that concern inputs.

    Raises:
        UsageError: Standard input is named twice, its frames have no times that --every needs, or
            a video would end before it starts.
    """
    names_and_list = [*names, inputs.files_from]  # a list of inputs may come on stdin, too
    if names_and_list.count(STDIN) > 1:
        raise UsageError("standard input can be read only once", "name - once")
    if STDIN in names and inputs.every is not None and inputs.fps is None:
        raise UsageError(
            "--every needs the times of frames, which those on stdin have only with --fps",
            "name their rate with --fps, or use --vid-stride",
        )
    if not inputs.start < inputs.end_s:
        raise UsageError(
            f"a video cannot end at {inputs.end_s} s and start at {inputs.start} s",
            "choose an end after the start",
        )


def check_followed(names: Sequence[str], written: Sequence[Path]) -> None:
    """Require that all names are folders, and that the run does not write into any of them.

    With --follow, a run waits for new files in these folders. It would take its own outputs there
    for new inputs, without end.

    Args:
        names: The folders to follow, here or in an object store.
        written: The folders that the run writes into.

    Raises:
        UsageError: A name is not a folder, or the run writes into it.
    """
    written_identities = {identity(path) for path in written}
    for name in names:
        if is_object(name):
            is_folder = not is_media(name)
        else:
            is_folder = os.path.isdir(name)  # noqa: PTH112 - a Path takes an empty name for "."
        if not is_folder:
            raise UsageError(
                f"--follow watches folders, and {public_name(name)} is not one",
                "name a folder, here or in an object store",
            )
        folder_identity = identity(name)
        if folder_identity is not None and folder_identity in written_identities:
            raise UsageError(
                f"--follow would take what is written to {name} for new inputs",
                "write to another folder, which may be in it",
            )
