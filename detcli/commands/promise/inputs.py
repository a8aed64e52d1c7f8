"""The images and videos in records, in columns: a million of them take about 70 MB."""

import json
from array import array
from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING, Any, cast

from detcli.commands.promise.unit_kind import Grouping, UnitKind
from detcli.core.errors import UsageError
from detcli.data.bursts import BurstFinder
from detcli.data.columns import DetectionJson
from detcli.data.record import RecordJson, name_of

if TYPE_CHECKING:
    from detcli.core import Fields

DEFAULT_MAX_DET = 300
"""How many boxes an image has at most, where records do not say it: as in predict."""

NAME_ERRORS = "surrogatepass"
"""How names that are not Unicode are encoded, as other programs may have written them."""

NO_GROUP = -1
"""In place of a group index, for an input that failed and has no `meta`."""


class WantedClasses:
    """The classes that are looked for; all classes if the user names none."""

    def __init__(self, names_and_ids: Iterable[object]) -> None:
        """Take the names or ids of the classes, as --classes has them."""
        self.names = [str(name) for name in names_and_ids]
        self.seen: set[str] = set()  # names and ids of all classes in the records
        self.seen_names: set[str] = set()  # names of all classes in the records
        self._names = frozenset(self.names)
        self._is_wanted: dict[
            tuple[str, int], bool
        ] = {}  # by name and id of a class of the records

    def __str__(self) -> str:
        return " or ".join(self.names) or "object"

    @property
    def unseen(self) -> list[str]:
        """The wanted classes that no detection is of."""
        return [name for name in self.names if name not in self.seen]

    def has(self, detection: DetectionJson) -> bool:
        """Return whether a detection belongs to a wanted class."""
        class_name = detection["class_name"]
        class_id = detection["class_id"]
        is_wanted = self._is_wanted.get((class_name, class_id))
        if is_wanted is None:
            is_wanted = self._note_class(class_name, str(class_id))
            self._is_wanted[class_name, class_id] = is_wanted
        return is_wanted

    def _note_class(self, class_name: str, class_id: str) -> bool:
        """Record that the records have a class, and return whether it is wanted."""
        self.seen.update((class_name, class_id))
        self.seen_names.add(class_name)
        return not self._names or class_name in self._names or class_id in self._names


class InputColumns:
    """The image or video of each record: its name, its best score, and the group that it is in.

    The frames of a video have one record each, and are one input.

    Attributes:
        has_groups: Whether units are folders, or inputs with the same value of `meta`.
        scores: The best score of the wanted classes in each input, 0 if it has none.
        is_failed: 1 for each input with an error, else 0.
        group_by_input: The group of each input (its folder, or its value of `meta`), as an index
            into `group_names`. Empty if units are neither folders nor have a value in common.
        group_names: The names of the folders, or the values of `meta`.
        input_by_record: The index of the input that each record belongs to.
        models: The names of all models that made records.
        settings: The settings in the first record that has any; empty if none has.
        lowest_score: Of all detections of all classes; infinite if there are none.
        cut_off_count: How many images have as many boxes as an image may have, none of them of a
            wanted class, so that their score is not known.
    """

    def __init__(self, wanted_classes: WantedClasses, kind: UnitKind) -> None:
        """Create empty columns; `add` then appends the images and videos of each record.

        Args:
            wanted_classes: The classes whose scores are used.
            kind: What people look at together: individual inputs, bursts, folders, or inputs that
                have a value of `meta` in common.
        """
        self._wanted_classes = wanted_classes
        self._kind = kind

        # Columns with an element for each input, which is an image or a video.
        self.scores = array("d")
        self.is_failed = bytearray()

        # The names of all inputs, one after the other, and the position at which each ends.
        self._names = bytearray()
        self._name_ends = array("q")
        self._name_hashes = array("q")  # to find equal names
        self._file_names: dict[int, str] = {}  # by input, only those that differ from the name

        # The input of each record, and the input of each video by its name.
        self.input_by_record = array("i")
        self._input_by_video: dict[str, int] = {}

        # Units that are folders, or inputs with the same value of `meta`.
        self.has_groups = kind.grouping in {Grouping.FOLDER, Grouping.META}
        self.group_by_input = array("q")
        self.group_names: list[str] = []
        self._group_by_name: dict[str, int] = {}  # the index of each group

        # Units that are bursts.
        self._has_bursts = kind.grouping is Grouping.BURST
        self.bursts = BurstFinder()  # gets each record if units are bursts

        # What all records say together.
        self.models: set[str] = set()
        self.settings: Fields = {}
        self._max_det = DEFAULT_MAX_DET
        self.lowest_score = inf
        self.cut_off_count = 0

    def __len__(self) -> int:
        return len(self.scores)

    def add(self, record: RecordJson) -> None:
        """Add the next record: a new image or video, or one more frame of a video.

        Args:
            record: The record, in which the classes and scores of detections were checked.

        Raises:
            UsageError: Inputs are grouped by a key of `meta`, and the record has no value for it.
        """
        input_index = self._find_or_add_input(record)
        self.input_by_record.append(input_index)
        if self._has_bursts:
            self.bursts.add(record)
        if "error" in record:
            self.is_failed[input_index] = True
            return

        self.models.add(record.get("model", ""))
        if not self.settings and "settings" in record:
            self.settings = cast("Fields", record["settings"])
            self._max_det = self.settings.get("max_det", DEFAULT_MAX_DET)
        score = self._note_detections(record["detections"])
        self.scores[input_index] = max(score, self.scores[input_index])

    def _note_detections(self, detections: list[DetectionJson]) -> float:
        """Record the detections of one image, and return the best score of the wanted classes.

        This updates `lowest_score`, and counts the image in `cut_off_count` if its detections are
        so many that one of a wanted class may have been left out.

        Returns:
            The score; 0 if no detection belongs to a wanted class. A box that is marked as repeated
            is ignored: it is at the same position in many images, as a stone is, and somebody said
            that it is not an animal.
        """
        best_score = 0.0
        has_wanted = False
        for detection in detections:
            score = detection["score"]
            self.lowest_score = min(score, self.lowest_score)
            if self._wanted_classes.has(detection) and "repeated" not in detection:
                has_wanted = True
                best_score = max(best_score, score)  # of 0.0 and -0.0, this is the first, 0.0
        if len(detections) >= self._max_det and not has_wanted:
            self.cut_off_count += 1
        return best_score

    def _find_or_add_input(self, record: RecordJson) -> int:
        """Return the index of a record's input. A new input is added to all columns.

        Each record has a different input, except that all frames of a video have the same one.

        Raises:
            UsageError: Inputs are grouped by a key of `meta`, and the record has no value for it.
        """
        source = record["source"]
        if source in self._input_by_video:  # another frame, or the error that ended the video
            return self._input_by_video[source]

        input_index = len(self.scores)
        if "frame" in record:
            self._input_by_video[source] = input_index
        self._add_input(record)
        return input_index

    def _add_input(self, record: RecordJson) -> None:
        """Add an element for a new input to each column; it has no score yet.

        Raises:
            UsageError: Inputs are grouped by a key of `meta`, and the record has no value for it.
        """
        input_index = len(self.scores)
        source = record["source"]
        self.scores.append(0.0)
        self.is_failed.append(False)
        if self.has_groups:
            self.group_by_input.append(self._find_or_add_group(record))
        self._names += source.encode(errors=NAME_ERRORS)
        self._name_ends.append(len(self._names))
        self._name_hashes.append(hash(source))
        if "source_bytes" in record:  # the name of the file is not Unicode
            self._file_names[input_index] = name_of(record)

    def _find_or_add_group(self, record: RecordJson) -> int:
        """Return the index of a record's group. A new group is added.

        A group has the name of the record's folder, or of its value for a key of `meta`.

        Returns:
            An index into `group_names`; NO_GROUP for a failed record, which has no `meta`.

        Raises:
            UsageError: The record has no value for the key.
        """
        if self._kind.grouping is Grouping.FOLDER:
            folder, _, _ = record["source"].rpartition("/")
            group_name = folder or "."
        elif "error" in record:
            return NO_GROUP
        else:
            group_name = _meta_text(record, self._kind.key)

        if group_name not in self._group_by_name:
            self._group_by_name[group_name] = len(self.group_names)
            self.group_names.append(group_name)
        return self._group_by_name[group_name]

    def name(self, input_index: int) -> str:
        """Return the name of an input, as in its record."""
        start = 0
        if input_index:
            start = self._name_ends[input_index - 1]
        return self._names[start : self._name_ends[input_index]].decode(errors=NAME_ERRORS)

    def file_name(self, input_index: int) -> str:
        """Return the name of an input as the file system spells it, so that it can be opened."""
        return self._file_names.get(input_index) or self.name(input_index)

    def require_unique_names(self) -> None:
        """Refuse records that name an image twice, as it is unclear which of its scores is right.

        Call it once, when all records have been added: it frees the hashes that it compares.
        Different names with the same 64-bit hash are refused as well, which is too unlikely to
        matter.

        Raises:
            UsageError: Two inputs have the same name.
        """
        import numpy as np

        # Equal names have equal hashes, which are neighbours when they are sorted.
        hashes = np.frombuffer(self._name_hashes, np.int64)
        order = np.argsort(hashes, kind="stable")
        is_repeated = np.diff(hashes[order]) == 0
        self._name_hashes = array("q")
        if is_repeated.any():
            # `is_repeated` compares each input in this order with the one before it, so it has no
            # element for the first.
            repeated_inputs = order[1:][is_repeated]
            repeated_name = self.name(int(repeated_inputs[0]))
            raise UsageError(
                f"{repeated_name} is in the records twice",
                "deal from the records of one run, or give images different names",
            )


def _meta_text(record: RecordJson, key: str) -> str:
    """Return as text what the `meta` of a record says for a key, such as the name of a camera.

    A record has `meta` if its image came from a list of --files-from that says it.

    Raises:
        UsageError: `meta` has no such key, or its value is null, a list or an object.
    """
    meta: Any = record.get("meta")
    value = None
    if isinstance(meta, dict):
        value = meta.get(key)
    if value is None or isinstance(value, list | dict):
        example = json.dumps({"path": "a.jpg", "meta": {key: "7"}})
        raise UsageError(
            f"--unit meta:{key}: the record of {record['source']} has no {key} in meta",
            f"predict --files-from takes it from JSON Lines such as {example}",
        )
    return str(value)
