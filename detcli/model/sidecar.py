"""The files that Hugging Face's Transformers write beside a model, as detcli reads them."""

import hashlib
import json
import math
from dataclasses import field
from pathlib import Path
from typing import NamedTuple, Self

from detcli.core import Fields, frozen
from detcli.core.errors import ModelError
from detcli.model.contract import FOLLOWING, Interpolation, Resize, Size
from detcli.model.preprocessing import MAX_SIDE
from detcli.storage.files import LFS_HINT, LFS_REASON, is_lfs_pointer, open_regular

PREPROCESSOR = "preprocessor_config.json"
CONFIG = "config.json"
CONFIG_KEYS = ("model_type", "id2label")  # a config.json by Transformers has at least one
MAX_BYTES = (1 << 22) - 1  # of either file; names of several thousand classes take far less
MAX_CLASSES = 100_000
HINT = "correct the file, or move the model away from it"

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
PILLOWS_BILINEAR = 2
RESAMPLING = {PILLOWS_BILINEAR: Interpolation.BILINEAR, 3: Interpolation.BICUBIC}
"""Pillow's ids of the filters that detcli has."""
EDGE_PROCESSORS = ("Detr", "Yolos", "ConditionalDetr", "DeformableDetr", "Deta", "GroundingDino")
LONGEST_EDGE = 1333  # their default, where a file names the shortest edge alone
YOLOS_MULTIPLE = 16  # YolosImageProcessor rounds both sides down to a multiple of it

StepFields = dict[str, Fields]
"""Fields of a preprocessing by the step that they belong to."""


@frozen
class Sidecar:
    """What the files beside a model, as Hugging Face's Transformers write them, say about it.

    preprocessor_config.json describes the preprocessing, and config.json the classes.
    """

    sha256: str  # of the names and contents of all files; what was made of them depends on it
    steps: StepFields  # named by the files; none if there is no preprocessor_config.json
    size: Size | None  # height and width of the input, where that is given
    # class names by class id; None where config.json does not name them all
    names: tuple[str, ...] | None
    # of all files, by name
    contents: dict[str, bytes] = field(compare=False, repr=False)

    @classmethod
    def read(cls, model: Path) -> Self | None:
        """Read the files beside a model; None if there are none.

        For a model in a folder `onnx`, the files may lie in the folder above it.
        """
        folder = model.absolute().parent
        sidecar = cls._read_folder(folder)
        if sidecar is None and folder.name == "onnx":
            sidecar = cls._read_folder(folder.parent)
        return sidecar

    def preprocessing_steps(self, *, has_fixed_size: bool) -> tuple[StepFields, Size | None]:
        """Return the steps of the preprocessing that the files name, and the size of the input.

        If the size of the input follows the image by the files, but the graph takes images of one
        size only, the step "resize" and the size are left out, as they cannot be used.

        Args:
            has_fixed_size: Whether the graph takes images of one size only.

        Returns:
            The fields of the preprocessing by step, such as `{"channels": {"bgr": True}}`; height
            and width of the input, or None if the files do not name them.
        """
        fields_of_resize_step = self.steps.get("resize", {})
        resize_method = fields_of_resize_step.get("resize")
        size_follows_image = resize_method in FOLLOWING
        if has_fixed_size and size_follows_image:
            other_steps = dict(self.steps)
            del other_steps["resize"]
            return other_steps, None
        return self.steps, self.size

    @classmethod
    def _read_folder(cls, folder: Path) -> Self | None:
        """Read preprocessor_config.json and config.json of a folder.

        Returns:
            None if the folder has neither, or only a config.json of some other program.

        Raises:
            ModelError: A file cannot be read, or has values that cannot be used.
        """
        contents: dict[str, bytes] = {}  # `_read_object` adds the bytes of each file that it reads
        processor = _read_object(folder / PREPROCESSOR, contents)
        try:
            config = _read_object(folder / CONFIG, contents) or {}
        except ModelError:
            if processor is None:  # the config.json is probably another program's
                return None
            raise
        has_config_of_transformers = not config.keys().isdisjoint(CONFIG_KEYS)
        if processor is None and not has_config_of_transformers:
            return None

        steps: StepFields = {}
        size = None
        if processor is not None:
            steps, size = _read_steps(processor, folder / PREPROCESSOR)
        return cls(
            sha256=_hash_of_files(contents),
            steps=steps,
            size=size,
            names=_names(config.get("id2label")),
            contents=contents,
        )


def _read_steps(processor: Fields, path: Path) -> tuple[StepFields, Size | None]:
    """Translate the fields of a preprocessor_config.json; `path` is for the message of the error.

    Raises:
        ModelError: A field has a value that cannot be used.
    """
    try:
        return _translate_preprocessor(processor)
    except ValueError as error:
        raise ModelError(f"{path}: {error}", HINT) from error


def _hash_of_files(contents: dict[str, bytes]) -> str:
    """Compute one SHA-256 for the names and contents of several files."""
    hashes = []
    for name, content in contents.items():
        hashes.append(f"{hashlib.sha256(content).hexdigest()} {name}")
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def _read_object(path: Path, contents: dict[str, bytes]) -> Fields | None:
    """Read a file that holds a JSON object.

    Args:
        path: The file.
        contents: The bytes of the files read so far, by file name; those of this file are added.

    Returns:
        The object; None if there is no such file.

    Raises:
        ModelError: The file cannot be read, or does not hold a JSON object.
    """
    try:
        with open_regular(path, MAX_BYTES) as file:
            content = file.read()
        parsed = json.loads(content)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}", HINT) from error
    except (ValueError, RecursionError) as error:
        if is_lfs_pointer(content):
            raise ModelError(f"{path} is {LFS_REASON}", LFS_HINT) from error
        raise ModelError(f"{path} is not valid JSON", HINT) from error
    if not isinstance(parsed, dict):
        raise ModelError(f"{path} is not a JSON object", HINT)
    contents[path.name] = content
    return parsed


def _names(labels: object) -> tuple[str, ...] | None:
    """Read the class names of config.json's `id2label`, such as `{"0": "cat", "1": "dog"}`.

    Returns:
        The names in the order of their class ids; None if an id, counted from 0, has no name.
    """
    if not isinstance(labels, dict) or not 0 < len(labels) <= MAX_CLASSES:
        return None
    names = []
    for class_id in range(len(labels)):
        name = labels.get(str(class_id))
        if not isinstance(name, str):
            return None
        names.append(name)
    return tuple(names)


def _translate_preprocessor(fields: Fields) -> tuple[StepFields, Size | None]:
    """Translate the fields of a preprocessor_config.json to detcli's preprocessing.

    Returns:
        The fields of the preprocessing by step, without the steps that detcli cannot do in the same
        way; height and width of the input, or None if the file does not fix them.

    Raises:
        ValueError: A field has a value that cannot be used.
    """
    scale_mean_and_std = _scale_mean_and_std(fields)
    resizing = _resizing_of_images(fields)
    # Pillow's id of the filter by which images are resampled.
    filter_number = PILLOWS_BILINEAR  # if the file names no filter
    if fields.get("resample") is not None:
        filter_number = _whole("resample", fields["resample"], minimum=0)

    steps: StepFields = {}
    if resizing.fields:
        resize_fields = dict(resizing.fields)
        is_padded = resize_fields["resize"] is Resize.CORNER
        # With a scale of 0, all levels become the same value, so the level of the padding does not
        # matter, and it cannot be computed.
        has_scale = scale_mean_and_std["scale"] != 0
        if is_padded and has_scale:
            resize_fields["pad"] = _pad_level(scale_mean_and_std)
        steps["resize"] = resize_fields
    if filter_number in RESAMPLING:
        steps["interpolation"] = {"interpolation": RESAMPLING[filter_number]}
    steps["values"] = scale_mean_and_std
    steps["channels"] = {"bgr": _flag(fields, "do_flip_channel_order", default=False)}
    return steps, resizing.size


def _scale_mean_and_std(fields: Fields) -> Fields:
    """Determine how a preprocessor_config.json scales and normalises the values of pixels.

    Returns:
        Scale, mean and standard deviation, as the fields of a preprocessing.

    Raises:
        ValueError: A field has a value that cannot be used.
    """
    scale = 1.0
    if _flag(fields, "do_rescale"):
        scale = fields.get("rescale_factor", 1 / 255)
        if not _finite(scale):
            raise ValueError("rescale_factor is not a number")

    mean = (0.0, 0.0, 0.0)
    std = (1.0, 1.0, 1.0)
    if _flag(fields, "do_normalize", default="image_mean" in fields):
        mean = _number_for_each_channel(fields, "image_mean", IMAGENET_MEAN)
        std = _number_for_each_channel(fields, "image_std", IMAGENET_STD)
    if 0 in std:
        raise ValueError("image_std has a 0")
    return {"scale": float(scale), "mean": mean, "std": std}


def _pad_level(scale_mean_and_std: Fields) -> int:
    """Choose the level, 0 to 255, of the pixels that pad an image.

    Transformers pads with 0 after the normalisation, detcli before it. So this is the level that
    the normalisation brings closest to 0.
    """
    means = scale_mean_and_std["mean"]
    mean_of_channels = sum(means) / len(means)
    level: int = round(mean_of_channels / scale_mean_and_std["scale"])
    return min(max(level, 0), 255)


class Resizing(NamedTuple):
    """How images are resized and padded to fit the network's input."""

    fields: Fields  # of a preprocessing
    size: Size | None  # height and width of the input; None if they are not fixed


UNCLEAR = Resizing(fields={}, size=None)


def _resizing_of_images(fields: Fields) -> Resizing:
    """Read from a preprocessor_config.json how images are resized and padded to fit the input.

    Its field `size` shows the method:

    - "height" and "width": images are stretched to that size.
    - "max_height" and "max_width": they are scaled to fit into that size, and padded to it.
    - lengths of edges: they are scaled until an edge has its length, and are not padded.

    Returns:
        No fields if detcli cannot resize in this way, or if it is not clear.
    """
    if not _flag(fields, "do_resize"):
        return Resizing(fields={"resize": Resize.NONE}, size=None)

    padded_size = _padded_size(fields)
    size = fields.get("size")
    size_entries = _size_entries(size)
    if size_entries.keys() == {"height", "width"}:
        stretched_size = (_side(size_entries, "height"), _side(size_entries, "width"))
        is_padded_further = padded_size not in {None, stretched_size}
        if is_padded_further:
            return UNCLEAR
        return Resizing(fields={"resize": Resize.STRETCH}, size=stretched_size)

    if padded_size is None:
        return Resizing(fields=_fields_of_edges(fields, size), size=None)

    if size_entries.keys() == {"max_height", "max_width"}:
        size_limit = (_side(size_entries, "max_height"), _side(size_entries, "max_width"))
        if padded_size == size_limit:
            return Resizing(fields={"resize": Resize.CORNER}, size=padded_size)
    return UNCLEAR


def _padded_size(fields: Fields) -> Size | None:
    """Return the height and width to which a preprocessor_config.json pads images; None if none."""
    pad_size = fields.get("pad_size")
    if isinstance(pad_size, dict) and _flag(fields, "do_pad", default=False):
        return _side(pad_size, "height"), _side(pad_size, "width")
    return None


def _size_entries(size: object) -> Fields:
    """Return the entries of a `size` that are not null; none if it is not a JSON object."""
    if not isinstance(size, dict):
        return {}
    return {name: value for name, value in size.items() if value is not None}


def _fields_of_edges(fields: Fields, size: object) -> Fields:
    """Return the fields of the resize step for a `size` that names the lengths of edges.

    Images are scaled until their shortest edge has one length, or their longest edge the other,
    whichever comes first.

    Args:
        fields: All fields of a preprocessor_config.json.
        size: Its field `size`; in old files of the DETR family, the length of the shortest edge.

    Returns:
        The fields of the resize step; empty if the size is given in a different way.
    """
    processor = _processor_type(fields)
    edges = _size_entries(size)
    if isinstance(size, int) and processor.startswith(EDGE_PROCESSORS):
        edges = _size_entries({"shortest_edge": size, "longest_edge": fields.get("max_size")})
    other_entries = edges.keys() - {"shortest_edge", "longest_edge"}
    if "shortest_edge" not in edges or other_entries:
        return {}

    longest = LONGEST_EDGE
    if "longest_edge" in edges:
        longest = _side(edges, "longest_edge")
    shortest = _side(edges, "shortest_edge")
    multiple = 1
    if processor.startswith("Yolos"):
        multiple = YOLOS_MULTIPLE
    return {
        "resize": Resize.SHORTEST_EDGE,
        "edges": (shortest, longest),
        "multiple": multiple,
    }


def _processor_type(fields: Fields) -> str:
    """Return the name of the Transformers class that reads the fields; empty if they lack it."""
    for key in ("image_processor_type", "feature_extractor_type"):
        processor = fields.get(key)
        if isinstance(processor, str):
            return processor
    return ""


def _side(sides: Fields, name: str) -> int:
    """Return the length of a side in pixels from the entries of a `size`."""
    return _whole(f"size, {name}", sides.get(name), minimum=1)


def _whole(name: str, value: object, *, minimum: int) -> int:
    """Check that a value is a whole number from `minimum` to `MAX_SIDE`, and return it.

    `name` is the name of the field, for the message of the ValueError.
    """
    # To Python, True and False are whole numbers as well.
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= MAX_SIDE:
        raise ValueError(f"{name} is not a whole number from {minimum} to {MAX_SIDE}")
    return value


def _flag(fields: Fields, name: str, *, default: bool = True) -> bool:
    """Return a field that is true or false, or the default if it is missing or null."""
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{name} is neither true nor false")
    if value is None:
        return default
    return value


def _number_for_each_channel(
    fields: Fields, name: str, default: tuple[float, float, float]
) -> tuple[float, float, float]:
    """Return a field that holds a number for each channel, or one number for all three.

    Raises:
        ValueError: The field holds something else.
    """
    value = fields.get(name)
    if value is None:
        return default
    if _finite(value):
        return float(value), float(value), float(value)
    is_list = isinstance(value, list | tuple)
    if not is_list or len(value) != 3 or not all(_finite(number) for number in value):
        raise ValueError(f"{name} is neither a number nor three of them")
    return float(value[0]), float(value[1]), float(value[2])


def _finite(value: object) -> bool:
    """True if a value read from JSON is a finite number; true and false are not numbers."""
    try:
        return not isinstance(value, bool) and math.isfinite(value)  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        return False
