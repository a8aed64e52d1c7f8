"""Hides the classes of `--blur` on a page that is made from saved records.

The records do not list the model's classes, so the classes to hide are looked for in the records:
one that is in none of them may be a typing error, which would leave everybody on the page.
"""

import json
from collections.abc import Iterator, Sequence
from typing import BinaryIO, cast

import numpy as np

from detcli.config.outputs import Outputs
from detcli.core.errors import ModelError, UsageError
from detcli.core.text import closest
from detcli.data.coco import COCO
from detcli.data.columns import OPTIONAL_COLUMNS, DetectionJson
from detcli.data.geometry import Boxes, Pixels
from detcli.data.record import RecordJson, box_of
from detcli.model.contract import class_ids
from detcli.model.prepared import prepare
from detcli.model.zoo import MODELS, find
from detcli.sink.image import hidden, is_covered
from detcli.storage.temporary import temporary, temporary_file_errors

BARCODE_FIELDS = frozenset(column.name for column in OPTIONAL_COLUMNS if column.option == "read")
"""The fields of a detection that describe its barcode; hiding it leaves only a `text` of null."""


class HiddenClasses:
    """Hides classes, by name or id, in the images and in the barcode texts of records."""

    def __init__(self, outputs: Outputs) -> None:
        """Hide the classes that the option `--blur` in `outputs` names; perhaps there are none."""
        self._classes = frozenset(outputs.blur)
        self._outputs = outputs
        self.unseen = list(outputs.blur)  # classes to hide that no detection has had so far
        self._tracks: set[tuple[str, int | None]] = set()  # sources and ids of hidden tracks

    def __bool__(self) -> bool:
        return bool(self._classes)

    def boxes_to_hide(self, record: RecordJson) -> Boxes:
        """Collect the boxes of a record's detections that are to be hidden.

        This also records the tracks of these detections, as `without_texts` hides all texts on
        them, and removes the classes in the record from `unseen`.

        Returns:
            `(N, 4)` x1, y1, x2, y2 in pixels of the image.
        """
        boxes = []
        classes_in_record: set[str] = set()
        for detection in record.get("detections", []):
            classes_in_record |= _names_of(detection)
            if not self._hides(detection):
                continue
            boxes.append(box_of(detection))
            self._note_track(record, detection)

        self.unseen = [name for name in self.unseen if name not in classes_in_record]
        return np.array(boxes, np.float32).reshape(-1, 4)

    def noting_tracks(self, records: Iterator[RecordJson]) -> Iterator[RecordJson]:
        """Yield the same records, after storing which tracks in each are hidden.

        A page may leave records out, such as those without an image. A track that is hidden in one
        of them is hidden in the others, too.
        """
        for record in records:
            if self._classes:
                for detection in record.get("detections", []):
                    if self._hides(detection):
                        self._note_track(record, detection)
            yield record

    def _note_track(self, record: RecordJson, detection: DetectionJson) -> None:
        """Record the track of a hidden detection, if it has one."""
        if detection.get("track_id") is not None:
            self._tracks.add(_track_of(record, detection))

    def in_image(self, boxes: Boxes, image: Pixels) -> Pixels:
        """Return a copy of an image in which the boxes are covered or made unrecognisable.

        Args:
            boxes: `(N, 4)` x1, y1, x2, y2 in pixels of the image.
            image: `(H, W, 3)` uint8 BGR.
        """
        return hidden(image, boxes, self._outputs.blur_with, self._outputs.blur_margin)

    def without_texts(self, record: RecordJson, boxes: Boxes) -> RecordJson:
        """Return a record without the texts of barcodes that are hidden.

        A barcode is hidden if it belongs to a hidden class or to a track with any hidden detection,
        or if a hidden box covers it.

        Args:
            record: A record. The method `boxes_to_hide` has already been called with it and all
                earlier ones, so that the hidden tracks are known.
            boxes: `(N, 4)`, the hidden boxes of the record, as that method returned them.
        """
        if "detections" not in record:
            return record
        detections: list[DetectionJson] = []
        for detection in record["detections"]:
            is_hidden = (
                self._hides(detection)
                or _track_of(record, detection) in self._tracks
                or is_covered(detection.get("corners", []), boxes)
            )
            if is_hidden and "text" in detection:
                detections.append(_without_text(detection))
            else:
                detections.append(detection)
        return {**record, "detections": detections}

    def checked(self, records: Iterator[RecordJson]) -> Iterator[RecordJson]:
        """Yield the same records, but first check that the classes to hide exist.

        A typing error would leave visible what should be hidden. So records are read ahead until
        each class has been seen, at most to their end, and put into a temporary file. If no record
        has any detection, the classes cannot be checked.

        Raises:
            UsageError: A class is neither in the records nor one of their model.
        """
        with temporary() as checked_records:
            self._read_ahead(records, checked_records)
            with temporary_file_errors():
                checked_records.seek(0)
            for line in checked_records:
                yield json.loads(line)
        yield from records  # those that were not read ahead

    def _read_ahead(self, records: Iterator[RecordJson], file: BinaryIO) -> None:
        """Read records until each class to hide has been seen in one, and write them to a file.

        The caller reads them back from the file, and then continues with the rest of `records`. If
        a class has not been seen by the end, it has to be a class of the model that made the
        records.

        Args:
            records: The records, which are consumed only as far as needed.
            file: Gets the records that were read, as JSON Lines.

        Raises:
            UsageError: A class is neither in a record nor a class of the model.
        """
        unseen_classes = set(self._classes)
        seen_classes = SeenClasses()
        while unseen_classes:
            record = next(records, None)
            if record is None:
                seen_classes.require_classes_of_model(sorted(unseen_classes))
                return
            unseen_classes -= seen_classes.add(record)
            with temporary_file_errors():
                file.write(json.dumps(record).encode() + b"\n")

    def _hides(self, detection: DetectionJson) -> bool:
        """Whether a detection belongs to a class to hide."""
        return not self._classes.isdisjoint(_names_of(detection))


class SeenClasses:
    """The classes of the records read so far, and what these reveal about their model."""

    def __init__(self) -> None:
        self._names_by_id: dict[int, str] = {}  # of the classes that a detection had
        self._names_of_user: list[str] = []  # of all classes, if the run had them by --names
        self._models: set[str] = set()  # the names of the models

    def add(self, record: RecordJson) -> set[str]:
        """Record the classes and the model of a record.

        Returns:
            The names of the classes of its detections, and their ids as text, since a user may name
            a class by either.
        """
        self._note_model(record)
        names_and_ids: set[str] = set()
        for detection in record.get("detections", []):
            self._names_by_id.setdefault(detection["class_id"], detection["class_name"])
            names_and_ids |= _names_of(detection)
        return names_and_ids

    def _note_model(self, record: RecordJson) -> None:
        """Record the name of a record's model, and the names of classes that its user gave.

        The first record of a run has these. A file that others wrote may hold any JSON there.
        """
        self._models.add(str(record.get("model", "")))
        names_of_user = record.get("settings", {}).get("names")
        if isinstance(names_of_user, list):
            self._names_of_user = [str(name) for name in names_of_user]

    def require_classes_of_model(self, classes: Sequence[str]) -> None:
        """Require that classes of `--blur` are classes of the model, though no record has them.

        The records do not list the classes of their model, so the list is guessed: it is the first
        of several possible ones that agrees with the classes in the records.

        Args:
            classes: Names or ids of classes.

        Raises:
            UsageError: The model has no such class, to judge by the records. If they have neither
                detections nor class names, they reveal nothing, and there is no error.
        """
        is_anything_known = bool(self._names_by_id or self._names_of_user)
        if not is_anything_known:
            return

        possible_names = [self._names_of_user, *self._names_of_models(), COCO]
        for names in possible_names:
            if self._are_names_of_model(names):
                class_ids(classes, tuple(names))  # raises an error for an unknown class
                return

        # No list agrees, so the records are all that is known about the classes.
        names_in_records = sorted(set(self._names_by_id.values()))
        similar = closest(classes[0], names_in_records)
        hint = f"they have {', '.join(names_in_records)}"
        if similar:
            hint = f"did you mean {similar}?"
        raise UsageError(
            f"--blur {classes[0]}: no record has a detection of this class",
            f"{hint}; leave out what was not found",
        )

    def _names_of_models(self) -> Iterator[Sequence[str]]:
        """Yield the class names of the models in the records whose files are on this machine.

        Only the models that detcli knows by name are looked up, and none is downloaded.
        """
        for model in sorted(self._models & MODELS.keys()):
            try:
                file = find(model, fetch=False)
                yield prepare(file.path).contract.names
            except ModelError:
                continue

    def _are_names_of_model(self, names: Sequence[str]) -> bool:
        """Return whether a list of class names may be that of the model of the records.

        It may if each class in the records has the same name in the list.

        Args:
            names: The names of all classes, by class id; an empty list is no model's.
        """
        if not names:
            return False
        for class_id, name in self._names_by_id.items():
            if class_id >= len(names) or names[class_id] != name:
                return False
        return True


def _without_text(detection: DetectionJson) -> DetectionJson:
    """Return a detection without the fields that describe its barcode; its text is null."""
    fields = {name: value for name, value in detection.items() if name not in BARCODE_FIELDS}
    return cast("DetectionJson", {**fields, "text": None})


def _track_of(record: RecordJson, detection: DetectionJson) -> tuple[str, int | None]:
    """Return the source and id of a detection's track; the id is None if it has none."""
    return record["source"], detection.get("track_id")


def _names_of(detection: DetectionJson) -> set[str]:
    """Return how a user may name the class of a detection: by its name, and by its id as text."""
    return {detection["class_name"], str(detection["class_id"])}
