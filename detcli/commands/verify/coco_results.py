"""COCO results as one side of a comparison with a saved run."""

import warnings
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, cast

from detcli.commands.verify.saved_run import RecordPair, SavedRun
from detcli.core.errors import UsageError
from detcli.data.coco import COCO, COCO_ID_OF, COCO_IDS
from detcli.data.record import BOX, Origin, Record, RecordJson, name_of
from detcli.data.saved_record import MAX_CLASS, coco_box, finite, read_fields
from detcli.page.find_images import Finder
from detcli.sink.labels import CocoIds
from detcli.storage.files import open_lines, read_json

PEEK = 4096  # bytes in which the first element of COCO results shows what it is

ClassNames = tuple[str, ...]
"""Names of classes, by id."""


def is_results(path: str) -> bool:
    """Whether a file begins as COCO results do: a list of objects that have an image_id.

    A file that cannot be read counts as something else, and reading it later reports the error.
    """
    try:
        with open_lines(Path(path)) as file:
            beginning = file.read(PEEK)
    except (OSError, EOFError, zlib.error, ValueError):  # ValueError: no file can have this name
        return False
    first_element = beginning.partition(b"}")[0]
    return beginning.lstrip()[:1] == b"[" and b'"image_id"' in first_element


class _DetectedClass(NamedTuple):
    """A class that a run detects."""

    id: int
    name: str


class CocoResults(SavedRun):
    """The right side of a comparison, if it is a file of COCO results in place of records.

    All boxes are held in memory, since COCO results are in any order. They say nothing about how
    they were made, such as the model and its settings.
    """

    def __init__(
        self,
        name: str,
        path: str,
        finder: Finder,
        ids: CocoIds,
        detected_classes: Mapping[int, str],
    ) -> None:
        """Read COCO results, and give each box the class id and name that the left side uses.

        In the file, a box has a COCO category, such as 1 for a person where the class id is 0.

        Args:
            name: The file as the user named it.
            path: The file to read, which is a copy if the user named a pipe.
            finder: Finds images; COCO results need none.
            ids: The ids that COCO results have for images and classes.
            detected_classes: Names of the classes that the left side detected, by class id.

        Raises:
            SourceError: The file cannot be read.
            UsageError: It holds something else, or no category stands for a detected class.
        """
        super().__init__(name, path, finder)
        self._ids = ids
        self._boxes = _read_boxes(Path(path))  # by image id

        # A box has a category here, which is replaced by the class that it stands for.
        categories: set[int] = set()
        for boxes in self._boxes.values():
            categories.update(box["category_id"] for box in boxes)
        class_by_category = _classes_by_category(ids, detected_classes, categories)
        for boxes in self._boxes.values():
            for box in boxes:
                category = box.pop("category_id")
                box_class = class_by_category.get(category) or _class_of_unknown(category)
                box["class_id"] = box_class.id
                box["class_name"] = box_class.name
                self.class_names[box_class.id] = box_class.name

    def pairs(self, left: SavedRun) -> Iterator[RecordPair]:
        """Pair each record of a run with a record that has the COCO results for the same image.

        The second record is a copy of the first one, with the detections of the COCO results. There
        are three exceptions:

        - An image that the COCO results lack has no detections in them, as COCO results do not list
          such images.
        - A record of an error is paired with itself, as COCO results do not list errors.
        - Images of the COCO results that the run lacks come last, with None on the left.

        Raises:
            UsageError: A record has no index.
        """
        image_ids_of_run = set()
        for left_record in left.records():
            if "error" in left_record:
                yield left_record, left_record
                continue

            index = left_record.get("index")
            if not isinstance(index, int):
                raise UsageError("a record has no index", "name records that detcli wrote")
            origin = Origin(name_of(left_record), frame=left_record.get("frame"))
            # The id of an image does not depend on the model and its device.
            image_id = self._ids.image_id(Record(origin, index, model="", device=""))
            image_ids_of_run.add(image_id)
            boxes = self._boxes.get(image_id, [])
            yield left_record, cast("RecordJson", {**left_record, "detections": boxes})

        for image_id in sorted(self._boxes.keys() - image_ids_of_run):
            yield None, cast("RecordJson", {"source": f"image_id {image_id}"})


def _read_boxes(path: Path) -> dict[int, list[dict[str, Any]]]:
    """Read a file of COCO results, a list of boxes.

    Returns:
        By image id, the boxes of the image with the highest score first. A box has the fields of a
        detection in a record, but `category_id` in place of the class.

    Raises:
        SourceError: The file cannot be read.
        UsageError: It is not a list of COCO results.
    """
    elements = read_json(path, _unusable)
    if not isinstance(elements, list):
        raise _unusable(path, "it is not a list")
    boxes_by_image: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for index, element in enumerate(elements):
        try:
            image_id, category, box, score = read_fields(
                f"[{index}]", element, image_id=int, category_id=int, bbox=coco_box, score=finite
            )
        except ValueError as error:
            raise _unusable(path, str(error)) from error
        x, y, width, height = box
        corners = dict(zip(BOX, (x, y, x + width, y + height), strict=True))
        boxes_by_image[image_id].append({"category_id": category, "score": score, **corners})
    for boxes in boxes_by_image.values():
        boxes.sort(key=itemgetter("score"), reverse=True)
    return boxes_by_image


def _unusable(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"cannot compare with {path}: {reason}",
        "give COCO results: a list of image_id, category_id, bbox and score",
    )


def names_by_id(names: Mapping[int, str]) -> ClassNames:
    """Return the names as a tuple by class id, with an empty name for each id that has none."""
    count = max(names, default=-1) + 1
    return tuple(names.get(class_id, "") for class_id in range(count))


def _class_of_unknown(category: int) -> _DetectedClass:
    """Make a class for a category of COCO results that the run has not detected.

    Class ids of models are below MAX_CLASS, so an id of MAX_CLASS or more does not belong to
    another class.
    """
    return _DetectedClass(MAX_CLASS + category % MAX_CLASS, f"category {category}")


def _classes_by_category(
    ids: CocoIds, detected_classes: Mapping[int, str], categories: set[int]
) -> Mapping[int, _DetectedClass]:
    """Return the class of a run that each category id of COCO results stands for.

    The categories are numbered as `detcli predict --save-coco` would have numbered the classes of
    the run. If two classes have the same category, it stands for the first.

    Args:
        ids: The ids that COCO results have for classes.
        detected_classes: Names of the classes that the run detected, by class id.
        categories: The category ids that occur in the COCO results. They only tell whether the
            categories may be COCO's.

    Returns:
        The class by category id. Some of `categories` may be missing, as no class has them; other
        category ids may be added.
    """
    names = _names_of_model(detected_classes, categories)
    class_by_category: dict[int, _DetectedClass] = {}
    with warnings.catch_warnings():
        # CocoIds warns of classes without a category, which does no harm unless they are detected.
        warnings.simplefilter("ignore")
        for class_id, name in enumerate(names):
            if not name:  # the name of this class is unknown
                continue
            category = ids.category_id(class_id, names)
            if category is not None and category not in class_by_category:
                class_by_category[category] = _DetectedClass(class_id, name)
    return class_by_category


def _names_of_model(detected_classes: Mapping[int, str], categories: set[int]) -> ClassNames:
    """Guess the names of all classes of a model from the classes that it detected.

    Saved records only name classes that were detected. If COCO results have no other categories
    than COCO's, the model may have COCO's classes: they are taken if they agree with the names and
    ids of all detected classes. Otherwise only the names of the detected classes are known.

    Args:
        detected_classes: Names of the detected classes, by class id.
        categories: The category ids that the COCO results have.

    Returns:
        The names by class id, empty where the name is not known.
    """
    if categories <= set(COCO_IDS):
        for names in _possible_coco_names():
            names_agree = detected_classes.items() <= dict(enumerate(names)).items()
            if names_agree:
                return names
    return names_by_id(detected_classes)


def _possible_coco_names() -> Iterator[ClassNames]:
    """Yield the class names, by class id, that models with COCO's classes have.

    Most number the 80 classes without gaps. COCO's category ids go from 1 to 90 with gaps; some
    models keep them as class ids, or subtract 1 from them, and have nameless classes in the gaps.
    """
    yield COCO
    name_of_category = {category: name for name, category in COCO_ID_OF.items()}
    for first_category in (0, 1):
        categories = range(first_category, max(COCO_IDS) + 1)
        yield tuple(name_of_category.get(category, "") for category in categories)
