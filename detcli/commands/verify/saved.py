"""Compares what was saved: the records of two runs, or of one run and COCO results."""

import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from io import FileIO
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np

from detcli.cli.console import progress
from detcli.commands.verify.coco_results import ClassNames, CocoResults, is_results, names_by_id
from detcli.commands.verify.images import Results, open_results
from detcli.commands.verify.report import (
    Certificate,
    tolerance_of,
)
from detcli.commands.verify.request import VerifyRequest
from detcli.commands.verify.saved_run import SavedRun, differences_besides_detections
from detcli.compare.detections import Rules
from detcli.config.config import DEFAULT_CONF, Settings
from detcli.core.errors import InputError, SourceError, UsageError, system_reason
from detcli.core.text import pluralize
from detcli.core.timing import POLL_S
from detcli.data.detections import Detections
from detcli.data.record import Origin, RecordJson, box_of, name_of
from detcli.data.saved_record import MAX_NUMBER
from detcli.page.find_images import Finder
from detcli.sink.labels import CocoIds
from detcli.source.guard import InputGuard
from detcli.storage.folder import NO_WAIT

WRITER_TIMEOUT_S = 2.0  # within which somebody begins to write to a pipe
MAX_NAMED = 3  # inputs that a sentence names


class _NamesOfRuns(NamedTuple):
    """The class names of both runs."""

    left: ClassNames
    right: ClassNames


def verify_saved(request: VerifyRequest, inputs: InputGuard) -> Certificate:
    """Compare the detections of two saved runs, with a progress bar on a terminal.

    Args:
        request: What the user asked for: the files of both runs, and how to compare them.
        inputs: The files that the page of the comparison must not overwrite.

    Returns:
        A certificate with the report of the comparison. If the request asks for a certificate, it
        also has the hashes of the images, and the settings and versions of each run.
    """
    image_folder = None
    if request.images:
        image_folder = Path(request.images[0])
    with (
        _rereadable(request.model) as left_path,
        _rereadable(request.other or "") as right_path,
        closing(Finder(image_folder, request.config.inputs)) as finder,
    ):
        runs = _read_runs(request, left_path, right_path, finder)
        rules = _rules((runs.left, runs.right), request)
        sides = (runs.left.report(), runs.right.report())
        shows_bar = not request.config.verbosity.quiet

        with (
            open_results(request, inputs, rules, sides) as results,
            progress(lambda: runs.left.record_count, enabled=shows_bar) as advance,
        ):
            results.report.unlike += runs.differences
            _compare_all_records(runs, results, finder, advance)
            certificate = results.finish(_describe_failures(results))
            if request.certifies:
                certificate.left = runs.left.certified()
                certificate.right = runs.right.certified()
    return certificate


def _compare_all_records(
    runs: "_SavedRuns", results: Results, finder: Finder, advance: Callable[[], None]
) -> None:
    """Compare the records that two runs have of each input.

    An input that only one of the runs has is added to `left_only` or `right_only` of the report.

    Args:
        runs: Both runs.
        results: Adds up the comparisons of all inputs, and has the report.
        finder: Finds the files of inputs, to show and to hash them.
        advance: Moves the progress bar on by one input.
    """
    names = _NamesOfRuns(names_by_id(runs.left.class_names), names_by_id(runs.right.class_names))
    # The right run pairs the records, as it may be COCO results.
    for left_record, right_record in runs.right.pairs(runs.left):
        if left_record is not None and right_record is not None:
            _compare_records(results, finder, left_record, right_record, names)
        elif left_record is not None:
            results.report.left_only.append(_title(left_record))
        elif right_record is not None:
            results.report.right_only.append(_title(right_record))
        advance()


class _SavedRuns(NamedTuple):
    """The two runs of a comparison."""

    left: SavedRun
    right: SavedRun  # may be COCO results
    differences: list[str]  # besides detections, such as a different model; one sentence each


def _read_runs(
    request: VerifyRequest, left_path: str, right_path: str, finder: Finder
) -> _SavedRuns:
    """Read from two files which models and settings made their detections, and list differences.

    The left file has the records of a run. The right file has the records of another run, or COCO
    results, which do not say how they were made. The detections in records are read again later,
    image by image, so that they are not all in memory.

    Args:
        request: What the user asked for, with the names of both files.
        left_path: The left file, or a copy of it if the user named a pipe.
        right_path: The right file, or a copy of it if the user named a pipe.
        finder: Finds images where the format of a file lacks their sizes.

    Raises:
        UsageError: The left file has COCO results.
    """
    left_name = request.model
    right_name = request.other or ""
    if is_results(left_path):
        raise UsageError(f"{left_name} holds COCO results", "name them second, after records")
    left = SavedRun.read(left_name, left_path, finder)

    annotations = None  # a file that says which image has which id
    if request.coco_images is not None:
        annotations = Path(request.coco_images)
    if annotations is not None or is_results(right_path):
        results = CocoResults(
            name=right_name,
            path=right_path,
            finder=finder,
            ids=CocoIds(annotations),
            detected_classes=left.class_names,
        )
        return _SavedRuns(left, results, differences=[])

    right = SavedRun.read(right_name, right_path, finder)
    have_no_path_in_common = left.input_keys.isdisjoint(right.input_keys)
    if have_no_path_in_common:
        # The runs may be from two machines. So inputs are paired by their paths below the folder
        # that all inputs of a run have in common.
        left.shorten_input_keys()
        right.shorten_input_keys()
    differences = list(differences_besides_detections(left, right))
    return _SavedRuns(left, right, differences)


@contextmanager
def _rereadable(name: str) -> Iterator[str]:
    """Yield a path that can be read several times: the file, or a temporary copy of a pipe.

    A pipe is a FIFO, such as the shell's `<(command)`; what is read from it is gone.

    Raises:
        SourceError: The pipe cannot be read, or no process writes to it.
    """
    if not _is_fifo(name):
        yield name
        return

    with tempfile.NamedTemporaryFile(prefix="detcli-") as copy:
        try:
            _copy_pipe(name, copy)
            copy.flush()
        except OSError as error:
            raise SourceError(f"cannot read {name}: {system_reason(error)}", "check it") from error
        yield copy.name


def _is_fifo(name: str) -> bool:
    """Return whether a file is a FIFO; False for a file that cannot be looked at.

    Reading such a file reports the error later.
    """
    if sys.platform == "win32":  # Windows has no files of this kind
        return False
    try:
        return stat.S_ISFIFO(Path(name).stat().st_mode)
    except (OSError, ValueError):  # ValueError: no file can have this name
        return False


def _copy_pipe(name: str, copy: IO[bytes]) -> None:
    """Copy all that is written to a pipe into a file.

    Opening a pipe as usual would wait forever if no process writes to it. So it is opened without
    waiting, and polled until the first byte comes; from then on, reading waits for the writer.

    Raises:
        OSError: The pipe cannot be read.
        SourceError: No process writes to it within WRITER_TIMEOUT_S.
    """
    descriptor = os.open(name, os.O_RDONLY | NO_WAIT)
    with FileIO(descriptor) as pipe:
        deadline_s = time.monotonic() + WRITER_TIMEOUT_S
        # Without a writer b"" is read, with one that has not written anything yet None.
        first_byte = pipe.read(1)
        while first_byte == b"" and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
            first_byte = pipe.read(1)
        if first_byte == b"":
            raise SourceError(f"no process writes to {name}", "start its writer first")
        if sys.platform != "win32":  # where no file is such a pipe
            os.set_blocking(descriptor, True)
        copy.write(first_byte or b"")
        shutil.copyfileobj(pipe, copy)


def _rules(runs: Sequence[SavedRun], request: VerifyRequest) -> Rules:
    """Return the rules for comparing two saved runs: the detections to use, and how they match.

    A run has no detections below the confidence that it ran with. So by default, only detections
    above the higher of the two confidences count, which both runs would have recorded. For example,
    for runs with 0.2 and 0.5, only detections above 0.5 are compared.

    Args:
        runs: Both saved runs.
        request: What the user asked for.
    """
    # COCO results and some records do not say with which confidence they were made.
    recorded_confs = _recorded_confs(runs)
    conf = request.config.settings.conf  # None unless --conf is set
    if conf is None:
        # A run with --conf 0.5,person=0.2 has persons above 0.2, which are used as well.
        conf = max(_lowest_confs(recorded_confs), default=DEFAULT_CONF)

    # A detection below this score may lack its counterpart only because the other run dropped it.
    all_recorded_above = conf
    do_both_say_conf = len(recorded_confs) == 2
    if do_both_say_conf:
        all_recorded_above = max(recorded_confs.values())
    return Rules(
        conf=conf,
        least_iou=request.iou,
        max_det=min(_max_dets(runs), default=Settings().max_det),
        tolerance=tolerance_of([run.report() for run in runs], request.tolerance),
        all_recorded_above=all_recorded_above,
        class_recorded_above=_higher_class_confs(runs),
    )


def _recorded_confs(runs: Sequence[SavedRun]) -> dict[SavedRun, float]:
    """Return the confidence that each run was made with, without the runs that do not say it.

    Where the records of a run name several confidences, it is the highest.
    """
    recorded_confs: dict[SavedRun, float] = {}
    for run in runs:
        confs = run.numbers("conf", 0, 1)
        if confs:
            recorded_confs[run] = max(confs)
    return recorded_confs


def _lowest_confs(recorded_confs: Mapping[SavedRun, float]) -> list[float]:
    """Return the lowest confidence of each run, for all classes or for a single one.

    A run may have had a lower confidence for some classes (`--conf 0.5,person=0.2`), and then has
    more detections of these.

    Args:
        recorded_confs: By run, the confidence for all classes.
    """
    lowest_confs = []
    for run, conf in recorded_confs.items():
        class_confs = [class_conf for _, class_conf in run.class_conf()]
        lowest_confs.append(min([conf, *class_confs]))
    return lowest_confs


def _max_dets(runs: Sequence[SavedRun]) -> list[int]:
    """Return the limits that the runs had for the number of detections in an image.

    A run with tiles has no such limit: it holds for each tile, and an image has several.
    """
    limits = []
    for run in runs:
        if not any(settings.get("tile") for settings in run.settings):
            limits += [int(number) for number in run.numbers("max_det", 1, MAX_NUMBER)]
    return limits


def _higher_class_confs(runs: Sequence[SavedRun]) -> dict[int, float]:
    """Return the confidences set for individual classes, by class id: the higher of two."""
    higher: dict[int, float] = {}
    for run in runs:
        for class_id, class_conf in run.class_conf():
            higher[class_id] = max(class_conf, higher.get(class_id, class_conf))
    return higher


def _compare_records(
    results: Results,
    finder: Finder,
    left: RecordJson,
    right: RecordJson,
    names: _NamesOfRuns,
) -> None:
    """Compare the records that two runs have of one input, and add the outcome to the results.

    If the records cannot be compared, such as those of an error, the input counts as failed. If a
    certificate is written, the file of the input is listed in it.

    Args:
        results: Adds up the comparisons of all inputs.
        finder: Finds the files of inputs, to show and to hash them.
        left: The record of the left run.
        right: The record of the right run.
        names: The class names of both runs.
    """
    source = name_of(left)
    frame = left.get("frame")
    _note_differences(results, left, right)
    problem = _why_not_comparable(left, right)
    if problem:
        results.fail(Origin(source, frame=frame), InputError(problem))
        return

    if results.certifies:  # finding the file takes time
        origin = Origin(source, finder.path_of(source), frame=frame)
        recorded_hash = left.get("sha256") or right.get("sha256")
        results.certify(origin, recorded_hash)

    # The page says once, and not beside each image, which models and devices are compared.
    shown_record = cast("RecordJson", {**left, "model": "", "device": ""})
    detections_of_sides = [_detections(left, names.left), _detections(right, names.right)]
    results.add(shown_record, detections_of_sides, lambda: finder.shown(left))


def _note_differences(results: Results, left: RecordJson, right: RecordJson) -> None:
    """Record an input on which only one run failed, or whose file is not the same in both runs."""
    left_failed = "error" in left
    right_failed = "error" in right
    if left_failed != right_failed:
        results.failed_on_one_side.append(_title(left))
    elif not left_failed and _are_of_different_files(left, right):
        results.report.other_files.append(_title(left))


def _are_of_different_files(left: RecordJson, right: RecordJson) -> bool:
    """Return whether two records come from different files, by their hashes or their image sizes.

    If only one record has a hash, only the sizes are compared.
    """
    hashes = {record["sha256"] for record in (left, right) if record.get("sha256")}
    return len(hashes) == 2 or _size_text(left) != _size_text(right)


def _why_not_comparable(left: RecordJson, right: RecordJson) -> str:
    """Explain why two records of an input cannot be compared; empty if they can.

    They cannot if either run failed on the input, or if the images have different sizes.
    """
    # COCO results do not say what failed, so a record of an error is paired with itself.
    if "error" in left and left is right:
        return left["error"]["message"]
    errors = []
    for side, record in (("left", left), ("right", right)):
        if "error" in record:
            errors.append(f"{side}: {record['error']['message']}")
    if errors:
        return "; ".join(errors)

    left_size = _size_text(left)
    right_size = _size_text(right)
    if left_size != right_size:
        return f"{left_size} on the left, {right_size} on the right"
    return ""


def _size_text(record: RecordJson) -> str:
    return f"{record['width']}x{record['height']}"


def _describe_failures(results: Results) -> Iterator[str]:
    """Yield a sentence for each reason, besides detections, for which two runs do not agree.

    These are inputs that only one run has, that failed in one run only, or whose files differ.
    """
    report = results.report
    # The names of inputs, and the end of the sentence about them.
    inputs_and_ends = (
        (report.left_only, "only on the left"),
        (report.right_only, "only on the right"),
        (results.failed_on_one_side, "with an error on one side only"),
        (report.other_files, "whose files differ between the two sides, or have changed since"),
    )
    for names, sentence_end in inputs_and_ends:
        if names:
            listing = ", ".join(Path(name).name or name for name in names[:MAX_NAMED])
            if len(names) > MAX_NAMED:
                listing += f", and {len(names) - MAX_NAMED} more"
            yield f"{pluralize(len(names), 'input')} ({listing}) {sentence_end}"


def _title(fields: RecordJson) -> str:
    """Name the source of a record, and its frame if it is a video."""
    frame = fields.get("frame")
    if frame is None:
        return fields["source"]
    return f"{fields['source']} frame {frame}"


def _detections(fields: RecordJson, names: ClassNames) -> Detections:
    """Convert the detections of a saved record to arrays.

    Args:
        fields: The record as it was read from JSON.
        names: Class names by class id, which may not all be in this record.
    """
    detections = fields["detections"]
    boxes = [box_of(detection) for detection in detections]
    scores = [detection["score"] for detection in detections]
    class_ids = [detection["class_id"] for detection in detections]
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4),  # (N, 4), even without detections
        np.array(scores, np.float32),
        np.array(class_ids, np.int64),
        names,
    )
