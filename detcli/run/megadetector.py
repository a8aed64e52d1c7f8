"""Reads results of MegaDetector as records: those that detcli wrote, and those of other programs.

The format is https://lila.science/megadetector-output-format, version 1.0 and later. Its boxes are
fractions of an image, whose size few programs write. Where it is missing, it is read from the
image.
"""

import re
import warnings
from collections import defaultdict
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any, cast

from detcli.core import Fields, frozen
from detcli.core.errors import DetcliWarning, UsageError
from detcli.core.json_stream import JsonStream
from detcli.data.geometry import Size
from detcli.data.record import SCHEMA_VERSION, RecordJson
from detcli.data.saved_record import coco_box, finite, read_fields, to_record
from detcli.page.find_images import Finder
from detcli.source.names import is_video
from detcli.storage.files import open_lines

EMPTY_CATEGORY = "0"  # category ids start at 0 in some files, at 1 in most

FIRST_NAME = re.compile(
    rb'\s*\{\s*"(images|info|detection_categories|classification_categories'
    rb'|classification_category_descriptions)"\s*:'
)
"""How a file of results begins: with one of the members that the format has."""


@frozen
class ResultsHeader:
    """What a file of results says besides its entries."""

    categories: dict[str, str]  # names of classes by id
    detector: str  # the name of the model

    def class_id(self, category: str) -> int:
        """Return the class id of a category: the ids start at 0, most categories at 1."""
        if EMPTY_CATEGORY in self.categories:
            return int(category)
        return int(category) - 1


def is_megadetector(beginning: bytes) -> bool:
    """Return whether a file holds results of MegaDetector, from its first bytes."""
    return FIRST_NAME.match(beginning) is not None


def read_megadetector(path: Path, name: str, finder: Finder) -> Iterator[RecordJson]:
    """Yield the records of a file of results, entry by entry.

    An image has one record. A video has one for each frame that was processed, or, in a file that
    does not list these, for each that has detections.

    Args:
        path: The file, which is read twice: the names of classes may come last.
        name: What to call it in messages.
        finder: Finds the images whose sizes are missing in the file.

    Raises:
        UsageError: The file has a different format, or the size of an image cannot be found.
        OSError: It cannot be read.
    """
    finder.records_folder = path.parent
    entry_number = 0
    try:
        reader = _EntryReader(_read_header(path), finder, name)
        for entry in _entries(path):
            yield from reader.records(entry, entry_number)
            entry_number += 1
    except UnicodeDecodeError:  # a ValueError, but the caller says what is wrong with the bytes
        raise
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{name} holds neither records of detcli nor MegaDetector's results: {error}",
            "name JSON Lines of detcli predict or merge, or what MegaDetector wrote",
        ) from error


def _entries(path: Path) -> Iterator[Any]:
    """Yield the entries of the images and videos in a file of results."""
    with open_lines(path) as file:
        stream = JsonStream(file)
        for member in stream.names():
            if member == "images":
                yield from stream.elements()
            else:
                stream.value()


def _read_header(path: Path) -> ResultsHeader:
    """Read the names of the classes and of the model, wherever they are in the file.

    Raises:
        ValueError: There are no such names, or they are not strings.
    """
    members = _read_members(path, {"detection_categories", "info"})
    categories = members.get("detection_categories")
    info = members.get("info")
    if not isinstance(categories, dict):
        raise ValueError("it has no detection_categories")  # noqa: TRY004 - as all that is wrong
    for category, class_name in categories.items():
        is_category = re.fullmatch("[0-9]{1,6}", category) and isinstance(class_name, str)
        if not is_category:
            raise ValueError(f"the category {category[:40]!r} is not a number with a name")

    detector = "unknown"
    if isinstance(info, dict) and isinstance(info.get("detector"), str):
        detector = info["detector"]
    return ResultsHeader(categories, detector)


def _read_members(path: Path, names: Container[str]) -> Fields:
    """Read some members of the object in a file of results; those that it lacks are left out.

    The member "images" is skipped entry by entry, as all of them may not fit into memory.
    """
    members = {}
    with open_lines(path) as file:
        stream = JsonStream(file)
        for member in stream.names():
            if member == "images":
                for _ in stream.elements():
                    pass
                continue
            value = stream.value()
            if member in names:
                members[member] = value
    return members


class _EntryReader:
    """Makes records from the entries of a file of results."""

    def __init__(self, header: ResultsHeader, finder: Finder, name: str) -> None:
        """Prepare to read entries.

        Args:
            header: The names of the classes and of the model in the file.
            finder: Finds the images whose sizes are missing in the file.
            name: How messages refer to the file.
        """
        self._header = header
        self._finder = finder
        self._name = name
        self._record_count = 0
        self._has_warned = False  # about answers of a classifier, which records do not have

    def records(self, entry: Any, entry_number: int) -> Iterator[RecordJson]:  # noqa: ANN401 - JSON
        """Yield the records of an entry: one for an image, or one for each frame of a video.

        An entry has the name of a file, its detections or why it failed, and perhaps its size:

            {"file": "a/b.jpg", "detections": [...], "width": 1920, "height": 1080}

        If it has no size, and its file is gone, it has no records with `Finder.existing_only`.

        Args:
            entry: The entry, as JSON.
            entry_number: Its index in the file of results, from 0. Its records have it as `input`.

        Raises:
            ValueError: It is not such an entry.
            UsageError: It has no size, and its file is not found.
        """
        where = f"images[{entry_number}]"
        (source,) = read_fields(where, entry, file=_text)
        shared_fields = {"schema_version": SCHEMA_VERSION, "source": source, "input": entry_number}

        detections = entry.get("detections")
        if detections is None:  # the file has failed
            yield self._numbered_record({**shared_fields, "error": _error_in_entry(entry)})
            return
        if not isinstance(detections, list):
            raise ValueError(f"{where}.detections is not a list")  # noqa: TRY004 - as all else

        size = self._size_of(source, entry)
        if size is None:  # the file is gone or cannot be read
            return
        height, width = size
        shared_fields["width"] = width
        shared_fields["height"] = height

        for record_fields in self._fields_of_records(where, entry, size):
            fields = {**shared_fields, **record_fields, "model": self._header.detector}
            yield self._numbered_record(fields)

    def _fields_of_records(self, where: str, entry: Fields, size: Size) -> Iterator[Fields]:
        """Yield the fields that differ among the records of an entry: frames and detections.

        Args:
            where: How errors refer to the entry.
            entry: The entry of an image or a video, which has a list of detections.
            size: Height and width of the image, or of the frames.
        """
        if _is_video_entry(entry["file"], entry):
            yield from self._frames(where, entry, size)
        else:
            yield {"detections": self._detections(where, entry["detections"], size)}

    def _size_of(self, source: str, entry: Fields) -> Size | None:
        """Find the height and width of an image or a video: in its entry, or else in its file.

        Returns:
            The size. None if the file is gone or cannot be read, and `Finder.existing_only` is
            set: then the file is also counted in `Finder.gone`.

        Raises:
            UsageError: The entry has no size, the file is gone or cannot be read, and such files
                are not to be left out.
        """
        size = _size_in_entry(entry)
        if size is not None:
            return size
        size = self._finder.size_of(source)
        if size is not None:
            return size

        if self._finder.existing_only:
            self._finder.gone += 1
            return None
        raise UsageError(
            f"{self._name} has no width and height of {source}, and no such image is found",
            "name the folder of the images with --images; report --existing leaves it out",
        )

    def _numbered_record(self, fields: Fields) -> RecordJson:
        """Check the fields of a record, and give it the next `index`."""
        record = to_record({**fields, "index": self._record_count})
        self._record_count += 1
        return record

    def _frames(self, where: str, entry: Fields, size: Size) -> Iterator[Fields]:
        """Yield the fields that only the record of one frame has: number, time and detections.

        The frames are those with detections, and those without that the entry lists as processed.
        If there are none, the first frame stands for the video.

        Args:
            where: How errors refer to the entry.
            entry: The entry of the video.
            size: Height and width of its frames.
        """
        detections_by_frame: defaultdict[int, list[Any]] = defaultdict(list)
        for detection in entry["detections"]:
            (frame,) = read_fields(f"{where}.detections", detection, frame_number=_frame_number)
            detections_by_frame[frame].append(detection)
        frames = _processed_frames(where, entry) | detections_by_frame.keys()
        if not frames:
            frames = {0}

        frames_per_second = _frame_rate(entry)
        for frame in sorted(frames):
            frame_detections = self._detections(where, detections_by_frame.get(frame, []), size)
            fields: Fields = {"frame": frame, "detections": frame_detections}
            if frames_per_second is not None:
                fields["time_s"] = round(frame / frames_per_second, 3)
            yield fields

    def _detections(self, where: str, entries: list[Any], size: Size) -> list[Fields]:
        """Make the detections of a record, best first.

        A detection in the file has a category, a score, and a box in fractions of the image: its
        left and top edge, its width and its height. In the record, boxes are in pixels.

            {"category": "1", "conf": 0.9, "bbox": [0.5, 0.25, 0.1, 0.2]}

        Args:
            where: How errors refer to the entry of the image.
            entries: The detections in the file. Those of categories without a name are left out,
                as the format says.
            size: Height and width of the image.
        """
        height, width = size
        detections = []
        for index, entry in enumerate(entries):
            category, score, box = read_fields(
                f"{where}.detections[{index}]", entry, category=_text, conf=finite, bbox=coco_box
            )
            if category not in self._header.categories:
                continue
            if entry.get("classifications"):
                self._warn_of_classifications()
            left, top, box_width, box_height = box
            right = left + box_width
            bottom = top + box_height
            detection: Fields = {
                "class_id": self._header.class_id(category),
                "class_name": self._header.categories[category],
                "score": score,
                "x1": round(left * width, 2),
                "y1": round(top * height, 2),
                "x2": round(right * width, 2),
                "y2": round(bottom * height, 2),
            }
            detections.append(detection)
        detections.sort(key=lambda detection: detection["score"], reverse=True)
        return detections

    def _warn_of_classifications(self) -> None:
        """Warn once that the answers of a classifier are left out."""
        if not self._has_warned:
            self._has_warned = True
            message = f"{self._name} has classifications, which are left out: records have none"
            warnings.warn(DetcliWarning(message), stacklevel=2)


def _error_in_entry(entry: Fields) -> Fields:
    """Make the error of a record from what an entry says about its failure."""
    message = entry.get("failure") or "it has neither detections nor a reason why not"
    return {"type": "SourceError", "message": str(message), "hint": ""}


def _is_video_entry(source: str, entry: Fields) -> bool:
    """Return whether an entry is that of a video: it has frames, or the name of a video."""
    return "frame_rate" in entry or "frames_processed" in entry or is_video(source)


def _processed_frames(where: str, entry: Fields) -> set[int]:
    """Return the frame numbers that an entry lists as processed; empty if it lists none.

    Raises:
        ValueError: It is not a list of frame numbers.
    """
    processed = entry.get("frames_processed") or []
    if not isinstance(processed, list):
        raise ValueError(f"{where}.frames_processed is not a list")  # noqa: TRY004 - as all else
    return {_frame_number(frame) for frame in processed}


def _frame_rate(entry: Fields) -> float | None:
    """Return the frames per second of a video; None if its entry does not have them."""
    rate: Any = entry.get("frame_rate")
    if type(rate) in {int, float} and rate > 0:
        return cast("float", rate)
    return None


def _size_in_entry(entry: Fields) -> Size | None:
    """Return the height and width that an entry has; None if it has none."""
    width = entry.get("width")
    height = entry.get("height")
    if type(width) is int and type(height) is int and width > 0 and height > 0:
        return height, width
    return None


def _text(value: Any) -> str:  # noqa: ANN401 - JSON
    """Check that a value is a string; raises TypeError for others."""
    if not isinstance(value, str):
        raise TypeError
    return value


def _frame_number(value: Any) -> int:  # noqa: ANN401 - JSON
    """Check that a value is a frame number; raises ValueError for others."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not the number of a frame"[:80])
    return value
