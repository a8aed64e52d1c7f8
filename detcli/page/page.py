"""Page: records become entries of a result page, with images, thumbnails, and what made it."""

import logging
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from detcli import __version__
from detcli.config.ignored import matches, pattern_of
from detcli.core import Fields
from detcli.core.errors import OutputError
from detcli.core.opencv import cv2
from detcli.data.columns import DetectionJson
from detcli.data.geometry import Letterbox, Pixels
from detcli.data.record import Record, RecordJson, box_of, iso_time, name_of, notes_of
from detcli.page.entries import (
    PageBox,
    begin_entry,
    box_list,
    class_list,
    coordinates,
    css_colours,
    kind_list,
    legible,
    optional_lists,
    shape_lists,
)
from detcli.page.one_file import IMAGE as IMAGE_OF_ONE_FILE
from detcli.page.one_file import PageFile, open_page
from detcli.page.run_info import RunInfo
from detcli.sink.colours import PALETTE, colour_of
from detcli.source.decode import browser_shows

log = logging.getLogger(__name__)

# Pixels of the longer side, at most, and quality of the JPEG; smaller images keep their size.
IMAGE = (1280, 85)
THUMBNAIL = (320, 75)
VIDEO_IMAGES = 200  # maximum number kept per video; beyond it, every other one is dropped
MAX_FACTS = 100
MADE_BY = ("model", "device", "precision")


class PageImage(NamedTuple):
    """An upright image on a page, which shows a copy, or the file where it is."""

    pixels: Pixels
    file: Path | None = None  # has the pixels as they are


def render(pixels: Pixels, sizes: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Encode an image as JPEG in several sizes, such as a copy and a thumbnail.

    Where an image is so small that two sizes are the same, their files are, too.

    Args:
        pixels: `(H, W, 3)`.
        sizes: For each size, the maximum of the longer side in pixels and the quality of the JPEG.
            The largest comes first, as each is made from the previous one.

    Yields:
        The bytes of each file.

    Raises:
        OutputError: It cannot be encoded.
    """
    scaled_pixels = pixels
    last_jpeg: bytes | None = None  # of `scaled_pixels`; None before the first size
    for longer_side, quality in sizes:
        size = scaled_pixels.shape[0], scaled_pixels.shape[1]
        smaller_size = Letterbox.fit(size, (longer_side, longer_side), enlarge=1).resized
        has_same_size = smaller_size == size
        if has_same_size and last_jpeg is not None:
            yield last_jpeg
            continue

        if not has_same_size:
            height, width = smaller_size
            scaled_pixels = cv2.resize(  # type: ignore[assignment]
                scaled_pixels, (width, height), interpolation=cv2.INTER_AREA
            )
        is_encoded, jpeg = cv2.imencode(".jpg", scaled_pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])
        if not is_encoded:
            raise OutputError("cannot encode an image of the page", "leave out --report")
        last_jpeg = jpeg.tobytes()
        yield last_jpeg


class PageRepeat(NamedTuple):
    """A group of boxes of the same class at the same place of a camera; a page shows one box."""

    number: int  # of the group
    image_count: int
    box_count: int
    place: str  # the folder of the images, or the source of their video or camera
    first_name: str  # of the first image, in the order of the records
    last_name: str
    box: Sequence[float]  # x1, y1, x2, y2 in fractions of the image


class PageTable(NamedTuple):
    """A table on the page: its title, its columns and its rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | int | float | None]]
    images: Sequence[Sequence[int]] = ()  # for each row, the records that it is about


class Curves(NamedTuple):
    """A diagram whose axes go from 0 to 1: a line for each class, and a last one for all."""

    title: str
    axes: tuple[str, str]
    # for each line its name, boxes, the figure beside the name, and heights in equal steps
    lines: Sequence[tuple[str, int, float, Sequence[float]]]
    marked: float | None = None  # a place on the first axis


class Conclusion(NamedTuple):
    """What a comparison found."""

    summary: Sequence[str] = ()  # a sentence for each thing
    tables: Sequence[PageTable] = ()
    curves: Sequence[Curves] = ()
    agree: bool | None = None  # the verdict, if there is one


NO_CONCLUSION = Conclusion()
"""For pages of runs that compare nothing."""


@dataclass(slots=True)
class _PageVideo:
    """A video whose frames are being added to the page."""

    number: int  # among the videos of the run
    stride: int = 1  # the page keeps the image of every stride-th frame
    frame_count: int = 0  # frames that were added
    last_frame: int = -1  # the number of the frame added last; -1 for a stream
    # for each image on the page, the index of its frame among those added, and its name
    images: list[tuple[int, str]] = field(default_factory=list)


class Page:
    """A page to which records are added, one by one.

    It can be opened at any moment, and shows what has been added until then. Memory does not grow
    with the number of records.
    """

    def __init__(
        self,
        path: Path,
        run_info: RunInfo,
        inputs: Container[Path] = (),
        *,
        resumed: bool = False,
        linked: bool = False,
    ) -> None:
        """Check that the page can be written; an existing page is kept until the first record.

        Args:
            path: The folder of the page, or a file that ends in .html.
            run_info: What the page says about the run.
            inputs: The files that the run reads, which are never removed.
            resumed: Whether records are added to those of the earlier page.
            linked: Whether the page shows image files where they are, without copies. Images that
                browsers may show differently from detcli are nevertheless copied, and a warning at
                the end says how many.

        Raises:
            UsageError: Something that is not a page already exists, another run is writing to the
                page, or the page is one file, which can neither be resumed nor link images.
            OutputError: The page cannot be written to.
        """
        self._folder = open_page(path, inputs, resumed=resumed, linked=linked)
        self._links_images = linked
        self._run_info = run_info
        self._start_time = iso_time(datetime.now(UTC))
        self._has_begun = False

        self._record_count = 0
        self._image_count = 0
        self._copy_count = 0  # images of which the page has a copy
        self._video_count = 0
        self._videos: dict[str, _PageVideo] = {}  # by source; for files, only the one being read
        # Classes are numbered in the order in which they appear; the index by id and name.
        self._class_numbers: dict[tuple[int, str], int] = {}
        # The (name, value) pairs of models, devices and precisions that made records. They are the
        # keys of a dict, which are unique like the items of a set, but stay in their order.
        self._facts: dict[tuple[str, str], None] = {}

    def add(
        self,
        fields: RecordJson,
        image: Callable[[], PageImage | None] | Fields | None,
        boxes: Sequence[PageBox] | None = None,
        annotated_video: Path | None = None,
        repeat: PageRepeat | None = None,
    ) -> int:
        """Add a record to the page, and return its index, from 0.

        The page keeps a limited number of images of each video. So a frame may make it drop images
        of earlier frames, which are then removed from the disk.

        Args:
            fields: The record.
            image: A function that reads the image, which is called only if the page keeps it; or
                the fields that `store` has returned for an image that has already been written;
                None if the record has no image.
            boxes: The boxes of a comparison; None to show the record's detections.
            annotated_video: The annotated video that has this frame.
            repeat: On a page of repeats, the group of boxes that the record stands for.
        """
        self._begin_once()
        entry = begin_entry(fields)
        if repeat is not None:
            entry["repeat"] = legible(repeat)
        is_error = "detections" not in fields
        if not is_error:
            self._add_detections(entry, fields, boxes)
            self._add_ignored(entry, fields)
        names_of_dropped_images = self._add_image(entry, fields, image, annotated_video)

        begins_chunk = self._folder.add(entry)
        if begins_chunk:
            self._describe("running")  # the description counts the chunks
        # Not before the entry is written: its stride says that these images are dropped.
        for name in names_of_dropped_images:
            self._folder.remove_image(name)

        record_index = self._record_count
        self._record_count += 1
        return record_index

    def _add_detections(
        self, entry: Fields, fields: RecordJson, boxes: Sequence[PageBox] | None
    ) -> None:
        """Add the boxes of a record to its entry, and what made them to the facts of the page.

        Args:
            entry: The entry, which gets the boxes.
            fields: The record, which has detections.
            boxes: The boxes of a comparison; None to show the record's detections.
        """
        self._add_facts(fields)
        if boxes is not None:
            self._add_boxes(entry, boxes)
            return
        detections = fields["detections"]
        entry |= optional_lists(detections)
        self._add_boxes(entry, [_page_box(detection) for detection in detections])

    def close(self, conclusion: Conclusion = NO_CONCLUSION) -> None:
        """End the page, which says whether the run is complete or was stopped by an exception.

        It was stopped if this is called while an exception is handled, as at the end of a `with`
        block that has failed. If that is before the first record, an existing page is kept.

        With --report-link, a warning says how many images were nevertheless copied.

        Args:
            conclusion: What a comparison concludes from all records.
        """
        has_failed = sys.exception() is not None
        if has_failed:
            state = "stopped"
        else:
            state = "complete"

        keeps_earlier_page = has_failed and not self._has_begun
        try:
            if not keeps_earlier_page:
                self._begin_once()
                self._describe(state, conclusion)
        finally:
            self._folder.close()

        if self._links_images and self._copy_count:
            log.warning(
                "%d of %d images of the page are copies: they are in no file of their own, or in "
                "one that a browser may show otherwise",
                self._copy_count,
                self._image_count,
            )

    def store(self, get_image: Callable[[], PageImage | None]) -> Fields:
        """Write an image to the page, and return what the entry of its record says about it.

        A page that links images writes only a thumbnail and shows the image's file, if browsers
        show that as detcli reads it. Otherwise the page gets a copy of the image.

        Args:
            get_image: Reads the image; its result is None if there is none.

        Returns:
            Fields of the entry: `picture` is the name of the image among the page's files, and
            `original` the address of its file if it is linked. Empty if there is no image.
        """
        self._begin_once()
        image = get_image()
        if image is None:
            return {}

        image_number = self._image_count
        self._image_count += 1
        if self._links_images and image.file is not None and browser_shows(image.file):
            address = self._folder.address_of(image.file)
            [thumbnail_jpeg] = render(image.pixels, [THUMBNAIL])
            name = self._folder.write_image(image_number, thumbnail_jpeg)
            return {"picture": name, "original": address}

        self._copy_count += 1
        return {"picture": self._write_copy(image_number, image.pixels)}

    def _write_copy(self, image_number: int, pixels: Pixels) -> str:
        """Write a copy of an image, and return its name.

        A page in one file has the copy alone, in a smaller size; other pages a thumbnail as well.
        """
        if isinstance(self._folder, PageFile):
            [copy_jpeg] = render(pixels, [IMAGE_OF_ONE_FILE])
            return self._folder.write_image(image_number, copy_jpeg)
        copy_jpeg, thumbnail_jpeg = render(pixels, [IMAGE, THUMBNAIL])
        return self._folder.write_image(image_number, thumbnail_jpeg, copy_jpeg)

    def describe(self, run_info: RunInfo) -> None:
        """Replace what the page says about the run, which is written with a chunk or at the end."""
        self._run_info = run_info

    def sync(self) -> None:
        """Put the records so far on the disk, with their images, as `PageFolder.sync` does."""
        self._folder.sync()

    def discard(self) -> None:
        """Give up a page that has not begun: an existing one is kept."""
        self._folder.close()

    def _begin_once(self) -> None:
        """Begin the page with its first record: before that, the run may still be refused."""
        if not self._has_begun:
            self._folder.begin()
            self._has_begun = True
            self._describe("running")

    def _describe(self, state: str, conclusion: Conclusion = NO_CONCLUSION) -> None:
        """Write the description of the run to the page's data, replacing the last one.

        The page's script reads these fields, which the module `page/folder.py` explains. For
        example, "sides" and "agree" are only for comparisons, "rerun" has the arguments of a
        command that finds the same detections, and no detection scores below "floor".

        Args:
            state: "running", "stopped" or "complete".
            conclusion: What a comparison concludes, at its end.
        """
        end_time = None
        if state != "running":
            end_time = iso_time(datetime.now(UTC))

        run_info = self._run_info
        facts = [*self._facts, *run_info.facts, ("detcli", __version__)]
        palette = []
        for number in range(len(PALETTE)):
            palette.append(css_colours(colour_of(number)))
        ignored = []
        for zone in run_info.ignored:
            ignored.append([zone.fractions, coordinates(zone)])

        run = {
            "command": run_info.command,
            "state": state,
            "begun": self._start_time,
            "ended": end_time,
            "facts": list(dict.fromkeys(facts)),  # without duplicates
            "kinds": [kind_list(kind) for kind in run_info.kinds],
            "palette": palette,
            "sides": run_info.sides,
            "floor": run_info.min_score,
            "places": shape_lists(run_info.zones_and_lines),
            "ignored": ignored,
            "repeats": run_info.records_are_repeats,
            "rerun": run_info.rerun,
            "summary": conclusion.summary,
            "tables": conclusion.tables,
            "curves": conclusion.curves,
            "agree": conclusion.agree,
        }
        self._folder.describe({name: legible(value) for name, value in run.items()})

    def _add_facts(self, fields: RecordJson) -> None:
        """Record which model and device made a record, for the description of the run.

        They may differ among the records of a file; no more than `MAX_FACTS` are kept.
        """
        if len(self._facts) >= MAX_FACTS:
            return
        for name in MADE_BY:
            value = str(fields.get(name, ""))
            if value:
                self._facts[name, value] = None

    def _add_boxes(self, entry: Fields, boxes: Sequence[PageBox]) -> None:
        """Add the boxes of a record to its entry, and the classes that no earlier entry has.

        Both are lists of values; the module `page/folder.py` has the format.
        """
        box_lists = []
        new_classes = []
        for box in boxes:
            class_key = box.class_id, box.class_name
            if class_key not in self._class_numbers:
                self._class_numbers[class_key] = len(self._class_numbers)
                new_classes.append(class_list(box))
            box_lists.append(box_list(box, self._class_numbers[class_key]))
        entry["found"] = box_lists
        if new_classes:
            entry["classes"] = new_classes

    def _add_ignored(self, entry: Fields, fields: RecordJson) -> None:
        """Store in a record's entry the indices of the run's ignored polygons that apply to it."""
        source = name_of(fields)
        numbers = []
        for number, zone in enumerate(self._run_info.ignored):
            if matches(source, pattern_of(zone)):
                numbers.append(number)
        if numbers:
            entry["ignored"] = numbers

    def _add_image(
        self,
        entry: Fields,
        fields: RecordJson,
        image: Callable[[], PageImage | None] | Fields | None,
        annotated_video: Path | None,
    ) -> list[str]:
        """Add the image of a record to its entry, if the page keeps an image of it.

        The page keeps images of every stride-th frame of a video. The stride begins at 1. Whenever
        there are more than VIDEO_IMAGES, it doubles, and every other image is dropped.

        Args:
            entry: The entry, which gets the image, and the index and stride of its video.
            fields: The record.
            image: Reads the image, or is what `store` has returned for it; None if there is no
                image.
            annotated_video: The annotated video that has this frame.

        Returns:
            The names of the images that are dropped, to be removed when the entry is written.
        """
        video = self._video_of(fields)
        if video is not None:
            entry["video"] = video.number
        if video is None or video.frame_count % video.stride == 0:
            if not callable(image):
                entry |= image or {}
            elif "detections" in fields:
                entry |= self.store(image)
        if video is None:
            return []

        if annotated_video is not None and video.frame_count == 0:
            entry["film"] = self._folder.address_of(annotated_video)
        if "picture" in entry:
            video.images.append((video.frame_count, entry["picture"]))
        video.frame_count += 1
        if len(video.images) <= VIDEO_IMAGES:
            return []

        video.stride *= 2
        entry["stride"] = video.stride
        return _drop_images(video)

    def _video_of(self, fields: RecordJson) -> _PageVideo | None:
        """Return the video that the frame of a record belongs to; None if it is not a frame.

        The first frame of a video begins it. Live streams may run side by side, but video files are
        read one after the other. So once a file begins, the previous one is forgotten.

        The number of each frame of a file is stored in its video. If the next number is not higher,
        the user has named the file twice, and a new video begins.
        """
        if "frame" not in fields:
            return None

        source = name_of(fields)
        video = self._videos.get(source)
        is_live = "time" in fields
        if is_live:
            if video is None:
                return self._begin_video(source)
            return video

        frame_number = fields["frame"]
        if video is None or frame_number <= video.last_frame:
            self._forget_video_files()
            video = self._begin_video(source)
        video.last_frame = frame_number
        return video

    def _begin_video(self, source: str) -> _PageVideo:
        """Record that a video begins, whose name in records is `source`."""
        video = _PageVideo(self._video_count)
        self._videos[source] = video
        self._video_count += 1
        return video

    def _forget_video_files(self) -> None:
        """Forget the videos that are files, as they have no more frames; streams may go on."""
        streams = {}
        for source, video in self._videos.items():
            is_stream = video.last_frame < 0
            if is_stream:
                streams[source] = video
        self._videos = streams


class PageSink:
    """Adds each record to a page; with `only_detections`, other records have no image on it."""

    def __init__(self, page: Page, *, only_detections: bool = False) -> None:
        self._page = page
        self._only_detections = only_detections

    def write(self, record: Record) -> None:
        """Add a record to the page, with its image and the annotated video that has the frame."""

        def get_image() -> PageImage | None:
            """Return the image of the record, for the page to call only if it shows it."""
            is_left_out = self._only_detections and not record.detections
            if record.picture is None or is_left_out:
                return None
            return PageImage(record.picture.pixels, record.origin.path)

        annotated_video = None
        # An annotated video without the frames that have no detections has different times from its
        # source, so the page cannot play it beside the frames.
        if not self._only_detections:
            annotated_video = _first_video(notes_of(record).saved)
        self._page.add(record.to_json(), get_image, annotated_video=annotated_video)

    def close(self) -> None:
        """End the page."""
        self._page.close()


def _first_video(files: Iterable[Path]) -> Path | None:
    """Return the first MP4 among the files; None if there is none."""
    for path in files:
        if path.suffix == ".mp4":
            return path
    return None


def _drop_images(video: _PageVideo) -> list[str]:
    """Keep only the images of every stride-th frame of a video, and return the dropped names."""
    remaining_images = []
    dropped_names = []
    for frame_index, name in video.images:
        if frame_index % video.stride == 0:
            remaining_images.append((frame_index, name))
        else:
            dropped_names.append(name)
    video.images = remaining_images
    return dropped_names


def _page_box(detection: DetectionJson) -> PageBox:
    """Make the box of a detection for the page."""
    return PageBox(
        class_id=detection["class_id"],
        class_name=detection["class_name"],
        score=detection["score"],
        corners=box_of(detection),
    )
