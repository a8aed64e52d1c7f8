"""Sides that were saved: the records of two runs, or of one and COCO results."""

import json
import os
import re
import shutil
import tempfile
import unicodedata
import warnings
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import numpy as np

from detcli.cli.messages import progress
from detcli.commands.verify.pictures import Results, open_results
from detcli.commands.verify.report import (
    Certificate,
    CertifiedSide,
    SideReport,
    VerifyReport,
)
from detcli.commands.verify.request import VerifyRequest
from detcli.core.comparison import Precision, Rules, tolerance_for
from detcli.core.config import USUAL_CONF, Settings
from detcli.core.detections import Detections
from detcli.core.errors import InputError, SourceError, UsageError, system_reason
from detcli.core.files import sha256
from detcli.core.record import Origin, ProvenanceJson, Record, RecordJson, iso_time
from detcli.core.text import count
from detcli.model.contract import COCO, COCO_IDS
from detcli.run.saved import MAX_CLASS, MAX_NUMBER, is_folder, open_lines, read_records
from detcli.sink.labels import COCO_ID_OF, CocoIds, CocoIdsFromFile
from detcli.sink.page.finder import Finder
from detcli.source.decode import DecodeOptions
from detcli.source.sources import InputGuard

MAX_NOTED = 100  # settings of one run that are remembered
MAX_DIGITS = 8  # of a class id, see `MAX_CLASS`
MAX_SHOWN = 80  # characters of a setting that a sentence shows
MAX_NAMED = 3  # inputs that a sentence names
PEEK = 4096  # bytes in which the first element of COCO results shows what it is
ELSEWHERE = frozenset({"model", "model_sha256", "zones", "lines", "track", "vid_stride"})
"""Settings that boxes do not depend on, or that are compared apart."""

PRECISIONS = {"bf16": Precision.BFLOAT16, "f16": Precision.FLOAT16, "f32": Precision.FLOAT32}
"""What a device says of the number type that it chose, as in "openvino:CPU (bf16)"."""

BoxJson = dict[str, Any]
"""A detection of a record, or one like it."""

Pair = tuple[RecordJson | None, RecordJson | None]


@dataclass(slots=True)
class SavedRun:
    """A saved run, and what its records say of how it was made."""

    name: str  # as the user gave it
    path: str  # where to read it
    names: set[str] = field(default_factory=set)  # of its inputs, as `_name_of` writes them
    skipped: int = 0  # how many characters of a name do not count
    # Each of the settings that records carry; with a resumed run, there may be some.
    settings: list[dict[str, Any]] = field(default_factory=list)
    provenance: dict[str, Any] | None = None  # of the first record
    models: dict[str, None] = field(default_factory=dict)
    devices: dict[str, None] = field(default_factory=dict)
    classes: dict[int, str] = field(default_factory=dict)  # that were found; the first name of each
    renamed: int | None = None  # an id that has two names
    count: int = 0  # records

    @classmethod
    def scan(cls, name: str, path: str) -> "SavedRun":
        """Read all records once, and remember what they say of the run."""
        run = cls(name, path)
        if is_folder(path):
            from detcli.run.shards.manifest import Manifest
            from detcli.run.shards.store import open_store

            header = Manifest(open_store(f"{path}/")).header
            run.settings.append(cast("dict[str, Any]", header["settings"]))
        for fields in read_records(path):
            run.count += 1
            run.names.add(_name_of(fields))
            if "settings" in fields and len(run.settings) < MAX_NOTED:
                settings = {name: one for name, one in fields["settings"].items() if _is_flat(one)}
                run.settings += [settings] if settings not in run.settings else []
            if run.provenance is None and "provenance" in fields:
                run.provenance = cast("dict[str, Any]", fields["provenance"])
            if "model" in fields:
                run.models[fields["model"]] = None
            if "device" in fields:
                run.devices[fields["device"]] = None
            for one in fields.get("detections", ()):
                if run.classes.setdefault(one["class_id"], one["class_name"]) != one["class_name"]:
                    run.renamed = one["class_id"]
        return run

    def key(self, fields: RecordJson) -> str:
        """The name of an input, as far as it counts."""
        return _name_of(fields)[self.skipped :]

    @property
    def keys(self) -> set[str]:
        return {name[self.skipped :] for name in self.names}

    @property
    def folder(self) -> str:
        shared = os.path.commonprefix([*self.names])  # noqa: RUF071 - cut at the last slash
        return shared.rpartition("/")[0]

    def setting(self, name: str, *kinds: type) -> list[Any]:
        """The values of a setting, as far as they are of these types."""
        values = (settings.get(name) for settings in self.settings)
        return [value for value in values if type(value) in kinds]

    @property
    def conf(self) -> float | None:
        """Scores of the records are above it; None if they do not say."""
        return max((one for one in self.setting("conf", float, int) if 0 <= one <= 1), default=None)

    @property
    def max_det(self) -> int | None:
        """The most detections that a picture has; None if they do not say, and with tiles."""
        if any(settings.get("tile") for settings in self.settings):
            return None
        return min((one for one in self.setting("max_det", int) if one >= 1), default=None)

    @property
    def precision(self) -> Precision | None:
        """The lowest precision that the network computed in; None if unknown."""
        said = (self.provenance or {}).get("precision")
        if isinstance(said, str) and said in set(Precision):
            return Precision(said)
        for device in self.devices:
            if (found := re.search(r"\((\w+)\)$", device)) and found[1] in PRECISIONS:
                return PRECISIONS[found[1]]
        return Precision.FLOAT16 if any(self.setting("half", bool)) else None

    def report(self) -> SideReport:
        hashes = {*self.setting("model_sha256", str)}
        digest = hashes.pop() if len(hashes) == 1 else ""
        return SideReport(
            model=", ".join(self.models) or ", ".join(self.setting("model", str)) or "unknown",
            sha256=digest if re.fullmatch("[0-9a-f]{64}", digest) else None,
            device=", ".join(self.devices) or None,
            precision=self.precision,
            records=self.name,
        )

    def certified(self) -> CertifiedSide:
        """What a certificate says of it, as far as that has the right form."""
        made = None
        if self.provenance is not None:
            texts = {name: self.provenance.get(name) for name in ProvenanceJson.__annotations__}
            made = {name: one if isinstance(one, str) else None for name, one in texts.items()}
        return CertifiedSide(_digest(self.path), self.settings[0] if self.settings else None, made)


def _digest(path: str) -> str | None:
    return sha256(Path(path)) if Path(path).is_file() else None


def _name_of(fields: RecordJson) -> str:
    """The name of an input, and the number of a frame, as runs on two systems have it in common."""
    parts = re.split(r"[\\/]+", unicodedata.normalize("NFC", fields["source"]))
    return "/".join(parts) + f"\0{fields.get('frame', '')}"


def _is_flat(value: object) -> bool:
    """Whether a setting holds nothing nested, as none of ours do."""
    parts = [*value.values()] if isinstance(value, dict) else value
    return not isinstance(parts, list) or not any(isinstance(one, dict | list) for one in parts)


def pair_names(left: SavedRun, right: SavedRun) -> None:
    """Let names count below each run's folder where the runs have none in common."""
    if left.names.isdisjoint(right.names):
        for run in (left, right):
            run.skipped = len(run.folder) + bool(run.folder)


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
    if (left.skipped or right.skipped) and (alone := len(left.keys ^ right.keys)):
        folders = (_shown(run.folder or ".") for run in (left, right))
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
                yield f"{name} is {_shown(values[name])} and {_shown(others[name])}"
    shared = sorted(left.classes.keys() & right.classes.keys())
    if renamed := [number for number in shared if left.classes[number] != right.classes[number]]:
        classes = "1 class has" if len(renamed) == 1 else f"{len(renamed)} classes have"
        names = (_shown(run.classes[renamed[0]]) for run in (left, right))
        yield f"{classes} another name: {renamed[0]} is {' and '.join(names)}"


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."


def is_results(path: Path) -> bool:
    try:
        with open_lines(path) as file:
            begins = file.read(PEEK)
    except (OSError, EOFError, zlib.error, ValueError):  # ValueError: no file can have this name
        return False
    return begins.lstrip()[:1] == b"[" and b'"image_id"' in begins.partition(b"}")[0]


class CocoResults:
    """COCO results, which are held as a whole."""

    def __init__(self, name: str, path: str, ids: CocoIds, classes: Mapping[int, str]) -> None:
        """Read a file; `classes` are those of the other side.

        Raises:
            SourceError: It cannot be read.
            UsageError: It is something else, or has no category of the classes.
        """
        self.name, self.path = name, path
        self.classes: dict[int, str] = {}
        self._ids = ids
        self._boxes = _read(Path(path))
        categories = {box["category"] for boxes in self._boxes.values() for box in boxes}
        known = _classes(ids, classes, categories)
        for box in (box for boxes in self._boxes.values() for box in boxes):
            category = box.pop("category")
            # A class that the other side has not found has a number of its own.
            unknown = MAX_CLASS + category % MAX_CLASS, f"category {category}"
            box["class_id"], box["class_name"] = known.get(category, unknown)
            self.classes[box["class_id"]] = box["class_name"]

    def report(self) -> SideReport:
        return SideReport("unknown", records=self.name)

    def certified(self) -> CertifiedSide:
        return CertifiedSide(_digest(self.path))

    def pairs(self, records: Iterable[RecordJson]) -> Iterator[Pair]:
        """Yield each record with one of its picture's results; no rows mean no detections."""
        asked = set()
        for fields in records:
            if "error" in fields:
                yield fields, fields
                continue
            index = fields.get("index")
            if not isinstance(index, int):
                raise UsageError("a record has no index", "name records that detcli wrote")
            origin = Origin(fields["source"], frame=fields.get("frame"))
            image = self._ids.image_id(Record(origin, index, "", ""))
            asked.add(image)
            yield fields, cast("RecordJson", {**fields, "detections": self._boxes.get(image, [])})
        for image in sorted(self._boxes.keys() - asked):
            yield None, cast("RecordJson", {"source": f"image_id {image}"})


def _read(path: Path) -> dict[int, list[BoxJson]]:
    """The boxes of each image, best first."""
    try:
        with open_lines(path) as file:
            elements = json.load(file)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"cannot read {path}: {system_reason(error)}", "check it") from error
    except (ValueError, RecursionError) as error:
        raise _unusable(path, "it is not JSON") from error
    if not isinstance(elements, list):
        raise _unusable(path, "it is not a list")
    images: defaultdict[int, list[BoxJson]] = defaultdict(list)
    for place, element in enumerate(elements):
        try:
            x, y, width, height = map(float, element["bbox"])
            score = float(element["score"])
            image, category = int(element["image_id"]), int(element["category_id"])
        except (LookupError, TypeError, ValueError, OverflowError):
            raise _unusable(path, f"element {place} lacks a field") from None
        corners = [x, y, x + width, y + height]
        if not all(abs(one) < MAX_NUMBER for one in (*corners, score)):
            raise _unusable(path, f"a number of element {place} is not finite")
        images[image].append({"category": category, "score": score, "box": corners})
    for boxes in images.values():
        boxes.sort(key=itemgetter("score"), reverse=True)
    return images


def _unusable(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"cannot compare with {path}: {reason}",
        "give COCO results: a list of image_id, category_id, bbox and score",
    )


def _by_id(names: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(names.get(class_id, "") for class_id in range(max(names, default=-1) + 1))


def _classes(
    ids: CocoIds, seen: Mapping[int, str], categories: set[int]
) -> Mapping[int, tuple[int, str]]:
    """Class id and name of each category, in the numbering that `--save-coco` would have used."""
    names = _by_id(seen)
    by_number = {number: name for name, number in COCO_ID_OF.items()}
    # A model with a class for each number of COCO may begin with 0 or 1.
    numbered = (tuple(by_number.get(n, "") for n in range(first, 91)) for first in (0, 1))
    for whole in (COCO, *numbered):
        if categories <= set(COCO_IDS) and all(
            class_id < len(whole) and whole[class_id] == name for class_id, name in seen.items()
        ):
            names = whole
            break
    found: dict[int, tuple[int, str]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes without a category, of which none may be found
        for class_id, name in enumerate(names):
            category = ids.category_id(class_id, names) if name else None
            if category is not None:
                found.setdefault(category, (class_id, name))
    return found


def verify_saved(request: VerifyRequest, inputs: InputGuard, *, certify: bool) -> Certificate:
    """Read both sides and compare, with a bar on a terminal."""
    other, config = request.other or "", request.config
    different: tuple[str, ...] = ()
    with ExitStack() as stack:
        paths = [stack.enter_context(_lasting(name)) for name in (request.model, other)]
        if is_results(Path(paths[0])):
            raise UsageError(
                f"{request.model} holds COCO results", "name them second, after records"
            )
        runs = [SavedRun.scan(request.model, paths[0])]
        left, instances = runs[0], request.coco_images
        right: SavedRun | CocoResults
        if instances is not None or is_results(Path(paths[1])):
            ids = CocoIds() if instances is None else CocoIdsFromFile(Path(instances))
            right = coco = CocoResults(other, paths[1], ids, left.classes)
            found = coco.pairs(read_records(left.path))
        else:
            right = second = SavedRun.scan(other, paths[1])
            runs.append(second)
            pair_names(left, second)
            different = tuple(unlike(left, second))
            found = pairs(left, second)
        rules = _rules(runs, request)
        sides, page = (left.report(), right.report()), config.writing.report
        results = stack.enter_context(open_results(page, inputs, rules, sides, certify=certify))
        advance = stack.enter_context(
            progress(lambda: left.count, wanted=not config.messages.quiet)
        )
        finder = Finder(Path(request.images[0]) if request.images else None, DecodeOptions())
        stack.callback(finder.close)
        run = _Pairs(finder, results, (left.classes, right.classes))
        for pair in found:
            run.add(*pair)
            advance()
        report = VerifyReport(
            left=sides[0],
            right=sides[1],
            tolerance=rules.tolerance,
            compared=results.compared,
            failed=tuple(results.failed),
            unlike=different,
            left_only=tuple(run.only[0]),
            right_only=tuple(run.only[1]),
            other_files=tuple(run.other_files),
            detections=results.detections(),
        )
        report = results.judge(report, [*run.failures()])
        made = [side.certified() if certify else CertifiedSide() for side in (left, right)]
    date = iso_time(datetime.now(UTC))
    return Certificate(date, request.to_json(), made[0], made[1], tuple(results.certified), report)


@contextmanager
def _lasting(name: str) -> Iterator[str]:
    """A path that can be read twice: a pipe is written to a temporary file."""
    path = Path(name)
    try:
        lasts = not path.exists() or path.is_file() or path.is_dir()
    except OSError:  # which reading it finds, too
        lasts = True
    if lasts:
        yield name
        return
    with tempfile.NamedTemporaryFile(prefix="detcli-") as copy:
        try:
            with path.open("rb") as pipe:
                shutil.copyfileobj(pipe, copy)
            copy.flush()
        except OSError as error:
            raise SourceError(f"cannot read {name}: {system_reason(error)}", "check it") from error
        yield copy.name


def _rules(runs: Sequence[SavedRun], request: VerifyRequest) -> Rules:
    """How strictly to compare; without a confidence, all detections that both runs hold count."""
    known = [run.conf for run in runs if run.conf is not None]
    highest = max(known, default=USUAL_CONF)
    asked = request.config.settings.conf
    conf = highest if asked is None else asked
    class_held: dict[int, float] = {}
    for table in (table for run in runs for table in run.setting("class_conf", dict)):
        for key, least in table.items():
            number = type(least) in {int, float} and 0 <= least <= 1
            if number and key.isdecimal() and len(key) < MAX_DIGITS:
                class_held[int(key)] = max(least, class_held.get(int(key), 0.0))
    most = [run.max_det for run in runs if run.max_det is not None]
    return Rules(
        conf,
        request.iou,
        min(most, default=Settings().max_det),
        tolerance_for(
            {run.precision or Precision.FLOAT32 for run in runs}, request.tolerance or {}
        ),
        # Where a run does not say from which score on it has detections, as COCO results do not,
        # that may be the score from which on they count.
        held=highest if len(known) == 2 else conf,
        class_held=class_held,
    )


def pairs(left: SavedRun, right: SavedRun) -> Iterator[Pair]:
    """Yield the records of each input; None where a run has none.

    Both are read in step. A record waits in memory for its counterpart, so in like order only two
    records are held.
    """
    runs, keys = (left, right), (left.keys, right.keys)
    waiting: tuple[defaultdict[str, list[RecordJson]], ...] = (defaultdict(list), defaultdict(list))
    for step in zip_longest(read_records(left.path), read_records(right.path)):
        for side, fields in enumerate(step):
            if fields is None:
                continue
            key, other = runs[side].key(fields), 1 - side
            if key in waiting[other]:
                counterpart = waiting[other][key].pop(0)
                if not waiting[other][key]:
                    del waiting[other][key]
                yield (fields, counterpart) if side == 0 else (counterpart, fields)
            elif key in keys[other]:
                waiting[side][key].append(fields)
            else:
                yield (fields, None) if side == 0 else (None, fields)
    for side, left_over in enumerate(waiting):
        for fields in (one for found in left_over.values() for one in found):
            yield (fields, None) if side == 0 else (None, fields)


class _Pairs:
    def __init__(
        self, finder: Finder, results: Results, classes: Iterable[Mapping[int, str]]
    ) -> None:
        self.only: tuple[list[str], list[str]] = ([], [])
        self.other_files: list[str] = []
        self._one_sided: list[str] = []  # errors
        self._finder, self._results = finder, results
        self._names = [_by_id(names) for names in classes]

    def add(self, left: RecordJson | None, right: RecordJson | None) -> None:
        """Compare the records of an input, or note that a run has none."""
        if left is None or right is None:
            for side, one in enumerate((left, right)):
                if one is not None:
                    self.only[side].append(_title(one))
            return
        errors = [
            f"{side}: {fields['error']['message']}"
            for side, fields in (("left", left), ("right", right))
            if "error" in fields
        ]
        if errors:
            # COCO results have no errors of their own.
            self._fail(left, left["error"]["message"] if left is right else "; ".join(errors))
            if len(errors) == 1:
                self._one_sided.append(_title(left))
            return
        hashes = left.get("sha256"), right.get("sha256")
        sizes = [f"{fields['width']}x{fields['height']}" for fields in (left, right)]
        if sizes[0] != sizes[1] or (all(hashes) and hashes[0] != hashes[1]):
            self.other_files.append(_title(left))
        if sizes[0] != sizes[1]:
            self._fail(left, f"{sizes[0]} on the left, {sizes[1]} on the right")
            return
        self._compare(left, right, hashes[0] or hashes[1])

    def _compare(self, left: RecordJson, right: RecordJson, digest: str | None) -> None:
        source = left["source"]
        origin = Origin(source, frame=left.get("frame"), time_s=left.get("time_s"))
        if self._results.certifies:
            path = None if digest else self._finder.path_of(source)
            self._results.certify(Origin(source, path, origin.frame), digest)
        self._results.add(
            origin,
            (left["height"], left["width"]),
            [*map(_found, (left, right), self._names)],
            partial(self._finder.picture, left),
            left.get("warnings", ()),
        )

    def _fail(self, fields: RecordJson, error: str) -> None:
        origin = Origin(fields["source"], frame=fields.get("frame"))
        self._results.fail(_title(fields), origin, InputError(error))

    def failures(self) -> Iterator[str]:
        """What differs besides detections, a sentence each."""
        for names, what in (
            (self.only[0], "only on the left"),
            (self.only[1], "only on the right"),
            (self._one_sided, "with an error on one side only"),
            (self.other_files, "that are different files on the two sides"),
        ):
            if names:
                shown = ", ".join(Path(name).name or name for name in names[:MAX_NAMED])
                more = f", and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
                yield f"{count(len(names), 'input')} ({shown}{more}) {what}"


def _title(fields: RecordJson) -> str:
    frame = fields.get("frame")
    return fields["source"] if frame is None else f"{fields['source']} frame {frame}"


def _found(fields: RecordJson, names: tuple[str, ...]) -> Detections:
    """The detections of a record, with the names of all classes of its run."""
    rows = fields["detections"]
    return Detections(
        np.array([one["box"] for one in rows], np.float32).reshape(-1, 4),
        np.array([one["score"] for one in rows], np.float32),
        np.array([one["class_id"] for one in rows], np.int64),
        names,
    )
