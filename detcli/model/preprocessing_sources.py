"""Completes the preprocessing of a model by what its file and the files beside it say.

Each source settles some steps: the rule of the model's family, an exporter's metadata, the
configuration of a preprocessor, the nodes at the graph's input, detcli's own entry in the metadata.
"""

from dataclasses import replace

from detcli.core import frozen
from detcli.core.errors import ModelError, UsageError
from detcli.model.contract import Contract, Interpolation, Preprocessing, Resize, Size
from detcli.model.graph import GraphIndex
from detcli.model.input_nodes import WHITE, InputNodes, read_input_nodes
from detcli.model.inputs import ImageInput
from detcli.model.preprocessing import (
    METADATA_KEY,
    PREPROCESSING_STEPS,
    SIZE,
    named_steps,
    parse,
    require_uint8_values,
    with_fields,
    with_preprocessing_and_sources,
)
from detcli.model.sidecar import PREPROCESSOR, Sidecar

NODES = "nodes at the input"

EXPORTER = "Ultralytics"

EXPORTED = f"metadata of {EXPORTER}' exporter, and the family's rule"

METADATA = f"metadata {METADATA_KEY}"


@frozen
class SettledSteps:
    """A preprocessing, and where each of its steps is known from, as users read it."""

    preprocessing: Preprocessing
    sources: dict[str, str]  # by the step of `PREPROCESSING_STEPS`


def with_preprocessing(
    contract: Contract,
    index: GraphIndex,
    image: ImageInput,
    metadata: dict[str, str],
    sidecar: Sidecar | None,
) -> Contract:
    """Complete a model's contract with the preprocessing that its file and a file beside it name.

    Each source overrides the previous ones: the rule of the model's family, that of Ultralytics'
    exporter or else the preprocessor configuration beside the file, the nodes at the graph's input,
    and detcli's entry in the metadata.

    Args:
        contract: The contract with the preprocessing of the model's family.
        index: The graph.
        image: Its input for images.
        metadata: The metadata in the file.
        sidecar: The preprocessor configuration beside the file, if any.

    Raises:
        ModelError: What is named contradicts itself.
    """
    nodes = read_input_nodes(index, image)
    takes_uint8 = image.dtype == "uint8"
    is_by_ultralytics = bool(contract.preprocessing_sources) and metadata.get("author") == EXPORTER
    entry = metadata.get(METADATA_KEY)

    steps = SettledSteps(contract.preprocessing, dict(contract.preprocessing_sources))
    if nodes.resizes and image.size is None:
        steps = _without_resize(steps)
    if is_by_ultralytics:
        # The family's rule is that of Ultralytics' predictor, which always resizes by OpenCV.
        preprocessing = replace(steps.preprocessing, interpolation=Interpolation.LINEAR)
        steps = SettledSteps(preprocessing, dict.fromkeys(PREPROCESSING_STEPS, EXPORTED))
    elif sidecar is not None:
        steps, size = _override_by_sidecar(steps, sidecar, has_fixed_size=image.size is not None)
        contract = replace(contract, default_size=size or contract.default_size)
    steps = _with_channel_order_of_input(steps, nodes)
    steps = _with_values_of_input(steps, nodes, takes_uint8=takes_uint8)
    if entry:
        steps = _override_by_metadata(steps, entry, takes_uint8=takes_uint8)
    try:
        return with_preprocessing_and_sources(contract, steps.preprocessing, steps.sources)
    except UsageError as error:
        raise ModelError(
            f"the preprocessing that the model names is impossible: {error}",
            "correct its metadata, or the file beside it",
        ) from error


def _without_resize(steps: SettledSteps) -> SettledSteps:
    """Leave out the resize, as for a graph that resizes images by its own nodes."""
    preprocessing = with_fields(steps.preprocessing, {"resize": Resize.NONE})
    sources = steps.sources | {"resize": NODES, "interpolation": NODES}
    return SettledSteps(preprocessing, sources)


def _override_by_sidecar(
    steps: SettledSteps, sidecar: Sidecar, *, has_fixed_size: bool
) -> tuple[SettledSteps, Size | None]:
    """Override steps of a preprocessing by those in the preprocessor configuration beside a model.

    Args:
        steps: The steps so far.
        sidecar: The configuration. Steps that it does not name stay.
        has_fixed_size: Whether the graph takes images of one size only.

    Returns:
        The new steps; and height and width of the input, or None if the configuration does not name
        them.
    """
    preprocessing = steps.preprocessing
    sources = dict(steps.sources)
    fields_by_step, size = sidecar.preprocessing_steps(has_fixed_size=has_fixed_size)
    for step, fields in fields_by_step.items():
        preprocessing = with_fields(preprocessing, fields)
        sources[step] = PREPROCESSOR
    if size:
        sources[SIZE] = PREPROCESSOR
    return SettledSteps(preprocessing, sources), size


def _override_by_metadata(steps: SettledSteps, entry: str, *, takes_uint8: bool) -> SettledSteps:
    """Override steps of a preprocessing by those in detcli's entry in a model's metadata.

    Args:
        steps: The steps so far.
        entry: The entry, in the notation of `--preprocess`.
        takes_uint8: Whether the graph's input takes no values other than 0 to 255.

    Raises:
        ModelError: The entry is malformed.
    """
    try:
        preprocessing = with_fields(steps.preprocessing, parse(entry))
        if takes_uint8:
            require_uint8_values(preprocessing, entry)
    except UsageError as error:
        problem = str(error).replace("--preprocess", METADATA_KEY)
        raise ModelError(
            f"the metadata of the model is malformed: {problem}",
            f"export it again with another {METADATA_KEY}, or without",
        ) from error
    sources = steps.sources | dict.fromkeys(named_steps(entry), METADATA)
    return SettledSteps(preprocessing, sources)


def _with_channel_order_of_input(steps: SettledSteps, nodes: InputNodes) -> SettledSteps:
    """Give a preprocessing the order of channels, RGB or BGR, in which a graph takes images.

    Args:
        steps: How images were prepared for the network in training, and how that is known.
        nodes: What the graph's own nodes do to the image before the network.

    Returns:
        The steps with the order of the graph's input. Mean and standard deviation, which have a
        number for each channel, are in this order too.
    """
    training = steps.preprocessing
    sources = dict(steps.sources)

    if nodes.takes_bgr is not None:
        # The means that the nodes subtract show the order, whatever it was in training.
        takes_bgr = nodes.takes_bgr
        sources["channels"] = NODES
    else:
        # Where the nodes reverse the channels, the input has the order opposite to the training's.
        takes_bgr = training.bgr != nodes.reverses_channels
        if nodes.reverses_channels and "channels" in sources:
            sources["channels"] = NODES

    preprocessing = replace(training, bgr=takes_bgr)
    if takes_bgr != training.bgr:
        reversed_mean = training.mean[::-1]
        reversed_std = training.std[::-1]
        preprocessing = replace(preprocessing, mean=reversed_mean, std=reversed_std)
    return SettledSteps(preprocessing, sources)


def _with_values_of_input(
    steps: SettledSteps, nodes: InputNodes, *, takes_uint8: bool
) -> SettledSteps:
    """Give a preprocessing the range of values that a graph takes, if its nodes change values.

    The nodes may scale or normalise the image, so that this is not to be done before them again.

    Args:
        steps: How images were prepared for the network in training, and how that is known.
        nodes: What the graph's own nodes do to the image before the network.
        takes_uint8: Whether the graph's input takes no values other than 0 to 255.

    Returns:
        The steps after which the nodes give the network the values that it was trained with.
    """
    training_preprocessing = steps.preprocessing
    if not takes_uint8 and not nodes.changes_values:
        return steps

    # Nodes that only scale leave out the normalisation, which is then still to be done before them.
    # That is not possible for whole numbers from 0 to 255.
    has_varying_std = len(set(training_preprocessing.std)) > 1
    was_normalised_in_training = any(training_preprocessing.mean) or has_varying_std
    leaves_normalisation_out = nodes.only_scales and not takes_uint8
    is_training_known = "values" in steps.sources
    if leaves_normalisation_out and was_normalised_in_training and is_training_known:
        return _normalised_before_scaling(steps, gain=nodes.gains[0])

    # Otherwise the graph takes plain values, from 0 for black to the white value, and its nodes do
    # the rest.
    white_value = WHITE if takes_uint8 else nodes.white_value
    sources = dict(steps.sources)
    if white_value is None:
        sources.pop("values", None)  # it is not known which values the graph takes
        return SettledSteps(training_preprocessing, sources)
    sources["values"] = NODES
    plain_preprocessing = replace(
        training_preprocessing,
        scale=white_value / WHITE,
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
    )
    return SettledSteps(plain_preprocessing, sources)


def _normalised_before_scaling(steps: SettledSteps, gain: float) -> SettledSteps:
    """Normalise images for a graph whose own nodes multiply them by a factor afterwards.

    In training, values were (value * scale - mean) / std. With std * gain in place of std, the
    multiplication by the gain has the same result.

    Args:
        steps: How images were prepared for the network in training.
        gain: The factor.
    """
    red, green, blue = steps.preprocessing.std
    scaled_std = (red * gain, green * gain, blue * gain)
    return SettledSteps(
        replace(steps.preprocessing, std=scaled_std), steps.sources | {"values": NODES}
    )
