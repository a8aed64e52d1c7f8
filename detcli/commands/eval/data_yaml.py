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
    are_names: bool  # and not numbers, or made up


class ImagePlaces(NamedTuple):
    """Where the images of a part of the data are."""

    folders: list[Path]  # folders of images, and lists of images
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
    """Whether a value is a text, or a list or mapping of texts."""
    elements: Iterable[Any] = value
    if isinstance(value, dict):
        elements = value.values()
    return all(isinstance(element, str) for element in elements)


def category_names(path: Path, content: Mapping[str, Any], class_count: int) -> CategoryNames:
    """Read the names of the categories.

    Without `names` they are called class_0, class_1 and so on: `nc` of them, or as many as the
    model has classes.

    Args:
        path: The file, for errors.
        content: What is in it; nothing for data that is described by no `data.yaml`.
        class_count: The number of the model's classes.

    Raises:
        UsageError: `names` or `nc` are malformed, or contradict each other.
    """
    listed = content.get("names")
    if isinstance(listed, str) and listed not in YAML_NULLS:
        raise UsageError(f"{path}: names is {listed!r}", NAMES_HINT)
    try:
        names = _parse_listed_names(listed)
        count = _parse_count(content.get("nc"))
    except (TypeError, ValueError):
        raise UsageError(
            f"{path}: names or nc are malformed", f"{NAMES_HINT}, and nc their number"
        ) from None
    if not names:
        generated_names = [f"class_{index}" for index in range(count or class_count)]
        return CategoryNames(tuple(generated_names), are_names=False)
    if count is not None and count != len(names):
        reason = f"nc is {count}, but names has {len(names)}"
        raise UsageError(f"{path}: {reason}", "correct one of the two")
    numbers = [str(index) for index in range(len(names))]
    return CategoryNames(tuple(names), are_names=names != numbers)


def _parse_listed_names(listed: object) -> list[str]:
    """Parse the value of `names`, without spaces around the names; an empty list if it is null.

    Raises:
        TypeError: It cannot be written as JSON.
        ValueError: It is neither a list nor a mapping from 0 on.
    """
    if not isinstance(listed, list | dict):
        return []
    names = parse_names(json.dumps(listed))
    if names is None:
        raise ValueError("malformed names")
    return [name.strip() for name in names]


def _parse_count(text: Any) -> int | None:  # noqa: ANN401 - YAML
    """Parse the value of `nc`, the number of categories; None if it is missing or null.

    Raises:
        TypeError: It is a list or a mapping.
        ValueError: It is not the number of categories of any model.
    """
    if text is None or (isinstance(text, str) and text in YAML_NULLS):
        return None
    count = int(text)
    if not 0 <= count < MAX_CLASS:
        raise ValueError("malformed nc")
    return count


def keypoint_count(path: Path, content: Mapping[str, Any]) -> int | None:
    """How many numbers of keypoints follow each box in a line; None for data without keypoints.

    The `kpt_shape` of a `data.yaml` is the number of keypoints, and how many numbers each one has.
    """
    shape = content.get("kpt_shape")
    if shape is None or (isinstance(shape, str) and shape in YAML_NULLS):
        return None
    try:
        count, dimensions = map(int, shape)
    except (TypeError, ValueError):
        count = 0
        dimensions = 0
    if count < 1 or dimensions not in {2, 3}:
        raise UsageError(
            f"{path}: kpt_shape is malformed",
            "make it the number of keypoints, and 2 for x and y or 3 with visibility: [17, 3]",
        )
    return count * dimensions


def places_of_split(path: Path, content: Mapping[str, Any], split: str) -> ImagePlaces:
    """Find the folders and lists of images that a `data.yaml` names for a split of the data.

    Args:
        path: The file.
        content: What is in it.
        split: "train", "val" or "test".

    Raises:
        UsageError: The file names nothing for the split, or what it names does not exist.
    """
    entries = _entries_of_split(path, content, split)
    root = Path(str(content.get("path") or "."))
    # Trainers take `path` from where they run.
    roots = [path.parent / root, Path.cwd() / root, path.parent]
    folders = []
    for entry in entries:
        folder = _existing_folder(entry, roots)
        if folder is None:
            raise UsageError(
                f"{path}: its {split} images do not exist: {roots[0] / entry}",
                "correct path, or run detcli in the folder that path is relative to",
            )
        folders.append(folder)
    return ImagePlaces(folders, roots)


def _entries_of_split(path: Path, content: Mapping[str, Any], split: str) -> list[str]:
    """List the folders or lists of images that a `data.yaml` names for a split of the data.

    Args:
        path: The file, for errors.
        content: What is in it.
        split: "train", "val" or "test".

    Raises:
        UsageError: It names none.
    """
    value = content.get(split) or ""
    texts = value
    if isinstance(value, str):
        texts = [value]
    entries = [text for text in texts if text.strip() not in YAML_NULLS]
    if not entries:
        hint = "name its folder of images"
        splits = [name for name in SPLITS if str(content.get(name) or "") not in YAML_NULLS]
        if splits:
            hint = f"it has {', '.join(splits)}: --split {splits[0]}"
        raise UsageError(f"{path} has no part '{split}'", hint)
    return entries


def _existing_folder(entry: str, roots: Sequence[Path]) -> Path | None:
    """Find a folder or list below one of the roots; None if it is nowhere.

    Exporters write `../val/images` for val/images, so this is looked for, too.
    """
    for spelling in (entry, entry.removeprefix("../")):
        for root in roots:
            path = root / spelling
            if os.path.exists(path):  # noqa: PTH110 - raises nothing
                return path
    return None
