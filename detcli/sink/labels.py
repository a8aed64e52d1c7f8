"""Labels for other programs: of YOLO, COCO, Label Studio and MOTChallenge.

YOLO's              https://docs.ultralytics.com/datasets/detect/
COCO's results      as `loadRes` of pycocotools reads them
Label Studio's      https://labelstud.io/guide/predictions
MOTChallenge's      as TrackEval and motmetrics read them
"""

import json
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import numpy as np

from detcli.core.errors import DetcliWarning, UsageError
from detcli.data.coco import coco_category
from detcli.data.columns import DetectionJson
from detcli.data.detections import Detections
from detcli.data.geometry import Image, Size, are_visible
from detcli.data.json_text import encode as encode_json
from detcli.data.per_video import PerVideo
from detcli.data.record import Record, box_of, notes_of
from detcli.sink.folder import FolderSink, OutputFolder
from detcli.sink.protocol import Encodable, Output
from detcli.sink.text import JsonArray
from detcli.storage.files import AtomicFile, read_json


class LabelSink(FolderSink):
    """Writes `class cx cy w h` for each detection, in fractions of the image's width and height.

    Boxes end at the edges of the image; those outside are left out, as trainers refuse them.

    An image without detections gets an empty file, which trainers take as background; an input
    that failed gets none. With `scores`, the score is a sixth column, which trainers do not accept.
    """

    def __init__(self, folder: OutputFolder, *, scores: bool = False) -> None:
        super().__init__(folder)
        self._scores = scores

    def write(self, record: Record) -> None:
        """Write the labels of a record, unless its input failed."""
        if record.picture is None or record.detections is None:
            return
        text = label_text(record.picture, record.detections, scores=self._scores)
        self._folder.write(record, self._folder.file_of(record, ".txt"), text.encode())


def label_text(image: Image, detections: Detections, *, scores: bool = False) -> str:
    """Format the labels of an image for YOLO.

    Args:
        image: The image, whose width and height the numbers are fractions of.
        detections: Its detections.
        scores: Whether the score is added as a sixth column.

    Returns:
        A line `class cx cy w h` for each detection: the class's id, the centre of the box and its
        size.
    """
    height, width = image.size
    lines = []
    for box, score, class_id, _ in detections.within(image.size):
        left, top, right, bottom = box.tolist()
        centre_x, label_width = _millionths(left, right, width)
        centre_y, label_height = _millionths(top, bottom, height)
        columns = [str(class_id)]
        for millionths in (centre_x, centre_y, label_width, label_height):
            columns.append(f"{millionths / MILLION:.6f}")
        if scores:
            columns.append(f"{score:.6f}")
        lines.append(" ".join(columns))
    return "".join(f"{line}\n" for line in lines)


MILLION = 1_000_000


def _millionths(low: float, high: float, size: int) -> tuple[int, int]:
    """Compute the centre and the length of a box along one axis, as fractions of the image.

    Trainers compute both ends of the box from these, and refuse a box that ends outside the image,
    by however little. Where rounding would cause that, the centre is moved inwards by a millionth.

    Args:
        low: Where the box begins along the axis, in pixels.
        high: Where it ends.
        size: Width or height of the image in pixels.

    Returns:
        Centre and length in millionths of the image's size.
    """
    centre = _to_millionths((low + high) / 2 / size)
    length = max(1, _to_millionths((high - low) / size))
    half_length = (length + 1) // 2  # rounded up
    centre_inside = min(max(centre, half_length), MILLION - half_length)
    return centre_inside, length


def _to_millionths(fraction: float) -> int:
    """Round a fraction to 6 decimals as its text would be, and return it in millionths."""
    return round(round(fraction, 6) * MILLION)


def coco_path(name: str) -> PurePosixPath:
    """Parse the path of an image in an `instances.json`, which may have Windows' separators."""
    return PurePosixPath(name.replace("\\", "/"))


ID_IN_STEM = re.compile(r"(?:COCO_\w+_)?([0-9]{1,18})")  # as in COCO 2017 and 2014
MAX_NAMED_ID = 10**18  # ids in names are lower, as they have 18 digits at most


class CocoIds:
    """The COCO ids of images and classes, taken from their names or from an `instances.json`.

    An image named by a number, like COCO's 000000000009.jpg, has that id; any other has the index
    of its record plus 1. If an earlier image has this id, the index plus 1 plus 10^18 is taken,
    which no name reaches. Classes have COCO's ids if all of COCO's 80 are among them, else their
    own. With a file, images have its ids by file name, and classes by name; if it has no
    categories, these have their usual ids.

    Raises:
        UsageError: The file cannot be read, or is not an instances.json; later, an image has no
            id, or none of the classes has one.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._used_ids: set[int] = set()
        self._listed_ids: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._left_out: set[str] = set()  # classes that are not a category, as a warning has said
        if path is not None:
            self._read_ids(path)

    def _read_ids(self, path: Path) -> None:
        """Read the ids of images and categories from an `instances.json`."""
        content = read_json(path, _unusable)
        id_of_image: dict[str, int] = {}
        try:
            for image in content["images"]:
                id_of_image[str(image["file_name"])] = int(image["id"])
            for category in content.get("categories") or ():
                self._categories[_plain(category["name"])] = int(category["id"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _unusable(path, "not a COCO instances.json") from error
        if len(set(id_of_image.values())) < len(id_of_image):
            raise _unusable(path, "several images have the same id")
        self._listed_ids = _ids_by_every_name(id_of_image)

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
        """Return the COCO id of a record's image; to be called once for each record.

        It is the one in the `instances.json`. Without that file, it is the number in the image's
        name, as 9 for 000000000009.jpg, or else the index of the record plus 1. A second image with
        the same id gets a different one, and a warning says so. For that the ids are stored.

        Raises:
            UsageError: The image is not in the `instances.json`.
        """
        source = record.origin.source
        if self._path is not None:
            return self._listed_id(source, record.origin.frame)

        record_number = record.index + 1
        name_with_id = ID_IN_STEM.fullmatch(PurePath(source).stem)
        is_frame = record.origin.frame is not None
        if name_with_id is not None and not is_frame:
            image_id = int(name_with_id[1])
        else:
            image_id = record_number

        if image_id in self._used_ids:
            free_id = MAX_NAMED_ID + record_number  # ids in names are lower
            problem = f"{source}: an earlier image has the COCO image id {image_id}"
            warnings.warn(DetcliWarning(f"{problem}; this one gets {free_id}"), stacklevel=2)
            image_id = free_id
        self._used_ids.add(image_id)
        return image_id

    def _listed_id(self, source: str, frame: int | None) -> int:
        """Return the id of an image in the `instances.json`.

        The path in that file may begin at any folder of the image's path. So `pics/a/bus.jpg` is
        looked up whole, then as `a/bus.jpg`, then as `bus.jpg`. Frames of videos have no id.

        Args:
            source: The name of the input in records.
            frame: The number of the frame, if the input is a video; None for an image.

        Raises:
            UsageError: The image is not listed.
        """
        is_image = frame is None
        if is_image:
            path_parts = PurePath(source).parts
            for start in range(len(path_parts)):  # the longest path first
                image_id = self._listed_ids.get("/".join(path_parts[start:]))
                if image_id is not None:
                    return image_id
        raise UsageError(
            f"{source} is not among the images of {self._path}",
            "name only its images, or leave out --coco-images to take ids from file names",
        )

    def category_id(self, class_id: int, names: tuple[str, ...]) -> int | None:
        """Return the COCO id of a class, by its name if there is an `instances.json`.

        Args:
            class_id: The id of the class in the model.
            names: The names of all the model's classes.

        Returns:
            The id; None if the file has no such category, which a warning says once.

        Raises:
            UsageError: None of the model's classes is a category of the file.
        """
        if not self._categories:
            return coco_category(class_id, names)

        name = names[class_id]
        category_id = self._categories.get(_plain(name))
        if category_id is not None:
            return category_id

        if name in self._left_out:  # a warning has said so
            return None
        self.require(names)  # if no class at all is a category, a warning is not enough
        self._left_out.add(name)
        message = f"{name} is not a category of {self._path}: left out of the COCO results"
        warnings.warn(DetcliWarning(message), stacklevel=2)
        return None


def _ids_by_every_name(id_of_image: Mapping[str, int]) -> dict[str, int]:
    r"""Return the ids of images by each name that an image may have.

    These are its path as listed in the file, the same path with slashes if it has the separators of
    Windows, and its file name alone, unless another image has the same file name.

    Args:
        id_of_image: The id of each image, by its path in an `instances.json`.

    Examples:
        >>> _ids_by_every_name({r"train\1.jpg": 5})
        {'1.jpg': 5, 'train/1.jpg': 5, 'train\\1.jpg': 5}
    """
    path_of_image = {listed_path: coco_path(listed_path) for listed_path in id_of_image}
    uses_of_file_name = Counter(path.name for path in path_of_image.values())
    ids: dict[str, int] = {}
    for listed_path, path in path_of_image.items():
        if uses_of_file_name[path.name] == 1:
            ids[path.name] = id_of_image[listed_path]

    # The name of an image may be the file name of another. A path goes before a file name, and a
    # path as it is listed before both, so they are set later.
    for listed_path, path in path_of_image.items():
        ids[str(path)] = id_of_image[listed_path]
    ids.update(id_of_image)
    return ids


def _plain(name: object) -> str:
    """Return the name of a class or category as names are compared: without case and spaces."""
    return str(name).strip().casefold()


def _unusable(path: Path, reason: str) -> UsageError:
    """Return the error to raise for a file that is not a usable `instances.json`."""
    return UsageError(
        f"cannot read the ids of images from {path}: {reason}",
        "a COCO instances.json has images with id and file_name, and categories with id and name",
    )


class CocoSink(JsonArray):
    """One JSON array of `{"image_id", "category_id", "bbox": [x, y, width, height], "score"}`.

    The elements of each image are written at once, so memory does not grow with the results.
    """

    def __init__(self, output: Output, ids: CocoIds) -> None:
        super().__init__(output)
        self._ids = ids
        self._image_ids: set[int] = set()
        self._left_out_count = 0  # images

    def write(self, record: Record) -> None:
        """Write the elements of one image.

        An image that has no id, or that of an earlier image, is left out; the first time, a
        warning says so.

        Raises:
            OutputError: The elements could not be written.
        """
        if record.detections is None:
            return
        try:
            image_id = self._ids.image_id(record)
        except UsageError as error:
            self._leave_out(str(error))
            return
        if image_id in self._image_ids:
            source = record.origin.source
            self._leave_out(f"{source} has the COCO image id {image_id} of an earlier image")
            return
        self._image_ids.add(image_id)
        elements = record.detections.to_coco(image_id, category_id=self._ids.category_id)
        self.extend([json.dumps(element) for element in elements])

    def _leave_out(self, problem: str) -> None:
        """Count an image that is left out, and warn about the first, with its problem."""
        if self._left_out_count == 0:
            message = f"{problem}: left out of the COCO results, as any other like it"
            warnings.warn(DetcliWarning(message), stacklevel=3)
        self._left_out_count += 1

    def close(self) -> None:
        """Write the end of the array, and warn how many images are left out, if several are."""
        super().close()
        if self._left_out_count > 1:
            message = f"{self._left_out_count} images are not in the COCO results"
            warnings.warn(DetcliWarning(message), stacklevel=2)


class LabelStudioSink(JsonArray):
    """A JSON array with one task per image; a failed input has none, as nobody could label it.

    Regions end at the edges of the image; a box outside has none.
    """

    def write(self, record: Encodable) -> None:
        """Write the task of a record: its image, and its detections as a prediction.

        Raises:
            UsageError: It is a frame of a video, which has no file that Label Studio could show.
        """
        fields = record.to_json()
        if "detections" not in fields:
            return
        if "frame" in fields:
            raise UsageError(
                f"{fields['source']} is a video, and --format labelstudio takes images",
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
    """Convert a detection to a region of Label Studio, whose units are percent of the image.

    Args:
        number: The id of the region among those of its image.
        detection: The detection.
        size: Height and width of the image.
    """
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
    """Return whether any part of a box is inside an image of the given size."""
    return bool(are_visible(np.array([box], np.float32), size)[0])


def _percentages(low: float, high: float, size: int) -> tuple[float, float]:
    """Compute the start and length of a box along one axis, in percent of the image.

    Args:
        low: Where the box begins along the axis, in pixels; only what is in the image counts.
        high: Where it ends.
        size: Width or height of the image in pixels.
    """
    low = max(0.0, low)
    high = min(float(size), high)
    start = 100 * low / size
    return start, min(100 * (high - low) / size, 100 - start)


class MotSink(PerVideo["MotFile"]):
    """Writes `frame,id,left,top,width,height,score,-1,-1,-1` for each detection with a track.

    Frames, tracks and pixels are counted from 1, as the format requires. A video without tracks has
    an empty file.
    """

    def __init__(self, folder: OutputFolder) -> None:
        super().__init__(lambda first: MotFile(folder, first), MotFile.close)

    def write(self, record: Record) -> None:
        """Write the tracks of a frame to the file of its video."""
        if record.origin.frame is not None:
            self.state_of(record).write(record)


class MotFile:
    """The tracks of one video."""

    def __init__(self, folder: OutputFolder, first: Record) -> None:
        self._path = folder.video_of(first, ".txt")
        self._file = AtomicFile(folder.real(self._path))

    def write(self, record: Record) -> None:
        """Write a line for each detection of a frame that has a track, if there are any.

        Frames and pixels are counted from 1, as in MOT: a box at x1 = 0 has its left edge at 1. The
        file is listed as a saved file of every record, even if the frame adds no line.
        """
        notes_of(record).saved.append(self._path)
        detections = record.detections
        if detections is None or detections.track_id is None:
            return

        frame = (record.origin.frame or 0) + 1
        track_numbers = detections.track_id.tolist()
        for track_number, (box, score, _, _) in zip(track_numbers, detections, strict=True):
            has_track = track_number > 0
            if has_track:
                x1, y1, x2, y2 = box.tolist()
                left_top = f"{x1 + 1:.2f},{y1 + 1:.2f}"
                width_and_height = f"{x2 - x1:.2f},{y2 - y1:.2f}"
                box_text = f"{left_top},{width_and_height}"
                self._file.write(f"{frame},{track_number},{box_text},{score:.6f},-1,-1,-1\n")

    def close(self) -> None:
        self._file.commit()
