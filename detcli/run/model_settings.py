"""Prepares a model according to the settings of a run, and checks and logs whether they suit it."""

import logging

from detcli.config.config import Settings
from detcli.config.values import Tiling
from detcli.core.errors import ModelError, UsageError
from detcli.model.contract import BOXES_OF_MORE, Contract, Layout, Size, class_conf_by_id
from detcli.model.file import ModelFile
from detcli.model.prepared import PreparedModel, prepare
from detcli.model.preprocessing import format_preprocessing

log = logging.getLogger(__name__)


def prepare_for(model: ModelFile, settings: Settings) -> PreparedModel:
    """Read a model file, and prepare its graph to be run.

    Args:
        model: The file.
        settings: What the user says about the model. This overrides or completes what its file
            says: the form of its boxes, how images are prepared for it, and whether only its boxes
            are read (--boxes-only) and not its masks or keypoints.

    Raises:
        ModelError: The model cannot be used.
    """
    prepared = prepare(
        path=model.path,
        box_format=settings.box_format,
        name=model.name,
        preprocess=settings.preprocess,
        boxes_only=settings.boxes_only,
    )
    # A model whose masks or keypoints are left out has a warning that says so.
    has_only_boxes = BOXES_OF_MORE not in prepared.contract.warnings
    if settings.boxes_only and has_only_boxes:
        log.info("--boxes-only leaves nothing out of what this model finds")
    return prepared


def require_preprocessing(prepared: PreparedModel) -> None:
    """Refuse a model that does not say how images are prepared for it.

    Raises:
        ModelError: Steps of the preprocessing are unknown; the message names them.
    """
    unknown_steps = prepared.contract.unknown_preprocessing
    if unknown_steps:
        raise ModelError(
            f"{prepared.name} does not say how images are prepared for it; unknown: "
            f"{', '.join(unknown_steps)}",
            "pass --preprocess, for example "
            "stretch,bilinear,rgb,mean=0.485:0.456:0.406,std=0.229:0.224:0.225",
        )


def require_anchors_for_unique(prepared: PreparedModel, settings: Settings) -> None:
    """Refuse --unique, which takes one class from each anchor, where anchors are not known.

    A graph that selects its detections itself does not say which of them are one anchor's.

    Raises:
        UsageError: The settings ask for it, and the model selects its detections itself.
    """
    if prepared.contract.layout is Layout.ROWS and settings.unique:
        raise UsageError(
            f"--unique: {prepared.name} selects its detections itself, and does not say which "
            "of them are one anchor's",
            "omit it",
        )


def require_suppression_for_agnostic_nms(
    prepared: PreparedModel, settings: Settings, nms_iou: float | None
) -> None:
    """Refuse --agnostic-nms, which is a way of non-maximum suppression, where there is none.

    Args:
        prepared: The model.
        settings: What the user asked for.
        nms_iou: The IoU above which non-maximum suppression drops a box; None for no suppression.

    Raises:
        UsageError: The settings ask for it, and nothing is suppressed.
    """
    if not settings.agnostic_nms or nms_iou is not None:
        return
    if settings.nms == "none":
        raise UsageError(
            "--agnostic-nms: with --nms none, no boxes are compared", "leave one of them out"
        )
    raise UsageError(
        f"--agnostic-nms: {prepared.name} gives one box for each object of a class, and no boxes "
        "are compared",
        "say from which overlap on only the best box stays, with --nms 0.7",
    )


def require_narrower_inputs(contract: Contract, *, keeps_proportions: bool) -> None:
    """Refuse --rect, which runs narrow images on narrow inputs, for a model that cannot do so.

    Args:
        contract: What the model promises.
        keeps_proportions: Whether images are scaled with their proportions and then padded.

    Raises:
        UsageError: The model's input has a fixed size, or images are not padded.
    """
    if contract.input_size is not None:
        height, width = contract.input_size
        raise UsageError(
            f"--rect: this graph takes {width}x{height} images only",
            "omit it, or export the model with dynamic axes",
        )
    if not keeps_proportions:
        raise UsageError(
            f"--rect: images are fitted by {contract.preprocessing.resize}, not padded",
            "omit it",
        )


def require_large_tiles(tiling: Tiling, stride: int, longest_input_edge: int) -> None:
    """Refuse tiles that are smaller than the model's stride.

    The stride is the distance in pixels between the cells of its coarsest grid, so a smaller tile
    has no room for a single cell.

    Args:
        tiling: How images are cut into tiles.
        stride: The model's stride, in pixels.
        longest_input_edge: The longer of height and width of the model's input, in pixels; the
            message suggests a tile of this size.

    Raises:
        UsageError: The tiles are smaller.
    """
    if tiling.size < stride:
        raise UsageError(
            f"--tile {tiling.size}: smaller than the model's stride, {stride}",
            f"use the side of its input, {longest_input_edge}, or more",
        )


def class_confidences(contract: Contract, settings: Settings) -> dict[int, float]:
    """Return the confidence of each class for which one is set separately, by class id.

    The confidences that the user has set for individual classes take precedence. Other classes have
    those that the model recommends for them, unless the user has set a confidence for all classes.

    Raises:
        UsageError: A class is unknown, or has two confidences.
    """
    confidences: dict[int, float] = {}
    if settings.conf is None:
        confidences |= class_conf_by_id(contract.class_conf, contract.names)
    confidences |= class_conf_by_id(settings.class_conf, contract.names)
    return confidences


def log_model(name: str, placement: str, contract: Contract, input_shape: Size) -> None:
    """Log what a model is: its output, boxes, classes and input.

    Args:
        name: Its name.
        placement: Where it runs, such as "cuda:0".
        contract: What it promises.
        input_shape: Height and width of its input.
    """
    height, width = input_shape
    log.info(
        "%s on %s: %s, %s boxes, %d classes (names: %s), input %dx%d %s",
        name,
        placement,
        contract.layout,
        contract.box_format,
        contract.class_count,
        contract.names_origin,
        width,
        height,
        contract.input_dtype,
    )


def log_confidence_and_suppression(
    contract: Contract,
    settings: Settings,
    conf: float,
    class_conf: dict[int, float],
    nms_iou: float | None,
) -> None:
    """Log the confidence and the IoU of suppression, and whether the user or the model set them.

    Args:
        contract: What the model promises, and recommends.
        settings: What the user asked for.
        conf: The confidence of all classes but those in `class_conf`.
        class_conf: The per-class confidences that are set, by class id.
        nms_iou: The IoU above which non-maximum suppression drops a box; None for no suppression.
    """
    conf_text = f"above {conf:g} ({_origin_of(settings.conf, contract.conf)})"
    for class_id, confidence in class_conf.items():
        conf_text += f", {contract.names[class_id]} {confidence:g}"

    nms_text = "none"
    if nms_iou is not None:
        nms_text = f"IoU above {nms_iou:g}"
        if settings.agnostic_nms or contract.class_agnostic:
            nms_text += ", all classes together"
    nms_origin = _origin_of(settings.nms, contract.nms)

    log.info("confidence: %s; non-maximum suppression: %s (%s)", conf_text, nms_text, nms_origin)


def _origin_of(requested: object, recommended: float | None) -> str:
    """Describe where the value of a setting comes from.

    Args:
        requested: What the user asked for; None if nothing.
        recommended: What the model recommends; None if nothing.
    """
    if requested is not None:
        return "as asked for"
    if recommended is not None:
        return "recommended for the model"
    return "usual"


def log_preprocessing(contract: Contract) -> None:
    """Log how images become the network's input, and the source of each step."""
    sources = [f"{step}: {source}" for step, source in contract.preprocessing_sources]
    log.info(
        "preprocessing: %s (%s)",
        format_preprocessing(contract.preprocessing),
        ", ".join(sources) or "nothing settles it",
    )


def log_tiling(tiling: Tiling | None, settings: Settings) -> None:
    """Log the tiles into which large images are cut, if they are, and the source of that."""
    if tiling is not None:
        origin = "recommended for the model"
        if settings.tile:
            origin = "as asked for"
        log.info("tiles: %s (%s)", tiling, origin)
