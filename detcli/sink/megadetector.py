"""Records in the format of MegaDetector, for Timelapse, AddaxAI and MegaDetector's own tools.

The format is version 1.6 of https://lila.science/megadetector-output-format: one JSON object, in
which `images` has an entry for each image and each video, `detection_categories` the names of the
classes, and `info` what made them. As in MegaDetector's own files, `images` comes first, so that
entries can be written as their records come, and memory does not grow with their number.

Categories are class ids plus 1, as the format reserves 0 for an empty image. Detections that are
marked as repeated are left out.
"""

import os
import warnings
from array import array
from typing import Any

from detcli.core import Fields
from detcli.core.errors import DetcliWarning, UsageError
from detcli.core.text import escape_surrogates, public_name
from detcli.data.columns import DetectionJson
from detcli.data.geometry import Size
from detcli.data.json_text import encode
from detcli.data.record import RecordJson, box_of
from detcli.sink.labels import is_visible
from detcli.sink.protocol import Encodable, Output, RunDescription, TextSink
from detcli.source.names import is_video

FORMAT_VERSION = "1.6"

START = '{"images": [\n'  # of the file
COMMA = ",\n"  # between two entries

SCORE_DECIMALS = 3  # as MegaDetector rounds them
BOX_DECIMALS = 4

TYPICAL_CONF = 0.25
"""The score from which detections are mostly right: the default of --conf."""

FAILED_FRAME_RATE = -1.0  # for a video that could not be read, as in MegaDetector
UNKNOWN_FRAME_RATE = 1.0  # the format demands a rate above 0; frame 0 is at 0 s with any

MAX_RATE_DECIMALS = 3
HALF_MILLISECOND_S = 0.0005


class MegaDetectorSink(TextSink):
    """Writes one JSON object with an entry for each image and for each video.

    The frames of a video, whose records come one after the other, become one entry. Its detections
    are written as they come; only the indices of its frames are held until it ends.
    """

    def __init__(self, output: Output, run: RunDescription) -> None:
        """Prepare to write entries; nothing is written before the first one.

        Args:
            output: The file to write to.
            run: The run that made the records: its settings, the names of the model's classes, and
                the base folder, relative to which files are named.
        """
        super().__init__(output)
        self._run = run
        self._has_entries = False
        self._video: _VideoEntry | None = None  # the video that the last record is a frame of

        # Records that are read from a file may name a different model, and more classes.
        self._detector = run.settings.get("model")
        self._class_names: dict[int, str] = {}  # by class id
        for class_id, class_name in enumerate(run.class_names):
            self._class_names[class_id] = escape_surrogates(class_name)
        self._file_count_outside_base = 0

    def write(self, record: Encodable) -> None:
        """Write the entry of an image, or the detections of a frame.

        Raises:
            UsageError: It is a frame of a camera or a stream, which has no file.
            OutputError: It could not be written.
        """
        fields = record.to_json()
        if "time" in fields:
            raise UsageError(
                f"{fields['source']} is a live stream, and --format megadetector takes files",
                "write records of streams with -o FILE.jsonl",
            )
        self._detector = fields.get("model", self._detector)
        for detection in fields.get("detections", ()):
            self._class_names.setdefault(detection["class_id"], detection["class_name"])

        if "frame" in fields or is_video(fields["source"]):
            self._write_frame(fields)
        else:
            self._end_video()
            self._begin_entry()
            self._output.write(encode(image_entry(fields, self._file_name(fields))))

    def _write_frame(self, fields: RecordJson) -> None:
        """Write the detections of a frame to the entry of its video, which begins if it has not.

        The first frame that has not failed begins the entry. A failed frame is not listed in its
        `frames_processed`. If all frames failed, the entry is written when the video ends, with the
        last error in place of detections.
        """
        video = self._video
        if video is None or not video.has_frame(fields):
            self._end_video()
            video = _VideoEntry(fields, self._file_name(fields))
            self._video = video

        has_failed = "detections" not in fields
        if has_failed:
            video.failure = fields["error"]["message"]
            return
        if not video.has_begun:
            self._begin_entry()
        json_text = video.add_frame(fields)
        self._output.write(json_text)

    def _end_video(self) -> None:
        """Write the end of the entry of the video whose frames came last, if there is one."""
        video = self._video
        self._video = None
        if video is None:
            return
        if not video.has_begun:
            self._begin_entry()
        self._output.write(video.end())

    def _begin_entry(self) -> None:
        """Write what comes before an entry: the start of the file, or a comma."""
        if self._has_entries:
            self._output.write(COMMA)
        else:
            self._output.write(START)
        self._has_entries = True

    def _file_name(self, fields: RecordJson) -> str:
        """Name the file of a record relative to the base folder, if there is one.

        A file that is not below it keeps its name; the first time, a warning says so.
        """
        source = fields["source"]
        if self._run.base is None:
            return source
        name = name_below(source, self._run.base)
        if name is not None:
            return name
        if self._file_count_outside_base == 0:
            base = public_name(self._run.base)
            message = f"{source} is not below --base {base}: its name stays as it is"
            warnings.warn(DetcliWarning(message), stacklevel=2)
        self._file_count_outside_base += 1
        return source

    def close(self) -> None:
        """Write the end of the object with the names of the classes, and close the output.

        If several files were not below the base folder, a warning says how many. The warning about
        the first of them came with its entry.
        """
        try:
            self._end_video()
            if not self._has_entries:
                self._output.write(START)  # otherwise `_begin_entry` has written it
            categories = category_names(self._class_names)
            info = run_info(self._run, self._detector)
            self._output.write(
                f'\n],\n"detection_categories": {encode(categories)},\n"info": {encode(info)}}}\n'
            )
        finally:
            super().close()

        if self._file_count_outside_base > 1:
            base = public_name(self._run.base or "")
            message = f"{self._file_count_outside_base} files are not below --base {base}"
            warnings.warn(DetcliWarning(message), stacklevel=2)


def name_below(source: str, base: str) -> str | None:
    """Return the name of a file relative to a folder, with forward slashes.

    Both are compared as they are written: links are not followed.

    Args:
        source: The name of the file: a path, or an address such as s3://bucket/a.jpg.
        base: The folder, named in the same manner.

    Returns:
        The relative name; None if the file is not below the folder.

    Examples:
        >>> name_below("cards/site 1/a.jpg", "cards")
        'site 1/a.jpg'
        >>> name_below("elsewhere/a.jpg", "cards") is None
        True
    """
    if "://" in source or "://" in base:
        start = base.rstrip("/") + "/"
        if source.startswith(start):
            return source.removeprefix(start)
        return None
    try:
        relative = os.path.relpath(source, base).replace(os.sep, "/")
    except ValueError:  # on another drive of Windows, or a name that no file can have
        return None
    if relative == ".." or relative.startswith("../"):
        return None
    return relative


def image_entry(fields: RecordJson, file_name: str) -> Fields:
    """Make the entry of an image: its detections, or why it failed.

    Args:
        fields: The record of the image.
        file_name: The name that the entry has for it.
    """
    entry: Fields = {"file": file_name}
    if "detections" not in fields:
        entry["detections"] = None
        entry["failure"] = fields["error"]["message"]
        return entry
    entry["width"] = fields["width"]
    entry["height"] = fields["height"]
    entry["detections"] = detection_entries(fields)
    return entry


def detection_entries(fields: RecordJson) -> list[Fields]:
    """Make the entries of detections that are visible in an image or frame, and not repeated."""
    size = (fields["height"], fields["width"])
    entries = []
    for detection in fields["detections"]:
        if "repeated" not in detection and is_visible(box_of(detection), size):
            entry = detection_entry(detection, size)
            if "frame" in fields:
                entry["frame_number"] = fields["frame"]
            entries.append(entry)
    return entries


def detection_entry(detection: DetectionJson, size: Size) -> Fields:
    """Make the entry of a detection, whose box ends at the edges of the image.

    Args:
        detection: The detection of a record.
        size: Height and width of the image.

    Returns:
        The category, the score, and the box: left, top, width and height in fractions of the
        image's width and height.

    Examples:
        >>> animal = {"class_id": 0, "class_name": "animal", "score": 0.87654}
        >>> box = {"x1": 10, "y1": 5, "x2": 30, "y2": 20}
        >>> detection_entry({**animal, **box}, (50, 100))
        {'category': '1', 'conf': 0.877, 'bbox': [0.1, 0.1, 0.2, 0.3]}
    """
    height, width = size
    left, box_width = _fractions(detection["x1"], detection["x2"], width)
    top, box_height = _fractions(detection["y1"], detection["y2"], height)
    return {
        "category": str(detection["class_id"] + 1),
        "conf": round(float(detection["score"]), SCORE_DECIMALS),
        "bbox": [left, top, box_width, box_height],
    }


def _fractions(low: float, high: float, size: int) -> tuple[float, float]:
    """Compute the start and the length of a box along one axis, as fractions of the image.

    Both are rounded, so that their sum might be above 1: then the length is what is left of 1.

    Args:
        low: Where the box begins along the axis, in pixels; only what is in the image counts.
        high: Where it ends.
        size: Width or height of the image in pixels.
    """
    low = max(0.0, low)
    high = min(float(size), high)
    start = round(low / size, BOX_DECIMALS)
    length = round((high - low) / size, BOX_DECIMALS)
    max_length = round(1 - start, BOX_DECIMALS)
    return start, min(length, max_length)


class _VideoEntry:
    """The entry of a video, which is written in parts: its start, its frames and its end."""

    def __init__(self, first: RecordJson, file_name: str) -> None:
        """Prepare the entry of a video; its first frame is added with `add_frame` like the others.

        Args:
            first: The record of its first frame, or of a video that could not be opened.
            file_name: The name that the entry has for the video.
        """
        self._source = first["source"]
        self._input = first.get("input")
        self._file_name = file_name
        self._frame_numbers = array("q")  # numbers of the frames that did not fail

        # The last frame that has a time above 0, and the time; the frame rate is computed from it.
        self._last_timed_frame = 0
        self._last_time_s = 0.0

        # Whether a detection was written, so that a comma comes before the next one.
        self._has_detections = False
        self.has_begun = False  # whether the start of the entry was written
        self.failure = ""  # the message of the last failed frame

    def has_frame(self, fields: RecordJson) -> bool:
        """Return whether a record continues this video, and does not begin it anew, named again."""
        is_of_source = fields["source"] == self._source and fields.get("input") == self._input
        if not is_of_source or not self._frame_numbers or "frame" not in fields:
            return is_of_source
        return fields["frame"] > self._frame_numbers[-1]

    def add_frame(self, fields: RecordJson) -> str:
        """Record the number and the time of a frame, and return the JSON text to write for it.

        The text has the detections of the frame, separated by commas from each other and from those
        before. For the first frame, it begins with the start of the entry.
        """
        texts = []
        if not self.has_begun:
            self.has_begun = True
            texts.append(self._start(fields))

        frame_number = fields.get("frame", 0)
        self._frame_numbers.append(frame_number)
        if fields.get("time_s", 0.0) > 0 and frame_number > 0:
            self._last_time_s = fields["time_s"]
            self._last_timed_frame = frame_number

        for detection in detection_entries(fields):
            if self._has_detections:
                texts.append(", ")
            texts.append(encode(detection))
            self._has_detections = True
        return "".join(texts)

    def _start(self, fields: RecordJson) -> str:
        """Return the start of the entry, with the size of a frame, up to its detections."""
        file_object = encode({"file": self._file_name})
        size = f'"width": {fields["width"]}, "height": {fields["height"]}'
        return f'{file_object.removesuffix("}")}, {size}, "detections": ['

    def end(self) -> str:
        """Return the rest as a string: the rate and the indices of frames, or the failure."""
        if not self.has_begun:
            entry: dict[str, Any] = {"file": self._file_name, "detections": None}
            entry["failure"] = self.failure
            entry["frame_rate"] = FAILED_FRAME_RATE
            entry["frames_processed"] = []
            return encode(entry)
        rate = frame_rate(self._last_timed_frame, self._last_time_s)
        frame_numbers = encode(self._frame_numbers.tolist())
        return f'], "frame_rate": {rate}, "frames_processed": {frame_numbers}}}'


def frame_rate(frame: int, time_s: float) -> float:
    """Compute the frames per second of a video from one of its frames.

    The time is known to a millisecond, so many rates match. The one with the fewest decimals is
    returned.

    Args:
        frame: The number of the frame, from 0.
        time_s: Its time in seconds, to 3 decimals.

    Examples:
        >>> frame_rate(1, 0.033)
        30.0
        >>> frame_rate(3000, 100.1)
        29.97
    """
    if frame <= 0 or time_s <= 0:
        return UNKNOWN_FRAME_RATE
    rate = frame / time_s
    for decimals in range(MAX_RATE_DECIMALS):
        rounded_rate = round(rate, decimals)
        if rounded_rate > 0 and abs(frame / rounded_rate - time_s) <= HALF_MILLISECOND_S:
            return rounded_rate
    return rate


def category_names(class_names: dict[int, str]) -> dict[str, str]:
    """Make the table of categories: names by class id plus 1, none of which may be blank."""
    categories = {}
    for class_id in sorted(class_names):
        class_name = class_names[class_id]
        if not class_name.strip():
            class_name = f"class {class_id}"
        categories[str(class_id + 1)] = class_name
    return categories


def run_info(run: RunDescription, detector: object) -> Fields:
    """Make the object that says what made the file: the version of the format, and the model.

    It has no time, so that equal runs write equal files.

    Args:
        run: What is known about the run. Its confidence is used: the file has no detections below
            it.
        detector: The name of the model; None if no record has one.
    """
    info: Fields = {"format_version": FORMAT_VERSION, "detector": detector or "unknown"}
    conf = run.settings.get("conf")
    if isinstance(conf, int | float):
        info["detector_metadata"] = {
            "typical_detection_threshold": max(conf, TYPICAL_CONF),
            "conservative_detection_threshold": conf,
        }
    return info
