"""What the metadata of a model says: sizes, the family, and what is recommended for it."""

import math
from typing import NamedTuple

from detcli.config.config import Settings
from detcli.config.values import BoxFormat, Tiling, parse_conf
from detcli.core.errors import UsageError
from detcli.model.contract import Size, class_conf_by_id
from detcli.model.graph import image_size
from detcli.model.heads import Unrecognised
from detcli.model.inputs import MAX_INPUT

DEFAULT_STRIDE = 32  # of every published YOLO detector with three scales
MAX_STRIDE = 1024
FAMILY_KEY = "detcli.family"
"""The metadata entry that names the family, where `convert` has changed how the graph ends."""
BOX_FORMAT_KEY = "detcli.box_format"  # the metadata entry that says what --box-format said
CONF_KEY = "detcli.conf"  # the metadata entry that recommends a confidence, as `--conf` takes it
TILE_KEY = "detcli.tile"  # the metadata entry that recommends tiles, as `--tile` takes them
NMS_KEY = "detcli.nms"
"""The metadata entry that recommends an IoU, above 0 and at most 1, for the non-maximum suppression
of a one-to-many head."""
FORMS = {
    CONF_KEY: "a number from 0 to 1, or numbers for its classes, as in person=0.5",
    NMS_KEY: "a number above 0 and at most 1",
    TILE_KEY: "a size in pixels, as in 1024,crowd=10",
}
"""What the entries that recommend something must be."""

IGNORED_BY_HEAD = " is ignored: its head gives one box for each object"
"""What a warning says about the entry NMS_KEY if the head needs no suppression."""

DEFAULT_SIZE = (640, 640)

Confidences = tuple[float | None, tuple[tuple[int, float], ...]]
"""The confidence of all classes, if there is one, and those of individual classes by class id."""
NO_CONFIDENCES: Confidences = (None, ())


def default_size_and_stride(metadata: dict[str, str]) -> tuple[Size, int]:
    """Find the size at which to run a graph that takes any size, and the stride of its head.

    Args:
        metadata: The metadata in the model file; Ultralytics' has "imgsz" and "stride".

    Returns:
        Height and width, and the pixels that both must be a multiple of; usual values where the
        metadata does not name them.
    """
    default_size = named_size(metadata) or DEFAULT_SIZE

    strides = _integers_of_entry(metadata.get("stride"), 1)  # usually a single one
    stride = max(strides)
    if not 0 < stride <= MAX_STRIDE:
        stride = DEFAULT_STRIDE
    return default_size, stride


def named_size(metadata: dict[str, str]) -> Size | None:
    """Return height and width of the input that the metadata names; None if it names none."""
    height, width = _integers_of_entry(metadata.get("imgsz"), 2)[:2]
    size = image_size(height, width)
    if size is None or math.prod(size) > MAX_INPUT:
        return None
    return size


def box_format_of(metadata: dict[str, str]) -> BoxFormat | None:
    """Return the format of boxes that the metadata names; None if it names none.

    Raises:
        Unrecognised: It names one that does not exist.
    """
    text = metadata.get(BOX_FORMAT_KEY)
    if not text:
        return None
    if text not in set(BoxFormat):
        raise Unrecognised(f"its metadata {BOX_FORMAT_KEY} says '{text}'")
    return BoxFormat(text)


class Recommended(NamedTuple):
    """What the metadata of a model recommends, or the usual values where it does not."""

    confidences: Confidences
    nms: float | None  # the IoU of non-maximum suppression; None for no suppression
    tiling: Tiling | None
    ignored: list[str]  # a warning for each recommendation that is ignored


def read_recommendations(
    metadata: dict[str, str], usual_iou: float | None, names: tuple[str, ...]
) -> Recommended:
    """Read from the metadata of a model which confidences, IoU and tiles it recommends.

    An entry that cannot be read is ignored with a warning. So is an IoU for a head that needs no
    suppression.

    Args:
        metadata: The metadata in the model file.
        usual_iou: The IoU for non-maximum suppression that is used if the metadata recommends none;
            None if the head needs no suppression.
        names: The names of the model's classes, by class id.
    """
    confidences = _confidences(metadata, names)
    recommended_iou = _iou(metadata)
    tiling = _tiling(metadata)

    warnings = []
    value_by_key = {CONF_KEY: confidences, NMS_KEY: recommended_iou, TILE_KEY: tiling}
    for key, value in value_by_key.items():
        is_unreadable = key in metadata and value is None
        if is_unreadable:
            entry = f"{metadata[key]!r:.80}"
            warnings.append(f"its metadata {key} is {entry}, not {FORMS[key]}, so it is ignored")

    needs_suppression = usual_iou is not None
    if needs_suppression:
        iou = recommended_iou or usual_iou
    else:
        iou = None
        if recommended_iou is not None:
            warnings.append(f"its metadata {NMS_KEY}{IGNORED_BY_HEAD}")
    return Recommended(
        confidences=confidences or NO_CONFIDENCES, nms=iou, tiling=tiling, ignored=warnings
    )


def _tiling(metadata: dict[str, str]) -> Tiling | None:
    """Return the tiles that the metadata recommends; None if it has none that can be read."""
    try:
        return Tiling.parse(metadata.get(TILE_KEY, ""))
    except UsageError:
        return None


def _confidences(metadata: dict[str, str], names: tuple[str, ...]) -> Confidences | None:
    """Read the confidences that the metadata recommends, written as in `--conf 0.4,person=0.5`.

    Args:
        metadata: The metadata in the model file.
        names: The names of the model's classes, by class id.

    Returns:
        None if the metadata recommends none, or they cannot be read.
    """
    try:
        settings = Settings(**parse_conf(metadata.get(CONF_KEY, "")))
        class_conf = class_conf_by_id(settings.class_conf, names)
    except UsageError:
        return None
    return settings.conf, tuple(class_conf.items())


def _iou(metadata: dict[str, str]) -> float | None:
    """Return the IoU for non-maximum suppression that the metadata recommends.

    Returns:
        None if the metadata recommends none, or it is not a number above 0 and at most 1.
    """
    try:
        iou = float(metadata.get(NMS_KEY) or "")
    except ValueError:
        return None
    if 0 < iou <= 1:
        return iou
    return None


def _integers_of_entry(entry: str | None, min_count: int) -> list[int]:
    """Read the integers in an entry of the metadata, such as "32" or "[640, 480]".

    Args:
        entry: The entry; None if the metadata does not have it.
        min_count: How many integers are needed.

    Returns:
        `min_count` integers, or more if the entry has more. A single integer stands for all: "640"
        is read as 640 and 640. If there are too few, they are all 0, which no caller accepts.
    """
    texts = (entry or "").strip("[]() ").split(",")
    integers = [int(text) for text in texts if text.strip().isdecimal()]
    if len(integers) == 1:
        return integers * min_count
    if len(integers) < min_count:
        return [0] * min_count
    return integers
