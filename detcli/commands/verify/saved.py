"""Saved runs: what their records say of how they were made."""

import json
import os
import re
import shutil
import tempfile
import unicodedata
import warnings
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any, cast

import numpy as np

from detcli.commands.shared.comparison import Precision, Rules, tolerance_for
from detcli.commands.shared.finder import Finder
from detcli.commands.shared.progress import progress
from detcli.commands.shared.saved import MAX_CLASS, MAX_NUMBER, is_folder, open_lines, read_records
from detcli.commands.verify.pictures import (
    Results,
    SeenPicture,
    Verification,
    failures,
    is_evidence,
    open_page,
)
from detcli.commands.verify.report import (
    CertifiedSide,
    FailedInput,
    Outputs,
    SideReport,
    VerifyReport,
    VerifyRequest,
)
from detcli.detections import Detections
from detcli.errors import InputError, SourceError, UsageError, system_reason
from detcli.model.hub_cache import sha256
from detcli.model.names import COCO, COCO_IDS
from detcli.record import Origin, ProvenanceJson, Record, RecordJson
from detcli.settings import USUAL_CONF, Settings
from detcli.sink.labels import COCO_ID_OF, CocoIds, CocoIdsFromFile
from detcli.source.decode import DecodeOptions
from detcli.source.sources import InputGuard

MAX_NOTED = 100
"""Settings, models and devices of one run that are remembered."""

MAX_DIGITS = 8
"""Of a class id, see `MAX_CLASS`."""

MAX_SHOWN = 80
"""Characters of a setting that a sentence shows."""

ELSEWHERE = frozenset({"model", "model_sha256", "zones", "lines", "track", "vid_stride"})
"""Settings that boxes do not depend on, or that are compared apart."""

PRECISIONS = {"bf16": Precision.BFLOAT16, "f16": Precision.FLOAT16, "f32": Precision.FLOAT32}
"""What a device says of the number type that it chose, as in "openvino:CPU (bf16)"."""


@dataclass(slots=True)
class SavedRun:
    """A saved run.

    Attributes:
        name: As the user gave it.
        path: Where to read it.
        names: Of its inputs, as `name_of` writes them.
        skipped: How many characters of a name do not count.
        settings: Each of the settings that records carry; with a resumed run, there may be some.
        provenance: What the run was made with, as its first record says.
        models: Names of the models.
        devices: Where they ran.
        classes: Names of the classes that were found, by id; the first name of each.
        renamed: An id that has two names.
        count: How many records there are.
    """

    name: str
    path: str
    names: set[str] = field(default_factory=set)
    skipped: int = 0
    settings: list[dict[str, Any]] = field(default_factory=list)
    provenance: dict[str, Any] | None = None
    models: dict[str, None] = field(default_factory=dict)
    devices: dict[str, None] = field(default_factory=dict)
    classes: dict[int, str] = field(default_factory=dict)
    renamed: int | None = None
    count: int = 0

    @classmethod
    def scan(cls, name: str, path: str) -> "SavedRun":
        """Read all records once, and remember what they say of the run.

        Raises:
            SourceError: They cannot be read.
            UsageError: They are something else.
        """
        run = cls(name, path)
        if is_folder(path):
            from detcli.shards.manifest import Manifest
            from detcli.shards.store import open_store

            header = Manifest(open_store(f"{path}/")).header
            run.settings.append(cast("dict[str, Any]", header["settings"]))
        for fields in read_records(path):
            run._note(fields)
        return run

    def _note(self, fields: RecordJson) -> None:
        self.count += 1
        self.names.add(name_of(fields))
        settings = _flat(fields["settings"]) if "settings" in fields else None
        if settings is not None and settings not in self.settings:
            self.settings += [settings] * (len(self.settings) < MAX_NOTED)
        if self.provenance is None and "provenance" in fields:
            self.provenance = cast("dict[str, Any]", fields["provenance"])
        for noted, name in (
            (self.models, fields.get("model")),
            (self.devices, fields.get("device")),
        ):
            if name is not None and len(noted) < MAX_NOTED:
                noted[name] = None
        for one in fields.get("detections", ()):
            if self.classes.setdefault(one["class_id"], one["class_name"]) != one["class_name"]:
                self.renamed = one["class_id"]

    def key(self, fields: RecordJson) -> str:
        """The name of an input, as far as it counts."""
        return name_of(fields)[self.skipped :]

    @property
    def folder(self) -> str:
        """The folder that all names have in common."""
        shared = os.path.commonprefix([*self.names])  # noqa: RUF071 - cut at the last slash
        return shared.rpartition("/")[0]

    @property
    def keys(self) -> set[str]:
        """The keys of all inputs."""
        return {name[self.skipped :] for name in self.names}

    def records(self) -> Iterator[RecordJson]:
        """Read all records again."""
        return read_records(self.path)

    def setting(self, name: str, kind: type) -> list[Any]:
        """The values of a setting, as far as they are of a type."""
        values = (settings.get(name) for settings in self.settings)
        return [value for value in values if isinstance(value, kind)]

    @property
    def conf(self) -> float | None:
        """Scores of the records are above it; None if they do not say."""
        numbers = self.setting("conf", float) + self.setting("conf", int)
        return max((float(one) for one in numbers if 0 <= one <= 1), default=None)

    @property
    def class_conf(self) -> dict[int, float]:
        """The same of single classes."""
        return {
            int(key): float(least)
            for table in self.setting("class_conf", dict)
            for key, least in table.items()
            if key.isdecimal()
            and len(key) < MAX_DIGITS
            and isinstance(least, int | float)
            and 0 <= least <= 1
        }

    @property
    def max_det(self) -> int | None:
        """The most detections that a picture has; None if they do not say, and with tiles."""
        whole = not any(settings.get("tile") for settings in self.settings)
        numbers = [one for one in self.setting("max_det", int) if one >= 1]
        return min(numbers, default=None) if whole else None

    @property
    def sha256(self) -> str | None:
        """Hash of the model's file; None if unknown, or of two models."""
        found = set(self.setting("model_sha256", str))
        digest = found.pop() if len(found) == 1 else ""
        return digest if re.fullmatch("[0-9a-f]{64}", digest) else None

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
        """What the report says of it."""
        return SideReport(
            model=", ".join(self.models) or ", ".join(self.setting("model", str)) or "unknown",
            sha256=self.sha256,
            device=", ".join(self.devices) or None,
            selection=None,
            precision=self.precision,
            records=self.name,
        )

    def made_with(self) -> dict[str, str | None] | None:
        """What the run was made with, as far as it has the right form."""
        if self.provenance is None:
            return None
        texts = {name: self.provenance.get(name) for name in ProvenanceJson.__annotations__}
        return {name: one if isinstance(one, str) else None for name, one in texts.items()}


def name_of(fields: RecordJson) -> str:
    """The name of an input, and the number of a frame, as runs on two systems have it in common."""
    parts = re.split(r"[\\/]+", unicodedata.normalize("NFC", fields["source"]))
    return "/".join(parts) + f"\0{fields.get('frame', '')}"


def _flat(settings: Mapping[str, object]) -> dict[str, Any]:
    """Settings without values that are nested, as none of ours are."""

    def is_plain(value: object) -> bool:
        return value is None or isinstance(value, str | int | float)

    def is_flat(value: object) -> bool:
        parts = value.values() if isinstance(value, dict) else value
        return is_plain(value) or (isinstance(value, dict | list) and all(map(is_plain, parts)))  # type: ignore[call-overload]

    return {name: value for name, value in settings.items() if is_flat(value)}


def pair_names(left: SavedRun, right: SavedRun) -> None:
    """Let names count below each run's folder where the runs have none in common."""
    if left.names.isdisjoint(right.names):
        for run in (left, right):
            run.skipped = len(run.folder) + bool(run.folder)


def unlike(left: SavedRun, right: SavedRun) -> Iterator[str]:
    """Say in which settings two runs differ, and what they do not say."""
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
    yield from _unlike_models(left, right)
    yield from _unlike_settings(left, right)
    yield from _renamed(left.classes, right.classes)
    if (left.skipped or right.skipped) and (alone := len(left.keys ^ right.keys)):
        folders = (_shown(run.folder or ".") for run in (left, right))
        yield (
            f"inputs are paired by their names below {' and '.join(folders)}, and {alone} of them "
            "have no counterpart"
        )


def _unlike_models(left: SavedRun, right: SavedRun) -> Iterator[str]:
    if left.sha256 is None or right.sha256 is None:
        if [*left.models] != [*right.models]:
            yield f"model is {_listed(left.models)} and {_listed(right.models)}"
    elif left.sha256 != right.sha256:
        yield (
            f"model is {_listed(left.models)} ({left.sha256[:12]}) and "
            f"{_listed(right.models)} ({right.sha256[:12]})"
        )
    if None not in {left.precision, right.precision} and left.precision != right.precision:
        yield f"precision is {left.precision} and {right.precision}"


def _unlike_settings(left: SavedRun, right: SavedRun) -> Iterator[str]:
    if left.settings and right.settings:
        one, other = left.settings[0], right.settings[0]
        for name in (name for name in one if name in other and name not in ELSEWHERE):
            if one[name] != other[name]:
                yield f"{name} is {_shown(one[name])} and {_shown(other[name])}"


def _renamed(left: Mapping[int, str], right: Mapping[int, str]) -> Iterator[str]:
    """Classes are paired by id, so it matters where an id has another name."""
    different = sorted(
        number for number in left.keys() & right.keys() if left[number] != right[number]
    )
    if different:
        first = different[0]
        classes = "1 class has" if len(different) == 1 else f"{len(different)} classes have"
        yield (
            f"{classes} another name: {first} is {_shown(left[first])} and {_shown(right[first])}"
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "unknown"


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."


PEEK = 4096
"""Bytes in which the first element of COCO results shows what it is."""

ROW = np.dtype([
    ("image", np.int64), ("category", np.int64), ("box", np.float32, 4), ("score", np.float32)
])  # fmt: skip

MALFORMED = (LookupError, TypeError, ValueError, OverflowError)

BoxRows = list[tuple[list[float], float, int, str]]
"""Boxes x1, y1, x2, y2 with their scores, class ids and names."""


def is_results(path: Path) -> bool:
    """Whether a file is an array of COCO results."""
    try:
        with open_lines(path) as file:
            begins = file.read(PEEK)
    except (OSError, EOFError, zlib.error, ValueError):  # ValueError: no file can have this name
        return False
    return begins.lstrip()[:1] == b"[" and b'"image_id"' in begins.partition(b"}")[0]


class CocoResults:
    """COCO results, which are held as a whole, 40 bytes a box.

    Attributes:
        name: The file.
        asked: Image ids that records had.
    """

    def __init__(self, name: str, path: Path, ids: CocoIds, classes: Mapping[int, str]) -> None:
        """Read a file.

        Args:
            name: As the user gave it.
            path: Where to read it.
            ids: Gives records their image ids, and classes their category ids.
            classes: Names of the classes of the other side, by id.

        Raises:
            SourceError: It cannot be read.
            UsageError: It is something else, or has no category of the classes.
        """
        self.name = name
        self.asked: set[int] = set()
        self._ids = ids
        rows = _read(path)
        by_score = np.argsort(-rows["score"], kind="stable")
        rows = rows[by_score][np.argsort(rows["image"][by_score], kind="stable")]
        images, starts = np.unique(rows["image"], return_index=True)
        ends = (*starts.tolist(), len(rows))
        self._rows = rows
        self._places = dict(zip(images.tolist(), pairwise(ends), strict=True))
        categories = set(np.unique(rows["category"]).tolist())
        self._classes = _classes(ids, classes, categories)

    def rows(self, fields: RecordJson) -> BoxRows:
        """The boxes of the picture of a record, best first.

        Raises:
            UsageError: The picture has no image id.
        """
        index = fields.get("index")
        if not isinstance(index, int):
            raise UsageError("a record has no index", "name records that detcli wrote")
        origin = Origin(fields["source"], frame=fields.get("frame"))
        image = self._ids.image_id(Record(origin, index, "", ""))
        self.asked.add(image)
        found: BoxRows = []
        for row in self._rows[slice(*self._places.get(image, (0, 0)))]:
            class_id, name = self._class(int(row["category"]))
            found.append((row["box"].tolist(), float(row["score"]), class_id, name))
        return found

    def left_over(self) -> list[str]:
        """Pictures that no record was about."""
        return [f"image_id {image}" for image in self._places if image not in self.asked]

    def _class(self, category: int) -> tuple[int, str]:
        """Class id and name of a category; one that the other side has not found has its own."""
        known = self._classes.get(category)
        return known or (MAX_CLASS + category % MAX_CLASS, f"category {category}")


def _read(path: Path) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """The rows of a file, in its order."""
    try:
        with open_lines(path) as file:
            elements = json.load(file)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"cannot read {path}: {system_reason(error)}", "check it") from error
    except (ValueError, RecursionError) as error:
        raise _unusable(path, "it is not JSON") from error
    if not isinstance(elements, list):
        raise _unusable(path, "it is not a list")
    rows = np.empty(len(elements), ROW)
    for place, element in enumerate(elements):
        try:
            x, y, width, height = map(float, element["bbox"])
            numbers = x, y, x + width, y + height, float(element["score"])
            finite = all(abs(one) < MAX_NUMBER for one in numbers)
            ids = int(element["image_id"]), int(element["category_id"])
            rows[place] = (*ids, numbers[:4], numbers[4]) if finite else (*ids, (0, 0, 0, 0), 0)
        except MALFORMED:
            raise _unusable(path, f"element {place} lacks a field") from None
        if not finite:
            raise _unusable(path, f"a number of element {place} is not finite")
    return rows


def _unusable(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"cannot compare with {path}: {reason}",
        "give COCO results: a list of image_id, category_id, bbox and score",
    )


def _classes(
    ids: CocoIds, seen: Mapping[int, str], categories: Iterable[int]
) -> Mapping[int, tuple[int, str]]:
    """Class id and name of each category, in the numbering that `--save-coco` would have used."""
    names = tuple(seen.get(class_id, "") for class_id in range(max(seen, default=-1) + 1))
    for whole in (COCO, *map(_numbered_from, (0, 1))):
        if set(categories) <= set(COCO_IDS) and all(
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


def _numbered_from(first: int) -> tuple[str, ...]:
    """Names of a model with a class for each number of COCO."""
    by_number = {number: name for name, number in COCO_ID_OF.items()}
    return tuple(by_number.get(number, "") for number in range(first, 91))


MAX_NAMED = 3
"""Inputs that a sentence names."""


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """What to compare, and how strictly.

    Attributes:
        unlike: Settings in which the runs differ, a sentence each.
    """

    left: SavedRun
    right: SavedRun | CocoResults
    rules: Rules
    unlike: tuple[str, ...]

    @property
    def sides(self) -> tuple[SideReport, SideReport]:
        """What the report says of both."""
        if isinstance(self.right, CocoResults):
            name = self.right.name
            return self.left.report(), SideReport("unknown", None, None, None, None, name)
        return self.left.report(), self.right.report()


def verify_saved(
    request: VerifyRequest, outputs: Outputs, *, certify: bool, quiet: bool
) -> Verification:
    """Read both sides and compare, with a bar on a terminal; see `verify_running`.

    Raises:
        DetcliError: Something cannot be compared or written; see `plan_saved` and `compare_saved`.
    """
    other = request.other or ""
    images = Path(request.images[0]) if request.images else None
    with ExitStack() as stack:
        paths = [stack.enter_context(_lasting(name)) for name in (request.model, other)]
        if is_results(Path(paths[0])):
            raise UsageError(
                f"{request.model} holds COCO results", "name them second, after records"
            )
        left = SavedRun.scan(request.model, paths[0])
        right: SavedRun | CocoResults
        if request.coco_images is not None or is_results(Path(paths[1])):
            instances = request.coco_images
            ids = CocoIds() if instances is None else CocoIdsFromFile(Path(instances))
            right = CocoResults(other, Path(paths[1]), ids, left.classes)
        else:
            right = SavedRun.scan(other, paths[1])
        plan = plan_saved(left, right, request)
        listed = filter(None, [request.coco_images])
        guard = InputGuard([*request.images, request.model, other, *listed])
        outputs.check(guard)
        page = stack.enter_context(open_page(outputs.report, plan.sides, plan.rules, guard))
        advance = stack.enter_context(progress(lambda: left.count, wanted=not quiet))
        results = Results(plan.rules, page, keep_all=False, certify=certify)
        finder = Finder(images, DecodeOptions())
        report = compare_saved(plan, finder, results, advance)
        runs = zip((left, right), paths, strict=True) if certify else ()
        return Verification(report, results, tuple(_certified(*run) for run in runs))


def _certified(run: SavedRun | CocoResults, path: str) -> CertifiedSide:
    """What a certificate says of a side that was saved."""
    digest = sha256(Path(path)) if Path(path).is_file() else None
    if isinstance(run, CocoResults):
        return CertifiedSide(digest, None, None)
    return CertifiedSide(digest, run.settings[0] if run.settings else None, run.made_with())


@contextmanager
def _lasting(name: str) -> Iterator[str]:
    """A path that can be read twice: a pipe is written to a temporary file.

    Raises:
        SourceError: The pipe cannot be read.
    """
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


def plan_saved(left: SavedRun, right: SavedRun | CocoResults, request: VerifyRequest) -> SavedPlan:
    """Work out what to compare.

    Args:
        left: The first run.
        right: The second.
        request: How strictly to compare; without a confidence, all detections that both runs hold
            count.

    Raises:
        UsageError: The confidence, or a value of the tolerance, is out of range.
    """
    runs = [run for run in (left, right) if isinstance(run, SavedRun)]
    known = [run.conf for run in runs if run.conf is not None]
    # Where a run does not say from which score on it has detections, as COCO results do not, that
    # may be the score from which on they count.
    held = max(known, default=None) if len(known) == 2 else None
    wanted = request.settings.conf
    conf = wanted if wanted is not None else max(known, default=USUAL_CONF)
    held = conf if held is None else held
    class_held: dict[int, float] = {}
    for run in runs:
        for class_id, least in run.class_conf.items():
            class_held[class_id] = max(least, class_held.get(class_id, 0.0))
    precisions = {run.precision or Precision.FLOAT32 for run in runs}
    most = [run.max_det for run in runs if run.max_det is not None]
    rules = Rules(
        conf,
        request.iou,
        min(most, default=Settings().max_det),
        tolerance_for(precisions, request.tolerance),
        held,
        class_held,
    )
    different: tuple[str, ...] = ()
    if isinstance(right, SavedRun):
        pair_names(left, right)
        different = tuple(unlike(left, right))
    return SavedPlan(left, right, rules, different)


def compare_saved(
    plan: SavedPlan,
    finder: Finder,
    results: Results,
    advance: Callable[[], None] = lambda: None,
) -> VerifyReport:
    """Compare two saved runs.

    Args:
        plan: The runs, and how strictly to compare.
        finder: Finds the pictures.
        results: Gets what is compared.
        advance: Called after each pair of records.

    Raises:
        OutputError: The page cannot be written.
        SourceError: Records cannot be read any more.
        UsageError: A record has no image id in the COCO results.
    """
    run = _Pairs(plan, finder, results)
    if isinstance(plan.right, CocoResults):
        run.hold_against(plan.right, advance)
    else:
        run.compare(pairs(plan.left, plan.right), advance)
    left, right = plan.sides
    detections = results.summarise()
    finder.close()
    tolerance = plan.rules.tolerance
    wrong = (*failures(detections, None, None, tolerance), *run.failures())
    if results.page is not None:
        results.page.summary = (*(wrong or ("The two sides agree",)), *plan.unlike)
    return VerifyReport(
        agree=not wrong and is_evidence(detections, None),
        failures=wrong,
        left=left,
        right=right,
        tolerance=tolerance,
        compared=results.compared,
        failed=tuple(run.failed),
        unlike=plan.unlike,
        left_only=tuple(run.only[0]),
        right_only=tuple(run.only[1]),
        other_files=tuple(run.other_files),
        detections=detections,
    )


class _Pairs:
    """Compares the records of each input."""

    def __init__(self, plan: SavedPlan, finder: Finder, results: Results) -> None:
        self.failed: list[FailedInput] = []
        self.only: tuple[list[str], list[str]] = ([], [])
        self.other_files: list[str] = []
        self._one_sided: list[str] = []  # errors
        self._plan, self._finder, self._results = plan, finder, results
        self._classes = ClassNames(), ClassNames()

    def compare(
        self,
        found: Iterator[tuple[RecordJson | None, RecordJson | None]],
        advance: Callable[[], None],
    ) -> None:
        """Compare the records of two runs."""
        for left, right in found:
            if left is not None and right is not None:
                self._compare(left, right)
            elif left is not None:
                self.only[0].append(_name(left))
            elif right is not None:
                self.only[1].append(_name(right))
            advance()

    def hold_against(self, results: CocoResults, advance: Callable[[], None]) -> None:
        """Compare the records of a run with COCO results, where no rows mean no detections."""
        for fields in self._plan.left.records():
            if "error" in fields:
                self._fail(fields, fields["error"]["message"])
            else:
                self._add(fields, results.rows(fields), fields.get("sha256"))
            advance()
        self.only[1].extend(results.left_over())

    def failures(self) -> Iterator[str]:
        """What differs besides detections, a sentence each."""
        for side, names in zip(("left", "right"), self.only, strict=True):
            if names:
                yield f"{_inputs(names)} only on the {side}"
        if self._one_sided:
            yield f"{_inputs(self._one_sided)} with an error on one side only"
        if self.other_files:
            yield f"{_inputs(self.other_files)} that are different files on the two sides"

    def _compare(self, left: RecordJson, right: RecordJson) -> None:
        errors = [
            f"{side}: {fields['error']['message']}"
            for side, fields in (("left", left), ("right", right))
            if "error" in fields
        ]
        if errors:
            self._fail(left, "; ".join(errors))
            if len(errors) == 1:
                self._one_sided.append(_name(left))
            return
        hashes = left.get("sha256"), right.get("sha256")
        sizes = [f"{fields['width']}x{fields['height']}" for fields in (left, right)]
        if sizes[0] != sizes[1] or (all(hashes) and hashes[0] != hashes[1]):
            self.other_files.append(_name(left))
        if sizes[0] != sizes[1]:
            self._fail(left, f"{sizes[0]} on the left, {sizes[1]} on the right")
            return
        self._add(left, _rows(right), hashes[0] or hashes[1])

    def _add(self, left: RecordJson, right: BoxRows, digest: str | None) -> None:
        finder, source = self._finder, left["source"]
        origin = Origin(source, frame=left.get("frame"), time_s=left.get("time_s"))
        names, other_names = self._classes
        seen = SeenPicture(
            origin,
            (left["height"], left["width"]),
            partial(finder.picture, left),
            left.get("warnings", ()),
        )
        if self._results.certifies:
            path = finder.path_of(source) if digest is None else None
            self._results.certify(Origin(source, path, origin.frame), digest)
        self._results.add(seen, names.detections(_rows(left)), other_names.detections(right))

    def _fail(self, fields: RecordJson, error: str) -> None:
        self.failed.append(FailedInput(_name(fields), error))
        if self._results.page is not None:
            origin = Origin(fields["source"], frame=fields.get("frame"))
            self._results.page.fail(origin, InputError(error))


def _rows(fields: RecordJson) -> BoxRows:
    return [
        (one["box"], one["score"], one["class_id"], one["class_name"])
        for one in fields["detections"]
    ]


def _name(fields: RecordJson) -> str:
    frame = fields.get("frame")
    return fields["source"] if frame is None else f"{fields['source']} frame {frame}"


def _inputs(names: list[str]) -> str:
    shown = ", ".join(Path(name).name or name for name in names[:MAX_NAMED])
    more = f", and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    count = "1 input" if len(names) == 1 else f"{len(names)} inputs"
    return f"{count} ({shown}{more})"


Pair = tuple[RecordJson | None, RecordJson | None]


def pairs(left: SavedRun, right: SavedRun) -> Iterator[Pair]:
    """Yield the records of each input; None where a run has none.

    Both are read in step. A record waits in memory for its counterpart, so in like order only two
    records are held.
    """
    runs, keys = (left, right), (left.keys, right.keys)
    waiting: tuple[defaultdict[str, list[RecordJson]], ...] = (defaultdict(list), defaultdict(list))
    for step in zip_longest(left.records(), right.records()):
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


class ClassNames:
    """Names of classes by id, as `Detections` take them; they grow as records come."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}
        self._names: tuple[str, ...] = ()

    def detections(self, rows: Sequence[tuple[Sequence[float], float, int, str]]) -> Detections:
        """Make detections of boxes with their scores, class ids and class names."""
        new = {class_id: name for _, _, class_id, name in rows if class_id not in self._known}
        if new:
            self._known |= new
            ids = range(max(self._known) + 1)
            self._names = tuple(self._known.get(class_id, "") for class_id in ids)
        return Detections(
            np.array([box for box, *_ in rows], np.float32).reshape(-1, 4),
            np.array([score for _, score, *_ in rows], np.float32),
            np.array([class_id for *_, class_id, _ in rows], np.int64),
            self._names,
        )
