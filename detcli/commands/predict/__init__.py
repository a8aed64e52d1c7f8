"""`detcli predict`: boxes from images and videos."""

from collections.abc import Mapping
from typing import Any

import typer

from detcli.cli.command import command
from detcli.cli.console import set_verbosity
from detcli.config.config import Config, Runtime, Settings, Verbosity
from detcli.config.inputs import InputOptions
from detcli.config.outputs import Outputs
from detcli.config.shards import Shards
from detcli.config.watched import Watched
from detcli.core.errors import InputError, UsageError
from detcli.core.opencv import limit_pixels
from detcli.storage.files import output_states


@command(
    InputOptions,
    Runtime,
    Settings,
    Watched,
    Outputs,
    Shards,
    Verbosity,
    all_configurable=True,
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
    limit_pixels(config.inputs.max_pixels)  # OpenCV reads this once, when it is loaded below
    # Another run may write a file while this one still loads its libraries and its model.
    states_before = output_states(config.outputs.files)

    # These load OpenCV and ONNX Runtime, which --help does not need.
    from detcli.commands.predict.run import predict_tuned
    from detcli.run import set_up_process

    _require_inputs(config)
    set_up_process()
    _require_libraries(config)

    if config.outputs.in_shards:
        from detcli.commands.predict.shards import predict_shards

        counts = predict_shards(config)
    else:
        counts = predict_tuned(config, value_sources, tuned, states_before)
    if counts.failed:
        raise typer.Exit(InputError.exit_code)


def _require_libraries(config: Config) -> None:
    """Load the optional libraries that a run needs, for trackers and for GIF.

    A missing one is an error before the model is opened.

    Raises:
        DetcliError: A library is missing.
    """
    if config.watched.track is not None:
        from detcli.analytics.tracks import load_trackers

        load_trackers()
    if config.outputs.gif is not None:
        import detcli.sink.gif  # noqa: F401 - raises the error if Pillow is missing


def _require_inputs(config: Config) -> None:
    """Require that there are inputs, and that --fps is used only with frames on standard input.

    A run in shards needs no inputs, as it can continue with those of its manifest.

    Raises:
        UsageError: There are no inputs, or there is --fps without `-`, which is standard input.
    """
    inputs = config.inputs
    has_inputs = bool(inputs.source) or inputs.files_from is not None
    if not has_inputs and not config.outputs.in_shards:
        raise UsageError("no inputs given", "name images or videos, or use --files-from")

    if inputs.fps is not None and "-" not in inputs.source:
        hint = "name - as an input; for videos, --vid-stride 10 takes every tenth frame"
        raise UsageError(
            "--fps needs frames on standard input, but - is not among the inputs", hint
        )
