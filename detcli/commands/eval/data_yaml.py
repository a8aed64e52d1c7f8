"""Reads the `data.yaml` of YOLO's data: where its images are, and its categories.

path, train, val, test   folders or lists of images
names or nc              the categories, or their number
kpt_shape                how many keypoints follow each box
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from detcli.core.errors import UsageError
from detcli.data.saved_record import MAX_CLASS
from detcli.model.contract import parse_names
from detcli.storage.files import read_text

FILE_NAMES = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
SPLITS = ("train", "val", "test")
KEYS = frozenset({"path", "names", "nc", "kpt_shape"}) | set(SPLITS)  # what is read
YAML_NULLS = frozenset({"", "~", "null"})  # as text

FILE_HINT = "give a data.yaml with val (a folder of images) and names (of the classes)"
NAMES_HINT = "make names a list, or a mapping from 0 on"


class CategoryNames(NamedTuple):
    """The names of the categories, in their order."""

    names: tuple[str, ...]
    are_real: bool  # False if they are numbers, or generated


class ImageSources(NamedTuple):
    """Where the images of a part of the data are."""

    paths: list[Path]  # folders of images, and lists of images
    roots: Sequence[Path]  # the folders that names in a list may be relative to


def find_description(folder: Path) -> Path:
    """The `data.yaml` in a folder, or the folder itself."""
    for name in FILE_NAMES:
        path = folder / name
        if path.is_file():
            return path
    return folder


def read_yaml(path: Path) -> Mapping[str, Any]:
    """Read a `data.yaml`. All its values are text, so that a class may be named no."""
    import yaml

    try:
        content = yaml.load(read_text(path), Loader=yaml.BaseLoader)  # noqa: S506 - makes only text
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", FILE_HINT) from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"cannot read {path}: it is not YAML: {reason}", FILE_HINT) from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a data.yaml: it is not a mapping", FILE_HINT)
    # YAML may refer to one list many times, so a few lines may stand for nested lists of any size.
    for key in KEYS & content.keys():
        if not _is_flat(content[key]):
            raise UsageError(f"{path} is not a data.yaml: {key} is nested", FILE_HINT)
    return content


def _is_flat(value: Any) -> bool:  # noqa: ANN401 - YAML
    """Whether a value is a string, or a list or mapping of strings."""
    elements: Iterable[Any] = value
    if isinstance(value, dict):
        elements = value.values()
    return all(isinstance(element, str) for element in elements)


def category_names(path: Path, content: Mapping[str, Any], class_count: int) -> CategoryNames:
    """Read the names of the categories from `names`, or number them if there is no `names`.

    They are then called class_0, class_1 and so on: as many as `nc` says, or else as many as the
    model has classes.

    Args:
        path: The file, for errors.
        content: The values in the file, by key; empty if the data has no `data.yaml`.
        class_count: The number of the model's classes.

    Raises:
        UsageError: `names` or `nc` are malformed, or contradict each other.
    """
    names_value = content.get("names")
    if isinstance(names_value, str) and names_value not in YAML_NULLS:
        raise UsageError(f"{path}: names is {names_value!r}", NAMES_HINT)
    try:
        names = _parse_list_of_names(names_value)
        declared_count = _parse_category_count(content.get("nc"))
    except (TypeError, ValueError):
        raise UsageError(
            f"{path}: names or nc are malformed", f"{NAMES_HINT}, and nc their number"
        ) from None

    if not names:
        generated_names = [f"class_{index}" for index in range(declared_count or class_count)]
        return CategoryNames(tuple(generated_names), are_real=False)

    if declared_count is not None and declared_count != len(names):
        reason = f"nc is {declared_count}, but names has {len(names)}"
        raise UsageError(f"{path}: {reason}", "correct one of the two")

    # Some files have the numbers 0, 1, 2 ... as names, which say nothing about the categories.
    consecutive_numbers = [str(index) for index in range(len(names))]
    are_real = names != consecutive_numbers
    return CategoryNames(tuple(names), are_real)


def _parse_list_of_names(value: object) -> list[str]:
    """Parse `names`, a list or a mapping by index, and strip them; empty for other values.

    Raises:
        TypeError: The value contains something else than text and numbers.
        ValueError: The names are malformed, see `parse_names`.
    """
    if not isinstance(value, list | dict):
        return []
    names = parse_names(json.dumps(value))  # parses text, as in a model's metadata
    if names is None:
        raise ValueError("malformed names")
    return [name.strip() for name in names]


def _parse_category_count(value: Any) -> int | None:  # noqa: ANN401 - YAML
    """Parse the value of `nc`, the number of categories; None if it is missing or null.

    Raises:
        TypeError: The value is a list or a mapping.
        ValueError: The value is not a number, or is outside the range of class ids.
    """
    if value is None or (isinstance(value, str) and value in YAML_NULLS):
        return None
    count = int(value)
    if not 0 <= count < MAX_CLASS:
        raise ValueError("malformed nc")
    return count


def count_keypoint_numbers(path: Path, content: Mapping[str, Any]) -> int | None:
    """Count the numbers that describe keypoints in each line of a label file, after the box.

    That is the product of `kpt_shape` in a `data.yaml`: how many keypoints an object has, and how
    many numbers a keypoint has.

    Args:
        path: The file, for errors.
        content: The values in the file, by key.

    Returns:
        The number, such as 51 for [17, 3]; None for data without keypoints.

    Raises:
        UsageError: `kpt_shape` is malformed.
    """
    shape = content.get("kpt_shape")
    if shape is None or (isinstance(shape, str) and shape in YAML_NULLS):
        return None
    malformed_error = UsageError(
        f"{path}: kpt_shape is malformed",
        "make it the number of keypoints, and 2 for x and y or 3 with visibility: [17, 3]",
    )
    if not isinstance(shape, list):  # a string such as 23 would be read digit by digit
        raise malformed_error
    try:
        keypoint_count, numbers_per_keypoint = map(int, shape)
    except (TypeError, ValueError):
        raise malformed_error from None
    if keypoint_count < 1 or numbers_per_keypoint not in {2, 3}:
        raise malformed_error
    return keypoint_count * numbers_per_keypoint


def find_image_sources(path: Path, content: Mapping[str, Any], split: str) -> ImageSources:
    """Find the folders and lists of images that a `data.yaml` names for a split of the data.

    Args:
        path: The file.
        content: The values in the file, by key.
        split: "train", "val" or "test".

    Raises:
        UsageError: The file names nothing for the split, or what it names does not exist.
    """
    entries = _entries_of_split(path, content, split)
    data_root = Path(str(content.get("path") or "."))
    # `path` may be relative to the file; for trainers, it is relative to the working directory.
    roots = [path.parent / data_root, Path.cwd() / data_root, path.parent]
    source_paths = []
    for entry in entries:
        source_path = _find_below_roots(entry, roots)
        if source_path is None:
            raise UsageError(
                f"{path}: its {split} images do not exist: {roots[0] / entry}",
                "correct path, or run detcli in the folder that path is relative to",
            )
        source_paths.append(source_path)
    return ImageSources(source_paths, roots)


def _entries_of_split(path: Path, content: Mapping[str, Any], split: str) -> list[str]:
    """List the folders or lists of images that a `data.yaml` names for a split, as written there.

    Args:
        path: The file, for errors.
        content: The values in the file, by key.
        split: "train", "val" or "test".

    Raises:
        UsageError: The file names nothing for the split.
    """
    values = content.get(split) or []
    if isinstance(values, str):  # a split may be a single string in place of a list
        values = [values]
    entries = [value for value in values if value.strip() not in YAML_NULLS]
    if entries:
        return entries

    splits_with_images = []
    for name in SPLITS:
        if str(content.get(name) or "") not in YAML_NULLS:
            splits_with_images.append(name)
    hint = "name its folder of images"
    if splits_with_images:
        hint = f"it has {', '.join(splits_with_images)}: --split {splits_with_images[0]}"
    raise UsageError(f"{path} has no part '{split}'", hint)


def _find_below_roots(entry: str, roots: Sequence[Path]) -> Path | None:
    """Find a folder or list below one of the roots; None if it is nowhere.

    Exporters write `../val/images` for val/images, so this is looked for, too.
    """
    for spelling in (entry, entry.removeprefix("../")):
        for root in roots:
            path = root / spelling
            if os.path.exists(path):  # noqa: PTH110 - raises nothing
                return path
    return None
