"""A saved run: what its records say about how it was made, and in what two runs differ."""

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self, cast

from detcli.commands.verify.report import CertifiedSide, SideReport, shortened
from detcli.data.record import ProvenanceJson, RecordJson, name_of
from detcli.model.precision import Precision
from detcli.page.find_images import Finder
from detcli.run.saved import is_folder, read_records
from detcli.storage.files import sha256

MAX_NOTED = 100  # settings of one run that are remembered
MAX_DIGITS = 8  # of a class id, see `MAX_CLASS`
SETTINGS_NOT_COMPARED = frozenset(
    {"model", "model_sha256", "zones", "lines", "track", "vid_stride", "every"}
)
"""Settings that boxes do not depend on, or that are compared apart."""

PRECISIONS = {"bf16": Precision.BFLOAT16, "f16": Precision.FLOAT16, "f32": Precision.FLOAT32}
"""What records say about the number type that the device chose."""

RecordPair = tuple[RecordJson | None, RecordJson | None]
"""The records of an input; None where a run has none."""


class _WaitingRecords:
    """Records of one run that wait for the record which the other run has of the same input."""

    def __init__(self) -> None:
        self._records: defaultdict[str, list[RecordJson]] = defaultdict(list)

    def add(self, key: str, record: RecordJson) -> None:
        """Let a record wait; `key` is that of its input, see `SavedRun.key`."""
        self._records[key].append(record)

    def pop(self, key: str) -> RecordJson | None:
        """Remove the record of an input that has waited longest; None if none waits."""
        if key not in self._records:
            return None
        records = self._records[key]
        record = records.pop(0)
        if not records:
            del self._records[key]
        return record

    def __iter__(self) -> Iterator[RecordJson]:
        for records in self._records.values():
            yield from records


class SavedRun:
    """A saved run, and what its records say about how it was made."""

    def __init__(self, name: str, path: str, finder: Finder) -> None:
        """Create the run without records; `add` then records what each of them says.

        Args:
            name: What the user called the file or folder of the records.
            path: Where to read it.
            finder: Finds the images whose sizes the file lacks.
        """
        self.name = name
        self.path = path
        self.finder = finder
        self.record_count = 0
        # Records of two runs with the same key belong to the same input, see `key`.
        self.input_keys = set[str]()
        # The folder in which all inputs are, with a slash at the end. It is empty until
        # `shorten_input_keys` removes it from the keys.
        self.common_folder = ""

        # Usually a single element, as all records have the same settings. A run that was resumed
        # with different settings has several.
        self.settings: list[dict[str, Any]] = []
        # Facts such as the versions of libraries, from the first record that has any.
        self.provenance: dict[str, str | None] | None = None
        # The distinct values of these fields, in the order in which they appear. They are the keys
        # of a dict, as a set has no order.
        self.distinct_values: dict[str, dict[str, None]] = {
            "model": {},
            "device": {},
            "precision": {},
        }
        self.class_names: dict[int, str] = {}  # the first name of each class that was detected
        self.ambiguous_class_id: int | None = None  # a class that has two names

    @classmethod
    def read(cls, name: str, path: str, finder: Finder) -> Self:
        """Read all records of a run once, and return what they say about the run.

        If the records are those of a run in shards, its manifest says the settings as well.

        Args:
            name: The file or folder as the user named it.
            path: Where to read it, which is a copy if the user named a pipe.
            finder: Finds images where the format of the file lacks their sizes.
        """
        run = cls(name, path, finder)
        if is_folder(path):
            from detcli.run.shards.manifest import Manifest
            from detcli.run.shards.store import open_store

            header = Manifest(open_store(f"{path}/")).header
            run.settings.append(cast("dict[str, Any]", header["settings"]))

        for record in run.records():
            run.input_keys.add(run.key(record))
            run.add(cast("dict[str, Any]", record))
        return run

    def records(self) -> Iterator[RecordJson]:
        """Yield the records of the run, read again."""
        return read_records(self.path, self.finder)

    def add(self, record: dict[str, Any]) -> None:
        """Record what a record says about the run: its settings, model, device and classes.

        A class with several names is recorded in `ambiguous_class_id`; only its first name is used.

        Args:
            record: The record as it was read from JSON.
        """
        self.record_count += 1
        if "settings" in record and len(self.settings) < MAX_NOTED:
            self._add_settings(record["settings"])
        if self.provenance is None and "provenance" in record:
            self.provenance = _texts_of_provenance(record["provenance"])
        for field_name, values in self.distinct_values.items():
            if field_name in record:
                value = record[field_name]
                values[value] = None  # has no effect if the dict has this key

        for detection in record.get("detections", ()):
            class_id = detection["class_id"]
            class_name = detection["class_name"]
            first_name = self.class_names.setdefault(class_id, class_name)
            if first_name != class_name:
                self.ambiguous_class_id = class_id

    def _add_settings(self, recorded_settings: dict[str, Any]) -> None:
        """Record the settings in a record, unless another record has the same."""
        settings = {name: value for name, value in recorded_settings.items() if _is_flat(value)}
        if settings not in self.settings:
            self.settings.append(settings)

    def key(self, fields: RecordJson) -> str:
        """Return a key by which the records that two runs have of the same input are paired.

        It is the path of the input and the frame of a video. After `shorten_input_keys`, the path
        begins below the folder that all inputs have in common. Windows and other systems have the
        same key for a path, though they separate its folders differently.
        """
        name = re.sub(r"[\\/]+", "/", unicodedata.normalize("NFC", name_of(fields)))
        return f"{name}\0{fields.get('frame', '')}"[len(self.common_folder) :]

    def shorten_input_keys(self) -> None:
        """Remove the folder that all inputs have in common from the beginning of their keys."""
        shared = os.path.commonprefix(list(self.input_keys))  # noqa: RUF071 - cut at the last slash
        self.common_folder = shared[: shared.rfind("/") + 1]
        self.input_keys = {key[len(self.common_folder) :] for key in self.input_keys}

    def setting(self, name: str, *types: type) -> list[Any]:
        """Return the values that a setting has in the records, without those of other types."""
        values = []
        for settings in self.settings:
            value = settings.get(name)
            if type(value) in types:
                values.append(value)
        return values

    def numbers(self, name: str, minimum: float, maximum: float) -> list[float]:
        """Return the values of a setting that are numbers in this range."""
        numbers = self.setting(name, int, float)
        return [number for number in numbers if minimum <= number <= maximum]

    def class_conf(self) -> Iterator[tuple[int, float]]:
        """Yield the id and the confidence of each class that ran with a separate confidence."""
        for table in self.setting("class_conf", dict):
            for key, conf in table.items():
                is_confidence = type(conf) in {int, float} and 0 <= conf <= 1
                if is_confidence and key.isdecimal() and len(key) < MAX_DIGITS:
                    yield int(key), conf

    @property
    def precision(self) -> Precision | None:
        """The lowest precision that the network computed in; None if unknown.

        Records say it in several places: with --provenance, as the number type that the device
        chose, and by the option --half.
        """
        recorded = (self.provenance or {}).get("precision")
        if recorded in set(Precision):
            return Precision(recorded)
        for number_type, precision in PRECISIONS.items():  # the lowest precision first
            if number_type in self.distinct_values["precision"]:
                return precision
        ran_with_half = any(self.setting("half", bool))
        if ran_with_half:
            return Precision.FLOAT16
        return None

    def report(self) -> SideReport:
        """Describe this side for the report of the comparison."""
        models = self.distinct_values["model"] or self.setting("model", str)
        return SideReport(
            model=", ".join(models) or "unknown",
            sha256=self._model_sha256(),
            device=", ".join(self.distinct_values["device"]) or None,
            precision=self.precision,
            records=self.name,
        )

    def _model_sha256(self) -> str | None:
        """Return the hash of the model's file; None if the records name none, or several."""
        hashes = set(self.setting("model_sha256", str))
        if len(hashes) != 1:
            return None
        digest = str(hashes.pop())
        if re.fullmatch("[0-9a-f]{64}", digest) is None:
            return None
        return digest

    def certified(self) -> CertifiedSide:
        """Describe this side for a certificate: the hash of its file, its settings and versions."""
        path = Path(self.path)
        records_hash = None  # of the folder of a run in shards
        if path.is_file():
            records_hash = sha256(path)
        settings = None
        if self.settings:
            settings = self.settings[0]
        return CertifiedSide(
            records_sha256=records_hash, settings=settings, provenance=self.provenance
        )

    def pairs(self, left: "SavedRun") -> Iterator[RecordPair]:
        """Pair the records that two runs have of the same input, this one being on the right.

        Both runs are read in step, a record of each at a time. A record waits in memory until its
        counterpart comes. So if both runs have the same order, no more than two are in memory.

        Yields:
            The left record and the right one. If a run has no record of an input, or fewer records
            of it than the other run, the other run's record is paired with None.
        """
        waiting_left = _WaitingRecords()
        waiting_right = _WaitingRecords()
        for left_record, right_record in zip_longest(left.records(), self.records()):
            if left_record is not None:  # the left run has not ended yet
                key = left.key(left_record)
                counterpart = waiting_right.pop(key)
                may_come_later = counterpart is None and key in self.input_keys
                if may_come_later:
                    waiting_left.add(key, left_record)
                else:
                    yield left_record, counterpart

            if right_record is not None:
                key = self.key(right_record)
                counterpart = waiting_left.pop(key)
                may_come_later = counterpart is None and key in left.input_keys
                if may_come_later:
                    waiting_right.add(key, right_record)
                else:
                    yield counterpart, right_record

        # Both runs have ended, so what still waits has no counterpart.
        for record in waiting_left:
            yield record, None
        for record in waiting_right:
            yield None, record


def _is_flat(value: object) -> bool:
    """Return whether a setting is a value, or a list or mapping of values, like detcli's own.

    Records may come from strangers: what is nested deeper is not compared.
    """
    items = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(items, list):
        return True
    return not any(isinstance(item, dict | list) for item in items)


def _texts_of_provenance(fields: Mapping[str, object]) -> dict[str, str | None]:
    """Read the facts of a record's provenance; None for each that is not a string."""
    provenance: dict[str, str | None] = {}
    for name in ProvenanceJson.__annotations__:
        value = fields.get(name)
        provenance[name] = value if isinstance(value, str) else None
    return provenance


def differences_besides_detections(left: SavedRun, right: SavedRun) -> Iterator[str]:
    """Yield a sentence for each difference between two runs besides their detections.

    These are settings, models, precisions, class names and inputs; and also what the records of a
    run do not say, or say in several ways.
    """
    yield from _ambiguities("left", left)
    yield from _ambiguities("right", right)
    yield from _model_differences(left.report(), right.report())
    yield from _setting_differences(left, right)
    yield from _class_name_differences(left, right)
    yield from _unpaired_inputs(left, right)


def _unpaired_inputs(left: SavedRun, right: SavedRun) -> Iterator[str]:
    """Report how many inputs have no counterpart if they are paired by names below two folders.

    Inputs that are paired by their whole names are listed one by one elsewhere.
    """
    are_paired_by_whole_names = left.common_folder == "" and right.common_folder == ""
    if are_paired_by_whole_names:
        return
    unpaired_count = len(left.input_keys ^ right.input_keys)  # keys that only one run has
    if unpaired_count:
        left_folder = shortened(left.common_folder.rstrip("/") or ".")
        right_folder = shortened(right.common_folder.rstrip("/") or ".")
        yield (
            f"inputs are paired by their names below {left_folder} and {right_folder}, and "
            f"{unpaired_count} of them have no counterpart"
        )


def _ambiguities(side: str, run: SavedRun) -> Iterator[str]:
    """Report what the records of a run, left or right, leave open or state in two ways."""
    if not run.settings:
        yield (
            f"the {side} run does not say its settings, as runs with --provenance or --resume do"
        )
    elif len(run.settings) > 1:
        yield f"the {side} run has records of {len(run.settings)} settings"
    if run.ambiguous_class_id is not None:
        yield f"the {side} run has several names for class {run.ambiguous_class_id}"


def _model_differences(left: SideReport, right: SideReport) -> Iterator[str]:
    """Report where models and precisions differ, as far as they are known."""
    if left.sha256 is None or right.sha256 is None:
        if left.model != right.model:
            yield f"model is {left.model} and {right.model}"
    elif left.sha256 != right.sha256:
        left_model = f"{left.model} ({left.sha256[:12]})"
        right_model = f"{right.model} ({right.sha256[:12]})"
        yield f"model is {left_model} and {right_model}"
    both_known = left.precision is not None and right.precision is not None
    if both_known and left.precision != right.precision:
        yield f"precision is {left.precision} and {right.precision}"


def _setting_differences(left: SavedRun, right: SavedRun) -> Iterator[str]:
    """Yield a sentence for each setting that differs, of those that detections depend on.

    A run that was resumed may have several settings, which is reported apart. Only its first ones
    are compared.
    """
    if not left.settings or not right.settings:
        return
    # Records leave out the settings of --ignore if there was none.
    nothing_ignored = {"ignore": None, "ignore_share": None}
    left_settings = {**nothing_ignored, **left.settings[0]}
    right_settings = {**nothing_ignored, **right.settings[0]}
    for name, left_value in left_settings.items():
        if name in SETTINGS_NOT_COMPARED or name not in right_settings:
            continue
        right_value = right_settings[name]
        if left_value != right_value:
            yield f"{name} is {shortened(str(left_value))} and {shortened(str(right_value))}"


def _class_name_differences(left: SavedRun, right: SavedRun) -> Iterator[str]:
    """Report how many classes have a different name in the other run, and name the first."""
    renamed = []
    for class_id in sorted(left.class_names.keys() & right.class_names.keys()):
        if left.class_names[class_id] != right.class_names[class_id]:
            renamed.append(class_id)
    if not renamed:
        return
    classes = "1 class has" if len(renamed) == 1 else f"{len(renamed)} classes have"
    first_id = renamed[0]
    left_name = shortened(left.class_names[first_id])
    right_name = shortened(right.class_names[first_id])
    yield f"{classes} another name: {first_id} is {left_name} and {right_name}"
