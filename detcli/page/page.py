"""Page: records become entries of a result page, with pictures, thumbnails, and what made it."""

import contextlib
import logging
import platform
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from detcli import __version__
from detcli.config.shapes import Shape
from detcli.core import Fields, frozen
from detcli.core.errors import OutputError, UsageError
from detcli.core.opencv import cv2
from detcli.core.text import escape_unprintable
from detcli.data.columns import OPTIONAL_COLUMNS, DetectionJson, OptionalColumn
from detcli.data.geometry import Image, Letterbox
from detcli.data.record import (
    Record,
    RecordJson,
    SettingsJson,
    box_of,
    iso_time,
    name_of,
)
from detcli.page.folder import PageFolder
from detcli.sink.draw import BLACK, PALETTE, ZONE_COLOURS, Colour, colour_of, ink
from detcli.source.decode import browser_shows

log = logging.getLogger(__name__)

# Pixels of the longer side, at most, and quality of the JPEG; smaller pictures keep their size.
PICTURE = (1280, 85)
THUMBNAIL = (320, 75)
VIDEO_PICTURES = 200  # the most that are kept of one video; beyond it, every other one is dropped
MAX_FACTS = 100
MADE_BY = ("model", "device", "precision")
COPIED = {"width", "height", "frame", "time_s", "time"}  # as the record has them


class PagePicture(NamedTuple):
    """An upright picture on a page, which shows a copy, or the file where it is."""

    pixels: Image
    file: Path | None = None  # which has them, as they are


def render(pixels: Image, sizes: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Make a JPEG of each size; `sizes` have the longer side, at most, and the quality.

    Raises:
        OutputError: It cannot be encoded.
    """
    for side, quality in sizes:
        size = pixels.shape[0], pixels.shape[1]
        smaller = Letterbox.fit(size, (side, side), enlarge=1).resized
        if smaller != size:
            pixels = cv2.resize(pixels, smaller[::-1], interpolation=cv2.INTER_AREA)  # type: ignore[assignment]
        encoded, data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])
        if not encoded:
            raise OutputError("cannot encode a picture of the page", "leave out --report")
        yield data.tobytes()


@frozen
class BoxKind:
    """A kind of boxes in a comparison: those that are missing, for instance."""

    name: str  # as it is shown
    colour: Colour  # of its boxes, BGR
    dashed: bool = False  # whether its boxes are
    wrong: bool = True  # whether pictures with such boxes come first
    side: int | None = None  # the only side that has such boxes, 0 or 1; None for both


class PageBox(NamedTuple):
    """A box on a picture of a page."""

    class_id: int  # of the model
    class_name: str  # any text
    score: float | None  # from 0 to 1; None for an object of a label
    box: Sequence[float]  # x1, y1, x2, y2 in pixels of the upright picture
    kind: int | None = None  # its number among the run's kinds; None for a run without any
    # score and box of the counterpart on the other side of a comparison
    counterpart: tuple[float | None, Sequence[float]] | None = None


class PageTable(NamedTuple):
    """A table on the page: its title, its columns and its rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | int | float | None]]
    pictures: Sequence[Sequence[int]] = ()  # for each row, the records that it is about


class Curves(NamedTuple):
    """A diagram whose axes go from 0 to 1: a line for each class, and a last one for all."""

    title: str
    axes: tuple[str, str]
    # of each line its name, boxes, the figure beside the name, and heights in equal steps
    lines: Sequence[tuple[str, int, float, Sequence[float]]]
    marked: float | None = None  # a place on the first axis


class Conclusion(NamedTuple):
    """What a comparison found."""

    summary: Sequence[str] = ()  # a sentence for each thing
    tables: Sequence[PageTable] = ()
    curves: Sequence[Curves] = ()
    agree: bool | None = None  # the verdict, if there is one


NOTHING = Conclusion()


@frozen
class RunInfo:
    """What the page says of a run: its command, its settings, and how its boxes are shown."""

    command: str  # predict, report, verify or eval
    facts: Sequence[tuple[str, str]] = ()  # name and value of whatever the detections depend on
    kinds: Sequence[BoxKind] = ()  # what a comparison may say of boxes
    sides: Sequence[str] = ()  # names of the two that are compared
    min_score: float = 0.0  # detections score above it
    zones_and_lines: Sequence[Shape] = ()  # zones and lines, which are drawn on each picture


@dataclass(slots=True)
class _PageVideo:
    """A video whose frames are being added."""

    number: int  # among the videos of the run
    stride: int = 1  # the picture of every stride-th frame is kept
    frames: int = 0  # how many there were
    last: int = -1  # number of the last one
    # of each picture that is kept its index among the frames, and its name
    pictures: list[tuple[int, str]] = field(default_factory=list)


class Page:
    """A page to which records are added, one by one.

    It can be opened at any moment, and shows what was added until then. Memory does not grow with
    the number of records. The files of `inputs` are never removed. If `resumed`, records are added
    to those of the page that is there. If `linked`, it shows picture files where they are, wherever
    browsers show them alike, and a warning says how many pictures are copies.

    Raises:
        UsageError: The folder has something else in it, or another run is writing to it.
        OutputError: It cannot be written to.
    """

    def __init__(
        self,
        path: Path,
        about: RunInfo,
        inputs: Container[Path] = (),
        *,
        resumed: bool = False,
        linked: bool = False,
    ) -> None:
        self._folder = PageFolder(path, inputs, resumed=resumed)
        self._linked = linked
        self._about = about
        self._begun = iso_time(datetime.now(UTC))
        self._classes: dict[tuple[int, str], int] = {}
        self._videos: dict[str, _PageVideo] = {}  # by source; of files only the one that is read
        self._video_count = 0
        self._pictures = 0
        self._copies = 0  # of the pictures, those that are not shown where they are
        self._records = 0
        self._facts: dict[tuple[str, str], None] = {}  # what made the records, of few kinds
        self._has_begun = False

    def add(
        self,
        fields: RecordJson,
        picture: Callable[[], PagePicture | None] | Fields | None,
        boxes: Sequence[PageBox] | None = None,
        annotated_video: Path | None = None,
    ) -> int:
        """Add a record; returns its number.

        Args:
            fields: The record.
            picture: Gets its picture, if one is kept; or what `store` has returned; None if there
                is none.
            boxes: Its boxes; None for its detections.
            annotated_video: The annotated video that has this frame.
        """
        self._begin()
        entry = _begin_entry(fields)
        if "detections" in fields:
            self._add_facts(fields)
            if boxes is None:
                detections = fields["detections"]
                boxes = [_page_box(detection) for detection in detections]
                entry |= _optional_lists(detections)
            self._add_boxes(entry, boxes)
        dropped = self._add_picture(entry, fields, picture, annotated_video)
        if self._folder.add(entry):
            self._describe("running")
        for name in dropped:
            self._folder.remove_picture(name)
        self._records += 1
        return self._records - 1

    def close(self, conclusion: Conclusion = NOTHING) -> None:
        """End the page, which says how the run ended: early, if an exception is on its way.

        A run that fails before its first record leaves the page that was there.
        """
        failed = sys.exception() is not None
        try:
            if self._has_begun or not failed:
                self._begin()
                self._describe("stopped" if failed else "complete", conclusion)
        finally:
            self._folder.close()
        if self._linked and self._copies:
            log.warning(
                "%d of %d pictures of the page are copies: they are in no file of their own, or in "
                "one that a browser may show otherwise",
                self._copies,
                self._pictures,
            )

    def store(self, picture: Callable[[], PagePicture | None]) -> Fields:
        """Write a picture whose record comes later, and return what the record then says of it."""
        self._begin()
        page_picture = picture()
        if page_picture is None:
            return {}
        number = self._pictures
        self._pictures += 1
        file = page_picture.file
        fields: Fields = {}
        if self._linked and file is not None and browser_shows(file):
            fields["original"] = self._folder.address_of(file)
            sizes = [THUMBNAIL]
        else:
            sizes = [PICTURE, THUMBNAIL]
            self._copies += 1
        jpegs = render(page_picture.pixels, sizes)
        name = self._folder.write_picture(number, *jpegs)
        return {"picture": name, **fields}

    def describe(self, about: RunInfo) -> None:
        """Replace what the page says of the run, of which more is known now."""
        self._about = about

    def discard(self) -> None:
        """Give up a page that has not begun: what was there stays."""
        self._folder.close()

    def _begin(self) -> None:
        """Begin the page with its first record: before that, the run may still be refused."""
        if not self._has_begun:
            self._folder.begin()
            self._has_begun = True
            self._describe("running")

    def _describe(self, state: str, conclusion: Conclusion = NOTHING) -> None:
        """Write what the page says of the run: what made it, its state, and its conclusion."""
        about = self._about
        facts = [*self._facts, *about.facts, ("detcli", __version__)]
        ended = None
        if state != "running":
            ended = iso_time(datetime.now(UTC))
        kinds = []
        for kind in about.kinds:
            colour, text_colour = _hex(kind.colour)
            kinds.append([kind.name, colour, text_colour, kind.dashed, kind.wrong, kind.side])
        zones_and_lines = []
        for number, shape in enumerate(about.zones_and_lines, start=ZONE_COLOURS):
            colour, text_colour = _hex(colour_of(number))
            points = []  # x, y, x, y, ...
            for x, y in shape.points:
                points += [x, y]
            zones_and_lines.append([shape.name, colour, text_colour, shape.fractions, points])
        run = {
            "command": about.command,
            "state": state,
            "begun": self._begun,
            "ended": ended,
            "facts": list(dict.fromkeys(facts)),
            "kinds": kinds,
            "palette": [_hex(colour_of(number)) for number in range(len(PALETTE))],
            "sides": about.sides,
            "floor": about.min_score,
            "places": zones_and_lines,
            **conclusion._asdict(),
        }
        self._folder.describe({name: _legible(value) for name, value in run.items()})

    def _add_facts(self, fields: RecordJson) -> None:
        """Remember what has made a record, up to `MAX_FACTS`."""
        if len(self._facts) >= MAX_FACTS:
            return
        for name in MADE_BY:
            value = str(fields.get(name, ""))
            if value:
                self._facts[name, value] = None

    def _add_boxes(self, entry: Fields, boxes: Sequence[PageBox]) -> None:
        """Add boxes to an entry, and the classes that no entry before it has."""
        lists = []
        new_classes = []
        for box in boxes:
            key = box.class_id, box.class_name
            if key not in self._classes:
                self._classes[key] = len(self._classes)
                colour, text_colour = _hex(colour_of(box.class_id))
                new_classes.append(
                    [box.class_id, escape_unprintable(box.class_name), colour, text_colour]
                )
            values: list[Any] = [self._classes[key], box.score]
            values += [round(edge, 1) for edge in box.box]
            if box.kind is not None:
                values.append(box.kind)
            if box.counterpart is not None:
                score, edges = box.counterpart
                values.append(score)
                values += [round(edge, 1) for edge in edges]
            lists.append(values)
        entry["found"] = lists
        if new_classes:
            entry["classes"] = new_classes

    def _add_picture(
        self,
        entry: Fields,
        fields: RecordJson,
        picture: Callable[[], PagePicture | None] | Fields | None,
        annotated_video: Path | None,
    ) -> list[str]:
        """Write a record's picture, if one is kept; returns those to be removed."""
        video = self._video(entry, fields)
        if video is None or video.frames % video.stride == 0:
            if not callable(picture):
                entry |= picture or {}
            elif "detections" in fields:
                entry |= self.store(picture)
        if video is None:
            return []
        if annotated_video is not None and not video.frames:
            entry["film"] = self._folder.address_of(annotated_video)
        if "picture" in entry:
            video.pictures.append((video.frames, entry["picture"]))
        video.frames += 1
        if len(video.pictures) <= VIDEO_PICTURES:
            return []
        video.stride *= 2
        entry["stride"] = video.stride
        remaining = []
        dropped = []
        for index, name in video.pictures:
            if index % video.stride == 0:
                remaining.append((index, name))
            else:
                dropped.append(name)
        video.pictures = remaining
        return dropped

    def _video(self, entry: Fields, fields: RecordJson) -> _PageVideo | None:
        """The video that a frame belongs to; a new one where frames start over."""
        if "frame" not in fields:
            return None
        source = name_of(fields)
        is_live = "time" in fields
        video = self._videos.get(source)
        if video is None or (not is_live and fields["frame"] <= video.last):
            if not is_live:  # files are read one by one
                self._forget_files()
            video = _PageVideo(self._video_count)
            self._videos[source] = video
            self._video_count += 1
        if not is_live:
            video.last = fields["frame"]
        entry["video"] = video.number
        return video

    def _forget_files(self) -> None:
        """Forget the videos that are files, of which no more frames come."""
        self._videos = {source: video for source, video in self._videos.items() if video.last < 0}


class PageSink:
    """Adds each record to a page; with `only_detections`, other records have no picture on it."""

    def __init__(self, page: Page, *, only_detections: bool = False) -> None:
        self._page = page
        self._only_detections = only_detections

    def write(self, record: Record) -> None:
        def picture() -> PagePicture | None:
            if record.picture is None or (self._only_detections and not record.detections):
                return None
            return PagePicture(record.picture.pixels, record.origin.path)

        annotated_video = None
        if not self._only_detections:  # a video without the other frames has other times
            videos = [path for path in record.saved if path.suffix == ".mp4"]
            annotated_video = videos[0] if videos else None
        self._page.add(record.to_json(), picture, annotated_video=annotated_video)

    def close(self) -> None:
        self._page.close()


def _begin_entry(fields: RecordJson) -> Fields:
    """What an entry has of any record: where it is from, its error and its warnings."""
    entry: Fields = {"source": escape_unprintable(fields["source"])}
    for name, value in fields.items():
        if name in COPIED:
            entry[name] = value
    error = fields.get("error")
    if error:
        entry["error"] = [escape_unprintable(error[name]) for name in ("type", "message", "hint")]
    warnings = fields.get("warnings")
    if warnings:
        entry["warnings"] = [escape_unprintable(warning) for warning in warnings]
    return entry


def _page_box(detection: DetectionJson) -> PageBox:
    """The box of a detection."""
    return PageBox(
        class_id=detection["class_id"],
        class_name=detection["class_name"],
        score=detection["score"],
        box=box_of(detection),
    )


def _optional_lists(detections: Sequence[DetectionJson]) -> dict[str, list[Any]]:
    """What options add to detections: for each column that has values, a list of them."""
    lists = {}
    for column in OPTIONAL_COLUMNS:
        if column.page_list:
            values = [_page_value(column, detection) for detection in detections]
            if any(values):
                lists[column.page_list] = values
    return lists


def _page_value(column: OptionalColumn, fields: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """The value that a page has of a column in a detection."""
    if column.name in fields:
        return column.to_page(fields[column.name])
    return column.page_default


def _hex(colour: Colour) -> tuple[str, str]:
    """A colour and that of text on it, as CSS has them."""
    blue, green, red = colour
    text_colour = "#000" if ink(colour) == BLACK else "#fff"
    return f"#{red:02x}{green:02x}{blue:02x}", text_colour


def _legible(value: object) -> object:
    """Escape what is unprintable in the texts of a value; a named tuple becomes a list."""
    if isinstance(value, str):
        return escape_unprintable(value)
    if isinstance(value, Sequence):
        return [_legible(item) for item in value]
    return value


UNSAID: tuple[object, ...] = (None, False, "", [], {})  # values of settings that change nothing


def run_info_of(settings: SettingsJson) -> RunInfo:
    """Describe a run of predict for its page, by its settings."""
    facts = [*settings_facts(settings), *versions()]
    min_score = min(settings["conf"], *settings["class_conf"].values(), 1)
    return RunInfo(
        "predict",
        facts,
        min_score=min_score,
        zones_and_lines=list(zones_and_lines_of(settings)),
    )


def settings_facts(settings: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the names and values of settings that change something."""
    for name, value in settings.items():
        if name == "names":
            continue  # of classes, of which the page has those that were found
        if value not in UNSAID:
            yield name.replace("_", " "), _text(value)


def zones_and_lines_of(settings: Mapping[str, object]) -> Iterator[Shape]:
    """Yield the zones and lines of settings; whatever else stands in their place is left out."""
    for name, read in (("zones", Shape.zone), ("lines", Shape.line)):
        texts = settings.get(name)
        if not isinstance(texts, list):
            continue
        for text in texts:
            with contextlib.suppress(UsageError):
                yield read(str(text))


def _text(value: object) -> str:
    """The value of a setting, as a person reads it."""
    if isinstance(value, dict):
        return ", ".join(f"{name}: {item}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return str(value)


def versions() -> Iterator[tuple[str, str]]:
    """Yield the names and versions of the libraries that compute detections."""
    import cv2
    import numpy as np
    import onnxruntime

    yield "Python", platform.python_version()
    yield "ONNX Runtime", onnxruntime.__version__
    yield "OpenCV", cv2.__version__
    yield "NumPy", np.__version__
