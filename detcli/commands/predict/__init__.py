"""`detcli predict`: boxes from images and videos."""

from collections.abc import Mapping
from typing import Any

import typer

from detcli.cli.command import command
from detcli.cli.console import set_verbosity
from detcli.cli.defaults import defaults_file
from detcli.config.config import Config, Inputs, Runtime, Settings, Verbosity
from detcli.config.outputs import Outputs
from detcli.config.shards import Shards
from detcli.config.watched import Watched
from detcli.core.errors import InputError, UsageError
from detcli.core.opencv import limit_pixels
from detcli.storage.files import output_states


@command(
    Inputs,
    Runtime,
    Settings,
    Watched,
    Outputs,
    Shards,
    Verbosity,
    whole_file=True,
    examples="""
detcli predict street.jpg --save out
detcli predict pics -r --classes person,car -o boxes.csv
detcli predict camera:0 --model codes --conf 0.5
""",
)
def predict(config: Config, value_sources: Mapping[str, str], tuned: Mapping[str, Any]) -> None:
    """Detect objects in images and videos.

    Records go to stdout, everything else to stderr. An input that fails becomes a record with an
    error; the others are completed, and the exit code is 3. A list that is given again adds to the
    earlier one; an option with one value is given once. --no-FLAG turns off a flag that
    detcli.toml, or an earlier word, turns on.
    """
    set_verbosity(quiet=config.verbosity.quiet, verbose=config.verbosity.verbose)
    limit_pixels(config.inputs.max_pixels)
    # Another run may write a file while this one still loads its libraries and its model.
    states_before = output_states(config.outputs.files)
    # These load OpenCV and ONNX Runtime, which --help does not need.
    from detcli.commands.predict.run import predict_here, use_tuned
    from detcli.run import set_up_process

    inputs = config.inputs
    in_shards = config.outputs.in_shards
    if not inputs.source and inputs.files_from is None and not in_shards:
        raise UsageError("no inputs given", "name images or videos, or use --files-from")
    if inputs.fps is not None and "-" not in inputs.source:
        hint = "name - for it; --vid-stride 10 takes every tenth frame of a video"
        raise UsageError("--fps is the rate of frames on standard input, no input here", hint)
    set_up_process()
    if config.watched.track is not None:
        from detcli.analytics.tracks import load_trackers

        load_trackers()
    if in_shards:
        from detcli.commands.predict.shards import predict_shards

        counts = predict_shards(config)
    else:
        # Only here: shards may run on other machines.
        tuned_config = config
        if tuned:
            tuned_config = use_tuned(config, value_sources, tuned)
        try:
            counts = predict_here(tuned_config, states_before)
        except UsageError as error:
            if tuned_config is not config and config.outputs.resume:  # begun without it, perhaps
                error.hint += f"; --device auto does without {defaults_file()}, from detcli tune"
            raise
    if counts.failed:
        raise typer.Exit(InputError.exit_code)
