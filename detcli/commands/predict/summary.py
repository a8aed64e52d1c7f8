"""The summary of a run: counts of its records and files, and the lines about them."""

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from detcli.cli.console import (
    print_command,
    print_line,
    print_message_counts,
    print_new_messages,
)
from detcli.commands.predict.continuation import how_to_continue
from detcli.config.config import Config
from detcli.config.outputs import Outputs
from detcli.config.values import Target
from detcli.core.text import pluralize
from detcli.core.timing import StageTimes
from detcli.data.record import Origin, Record, notes_of
from detcli.run.counts import Counts
from detcli.run.destination import Destination
from detcli.sink.formats import FORMATS, is_special
from detcli.source.sources import Sources

VIDEO_SUFFIXES = frozenset({".gif", ".mp4"})
"""The suffixes of annotated videos, and of the GIFs of their first seconds."""


@dataclass
class _LiveFrames:
    """The frames that a live source gave."""

    count: int
    first_s: float  # the time of the first, in seconds
    last_s: float  # the time of the last

    def describe(self, dropped_count: int) -> str:
        """Format their number and rate, as in "90 frames, 29.8/s, 12 dropped"."""
        parts = [pluralize(self.count, "frame")]
        if self.last_s > self.first_s:
            interval_count = self.count - 1  # between the first frame and the last
            parts.append(f"{interval_count / (self.last_s - self.first_s):.1f}/s")
        if dropped_count:
            parts.append(f"{dropped_count} dropped")
        return ", ".join(parts)


class _SavedFiles:
    """Counts the files that a run writes to its output folders, such as crops and videos."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs
        self._count_by_folder: Counter[Path] = Counter()
        self._video_files: set[Path] = set()  # files of whole videos that were counted

    def add(self, paths: Iterable[Path]) -> None:
        """Count the files that a record names; the records of all frames name those of a video."""
        for path in paths:
            is_of_video = path.suffix in VIDEO_SUFFIXES or path.parent == self._outputs.save_mot
            if is_of_video and path in self._video_files:
                continue
            if is_of_video:
                self._video_files.add(path)
            self._count(path)

    def _count(self, path: Path) -> None:
        """Count a file for the innermost output folder that contains it."""
        folders = [folder for folder in self._outputs.folders if path.is_relative_to(folder)]
        folders.sort(key=lambda folder: len(folder.parts))
        if folders:
            self._count_by_folder[folders[-1]] += 1

    def count_in(self, folder: Path) -> int:
        """Return how many files were written to an output folder."""
        return self._count_by_folder[folder]


def _existing_files(targets: Iterable["Target | None"]) -> set[Path]:
    """Return those output files that exist already."""
    files: set[Path] = set()
    for target in targets:
        if isinstance(target, Path) and os.path.isfile(target):  # noqa: PTH113 - raises nothing
            files.add(target)
    return files


class RunSummary:
    """Counts the records and files of a run, and formats what is printed about them."""

    def __init__(self, config: Config, destination: Destination) -> None:
        """Create empty counts, and record which output files exist before the run.

        Args:
            config: The options of the run.
            destination: Where its records go.
        """
        self.destination = destination
        self._outputs = config.outputs
        self._has_tracks = config.watched.track is not None
        self._quiet = config.verbosity.quiet
        self._shows_stages = config.verbosity.verbose > 0

        # What the run itself sets and counts up.
        self.counts = Counts()
        self.complete = False  # whether all inputs were read
        self.skipped = 0  # inputs that have a record in the file of --resume already
        # What a user of --blur has to know: boxes that are blurred although marks dropped them, and
        # images where --max-det may have left out boxes, so that these are not blurred.
        self.hidden_boxes_dropped = 0
        self.at_max_det = 0

        # What `add` counts.
        self._row_count = 0  # rows of the output, in a format with a row for each detection
        self._frame_count = 0  # frames of videos and streams
        self._frames_by_stream: dict[str, _LiveFrames] = {}  # by the name of the live source

        self._saved_files = _SavedFiles(config.outputs)
        self._replaced_files = _existing_files([destination.target, config.outputs.save_coco])

        self._start_s = time.perf_counter()
        self._reading_s = 0.0  # how long it took to read the records of an earlier run

    def begin_images(self) -> None:
        """Record that the outputs are open, so that the time from now on is that of the images."""
        now_s = time.perf_counter()
        self._reading_s = now_s - self._start_s
        self._start_s = now_s

    def add(self, record: Record) -> None:
        """Count a record and the files that it names, and print its errors and warnings.

        These are not printed if the table on the terminal shows them already.
        """
        self.counts.add(record)  # this also adds its errors and warnings to `counts.messages`
        if self.destination.show_errors:
            self.counts.messages.clear()
        print_new_messages(self.counts, quiet=self._quiet)

        # A format with a row for each detection has an empty row for an image without any.
        self._row_count += max(1, len(record.detections or ()))
        if record.origin.frame is not None:
            self._frame_count += 1
        self._count_live_frame(record.origin)
        saved_paths = notes_of(record).saved
        self._saved_files.add(saved_paths)

    def _count_live_frame(self, origin: Origin) -> None:
        """Count a frame of a live source, and record its time; only these have a time of day."""
        if origin.time is None or origin.time_s is None:
            return
        frames = self._frames_by_stream.get(origin.source)
        if frames is None:
            frames = _LiveFrames(0, origin.time_s, origin.time_s)
            self._frames_by_stream[origin.source] = frames
        frames.count += 1
        frames.last_s = origin.time_s

    def status(self) -> str:
        """Return the number of detections and failures and the rate, for a progress bar."""
        parts = [pluralize(self.counts.detections_by_class.total(), "detection")]
        if self.counts.failed:
            parts.append(f"{self.counts.failed} failed")
        rate = self.counts.input_count / (time.perf_counter() - self._start_s)
        parts.append(f"{rate:.1f}/s")
        return ", ".join(parts)

    def lines(self, times: StageTimes, dropped_frames: Counter[str]) -> Iterator[str]:
        """Yield the lines to print at the end: what was done, detected and written.

        Args:
            times: How long each stage took.
            dropped_frames: For each live source, how many frames came faster than they could be
                processed.
        """
        elapsed_s = time.perf_counter() - self._start_s
        yield from self.counts.summary(
            elapsed_s, self.skipped, dropped_frames.total(), times, stages=self._shows_stages
        )
        if len(dropped_frames) > 1:
            yield from self._lines_about_streams(dropped_frames)
        yield from self._lines_about_files()
        yield from self._lines_about_blur()
        if self._has_tracks and self.counts.input_count and not self._frame_count:
            yield "nothing was tracked: only the frames of videos and streams have tracks"

    def _lines_about_blur(self) -> Iterator[str]:
        """Yield what a user of --blur has to know about boxes that were dropped."""
        if self.hidden_boxes_dropped:
            detections = pluralize(self.hidden_boxes_dropped, "detection")
            yield f"{detections} dropped by marks, and blurred in the images all the same"
        if self.at_max_det:
            images = pluralize(self.at_max_det, "image")
            yield (
                f"{images} with as many detections as --max-det allows: what it left out is not "
                "blurred; raise --max-det"
            )

    def _lines_about_streams(self, dropped_frames: Counter[str]) -> Iterator[str]:
        """Yield a line for each live source: how many frames came, how fast, how many were dropped.

        Args:
            dropped_frames: The number of dropped frames, by the name of the source.
        """
        no_frames = _LiveFrames(count=0, first_s=0.0, last_s=0.0)
        for source, dropped_count in dropped_frames.items():
            frames = self._frames_by_stream.get(source, no_frames)
            yield f"{source}: {frames.describe(dropped_count)}"

    def _lines_about_files(self) -> Iterator[str]:
        """Yield a line for each output file and folder that says what was written to it."""
        outputs = self._outputs
        records = pluralize(self.counts.input_count, "record")
        if outputs.resume is not None:
            yield f"added {records} to {outputs.resume}{self._earlier_records()}"
        if self.destination.target is not None:
            yield from self._lines_about_target(self.destination.target)
        if outputs.save_coco is not None and not is_special(outputs.save_coco):
            yield self._line_about_file("COCO results", outputs.save_coco)
        for folder in dict.fromkeys(outputs.folders):
            yield f"wrote {pluralize(self._saved_files.count_in(folder), 'file')} to {folder}"
        if outputs.report is not None:
            from detcli.page.one_file import address_of_page

            yield f"wrote {records} to the page {address_of_page(outputs.report)}"

    def _earlier_records(self) -> str:
        """Describe what the resume file had, as in "; it had 3 inputs already, read in 2 s"."""
        if not self.skipped:
            return ""
        text = f"; it had {pluralize(self.skipped, 'input')} already"
        if self._reading_s >= 1:
            text += f", read in {self._reading_s:.0f} s"
        return text

    def _lines_about_target(self, target: Target) -> Iterator[str]:
        """Yield a line about the file of --output; none if it is a pipe or a device."""
        content = pluralize(self.counts.input_count, "record")
        if FORMATS[self.destination.format].has_detection_rows:
            content = f"{pluralize(self._row_count, 'row')} of {content}"
        if self.destination.appends:
            yield f"added {content} to {target}"
        elif not is_special(target):
            yield self._line_about_file(content, target)

    def _line_about_file(self, content: str, path: Target) -> str:
        """Describe what was written to a file, and whether there was one before."""
        line = f"wrote {content} to {path}"
        if path in self._replaced_files:
            line += ", in place of the file that was there"
        return line


def report_end(
    config: Config,
    summary: RunSummary,
    sources: Sources,
    times: StageTimes,
    *,
    interrupted: bool,
) -> None:
    """Print the summary of a run, and how to continue one that was interrupted."""
    print_message_counts(summary.counts)
    if config.verbosity.quiet:
        return
    done_count = summary.counts.input_count
    if interrupted and not done_count:
        return
    for line in summary.lines(times, sources.progress.dropped):
        print_line(line)
    # A run over a camera or with --follow ends by an interrupt; there is nothing to continue.
    if interrupted and not summary.destination.endless:
        _report_interrupt(done_count, sources.progress.total, config, summary.destination)


def _report_interrupt(
    done_count: int, total_count: int | None, config: Config, destination: Destination
) -> None:
    """Print how many inputs an interrupted run has processed, and how to continue it.

    `total_count` is None while the inputs are still being listed.
    """
    if total_count is None:
        inputs = pluralize(done_count, "input")
    else:
        inputs = f"{done_count} of {pluralize(total_count, 'input')}"
    print_line(f"interrupted after {inputs}")
    if config.outputs.resume is not None:
        print_line("the same command goes on from here", prefix="  ", label="hint:")
        return
    sentence, commands = how_to_continue(config, destination)
    if commands:
        sentence += ":"
    print_line(sentence, prefix="  ", label="hint:")
    for words in commands:
        print_command(words)
