"""Saved runs: what their records say of how they were made."""

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from detcli.commands.shared.comparison import Precision
from detcli.commands.shared.saved import is_folder, read_records
from detcli.commands.verify.report import SideReport
from detcli.record import ProvenanceJson, RecordJson

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
