"""Labels for other programs: of YOLO, COCO, Label Studio and MOTChallenge; and datasets.

YOLO's datasets     https://docs.ultralytics.com/datasets/detect/
COCO's results      as `loadRes` of pycocotools reads them
Label Studio's      https://labelstud.io/guide/predictions
MOTChallenge's      as TrackEval and motmetrics read them
"""

import contextlib
import json
import logging
import os
import re
import stat
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import numpy as np

from detcli.core.errors import DetcliWarning, OutputError, UsageError, system_reason
from detcli.core.text import escape_unprintable
from detcli.data.columns import DetectionJson
from detcli.data.detections import Detections, coco_category
from detcli.data.geometry import Picture, Size, shown
from detcli.data.per_video import PerVideo
from detcli.data.record import Record, box_of
from detcli.model.contract import parse_names
from detcli.sink.folder import FolderSink, OutputFolder, UniqueNames, safe, stem
from detcli.sink.image import SUFFIXES, encode
from detcli.sink.protocol import Encodable, Output
from detcli.sink.text import JsonArray
from detcli.sink.text import encode as encode_json
from detcli.storage.files import AtomicFile, locked, make_folder, read_json, read_text, write_file


class LabelSink(FolderSink):
    """Writes `class cx cy w h` for each detection, in fractions of the picture's width and height.

    Boxes end at the edges of the picture; those outside are left out, as trainers refuse them.

    A picture without detections gets an empty file, which trainers take as background; an input
    that failed gets none. With `scores`, the score is a sixth column, which trainers do not accept.
    """

    def __init__(self, folder: OutputFolder, *, scores: bool = False) -> None:
        super().__init__(folder)
        self._scores = scores

    def write(self, record: Record) -> None:
        if record.picture is None or record.detections is None:
            return
        text = label_text(record.picture, record.detections, scores=self._scores)
        self._folder.write(record, self._folder.file_of(record, ".txt"), text.encode())


def label_text(picture: Picture, detections: Detections, *, scores: bool = False) -> str:
    """The labels of a picture: `class cx cy w h` and a line feed for each detection."""
    height, width = picture.size
    lines = []
    for box, score, class_id, _ in detections.within(picture.size):
        left, top, right, bottom = box.tolist()
        centre_x, label_width = _millionths(left, right, width)
        centre_y, label_height = _millionths(top, bottom, height)
        numbers = [centre_x, centre_y, label_width, label_height]
        texts = [f"{number / MILLION:.6f}" for number in numbers]
        if scores:
            texts.append(f"{score:.6f}")
        lines.append(" ".join([str(class_id), *texts]))
    return "".join(f"{line}\n" for line in lines)


MILLION = 1_000_000


def _millionths(low: float, high: float, size: int) -> tuple[int, int]:
    """The centre and length of a box along one axis of the picture, in millionths of its size.

    Trainers compute the ends anew from these two, and refuse a box of which one is beyond the
    picture, by however little: where rounding would do that, the centre moves by a millionth.
    """
    centre = round(round((low + high) / 2 / size, 6) * MILLION)
    length = max(1, round(round((high - low) / size, 6) * MILLION))
    half = (length + 1) // 2
    return min(max(centre, half), MILLION - half), length


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
# Labels by {model}, to be checked. Both parts are the same pictures: set some aside for val.
"""


class DatasetSink:
    """Writes each picture or frame with its labels, and a description of the whole.

    The dataset only grows. A picture that it has already, by name and content, keeps its labels,
    which may have been corrected; another picture of that name gets a number. The description
    comes first and a picture after its labels, so whenever a run ends, the dataset is complete. An
    input that failed is not part of it; one without detections is, with an empty file of labels,
    which trainers take as background.

    Several runs may add to it at the same time: each holds a lock while it chooses a name and
    writes a picture with its labels.

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
        self._real = make_folder(path)  # without links; below it, none is followed
        self._names = UniqueNames()
        self._prefixes = PerVideo(lambda record: self._names.prefix(_plain_name(record)))
        self._present_count = 0  # pictures that were there already

    def write(self, record: Record) -> None:
        """Write one picture and its labels."""
        if record.picture is None or record.detections is None:
            return
        data, suffix = _picture_file(record, record.picture)
        labels = label_text(record.picture, record.detections).encode()
        with locked(self._real):
            if not self._described:
                self._describe(record.model)
            name = self._name(record, suffix, data)
            if (self._real / "images" / f"{name}{suffix}").exists():
                self._present_count += 1
                return
            self._write(record, f"labels/{name}.txt", labels)
            self._write(record, f"images/{name}{suffix}", data)

    def close(self) -> None:
        """Say how many pictures were not written because they were there."""
        if self._present_count:
            log.warning(
                "%s had %d of the pictures already; their labels are as they were",
                self._path,
                self._present_count,
            )

    def _write(self, record: Record, file: str, content: bytes) -> None:
        """Write a file of a record, by its path in the dataset."""
        write_file(self._real / file, content)
        record.saved.append(self._path / file)

    def _is_described(self) -> bool:
        """Whether the dataset has its description.

        Raises:
            UsageError: It is one of other classes.
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

    def _name(self, record: Record, suffix: str, data: bytes) -> str:
        """A name for a picture: one that is free, or that it has already."""
        frame = record.origin.frame
        if frame is None:
            return self._names.file(
                _plain_name(record), "", lambda name: self._is_usable(name, suffix, data)
            )
        prefix = f"{self._prefixes.of(record)}_{frame}"
        name = prefix
        number = 1
        while not self._is_usable(name, suffix, data):
            number += 1
            name = f"{prefix}_{number}"
        return name

    def _is_usable(self, name: str, suffix: str, data: bytes) -> bool:
        """Whether a picture may get a name: no other picture has it, or the same one has."""
        images = self._real / "images"
        with contextlib.suppress(OSError):
            path = images / f"{name}{suffix}"
            if stat.S_ISREG(path.lstat().st_mode) and path.read_bytes() == data:
                return True
        # Labels without a picture are those of a run that was killed between the two.
        for picture_suffix in SUFFIXES:
            if os.path.lexists(images / f"{name}{picture_suffix}"):
                return False
        return True

    def _describe(self, model: str) -> None:
        """Describe the dataset, unless another run has done that since this one began."""
        import yaml

        self._described = self._is_described()
        if self._described:
            return

        content = {"train": "images", "val": "images", "names": dict(enumerate(self._class_names))}
        # Names that cannot be printed have to be escaped.
        are_printable = all(name.isprintable() for name in self._class_names)
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=are_printable)
        text = HEADER.format(model=escape_unprintable(model)) + text
        write_file(self._real / "data.yaml", text.encode())
        self._described = True


def _described_names(path: Path) -> list[str] | None:
    """The classes of a dataset's description; None if it is something else."""
    import yaml

    try:
        if path.is_file():
            text = read_text(path)
            content = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - makes only text
            return parse_names(json.dumps(content["names"]))
    except OSError as error:
        raise OutputError(f"cannot read {path}: {system_reason(error)}") from error
    except (ValueError, TypeError, LookupError, RecursionError, yaml.YAMLError):
        pass
    return None


def _plain_name(record: Record) -> str:
    """The name of a record's input, as files may be called."""
    return safe(stem(record.origin.source))


def _picture_file(record: Record, picture: Picture) -> tuple[bytes, str]:
    """The bytes of a picture's file as they are, or its pixels encoded; and the suffix."""
    if picture.file is not None and picture.is_plain:
        for beginning, suffix in SUFFIX_BY_BEGINNING.items():
            if beginning.match(picture.file):
                return picture.file, suffix
    return encode(picture.pixels, record)


def coco_path(name: str) -> PurePosixPath:
    """The path of a picture in an `instances.json`, which programs on Windows write as theirs."""
    return PurePosixPath(name.replace("\\", "/"))


ID_IN_STEM = re.compile(r"(?:COCO_\w+_)?([0-9]{1,18})")  # as in COCO 2017 and 2014


class CocoIds:
    """The COCO ids of pictures and classes, taken from their names or from an `instances.json`.

    A picture named by a number, like COCO's 000000000009.jpg, has that id; any other has the number
    of its record, from 1. Where an earlier picture has this id, that is counted from 10^18, which
    no name reaches. Classes have COCO's ids if all of COCO's 80 are among them, else their
    own. With a file, pictures have its ids by file name, and classes by name; if it has no
    categories, these have their usual ids.

    Raises:
        UsageError: The file cannot be read, or is not an instances.json; later, a picture has no
            id, or none of the classes has one.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._used_ids: set[int] = set()
        self._images: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._left_out: set[str] = set()
        if path is not None:
            self._read(path)

    def _read(self, path: Path) -> None:
        """Read the ids of pictures and categories from an `instances.json`."""
        content = read_json(path, _unusable)
        ids: dict[str, int] = {}
        try:
            for image in content["images"]:
                ids[str(image["file_name"])] = int(image["id"])
            for category in content.get("categories") or ():
                self._categories[_plain(category["name"])] = int(category["id"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _unusable(path, "not a COCO instances.json") from error
        if len(set(ids.values())) < len(ids):
            raise _unusable(path, "several images have the same id")

        paths = {name: coco_path(name) for name in ids}
        file_names = Counter(listed.name for listed in paths.values())
        for name, listed in paths.items():
            if file_names[listed.name] == 1:
                self._images[listed.name] = ids[name]
        for name, listed in paths.items():
            self._images[str(listed)] = ids[name]
        self._images |= ids

    def require(self, names: Sequence[str]) -> None:
        """Refuse a model none of whose classes is a category of the file."""
        if not self._categories:
            return
        plain_names = {_plain(name) for name in names}
        if self._categories.keys().isdisjoint(plain_names):
            raise UsageError(
                f"none of the model's classes is a category of {self._path}",
                "rename the model's classes to its categories with --names FILE",
            )

    def image_id(self, record: Record) -> int:
        """Id of a picture; to be called once for each."""
        source = record.origin.source
        if self._path is not None:
            return self._listed(source, record.origin.frame)
        image_id = record.index + 1
        match = ID_IN_STEM.fullmatch(PurePath(source).stem)
        if match and record.origin.frame is None:
            image_id = int(match[1])
        if image_id in self._used_ids:
            problem = f"{source}: an earlier picture has the COCO image id {image_id}"
            image_id = 10**18 + record.index + 1
            warnings.warn(DetcliWarning(f"{problem}; this one gets {image_id}"), stacklevel=2)
        self._used_ids.add(image_id)
        return image_id

    def _listed(self, source: str, frame: int | None) -> int:
        """Id of the picture of the file whose name the source ends with."""
        parts = PurePath(source).parts
        for first in range(len(parts)):
            image_id = self._images.get("/".join(parts[first:]))
            if image_id is not None and frame is None:
                return image_id
        raise UsageError(
            f"{source} is not among the images of {self._path}",
            "name only its pictures, or leave out --coco-images to take ids from file names",
        )

    def category_id(self, class_id: int, names: tuple[str, ...]) -> int | None:
        """Id of a class; None, with a warning, if the file has no such category."""
        if not self._categories:
            return coco_category(class_id, names)
        name = names[class_id]
        category_id = self._categories.get(_plain(name))
        if category_id is not None or name in self._left_out:
            return category_id

        self.require(names)
        self._left_out.add(name)
        message = f"{name} is not a category of {self._path}: left out of the COCO results"
        warnings.warn(DetcliWarning(message), stacklevel=2)
        return None


def _plain(name: object) -> str:
    """The name of a class or category without what is not compared: case and outer spaces."""
    return str(name).strip().casefold()


def _unusable(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"cannot read the ids of pictures from {path}: {reason}",
        "a COCO instances.json has images with id and file_name, and categories with id and name",
    )


class CocoSink(JsonArray):
    """One JSON array of `{"image_id", "category_id", "bbox": [x, y, width, height], "score"}`.

    The elements of each picture are written at once, so memory does not grow with the results.
    """

    def __init__(self, output: Output, ids: CocoIds) -> None:
        super().__init__(output)
        self._ids = ids
        self._image_ids: set[int] = set()
        self._left_out = 0  # pictures

    def write(self, record: Record) -> None:
        """Write the elements of one picture; one without an id of its own is left out.

        Raises:
            OutputError: The elements could not be written.
        """
        if record.detections is None:
            return
        source = record.origin.source
        try:
            image_id = self._ids.image_id(record)
            problem = f"{source} has the COCO image id {image_id} of an earlier picture"
        except UsageError as error:
            image_id = None
            problem = str(error)
        if image_id is None or image_id in self._image_ids:
            if not self._left_out:
                left_out = f"{problem}: left out of the COCO results, as any other like it"
                warnings.warn(DetcliWarning(left_out), stacklevel=2)
            self._left_out += 1
            return
        self._image_ids.add(image_id)
        elements = record.detections.to_coco(image_id, self._ids.category_id)
        self.extend([json.dumps(element) for element in elements])

    def close(self) -> None:
        super().close()
        if self._left_out > 1:
            message = f"{self._left_out} pictures are not in the COCO results"
            warnings.warn(DetcliWarning(message), stacklevel=2)


class LabelStudioSink(JsonArray):
    """A JSON array with one task per picture; a failed input has none, as nobody could label it.

    Regions end at the edges of the picture; a box outside has none.
    """

    def write(self, record: Encodable) -> None:
        """Write a task.

        Raises:
            UsageError: It is a frame of a video, which has no picture of its own to show.
        """
        fields = record.to_json()
        if "detections" not in fields:
            return
        if "frame" in fields:
            raise UsageError(
                f"{fields['source']} is a video, and --format labelstudio takes pictures",
                "keep its frames with --save-dataset, and name that folder",
            )
        size = (fields["height"], fields["width"])
        regions = []
        scores = []
        for number, detection in enumerate(fields["detections"]):
            if is_visible(box_of(detection), size):
                regions.append(_region(number, detection, size))
                scores.append(detection["score"])
        prediction: dict[str, Any] = {"model_version": fields["model"], "result": regions}
        if scores:  # the mean, by which Label Studio can sort tasks
            prediction["score"] = round(sum(scores) / len(scores), 6)
        task = {"data": {"image": fields["source"]}, "predictions": [prediction]}
        self.extend([encode_json(task)])


def _region(number: int, detection: DetectionJson, size: Size) -> dict[str, Any]:
    """A detection as a region of Label Studio, in percent of the picture's (height, width)."""
    height, width = size
    left, top, right, bottom = box_of(detection)
    x, region_width = _percentages(left, right, width)
    y, region_height = _percentages(top, bottom, height)
    return {
        "id": str(number),
        "type": "rectanglelabels",
        "from_name": "label",
        "to_name": "image",
        "original_width": width,
        "original_height": height,
        "image_rotation": 0,
        "score": detection["score"],
        "value": {
            "x": x,
            "y": y,
            "width": region_width,
            "height": region_height,
            "rotation": 0,
            "rectanglelabels": [detection["class_name"]],
        },
    }


def is_visible(box: tuple[float, float, float, float], size: Size) -> bool:
    """Whether a box shows in a picture of (height, width)."""
    return bool(shown(np.array([box], np.float32), size)[0])


def _percentages(low: float, high: float, size: int) -> tuple[float, float]:
    """The start and length of a box along one axis, in percent, as far as it is in the picture."""
    low = max(0.0, low)
    high = min(float(size), high)
    start = 100 * low / size
    return start, min(100 * (high - low) / size, 100 - start)


class MotSink(PerVideo["MotFile"]):
    """Writes `frame,id,left,top,width,height,score,-1,-1,-1` for each detection with a track.

    Frames, tracks and pixels are counted from 1, as the format has it. A video without tracks has
    an empty file.
    """

    def __init__(self, folder: OutputFolder) -> None:
        super().__init__(lambda first: MotFile(folder, first), MotFile.close)

    def write(self, record: Record) -> None:
        if record.origin.frame is not None:
            self.of(record).write(record)


class MotFile:
    """The tracks of one video."""

    def __init__(self, folder: OutputFolder, first: Record) -> None:
        self._path = folder.video_of(first, ".txt")
        self._file = AtomicFile(folder.real(self._path))

    def write(self, record: Record) -> None:
        record.saved.append(self._path)
        detections = record.detections
        if detections is None or detections.track_id is None:
            return
        frame = (record.origin.frame or 0) + 1
        track_numbers = detections.track_id.tolist()
        for track_number, (box, score, _, _) in zip(track_numbers, detections, strict=True):
            if track_number > 0:
                left, top, right, bottom = box.tolist()
                box_text = f"{left + 1:.2f},{top + 1:.2f},{right - left:.2f},{bottom - top:.2f}"
                self._file.write(f"{frame},{track_number},{box_text},{score:.6f},-1,-1,-1\n")

    def close(self) -> None:
        self._file.commit()
