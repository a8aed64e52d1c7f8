"""Datasets to train on: images with labels, as YOLO's trainers read them.

https://docs.ultralytics.com/datasets/detect/
"""

import contextlib
import json
import logging
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from detcli.core.errors import OutputError, UsageError, system_reason
from detcli.core.text import escape_unprintable
from detcli.data.geometry import Image
from detcli.data.per_video import PerVideo
from detcli.data.record import Record, notes_of
from detcli.model.contract import parse_names
from detcli.sink.image import SAVED_IMAGE_SUFFIXES, encode
from detcli.sink.input_names import stem
from detcli.sink.labels import label_text
from detcli.sink.unique_names import UniqueNames
from detcli.storage.file_names import safe
from detcli.storage.files import locked, make_folder, read_text, write_file

log = logging.getLogger(__name__)

# Formats that trainers open, by how their files begin; others are encoded again, as PNG.
SUFFIX_BY_BEGINNING = {
    re.compile(rb"\xff\xd8\xff"): ".jpg",
    re.compile(rb"\x89PNG"): ".png",
    re.compile(rb"RIFF....WEBP", re.DOTALL): ".webp",
    re.compile(rb"BM"): ".bmp",
    re.compile(rb"II\*\0|MM\0\*"): ".tif",
    re.compile(rb"....ftypavi[fs]", re.DOTALL): ".avif",
}

HEADER = """\
# Labels by {model}, to be checked. Both parts are the same images: set some aside for val.
"""


class DatasetSink:
    """Writes each image or frame with its labels, and a description of the whole.

    The dataset only grows. An image that it has already, by name and content, keeps its labels,
    which may have been corrected; a different image of that name gets a number. The description
    comes first and an image after its labels, so whenever a run ends, the dataset is complete. An
    input that failed is not part of it; one without detections is, with an empty file of labels,
    which trainers take as background.

    Several runs may add to it at the same time: each holds a lock while it chooses a name and
    writes an image with its labels.

    Raises:
        UsageError: The folder has a dataset with different classes.
        OutputError: The folder cannot be written to.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        """Make the folders of the dataset, or continue the existing one.

        Args:
            path: The folder of the dataset.
            names: The names of the model's classes, in the order of their ids.
        """
        self._path = path
        self._class_names = names
        self._has_description = self._is_described()
        for folder in (path / "images", path / "labels"):
            if os.path.islink(folder):  # noqa: PTH114 - raises nothing
                raise OutputError(f"{folder} is a link out of the dataset", "remove it")
            make_folder(folder)
        self._real_path = make_folder(path)  # without links; below it, none is followed
        self._names = UniqueNames()
        # What the names of a video's frames begin with: its unique name in the dataset.
        self._prefixes = PerVideo(lambda record: self._names.choose_prefix(_plain_name(record)))
        self._present_count = 0  # images that already existed

    def write(self, record: Record) -> None:
        """Write the image of a record and its labels, unless the dataset has the image already.

        Labels come first: a run that is killed in between leaves no image without labels.
        """
        if record.picture is None or record.detections is None:
            return
        image_bytes, suffix = _image_file(record, record.picture)
        labels = label_text(record.picture, record.detections).encode()
        with locked(self._real_path):  # other runs may add to the dataset
            if not self._has_description:
                self._write_description(record.model)
            name = self._choose_name(record, suffix, image_bytes)
            image_file = f"images/{name}{suffix}"
            # A different image would have led to a different name.
            has_this_image = (self._real_path / image_file).exists()
            if has_this_image:
                self._present_count += 1
                return
            self._write_file(record, f"labels/{name}.txt", labels)
            self._write_file(record, image_file, image_bytes)

    def close(self) -> None:
        """Log how many images were not written because they already existed."""
        if self._present_count:
            log.warning(
                "%s had %d of the images already; their labels are as they were",
                self._path,
                self._present_count,
            )

    def _write_file(self, record: Record, file: str, content: bytes) -> None:
        """Write a file of a record, by its path in the dataset, and list it as saved."""
        write_file(self._real_path / file, content)
        notes_of(record).saved.append(self._path / file)

    def _is_described(self) -> bool:
        """Return whether the dataset has its description, `data.yaml`.

        Raises:
            UsageError: It describes a dataset with different classes.
        """
        description = self._path / "data.yaml"
        if not os.path.lexists(description):
            return False
        if _described_names(description) != [*self._class_names]:
            raise UsageError(
                f"--save-dataset: {description} does not list the classes of this model",
                "name another folder",
            )
        return True

    def _choose_name(self, record: Record, suffix: str, image_bytes: bytes) -> str:
        """Choose the name of an image in the dataset, without a suffix.

        An image is named after its input, `bus`, and a frame after its video, with the number of
        the frame: `film_17`. Where a different image has the name already, a number is added:
        `bus-2` or `film_17_2`.

        Args:
            record: The record of the image.
            suffix: The suffix of its file.
            image_bytes: The content of its file.
        """

        def is_usable(name: str) -> bool:
            return self._is_usable(name, suffix, image_bytes)

        frame_number = record.origin.frame
        if frame_number is None:
            # Without a suffix, so that images of different types have different names, as their
            # labels need.
            return self._names.choose_file_name(_plain_name(record), "", is_usable)

        prefix_of_video = self._prefixes.state_of(record)
        name_of_frame = f"{prefix_of_video}_{frame_number}"
        name = name_of_frame
        number = 1
        while not is_usable(name):
            number += 1
            name = f"{name_of_frame}_{number}"
        return name

    def _is_usable(self, name: str, suffix: str, image_bytes: bytes) -> bool:
        """Return whether an image may have a name: no image has it, or the same image has.

        Labels of this name without an image are ignored: they come from a run that was killed
        before it wrote the image.
        """
        images = self._real_path / "images"
        with contextlib.suppress(OSError):
            path = images / f"{name}{suffix}"
            if stat.S_ISREG(path.lstat().st_mode) and path.read_bytes() == image_bytes:
                return True
        for image_suffix in SAVED_IMAGE_SUFFIXES:
            if os.path.lexists(images / f"{name}{image_suffix}"):
                return False
        return True

    def _write_description(self, model: str) -> None:
        """Write the dataset's description, unless another run has done so since this one began.

        The model's name is mentioned in a comment.
        """
        import yaml

        self._has_description = self._is_described()
        if self._has_description:
            return

        content = {"train": "images", "val": "images", "names": dict(enumerate(self._class_names))}
        # Names that cannot be printed have to be escaped.
        are_printable = all(name.isprintable() for name in self._class_names)
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=are_printable)
        text = HEADER.format(model=escape_unprintable(model)) + text
        write_file(self._real_path / "data.yaml", text.encode())
        self._has_description = True


def _described_names(path: Path) -> list[str] | None:
    """Read the names of classes from the description of a dataset, `data.yaml`.

    Returns:
        The names in the order of the ids; None if the file is something else.

    Raises:
        OutputError: The file cannot be read.
    """
    import yaml

    try:
        if not path.is_file():
            return None
        text = read_text(path)
        content = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - makes only text
        return parse_names(json.dumps(content["names"]))
    except OSError as error:
        raise OutputError(f"cannot read {path}: {system_reason(error)}") from error
    except (ValueError, TypeError, LookupError, RecursionError, yaml.YAMLError):
        return None


def _plain_name(record: Record) -> str:
    """Return the name of a record's input without its folder and suffix, valid as a file name."""
    return safe(stem(record.origin.source))


def _image_file(record: Record, image: Image) -> tuple[bytes, str]:
    """Return the content and the suffix of the file that a dataset gets for an image.

    It is a copy of the image's own file where trainers can open that and see the same pixels;
    otherwise the pixels are encoded.
    """
    if image.file is not None and image.is_plain:
        for file_beginning, suffix in SUFFIX_BY_BEGINNING.items():
            if file_beginning.match(image.file):
                return image.file, suffix
    return encode(image.pixels, record)
