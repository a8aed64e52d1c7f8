"""What an ONNX file promises: its input, head and classes; its name is not taken into account.

A detector ends in a head: one tensor with four box rows and C class scores for each of N anchors.

| layout          | graph output                     | the head                                |
| --------------- | -------------------------------- | --------------------------------------- |
| end-to-end      | `[B, K, 6]` from two TopK stages | the tensor that feeds the first of them |
| body            | `[B, 4 + C, N]`                  | the output                              |
| transposed body | `[B, N, 4 + C]`                  | the output                              |
| one-to-many     | as a body, either way round      | several boxes per object, for NMS       |
| boxes, scores   | `[B, N, 4]` and `[B, N, C]`      | both, joined by nodes that detcli adds  |
| scales          | box and score maps of each scale | all, decoded by nodes that detcli adds  |
| rows            | detections, selected inside      | `[B, K, 6]`, made by nodes detcli adds  |
"""

import ast
import contextlib
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from detcli.config.config import DEFAULT_CONF
from detcli.config.values import BoxFormat, Tiling
from detcli.core import Fields, frozen
from detcli.core.errors import UsageError
from detcli.core.text import closest, pluralize
from detcli.data.coco import COCO, COCO_IDS
from detcli.storage.files import LFS_HINT, LFS_REASON, is_lfs_pointer, read_text

Size = tuple[int, int]  # height and width, in pixels

UNKNOWN_CLASSES = 1000
"""The number of classes that is assumed where neither a graph nor its metadata shows it.

Their names are numbers.
"""


class Layout(StrEnum):
    """How a graph ends."""

    END_TO_END = "end-to-end"
    BODY = "body"
    TRANSPOSED_BODY = "transposed body"
    ONE_TO_MANY = "one-to-many"
    PAIR = "boxes, scores"
    SCALES = "scales"
    ROWS = "rows"


class ScoreForm(StrEnum):
    """What the values of a head's score rows are."""

    FINAL = "final"
    LOGITS = "logits"  # before a sigmoid


class MultiLabel(StrEnum):
    """Whether an anchor may give a detection for each of several classes."""

    NEVER = "never"  # its best class only
    WITHOUT_NMS = "without NMS"  # non-maximum suppression takes its best class only
    ALWAYS = "always"  # each class is a candidate for non-maximum suppression


class Suppression(StrEnum):
    """What non-maximum suppression does with boxes that overlap a better one of their class."""

    DROP = "drop"  # they are left out
    BLEND = "blend"  # the better one becomes the mean of them all, weighted by their scores


class Resize(StrEnum):
    """How an image is fitted to the network's input."""

    LETTERBOX = "letterbox"  # scaled with its proportions, centred, the rest padded
    CORNER = "corner"  # the same, at the top left, with sides rounded down to whole pixels
    CORNER_NEAREST = "corner-nearest"  # the same, with sides rounded to the nearest pixel
    PAD_FIRST = "pad-first"  # padded to the input's proportions and then scaled, centred
    STRETCH = "stretch"  # to exactly the input's height and width
    SHORTEST_EDGE = "shortest-edge"  # scaled with its proportions; the input is as large as that
    NONE = "none"  # not at all; the input is as large as the image, padded to multiples
    ROUND = "round"  # to the next multiples; the input is as large as that


CORNERS = {Resize.CORNER, Resize.CORNER_NEAREST}
"""Where the image is scaled with its proportions and placed at the top left."""

FOLLOWING = {Resize.SHORTEST_EDGE, Resize.NONE, Resize.ROUND}
"""Where the input's size follows the image's."""


class Interpolation(StrEnum):
    """How an image is resampled."""

    LINEAR = "linear"  # cv2.INTER_LINEAR: two pixels along each axis, whatever the scale
    BILINEAR = "bilinear"  # a triangle that widens as an image shrinks, as Pillow's BILINEAR
    CUBIC = "cubic"  # cv2.INTER_CUBIC: four pixels, whatever the scale
    AREA = "area"  # cv2.INTER_AREA: the mean of what a pixel covers, where an image shrinks
    BICUBIC = "bicubic"  # a cubic that widens in the same way, as Pillow's BICUBIC


@frozen
class Preprocessing:
    """How an image becomes the network's input.

    A channel's uint8 value v becomes (v * scale - mean) / std in the model input.
    """

    resize: Resize = Resize.LETTERBOX
    interpolation: Interpolation = Interpolation.LINEAR
    scale: float = 1 / 255
    # subtracted from each channel, in the order of the model input
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)

    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    bgr: bool = False  # channels are blue, green, red instead of red, green, blue
    pad: int = 114
    # for LETTERBOX and CORNERS, the maximum height and width of a resized image in pixels, where
    # the input is larger
    longest: int | None = None
    # for LETTERBOX and CORNERS, the largest factor by which a small image is enlarged, at least 1
    enlarge: float | None = None
    # for SHORTEST_EDGE, the length of the shorter edge and the maximum length of the longer one
    edges: tuple[int, int] | None = None
    multiple: int = 1  # for SHORTEST_EDGE, height and width are rounded down to a multiple of it


BOXES_OF_MORE = "its masks or keypoints are left out"
"""The warning of a contract that `--boxes-only` reads in part."""


@frozen
class Contract:
    """What a graph promises: how to feed it an image and how to read its head."""

    layout: Layout
    head: str  # name of the head tensor in the graph that runs
    anchors_first: bool  # whether the head is `[B, N, 4 + C]` instead of `[B, 4 + C, N]`
    box_format: BoxFormat
    class_count: int
    anchor_count: int | None  # N, or None where it depends on the input size
    input_name: str  # name of the image input, `[B, 3, H, W]`, RGB from 0 to 1
    input_dtype: str  # "float32" or "float16"
    batch: int | None  # B, or None where any batch is accepted
    input_size: Size | None  # None where the graph accepts any
    default_size: Size
    stride: int  # pixels that height and width must be a multiple of
    names: tuple[str, ...]  # class names by class id, C of them
    names_origin: str
    counts_classes: bool = True  # the graph shows C; where it does not, C is the number of names
    family: str = ""  # name of the row of `detcli.model.families` that it was recognised by
    # the tensors of the file's graph that the head is made of; empty where it is one of that
    # graph's
    heads: tuple[str, ...] = ()
    # the box rows are fractions of the input's width and height, not pixels
    box_fractions: bool = False
    score_form: ScoreForm = ScoreForm.FINAL
    multi_label: MultiLabel = MultiLabel.WITHOUT_NMS
    # the maximum number of detections that its family takes from an image; None for any number
    max_detections: int | None = None
    within_anchors: bool = False  # no more detections than the head has anchors
    clips: bool = True  # boxes are clipped to the image, as in its family
    conf: float | None = None  # the confidence that the model's metadata recommends, if any
    class_conf: tuple[tuple[int, float], ...] = ()  # and those of individual classes, by class id
    tile: Tiling | None = None  # the tiles that it recommends
    # the IoU for non-maximum suppression, unless the user says otherwise: the metadata's or the
    # family's; None where there is one box for each object
    nms: float | None = None
    class_agnostic: bool = False  # NMS compares boxes of all classes, not only of the same class
    suppression: Suppression = Suppression.DROP
    preprocessing: Preprocessing = Preprocessing()
    # the file's input holds whole numbers: an image's uint8 values, as they are
    takes_uint8: bool = False
    # steps of the preprocessing, and where each is known from
    preprocessing_sources: tuple[tuple[str, str], ...] = ()
    # steps of the preprocessing that no source states; they are as in a YOLO
    unknown_preprocessing: tuple[str, ...] = ()
    # steps that nothing in the file states, and what is assumed of each
    assumed_preprocessing: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def follows_image(self) -> bool:
        """True if the size of the input depends on the image's."""
        return self.preprocessing.resize in FOLLOWING

    def input_shape(self, image_size: int | None = None) -> Size:
        """Return height and width of the network's input.

        Args:
            image_size: The side length of a square input that the user asked for, if any.

        Returns:
            Height and width, in pixels. If the input follows the size of each image, they are the
            largest that it can have.

        Raises:
            UsageError: The graph cannot run at the size that the user asked for.
        """
        if self.follows_image:
            return self._largest_shape_for_images(image_size)
        if image_size is None:
            return self.input_size or self.default_size
        if self.input_size is not None and self.input_size != (image_size, image_size):
            height, width = self.input_size
            raise UsageError(
                f"imgsz {image_size}: this graph takes {width}x{height} images only",
                "leave imgsz out, or export the model with dynamic axes",
            )
        if image_size % self.stride:
            lower = max(image_size // self.stride, 1) * self.stride
            raise UsageError(
                f"imgsz {image_size} is not a multiple of the model's stride, {self.stride}",
                f"use {lower} or {lower + self.stride}",
            )
        return image_size, image_size

    def _largest_shape_for_images(self, image_size: int | None) -> Size:
        """Return the largest height and width of an input whose size depends on the image.

        Args:
            image_size: The side length of a square input that the user asked for, if any.

        Raises:
            UsageError: The user asked for a side length, but the image decides it.
        """
        if image_size is not None:
            edges = "shortest-edge=MIN:MAX"
            if self.preprocessing.multiple > 1:
                edges += f",multiple={self.preprocessing.multiple}"
            raise UsageError(
                f"imgsz {image_size}: this model's input follows the size of each image",
                f"leave imgsz out; --preprocess {edges} sets its edges",
            )
        if self.preprocessing.edges is None:
            return self.default_size
        _, longest = self.preprocessing.edges
        return longest, longest

    def counts_best_class(self, nms: float | None, *, unique: bool = False) -> bool:
        """Return whether an anchor gives a detection of its best class only.

        Otherwise it may give one for each class whose score is high enough. This is assumed where
        the graph selects detections itself, as they do not show which anchor they come from.

        Args:
            nms: The IoU of non-maximum suppression; None if there is none.
            unique: Whether the user asked for the best class alone, by `--unique`.
        """
        is_selected_by_graph = self.layout is Layout.ROWS
        if is_selected_by_graph:
            return False
        if unique or self.multi_label is MultiLabel.NEVER:
            return True
        if self.multi_label is MultiLabel.ALWAYS:
            return False
        # What remains is `WITHOUT_NMS`: several classes of an anchor are kept without suppression.
        return nms is not None

    def with_names(self, names: tuple[str, ...], origin: str) -> Self:
        """Return the contract with other class names.

        If the graph does not show how many classes there are, the names do.

        Args:
            names: The names, by class id.
            origin: Where they come from, for messages.

        Raises:
            UsageError: The graph shows a different number of classes.
        """
        if not self.counts_classes:
            return replace(self, names=names, names_origin=origin, class_count=len(names))
        if len(names) != self.class_count:
            raise UsageError(
                f"{origin} has {pluralize(len(names), 'name')}, the model has "
                f"{pluralize(self.class_count, 'class')}",
                "give one name for each class id, in order",
            )
        return replace(self, names=names, names_origin=origin)

    @property
    def min_conf(self) -> float:
        """The lowest confidence above which detections of any class are kept by default."""
        conf = DEFAULT_CONF if self.conf is None else self.conf
        for _, class_conf in self.class_conf:
            conf = min(conf, class_conf)
        return min(conf, 1)

    @classmethod
    def from_json(cls, fields: Fields) -> Self:
        """Return the contract whose fields were written to JSON with `dataclasses.asdict`."""
        values = _from_json(fields)
        values["preprocessing"] = Preprocessing(**_from_json(fields["preprocessing"]))
        return cls(**values)


# By field name, the function that converts the value from JSON; `_tuples` for other fields.
FROM_JSON: dict[str, Callable[[Any], Any]] = {
    "tile": lambda fields: fields and Tiling(**fields),
    "layout": Layout,
    "box_format": BoxFormat,
    "score_form": ScoreForm,
    "multi_label": MultiLabel,
    "suppression": Suppression,
    "resize": Resize,
    "interpolation": Interpolation,
}


def _from_json(fields: Fields) -> Fields:
    """Convert fields that were read from JSON to the types that JSON does not have.

    These are the values of enumerations, tuples and tilings, which are strings, lists and objects
    there.
    """
    values = {}
    for name, value in fields.items():
        convert = FROM_JSON.get(name, _tuples)
        values[name] = convert(value)
    return values


def _tuples(value: Any) -> Any:  # noqa: ANN401 - of JSON
    """Turn lists of JSON, including nested ones, back into tuples; keep other values."""
    if isinstance(value, list):
        return tuple(_tuples(entry) for entry in value)
    return value


COCO_FROM = {91: 0, 90: 1}
"""COCO's id of the first class, by the number of classes, in models that keep unused ids.

DETR, RF-DETR and torchvision begin at 0, which is unused; TensorFlow's models at 1.
"""

METADATA = "the model's metadata"  # the origin of names that the model itself provides

MAX_TEXT = 1 << 20
"""Characters of all names, as Python's parser takes hundreds of bytes for each.

The 20,000 names of ImageNet take half of it.
"""

MAX_NAME = 1000  # characters of a name

NOT_A_LITERAL = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)


def parse_names(text: str) -> list[str] | None:
    """Read the names of classes from a string that holds a list, or a mapping by class id.

    The string is in JSON or Python notation: exporters write `{0: 'person', 2: 'car'}` to the
    metadata of a model. In this example, the missing class 1 is named "class_1".

    Returns:
        The names, by class id; None if the string is something else.
    """
    if len(text) > MAX_TEXT:
        return None
    value = _parse_literal(text)
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return None
    try:
        names_by_id = {int(key): str(name) for key, name in value.items()}
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    if not names_by_id or min(names_by_id) < 0:
        return None
    # A single large id would take much memory for the names of the ids that are missing.
    if max(names_by_id) >= 2 * len(names_by_id) + 100:
        return None
    if any(len(name) > MAX_NAME for name in names_by_id.values()):
        return None
    class_count = max(names_by_id) + 1
    return [names_by_id.get(class_id, f"class_{class_id}") for class_id in range(class_count)]


def _parse_literal(text: str) -> Any:  # noqa: ANN401 - whatever it says
    """Return the value that a string has in JSON or Python notation; None for any other string."""
    try:
        return json.loads(text)
    except ValueError:
        with contextlib.suppress(*NOT_A_LITERAL):
            return ast.literal_eval(text)
    except RecursionError:
        pass
    return None


class NamesWithOrigin(NamedTuple):
    """The names of a model's classes, by class id."""

    names: tuple[str, ...]
    origin: str  # where they come from, for messages
    warnings: tuple[str, ...] = ()


def class_names(text: str, count: int, usual: tuple[str, ...] = ()) -> NamesWithOrigin:
    """Find the names of a model's classes, and where they come from.

    They are those in the metadata. If it has none, they are those of the model's family, or COCO's,
    if the number of classes matches; or else "class_0", "class_1" and so on.

    Args:
        text: The names in the metadata, as `parse_names` reads them; may be empty.
        count: The number of classes that the graph shows.
        usual: The names that all models of the family have, if they have the same.
    """
    names = parse_names(text)
    if names and len(names) == count:
        return NamesWithOrigin(tuple(names), METADATA)
    if names:
        warning = f"the metadata names {pluralize(len(names), 'class')}, the graph has {count}"
        missing_names = [f"class_{class_id}" for class_id in range(len(names), count)]
        return NamesWithOrigin(tuple(names[:count] + missing_names), METADATA, (warning,))
    if count == len(usual):
        return NamesWithOrigin(usual, "the family's, since the model names none")
    if count == len(COCO):
        return NamesWithOrigin(COCO, "COCO, since the model names none of its 80 classes")
    if count in COCO_FROM:
        origin = f"COCO by its numbers, since the model names none of its {count} classes"
        return NamesWithOrigin(_names_by_coco_ids(count), origin)
    numbered_names = [f"class_{class_id}" for class_id in range(count)]
    return NamesWithOrigin(tuple(numbered_names), "numbers, since the model names none")


def _names_by_coco_ids(count: int) -> tuple[str, ...]:
    """Return the names of classes that have COCO's ids, which leave some numbers out.

    COCO has 80 classes, with ids from 1 to 90; models may output scores for the unused ids, too.

    Args:
        count: The number of classes of the model, which is a key of COCO_FROM.
    """
    names_by_number = dict(zip(COCO_IDS, COCO, strict=True))
    first_number = COCO_FROM[count]
    names = []
    for class_id in range(count):
        names.append(names_by_number.get(first_number + class_id, f"class_{class_id}"))
    return tuple(names)


def read_names(path: Path) -> tuple[str, ...]:
    """Read a names file: one name per line in class id order, or JSON (a list or a mapping).

    An empty line between the names stands for a class without a name: if it is the third line, the
    class with the id 2 is named "class_2".

    Raises:
        UsageError: The file cannot be read or has no names.
    """
    hint = "give a text file with one class name per line, or a JSON list"
    text = _text_of_names_file(path, hint)

    is_json = text.lstrip().startswith(("{", "["))
    if is_json:
        names = parse_names(text)
    else:
        lines = text.rstrip().splitlines()
        names = [line.strip() or f"class_{class_id}" for class_id, line in enumerate(lines)]
    if not names:
        raise UsageError(f"no class names in {path}", hint)
    return tuple(names)


def _text_of_names_file(path: Path, hint: str) -> str:
    """Read the text of a names file.

    Args:
        path: The file.
        hint: What an error suggests, unless the file is a pointer of Git LFS.

    Raises:
        UsageError: The file cannot be read or is not UTF-8 text.
    """
    try:
        text = read_text(path)
    except OSError as error:
        raise UsageError(f"cannot read names from {path}: {error.strerror}", hint) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"cannot read names from {path}: it is not UTF-8 text", hint) from error
    except ValueError as error:  # no file can have such a path
        raise UsageError(f"no file can be named {str(path)!r}", hint) from error

    if is_lfs_pointer(text.encode()):
        raise UsageError(f"{path} is {LFS_REASON}", LFS_HINT)
    if "\0" in text:
        reason = "it holds NUL characters, as UTF-16 without a byte order mark does"
        raise UsageError(f"cannot read names from {path}: {reason}", hint)
    return text


SYNONYMS = (
    {"person", "people", "human", "pedestrian", "man", "woman"},
    {"bicycle", "bike"},
    {"motorcycle", "motorbike"},
    {"airplane", "aeroplane", "plane"},
    {"truck", "lorry"},
    {"couch", "sofa"},
    {"tv", "television", "tvmonitor"},
    {"cell phone", "phone", "mobile"},
    {"aruco", "apriltag", "marker"},
)
"""Groups of names for the same class, as people or other data sets use them."""


def class_ids(classes: Iterable[str | int], names: tuple[str, ...]) -> frozenset[int] | None:
    """Return the ids of classes that a user named.

    Args:
        classes: The classes, by name or by id; several classes may have the same name.
        names: The model's names of classes, by class id.

    Returns:
        The ids; None if the user named no class, which means all.

    Raises:
        UsageError: The model has no such class.
    """
    ids: set[int] = set()
    for name_or_id in classes:
        if name_or_id in names:
            ids.update(class_id for class_id, name in enumerate(names) if name == name_or_id)
        elif str(name_or_id).isdecimal() and int(name_or_id) < len(names):
            ids.add(int(name_or_id))
        else:
            hint = _class_hint(str(name_or_id), names)
            raise UsageError(f"the model has no class '{name_or_id}'", hint)
    return frozenset(ids) or None


def _class_hint(text: str, names: tuple[str, ...]) -> str:
    """Return a hint for a class that the model does not have.

    It suggests a name that means the same or is spelled similarly, or lists the first of all names.

    Args:
        text: What the user called the class.
        names: The model's names of classes.
    """
    suggestion = _synonym(text, names) or closest(text, names)
    if suggestion:
        return f"did you mean {suggestion}?"
    ellipsis = ", ..." if len(names) > 10 else ""
    return f"its {len(names)} classes are: {', '.join(names[:10])}{ellipsis}"


def _synonym(text: str, names: tuple[str, ...]) -> str | None:
    """Find the first of a model's names that means the same as a string; None if there is none."""
    synonyms: set[str] = set()
    for group in SYNONYMS:
        if text.lower() in group:
            synonyms |= group
    for name in names:
        if name in synonyms:
            return name
    return None


def class_conf_by_id(
    class_conf: Iterable[tuple[str | int, float]], names: tuple[str, ...]
) -> dict[int, float]:
    """Return the confidences of individual classes, by class id.

    If several classes have the same name, that name sets the confidence of all of them.

    Args:
        class_conf: Classes, by name or by id, each with its confidence.
        names: The model's names of classes, by class id.

    Raises:
        UsageError: The model has no such class, or one has two confidences.
    """
    confidences: dict[int, float] = {}
    for name_or_id, confidence in class_conf:
        # `class_ids` returns None only if no class is named.
        ids_of_class = class_ids([name_or_id], names) or frozenset()
        for class_id in sorted(ids_of_class):
            if class_id in confidences:
                raise UsageError(
                    f"--conf has two numbers for {names[class_id]}: "
                    f"{confidences[class_id]:g} and {confidence:g}",
                    "name the class once, by its name or its id",
                )
            confidences[class_id] = confidence
    return confidences


def conf_thresholds(
    conf: float, class_conf: Iterable[tuple[str | int, float]], names: tuple[str, ...]
) -> npt.NDArray[np.float32]:
    """Return what the score of each class must exceed.

    Args:
        conf: The confidence of classes that have none of their own.
        class_conf: Classes, by name or by id, each with its own confidence.
        names: The model's names of its C classes, by class id.

    Returns:
        `(C,)` float32.

    Raises:
        UsageError: The model has no such class, or one has two confidences.
    """
    thresholds = np.full(len(names), conf, np.float32)
    for class_id, threshold in class_conf_by_id(class_conf, names).items():
        thresholds[class_id] = threshold
    return thresholds
