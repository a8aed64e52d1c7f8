"""A dataset to train on, in the layout that YOLO's trainers and `detcli eval` read.

A picture is in `images`, its labels are in `labels` under the same name, and `data.yaml` has the
names of the classes. See https://docs.ultralytics.com/datasets/detect/.
"""

import contextlib
import itertools
import json
import logging
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

import yaml

from detcli.errors import OutputError, UsageError, system_reason
from detcli.files import make_folder, write_file
from detcli.geometry import Picture
from detcli.model.names import parse_names
from detcli.record import Record
from detcli.sink.folder import PerClip, UniqueNames, safe, stem
from detcli.sink.image import SUFFIXES, encode
from detcli.sink.yolo import label_text
from detcli.text import printable

log = logging.getLogger(__name__)

# Formats that trainers open, by how their files begin; others are encoded again, as PNG.
FORMATS = {
    re.compile(rb"\xff\xd8\xff"): ".jpg",
    re.compile(rb"\x89PNG"): ".png",
    re.compile(rb"RIFF....WEBP", re.DOTALL): ".webp",
    re.compile(rb"BM"): ".bmp",
    re.compile(rb"II\*\0|MM\0\*"): ".tif",
    re.compile(rb"....ftypavi[fs]", re.DOTALL): ".avif",
}

HEADER = """\
# Labels by {model}, to be checked. Both parts are the same pictures: set some aside for val.
"""


class DatasetSink:
    """Writes each picture or frame with its labels, and a description of the whole.

    The dataset only grows. A picture that it has already, by name and content, keeps its labels,
    which may have been corrected; another picture of that name gets a number. The description
    comes first and a picture after its labels, so whenever a run ends, the dataset is complete. An
    input that failed is not part of it; one without detections is, with an empty file of labels,
    which trainers take as background.

    Raises:
        UsageError: The folder has a dataset of other classes.
        OutputError: The folder cannot be written to.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._path = path
        self._class_names = names
        self._described = self._is_described()
        for folder in (path / "images", path / "labels"):
            if folder.is_symlink():
                raise OutputError(f"{folder} is a link out of the dataset", "remove it")
            make_folder(folder)
        self._place = make_folder(path)  # without links; below it, none is followed
        self._names = UniqueNames()
        self._prefixes = PerClip(lambda record: self._names.prefix(_plain_name(record)))
        self._kept = 0  # pictures that were there already

    def write(self, record: Record) -> None:
        """Write one picture and its labels.

        Raises:
            OutputError: A file cannot be written.
        """
        if record.picture is None or record.detections is None:
            return
        if not self._described:
            self._describe(record.model)
        data, suffix = _picture_file(record, record.picture)
        name = self._name(record, suffix, data)
        if (self._place / "images" / f"{name}{suffix}").exists():
            self._kept += 1
            return
        labels = label_text(record.picture, record.detections).encode()
        for file, content in ((f"labels/{name}.txt", labels), (f"images/{name}{suffix}", data)):
            write_file(self._place / file, content)
            record.saved.append(self._path / file)

    def close(self) -> None:
        """Say how many pictures were not written because they were there."""
        if self._kept:
            log.warning(
                "%s had %d of the pictures already; their labels are as they were",
                *(self._path, self._kept),
            )

    def _name(self, record: Record, suffix: str, data: bytes) -> str:
        """A name for a picture: one that is free, or that it has already."""

        def usable(name: str) -> bool:
            images = self._place / "images"
            if _holds(images / f"{name}{suffix}", data):
                return True
            # Labels without a picture are those of a run that was killed between the two.
            pictures = (images / f"{name}{other}" for other in SUFFIXES)
            return not any(map(os.path.lexists, pictures))

        origin = record.origin
        if origin.frame is None:
            return self._names.file(_plain_name(record), "", usable)
        name = f"{self._prefixes.of(record)}_{origin.frame}"
        further = (f"{name}_{number}" for number in itertools.count(2))
        return next(filter(usable, itertools.chain([name], further)))

    def _describe(self, model: str) -> None:
        content = {"train": "images", "val": "images", "names": dict(enumerate(self._class_names))}
        legible = all(map(str.isprintable, self._class_names))  # others have to be escaped
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=legible)
        text = HEADER.format(model=printable(model)) + text
        write_file(self._place / "data.yaml", text.encode())
        self._described = True

    def _is_described(self) -> bool:
        """Whether there is a description, which has to be of the same classes."""
        path = self._path / "data.yaml"
        if not os.path.lexists(path):
            return False
        names = None
        try:
            if path.is_file():
                text = path.read_text(encoding="utf-8")
                content = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - makes only text
                names = parse_names(json.dumps(content["names"]))
        except OSError as error:
            raise OutputError(f"cannot read {path}: {system_reason(error)}") from error
        except (ValueError, TypeError, LookupError, RecursionError, yaml.YAMLError):
            pass  # it is not a description
        if names != [*self._class_names]:
            raise UsageError(
                f"--save-dataset: {path} does not list the classes of this model",
                "name another folder",
            )
        return True


def _plain_name(record: Record) -> str:
    return safe(stem(record.origin.source))


def _picture_file(record: Record, picture: Picture) -> tuple[bytes, str]:
    """The bytes of a picture's file as they are, or its pixels encoded; and the suffix."""
    path = record.origin.path
    if path is not None and path.is_file() and not picture.edited:
        with contextlib.suppress(OSError):  # it has been removed meanwhile, but it is in memory
            data = path.read_bytes()
            for start, suffix in FORMATS.items():
                if start.match(data):
                    return data, suffix
    return encode(picture.pixels, record)


def _holds(path: Path, data: bytes) -> bool:
    """Whether a regular file has this content."""
    with contextlib.suppress(OSError):
        status = path.lstat()
        return (
            stat.S_ISREG(status.st_mode)
            and status.st_size == len(data)
            and path.read_bytes() == data
        )
    return False
