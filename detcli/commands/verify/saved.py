"""Sides that were saved: the records of two runs, or of one and COCO results."""

import os
import re
import shutil
import stat
import sys
import tempfile
import time
import unicodedata
import warnings
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from io import FileIO
from itertools import chain, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from detcli.cli.console import progress
from detcli.commands.verify.pictures import Results, open_results
from detcli.commands.verify.report import (
    Certificate,
    CertifiedSide,
    SideReport,
    shortened,
    tolerance_of,
)
from detcli.commands.verify.request import VerifyRequest
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
    ProvenanceJson,
    Record,
    RecordJson,
    box_of,
    coco_box,
    finite,
    name_of,
    read_fields,
)
from detcli.model.precision import Precision
from detcli.page.find_images import Finder
from detcli.run.saved import is_folder, read_records
from detcli.sink.labels import CocoIds
from detcli.source.sources import InputGuard
from detcli.storage.files import open_lines, read_json, sha256
from detcli.storage.folder import NO_WAIT

WRITER_TIMEOUT_S = 2.0  # within which somebody begins to write to a pipe
MAX_NOTED = 100  # settings of one run that are remembered
MAX_DIGITS = 8  # of a class id, see `MAX_CLASS`
MAX_NAMED = 3  # inputs that a sentence names
PEEK = 4096  # bytes in which the first element of COCO results shows what it is
ELSEWHERE = frozenset({"model", "model_sha256", "zones", "lines", "track", "vid_stride", "every"})
"""Settings that boxes do not depend on, or that are compared apart."""

PRECISIONS = {"bf16": Precision.BFLOAT16, "f16": Precision.FLOAT16, "f32": Precision.FLOAT32}
"""What records say of the number type that the device chose."""

ClassNames = tuple[str, ...]
"""Names of classes, by id."""

RecordPair = tuple[RecordJson | None, RecordJson | None]
"""The records of an input; None where a run has none."""


class SavedRun:
    """A saved run, and what its records say of how it was made."""

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path = name, path  # as the user gave it, and where to read it
        self.count = 0  # records
        self.names = set[str]()  # of its inputs, see `key`
        self.folder = ""  # that all of them have in common, if names only count below it
        self.settings: list[dict[str, Any]] = []  # with a resumed run, records may carry some
        self.provenance: dict[str, str | None] | None = None  # of the first record
        self.made_by: dict[str, dict[str, None]] = {"model": {}, "device": {}, "precision": {}}
        self.classes: dict[int, str] = {}  # that were found; the first name of each
        self.renamed: int | None = None  # an id that has two names

    @classmethod
    def read(cls, name: str, path: str) -> Self:
        """Read all records once."""
        run = cls(name, path)
        if is_folder(path):
            from detcli.run.shards.manifest import Manifest
            from detcli.run.shards.store import open_store

            header = Manifest(open_store(f"{path}/")).header
            run.settings.append(cast("dict[str, Any]", header["settings"]))
        for fields in read_records(path):
            run.names.add(run.key(fields))
            run.add(cast("dict[str, Any]", fields))
        return run

    def add(self, fields: dict[str, Any]) -> None:
        self.count += 1
        if "settings" in fields and len(self.settings) < MAX_NOTED:
            settings = {name: one for name, one in fields["settings"].items() if _is_flat(one)}
            self.settings += [settings] * (settings not in self.settings)
        if self.provenance is None and "provenance" in fields:
            said = fields["provenance"]
            self.provenance = {
                name: one if isinstance(one := said.get(name), str) else None
                for name in ProvenanceJson.__annotations__
            }
        for name in self.made_by.keys() & fields.keys():
            self.made_by[name][fields[name]] = None
        for one in fields.get("detections", ()):
            if self.classes.setdefault(one["class_id"], one["class_name"]) != one["class_name"]:
                self.renamed = one["class_id"]

    def key(self, fields: RecordJson) -> str:
        """The name of an input as far as it counts, and its frame, alike on all systems."""
        name = re.sub(r"[\\/]+", "/", unicodedata.normalize("NFC", name_of(fields)))
        return f"{name}\0{fields.get('frame', '')}"[len(self.folder) :]

    def shorten(self) -> None:
        """Let names count below the folder that all of them have in common."""
        shared = os.path.commonprefix([*self.names])  # noqa: RUF071 - cut at the last slash
        self.folder = shared[: shared.rfind("/") + 1]
        self.names = {name[len(self.folder) :] for name in self.names}

    def setting(self, name: str, *kinds: type) -> list[Any]:
        """The values of a setting, as far as they are of these types."""
        values = (settings.get(name) for settings in self.settings)
        return [value for value in values if type(value) in kinds]

    def numbers(self, name: str, least: float, most: float) -> list[float]:
        """The values of a setting that are numbers in this range."""
        return [one for one in self.setting(name, int, float) if least <= one <= most]

    def class_conf(self) -> Iterator[tuple[int, float]]:
        """Confidences of single classes, by class id."""
        for table in self.setting("class_conf", dict):
            for key, least in table.items():
                number = type(least) in {int, float} and 0 <= least <= 1
                if number and key.isdecimal() and len(key) < MAX_DIGITS:
                    yield int(key), least

    @property
    def precision(self) -> Precision | None:
        """The lowest precision that the network computed in; None if unknown."""
        said = (self.provenance or {}).get("precision")
        if said in set(Precision):
            return Precision(said)
        for one in PRECISIONS.keys() & self.made_by["precision"].keys():
            return PRECISIONS[one]
        return Precision.FLOAT16 if any(self.setting("half", bool)) else None

    def report(self) -> SideReport:
        hashes = {*self.setting("model_sha256", str)}
        digest = hashes.pop() if len(hashes) == 1 else ""
        return SideReport(
            model=", ".join(self.made_by["model"] or self.setting("model", str)) or "unknown",
            sha256=digest if re.fullmatch("[0-9a-f]{64}", digest) else None,
            device=", ".join(self.made_by["device"]) or None,
            precision=self.precision,
            records=self.name,
        )

    def certified(self) -> CertifiedSide:
        digest = sha256(Path(self.path)) if Path(self.path).is_file() else None
        return CertifiedSide(digest, next(iter(self.settings), None), self.provenance)

    def pairs(self, left: "SavedRun") -> Iterator[RecordPair]:
        """Yield the records of each input.

        Both are read in step. A record waits in memory for its counterpart, so in like order
        only two are held.
        """
        runs, waiting = (left, self), defaultdict[str, list[dict[int, RecordJson]]](list)
        for step in zip_longest(read_records(left.path), read_records(self.path)):
            for side, fields in enumerate(step):
                if fields is None:
                    continue
                key, found = runs[side].key(fields), {side: fields}
                held = waiting[key]  # of one side
                if held and side not in held[0]:
                    found |= held.pop(0)
                elif key in runs[1 - side].names:
                    held.append(found)
                    continue
                if not held:
                    del waiting[key]
                yield found.get(0), found.get(1)
        for found in chain.from_iterable(waiting.values()):
            yield found.get(0), found.get(1)


def _is_flat(value: object) -> bool:
    """Whether a setting holds nothing nested, as none of ours do."""
    parts = [*value.values()] if isinstance(value, dict) else value
    return not isinstance(parts, list) or not any(isinstance(one, dict | list) for one in parts)


def unlike(left: SavedRun, right: SavedRun) -> Iterator[str]:
    """Say in what two runs differ besides their detections, and what they do not say."""
    for side, run in (("left", left), ("right", right)):
        if not run.settings:
            yield (
                f"the {side} run does not say its settings, as runs with --provenance or "
                "--resume do"
            )
        elif len(run.settings) > 1:
            yield f"the {side} run has records of {len(run.settings)} settings"
        if run.renamed is not None:
            yield f"the {side} run has several names for class {run.renamed}"
    yield from _differences(left, right)
    if (left.folder or right.folder) and (alone := len(left.names ^ right.names)):
        folders = (shortened(run.folder.rstrip("/") or ".") for run in (left, right))
        yield (
            f"inputs are paired by their names below {' and '.join(folders)}, and {alone} of them "
            "have no counterpart"
        )


def _differences(left: SavedRun, right: SavedRun) -> Iterator[str]:
    """Say where models, precisions, settings and names of classes differ."""
    one, other = left.report(), right.report()
    if one.sha256 is None or other.sha256 is None:
        if one.model != other.model:
            yield f"model is {one.model} and {other.model}"
    elif one.sha256 != other.sha256:
        yield f"model is {one.model} ({one.sha256[:12]}) and {other.model} ({other.sha256[:12]})"
    if None not in {one.precision, other.precision} and one.precision != other.precision:
        yield f"precision is {one.precision} and {other.precision}"
    for values, others in zip(left.settings[:1], right.settings[:1], strict=False):
        for name in values:
            if name in others.keys() - ELSEWHERE and values[name] != others[name]:
                value, another = shortened(str(values[name])), shortened(str(others[name]))
                yield f"{name} is {value} and {another}"
    shared = sorted(left.classes.keys() & right.classes.keys())
    if renamed := [number for number in shared if left.classes[number] != right.classes[number]]:
        classes = "1 class has" if len(renamed) == 1 else f"{len(renamed)} classes have"
        names = (shortened(run.classes[renamed[0]]) for run in (left, right))
        yield f"{classes} another name: {renamed[0]} is {' and '.join(names)}"


def is_results(path: str) -> bool:
    """Whether a file begins as COCO results do."""
    try:
        with open_lines(Path(path)) as file:
            begins = file.read(PEEK)
    except (OSError, EOFError, zlib.error, ValueError):  # ValueError: no file can have this name
        return False
    return begins.lstrip()[:1] == b"[" and b'"image_id"' in begins.partition(b"}")[0]


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
        boxes = [box for found in self._boxes.values() for box in found]
        known = _classes(ids, classes, {box["class_id"] for box in boxes})
        for box in boxes:
            category = box["class_id"]
            # A class that the other side has not found has a number of its own.
            unknown = MAX_CLASS + category % MAX_CLASS, f"category {category}"
            box["class_id"], box["class_name"] = known.get(category, unknown)
        self.classes = {box["class_id"]: box["class_name"] for box in boxes}

    def pairs(self, left: SavedRun) -> Iterator[RecordPair]:
        """Yield each record with one of its picture's results; no rows mean no detections."""
        asked = set()
        for fields in read_records(left.path):
            if "error" in fields:
                yield fields, fields
                continue
            index = fields.get("index")
            if not isinstance(index, int):
                raise UsageError("a record has no index", "name records that detcli wrote")
            origin = Origin(name_of(fields), frame=fields.get("frame"))
            image = self._ids.image_id(Record(origin, index, "", ""))
            asked.add(image)
            yield fields, cast("RecordJson", {**fields, "detections": self._boxes.get(image, [])})
        for image in sorted(self._boxes.keys() - asked):
            yield None, cast("RecordJson", {"source": f"image_id {image}"})


def _read_boxes(path: Path) -> dict[int, list[dict[str, Any]]]:
    """The boxes of each image, best first, with categories in place of classes."""
    elements = read_json(path, _unusable)
    if not isinstance(elements, list):
        raise _unusable(path, "it is not a list")
    images: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for index, element in enumerate(elements):
        try:
            image, category, (x, y, width, height), score = read_fields(
                f"[{index}]", element, image_id=int, category_id=int, bbox=coco_box, score=finite
            )
        except ValueError as error:
            raise _unusable(path, str(error)) from error
        corners = dict(zip(BOX, (x, y, x + width, y + height), strict=True))
        images[image].append({"class_id": category, "score": score, **corners})
    for boxes in images.values():
        boxes.sort(key=itemgetter("score"), reverse=True)
    return images


def _unusable(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"cannot compare with {path}: {reason}",
        "give COCO results: a list of image_id, category_id, bbox and score",
    )


def _by_id(names: Mapping[int, str]) -> ClassNames:
    return tuple(names.get(class_id, "") for class_id in range(max(names, default=-1) + 1))


def _classes(
    ids: CocoIds, seen: Mapping[int, str], categories: set[int]
) -> Mapping[int, tuple[int, str]]:
    """Class id and name of each category, in the numbering that `--save-coco` would have used."""
    by_number = {number: name for name, number in COCO_ID_OF.items()}
    # A model with a class for each number of COCO may begin with 0 or 1.
    numbered = (tuple(by_number.get(n, "") for n in range(first, 91)) for first in (0, 1))
    wholes = (COCO, *numbered) if categories <= set(COCO_IDS) else ()
    fitting = (whole for whole in wholes if seen.items() <= dict(enumerate(whole)).items())
    names = next(fitting, _by_id(seen))
    found: dict[int, tuple[int, str]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes without a category, of which none may be found
        for class_id, name in enumerate(names):
            category = ids.category_id(class_id, names) if name else None
            if category is not None:
                found.setdefault(category, (class_id, name))
    return found


def verify_saved(request: VerifyRequest, inputs: InputGuard) -> Certificate:
    """Read both sides and compare, with a bar on a terminal."""
    second, instances = request.other or "", request.coco_images
    folder = Path(request.images[0]) if request.images else None
    with ExitStack() as stack:
        path, other = (stack.enter_context(_lasting(one)) for one in (request.model, second))
        if is_results(path):
            raise UsageError(
                f"{request.model} holds COCO results", "name them second, after records"
            )
        left = SavedRun.read(request.model, path)
        different: list[str] = []
        if instances is not None or is_results(other):
            ids = CocoIds(None if instances is None else Path(instances))
            right: SavedRun = CocoResults(second, other, ids, left.classes)
        else:
            right = SavedRun.read(second, other)
            if left.names.isdisjoint(right.names):  # as on two machines
                left.shorten()
                right.shorten()
            different = [*unlike(left, right)]
        rules, sides = _rules((left, right), request), (left.report(), right.report())
        results = stack.enter_context(open_results(request, inputs, rules, sides))
        results.report.unlike += different
        quiet = request.config.verbosity.quiet
        advance = stack.enter_context(progress(lambda: left.count, enabled=not quiet))
        finder = stack.enter_context(closing(Finder(folder, request.config.inputs)))
        names = _by_id(left.classes), _by_id(right.classes)
        for one, counterpart in right.pairs(left):
            if one is not None and counterpart is not None:
                _compare(results, finder, (one, counterpart), names)
            elif one is not None:
                results.report.left_only.append(_title(one))
            elif counterpart is not None:
                results.report.right_only.append(_title(counterpart))
            advance()
        made = results.finish(_failures(results))
        if results.certifies:
            made.left, made.right = left.certified(), right.certified()
    return made


@contextmanager
def _lasting(name: str) -> Iterator[str]:
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
                while (begins := pipe.read(1)) == b"" and time.monotonic() < deadline_s:
                    time.sleep(POLL_S)  # its writer may begin in a moment
                if begins == b"":
                    raise SourceError(f"no process writes to {name}", "start its writer first")
                os.set_blocking(descriptor, True)
                copy.write(begins or b"")
                shutil.copyfileobj(pipe, copy)
            copy.flush()
        except OSError as error:
            raise SourceError(f"cannot read {name}: {system_reason(error)}", "check it") from error
        yield copy.name


def _rules(runs: Sequence[SavedRun], request: VerifyRequest) -> Rules:
    """How strictly to compare; without a confidence, all detections that both runs hold count."""
    known = {run: max(confs) for run in runs if (confs := run.numbers("conf", 0, 1))}
    highest, conf = max(known.values(), default=DEFAULT_CONF), request.config.settings.conf
    if conf is None:  # of some classes, the runs may hold more
        single = (
            min(conf, *(least for _, least in run.class_conf()), 1) for run, conf in known.items()
        )
        conf = max(single, default=highest)
    # With tiles, a picture may have more.
    whole = [run for run in runs if not any(one.get("tile") for one in run.settings)]
    most = [int(one) for run in whole for one in run.numbers("max_det", 1, MAX_NUMBER)]
    held = chain.from_iterable(run.class_conf() for run in runs)
    return Rules(
        conf,
        request.iou,
        min(most, default=Settings().max_det),
        tolerance_of([run.report() for run in runs], request.tolerance),
        # Where a run does not say from which score on it has detections, as COCO results do not,
        # that may be the score from which on they count.
        held=highest if len(known) == 2 else conf,
        class_held=dict(sorted(held, key=itemgetter(1))),  # the higher of two
    )


def _compare(
    results: Results,
    finder: Finder,
    pair: tuple[RecordJson, RecordJson],
    names: Sequence[ClassNames],
) -> None:
    """Compare two records of an input; `names` are those of the classes of their runs."""
    left, right = pair
    source, frame = name_of(left), left.get("frame")
    if problem := _problem(results, left, right):
        results.fail(Origin(source, frame=frame), InputError(problem))
        return
    if results.certifies:
        digest = left.get("sha256") or right.get("sha256")
        results.certify(Origin(source, finder.path_of(source), frame), digest)
    shown = cast("RecordJson", {**left, "model": "", "device": ""})  # which the facts name
    results.add(shown, [*map(_found, pair, names)], partial(finder.shown, left))


def _problem(results: Results, left: RecordJson, right: RecordJson) -> str:
    """Why two records cannot be compared; empty if they can."""
    title, sides = _title(left), (("left", left), ("right", right))
    errors = [f"{side}: {one['error']['message']}" for side, one in sides if "error" in one]
    if len(errors) == 1:
        results.one_sided.append(title)
    if errors:  # COCO results have none of their own
        return left["error"]["message"] if left is right else "; ".join(errors)
    size, other = (f"{one['width']}x{one['height']}" for one in (left, right))
    hashes = {one["sha256"] for one in (left, right) if one.get("sha256")}
    if size != other or len(hashes) == 2:
        results.report.other_files.append(title)
    return "" if size == other else f"{size} on the left, {other} on the right"


def _failures(results: Results) -> Iterator[str]:
    """What differs besides detections, a sentence each."""
    report = results.report
    for names, what in (
        (report.left_only, "only on the left"),
        (report.right_only, "only on the right"),
        (results.one_sided, "with an error on one side only"),
        (report.other_files, "that are different files on the two sides, or now"),
    ):
        if names:
            shown = ", ".join(Path(name).name or name for name in names[:MAX_NAMED])
            more = f", and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            yield f"{pluralize(len(names), 'input')} ({shown}{more}) {what}"


def _title(fields: RecordJson) -> str:
    frame = fields.get("frame")
    return fields["source"] if frame is None else f"{fields['source']} frame {frame}"


def _found(fields: RecordJson, names: ClassNames) -> Detections:
    rows = fields["detections"]
    return Detections(
        np.array([*map(box_of, rows)], np.float32).reshape(-1, 4),
        np.array([one["score"] for one in rows], np.float32),
        np.array([one["class_id"] for one in rows], np.int64),
        names,
    )
