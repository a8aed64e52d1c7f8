"""Sides that were saved: the records of two runs, or of one and COCO results."""

import os
import shutil
import stat
import sys
import tempfile
import time
import warnings
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from io import FileIO
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import numpy as np

from detcli.cli.console import progress
from detcli.commands.verify.pictures import Results, open_results
from detcli.commands.verify.report import (
    Certificate,
    tolerance_of,
)
from detcli.commands.verify.request import VerifyRequest
from detcli.commands.verify.saved_run import RecordPair, SavedRun, unlike
from detcli.compare.detections import Rules
from detcli.config.config import DEFAULT_CONF, Settings
from detcli.core.errors import InputError, SourceError, UsageError, system_reason
from detcli.core.text import pluralize
from detcli.core.timing import POLL_S
from detcli.data.detections import COCO, COCO_ID_OF, COCO_IDS, Detections
from detcli.data.record import (
    BOX,
    MAX_CLASS,
    MAX_NUMBER,
    Origin,
    Record,
    RecordJson,
    box_of,
    coco_box,
    finite,
    name_of,
    read_fields,
)
from detcli.page.find_images import Finder
from detcli.run.saved import read_records
from detcli.sink.labels import CocoIds
from detcli.source.guard import InputGuard
from detcli.storage.files import open_lines, read_json
from detcli.storage.folder import NO_WAIT

WRITER_TIMEOUT_S = 2.0  # within which somebody begins to write to a pipe
MAX_NAMED = 3  # inputs that a sentence names
PEEK = 4096  # bytes in which the first element of COCO results shows what it is

ClassNames = tuple[str, ...]
"""Names of classes, by id."""


def is_results(path: str) -> bool:
    """Whether a file begins as COCO results do."""
    try:
        with open_lines(Path(path)) as file:
            beginning = file.read(PEEK)
    except (OSError, EOFError, zlib.error, ValueError):  # ValueError: no file can have this name
        return False
    first_element = beginning.partition(b"}")[0]
    return beginning.lstrip()[:1] == b"[" and b'"image_id"' in first_element


class CocoResults(SavedRun):
    """COCO results, which are held as a whole, and do not say how they were made."""

    def __init__(self, name: str, path: str, ids: CocoIds, classes: Mapping[int, str]) -> None:
        """Read a file; `classes` are those of the other side.

        Raises:
            SourceError: It cannot be read.
            UsageError: It is something else, or has no category of the classes.
        """
        super().__init__(name, path)
        self._ids = ids
        self._boxes = _read_boxes(Path(path))
        boxes: list[dict[str, Any]] = []
        for boxes_of_image in self._boxes.values():
            boxes += boxes_of_image
        class_of_category = _classes(ids, classes, {box["class_id"] for box in boxes})
        for box in boxes:
            category = box["class_id"]
            if category in class_of_category:
                class_id, class_name = class_of_category[category]
            else:  # a class that the other side has not found has a number of its own
                class_id = MAX_CLASS + category % MAX_CLASS
                class_name = f"category {category}"
            box["class_id"] = class_id
            box["class_name"] = class_name
            self.classes[class_id] = class_name

    def pairs(self, left: SavedRun) -> Iterator[RecordPair]:
        """Yield each record with one of its picture's results; no rows mean no detections."""
        image_ids = set()
        for fields in read_records(left.path):
            if "error" in fields:
                yield fields, fields
                continue
            index = fields.get("index")
            if not isinstance(index, int):
                raise UsageError("a record has no index", "name records that detcli wrote")
            origin = Origin(name_of(fields), frame=fields.get("frame"))
            image_id = self._ids.image_id(Record(origin, index, "", ""))
            image_ids.add(image_id)
            boxes = self._boxes.get(image_id, [])
            yield fields, cast("RecordJson", {**fields, "detections": boxes})
        for image_id in sorted(self._boxes.keys() - image_ids):
            yield None, cast("RecordJson", {"source": f"image_id {image_id}"})


def _read_boxes(path: Path) -> dict[int, list[dict[str, Any]]]:
    """The boxes of each image, best first, with categories in place of classes."""
    elements = read_json(path, _unusable)
    if not isinstance(elements, list):
        raise _unusable(path, "it is not a list")
    boxes_of_images: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for index, element in enumerate(elements):
        try:
            image_id, category, (x, y, width, height), score = read_fields(
                f"[{index}]", element, image_id=int, category_id=int, bbox=coco_box, score=finite
            )
        except ValueError as error:
            raise _unusable(path, str(error)) from error
        corners = dict(zip(BOX, (x, y, x + width, y + height), strict=True))
        boxes_of_images[image_id].append({"class_id": category, "score": score, **corners})
    for boxes in boxes_of_images.values():
        boxes.sort(key=itemgetter("score"), reverse=True)
    return boxes_of_images


def _unusable(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"cannot compare with {path}: {reason}",
        "give COCO results: a list of image_id, category_id, bbox and score",
    )


def _by_id(names: Mapping[int, str]) -> ClassNames:
    """The names as a tuple by class id, with an empty name for each id that has none."""
    count = max(names, default=-1) + 1
    return tuple(names.get(class_id, "") for class_id in range(count))


def _classes(
    ids: CocoIds, detected_classes: Mapping[int, str], categories: set[int]
) -> Mapping[int, tuple[int, str]]:
    """Class id and name of each category, in the numbering that `--save-coco` would have used."""
    names = _fitting_names(detected_classes, categories)
    classes: dict[int, tuple[int, str]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes without a category, of which none may be found
        for class_id, name in enumerate(names):
            category = ids.category_id(class_id, names) if name else None
            if category is not None:
                classes.setdefault(category, (class_id, name))
    return classes


def _fitting_names(detected_classes: Mapping[int, str], categories: set[int]) -> ClassNames:
    """The names of all classes of COCO in the numbering of the model; else of those detected."""
    if categories <= set(COCO_IDS):
        name_of_category = {category: name for name, category in COCO_ID_OF.items()}
        candidates = [COCO]
        # A model with a class for each number of COCO may begin with 0 or 1.
        for first in (0, 1):
            candidates.append(
                tuple(name_of_category.get(number, "") for number in range(first, 91))
            )
        for names in candidates:
            if detected_classes.items() <= dict(enumerate(names)).items():
                return names
    return _by_id(detected_classes)


def verify_saved(request: VerifyRequest, inputs: InputGuard) -> Certificate:
    """Read both sides and compare, with a bar on a terminal."""
    folder = Path(request.images[0]) if request.images else None
    with ExitStack() as stack:
        left_path = stack.enter_context(_rereadable(request.model))
        right_path = stack.enter_context(_rereadable(request.other or ""))
        left, right, differences = _read_sides(request, left_path, right_path)
        rules = _rules((left, right), request)
        sides = (left.report(), right.report())
        results = stack.enter_context(open_results(request, inputs, rules, sides))
        results.report.unlike += differences
        quiet = request.config.verbosity.quiet
        advance = stack.enter_context(progress(lambda: left.count, enabled=not quiet))
        finder = stack.enter_context(closing(Finder(folder, request.config.inputs)))
        names = (_by_id(left.classes), _by_id(right.classes))
        for left_record, right_record in right.pairs(left):
            if left_record is not None and right_record is not None:
                _compare(results, finder, (left_record, right_record), names)
            elif left_record is not None:
                results.report.left_only.append(_title(left_record))
            elif right_record is not None:
                results.report.right_only.append(_title(right_record))
            advance()
        certificate = results.finish(_failures(results))
        if results.certifies:
            certificate.left = left.certified()
            certificate.right = right.certified()
    return certificate


def _read_sides(
    request: VerifyRequest, left_path: str, right_path: str
) -> tuple[SavedRun, SavedRun, list[str]]:
    """Read what is known of both sides, and in what they differ besides their detections."""
    instances = request.coco_images
    right_name = request.other or ""
    if is_results(left_path):
        raise UsageError(f"{request.model} holds COCO results", "name them second, after records")
    left = SavedRun.read(request.model, left_path)
    if instances is not None or is_results(right_path):
        ids = CocoIds(None if instances is None else Path(instances))
        return left, CocoResults(right_name, right_path, ids, left.classes), []
    right = SavedRun.read(right_name, right_path)
    if left.names.isdisjoint(right.names):  # as on two machines
        left.shorten()
        right.shorten()
    return left, right, list(unlike(left, right))


@contextmanager
def _rereadable(name: str) -> Iterator[str]:
    """A path that can be read twice: a pipe is written to a temporary file."""
    mode = 0
    with suppress(OSError, ValueError):  # which reading it finds, too
        mode = Path(name).stat().st_mode
    if sys.platform == "win32" or not stat.S_ISFIFO(mode):
        yield name
        return
    with tempfile.NamedTemporaryFile(prefix="detcli-") as copy:
        try:
            descriptor = os.open(name, os.O_RDONLY | NO_WAIT)
            with FileIO(descriptor) as pipe:
                deadline_s = time.monotonic() + WRITER_TIMEOUT_S
                first_byte = pipe.read(1)
                while first_byte == b"" and time.monotonic() < deadline_s:
                    time.sleep(POLL_S)  # its writer may begin in a moment
                    first_byte = pipe.read(1)
                if first_byte == b"":
                    raise SourceError(f"no process writes to {name}", "start its writer first")
                os.set_blocking(descriptor, True)
                copy.write(first_byte or b"")
                shutil.copyfileobj(pipe, copy)
            copy.flush()
        except OSError as error:
            raise SourceError(f"cannot read {name}: {system_reason(error)}", "check it") from error
        yield copy.name


def _rules(runs: Sequence[SavedRun], request: VerifyRequest) -> Rules:
    """How strictly to compare; without a confidence, all detections that both runs hold count."""
    recorded_confs: dict[SavedRun, float] = {}
    for run in runs:
        confs = run.numbers("conf", 0, 1)
        if confs:
            recorded_confs[run] = max(confs)
    highest_conf = max(recorded_confs.values(), default=DEFAULT_CONF)
    conf = request.config.settings.conf
    if conf is None:
        conf = max(_lowest_confs(recorded_confs), default=highest_conf)
    held_conf = conf
    # Where a run does not say from which score on it has detections, as COCO results do not,
    # that may be the score from which on they count.
    if len(recorded_confs) == 2:
        held_conf = highest_conf
    return Rules(
        conf=conf,
        least_iou=request.iou,
        max_det=min(_max_dets(runs), default=Settings().max_det),
        tolerance=tolerance_of([run.report() for run in runs], request.tolerance),
        held=held_conf,
        class_held=_higher_class_confs(runs),
    )


def _lowest_confs(recorded_confs: Mapping[SavedRun, float]) -> list[float]:
    """The lowest confidence of each run: of some classes, it may hold more detections."""
    lowest_confs = []
    for run, lowest_conf in recorded_confs.items():
        class_confs = [class_conf for _, class_conf in run.class_conf()]
        lowest_confs.append(min([lowest_conf, *class_confs]))
    return lowest_confs


def _max_dets(runs: Sequence[SavedRun]) -> list[int]:
    """The limits to the detections of a picture; with tiles, a picture may have more."""
    limits = []
    for run in runs:
        if not any(settings.get("tile") for settings in run.settings):
            limits += [int(number) for number in run.numbers("max_det", 1, MAX_NUMBER)]
    return limits


def _higher_class_confs(runs: Sequence[SavedRun]) -> dict[int, float]:
    """The confidences of single classes, by class id: the higher of two."""
    higher: dict[int, float] = {}
    for run in runs:
        for class_id, class_conf in run.class_conf():
            higher[class_id] = max(class_conf, higher.get(class_id, class_conf))
    return higher


def _compare(
    results: Results,
    finder: Finder,
    pair: tuple[RecordJson, RecordJson],
    names: tuple[ClassNames, ClassNames],
) -> None:
    """Compare two records of an input; `names` are those of the classes of their runs."""
    left, right = pair
    left_names, right_names = names
    source = name_of(left)
    frame = left.get("frame")
    problem = _problem(results, left, right)
    if problem:
        results.fail(Origin(source, frame=frame), InputError(problem))
        return
    if results.certifies:
        digest = left.get("sha256") or right.get("sha256")
        results.certify(Origin(source, finder.path_of(source), frame), digest)
    shown_record = cast("RecordJson", {**left, "model": "", "device": ""})  # which the facts name
    sides = [_detections(left, left_names), _detections(right, right_names)]
    results.add(shown_record, sides, lambda: finder.shown(left))


def _problem(results: Results, left: RecordJson, right: RecordJson) -> str:
    """Why two records cannot be compared; empty if they can."""
    title = _title(left)
    errors = []
    for side, record in (("left", left), ("right", right)):
        if "error" in record:
            errors.append(f"{side}: {record['error']['message']}")
    if len(errors) == 1:
        results.one_sided.append(title)
    if errors:
        if left is right:  # COCO results have no errors of their own
            return left["error"]["message"]
        return "; ".join(errors)
    left_size = f"{left['width']}x{left['height']}"
    right_size = f"{right['width']}x{right['height']}"
    hashes = {record["sha256"] for record in (left, right) if record.get("sha256")}
    if left_size != right_size or len(hashes) == 2:
        results.report.other_files.append(title)
    if left_size != right_size:
        return f"{left_size} on the left, {right_size} on the right"
    return ""


def _failures(results: Results) -> Iterator[str]:
    """What differs besides detections, a sentence each."""
    report = results.report
    for names, difference in (
        (report.left_only, "only on the left"),
        (report.right_only, "only on the right"),
        (results.one_sided, "with an error on one side only"),
        (report.other_files, "that are different files on the two sides, or now"),
    ):
        if names:
            listing = ", ".join(Path(name).name or name for name in names[:MAX_NAMED])
            if len(names) > MAX_NAMED:
                listing += f", and {len(names) - MAX_NAMED} more"
            yield f"{pluralize(len(names), 'input')} ({listing}) {difference}"


def _title(fields: RecordJson) -> str:
    """The source of a record, and its frame if it is of a video."""
    frame = fields.get("frame")
    return fields["source"] if frame is None else f"{fields['source']} frame {frame}"


def _detections(fields: RecordJson, names: ClassNames) -> Detections:
    """The detections of a record."""
    rows = fields["detections"]
    return Detections(
        np.array([box_of(row) for row in rows], np.float32).reshape(-1, 4),
        np.array([row["score"] for row in rows], np.float32),
        np.array([row["class_id"] for row in rows], np.int64),
        names,
    )
