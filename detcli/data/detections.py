"""Detections: what was found in one image, as parallel arrays."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from detcli.core import Fields
from detcli.core.errors import loading
from detcli.core.text import escape_surrogates
from detcli.data.barcode import Barcode
from detcli.data.columns import ABSENT, OPTIONAL_COLUMNS
from detcli.data.geometry import Size, clipped, shown

if TYPE_CHECKING:
    from pandas import DataFrame

CORNERS = ("x1", "y1", "x2", "y2")  # names of a box's corners, in the order of `Detections.xyxy`

PER_OBJECT = ("track_id", "track_class", "zones", "crossed", "symbols")
"""Arrays that `Detections` may have besides."""

ARRAYS = ("xyxy", "score", "class_id", *PER_OBJECT)


Symbol = Barcode
"""The name that `Barcode` had before."""


# The 80 classes of COCO 2017, in the order of YOLO models.
COCO = tuple(
    "person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, "
    "fire hydrant, stop sign, parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, "
    "bear, zebra, giraffe, backpack, umbrella, handbag, tie, suitcase, frisbee, skis, snowboard, "
    "sports ball, kite, baseball bat, baseball glove, skateboard, surfboard, tennis racket, "
    "bottle, wine glass, cup, fork, knife, spoon, bowl, banana, apple, sandwich, orange, "
    "broccoli, carrot, hot dog, pizza, donut, cake, chair, couch, potted plant, bed, "
    "dining table, toilet, tv, laptop, mouse, remote, keyboard, cell phone, microwave, oven, "
    "toaster, sink, refrigerator, book, clock, vase, scissors, teddy bear, hair drier, "
    "toothbrush".split(", ")
)

# COCO numbers these classes from 1 to 90; ten numbers are unused.
UNUSED = frozenset({12, 26, 29, 30, 45, 66, 68, 69, 71, 83})
COCO_IDS = tuple(number for number in range(1, 91) if number not in UNUSED)
COCO_ID_OF = dict(zip(COCO, COCO_IDS, strict=True))


def coco_category(class_id: int, names: tuple[str, ...]) -> int | None:
    """Return the category id of a class in COCO's data.

    Args:
        class_id: The id of the class in the model.
        names: The names of all the model's classes.

    Returns:
        COCO's id if all of COCO's 80 classes are among the names, and None for a class that COCO
        does not have; otherwise the class's own id.
    """
    if names == COCO:
        return COCO_IDS[class_id]
    if not COCO_ID_OF.keys() <= set(names):
        return class_id
    return COCO_ID_OF.get(names[class_id])  # None for numbers that COCO does not use


@dataclass(frozen=True, eq=False, slots=True)
class Detections:
    """What was found in one image; row i of every array describes the same object.

    The arrays are read-only, views of those that it was made of.

    Attributes:
        xyxy: `(N, 4)` float32, the corners x1, y1, x2, y2 in pixels of the upright image, from
            its top left corner.
        score: `(N,)` float32 confidence from 0 to 1, descending.
        class_id: `(N,)` int64, an index into `names`.
        names: The names of all classes of the model, by class id.
        track_id: `(N,)` int64, the number of the object in its video, from 1; -1 where it has none
            yet. None where nothing is tracked.
        track_class: `(N,)` objects, each the name of the class that its track had most often so
            far; None where it has no track yet. None where nothing is tracked.
        zones: `(N,)` objects, each the tuple of the names of the zones that it is in; None without
            zones.
        crossed: `(N,)` objects, each a tuple of the lines that it has crossed since the
            frame before, with "left" or "right"; None without lines.
        symbols: `(N,)` objects, each a `Barcode`, or None where it was neither read nor located;
            None where nothing is read.
        selected: `(M,)` float32 scores of all that was selected, also of boxes without an area,
            which are dropped; None where they are not known.

    Raises:
        ValueError: The arrays have wrong shapes, or a class id has no name.

    Indexing with a boolean mask, a slice, an index or a list of indices gives `Detections` again:

        >>> found = Detections.empty(names=("person", "car"))
        >>> len(found[(found.score > 0.5) & (found.class_name == "person")])
        0
    """

    xyxy: npt.NDArray[np.float32]
    score: npt.NDArray[np.float32]
    class_id: npt.NDArray[np.int64]
    names: tuple[str, ...]
    track_id: npt.NDArray[np.int64] | None = None
    track_class: npt.NDArray[np.object_] | None = None
    zones: npt.NDArray[np.object_] | None = None
    crossed: npt.NDArray[np.object_] | None = None
    symbols: npt.NDArray[np.object_] | None = None
    selected: npt.NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        """Check the shapes and class ids, and replace the arrays by read-only views of them.

        Arrays of other types, and lists, are converted to arrays of the types that are promised.
        """
        for name, dtype in (("xyxy", np.float32), ("score", np.float32), ("class_id", np.int64)):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype))
        count = len(self.score)
        shapes = (self.xyxy.shape, self.score.shape, self.class_id.shape)
        if shapes != ((count, 4), (count,), (count,)):
            raise ValueError(f"xyxy, score, class_id must be (N, 4), (N,), (N,), got {shapes}")
        if count and not 0 <= self.class_id.min() <= self.class_id.max() < len(self.names):
            raise ValueError(f"class_id must lie in 0..{len(self.names) - 1}, an index into names")
        for name in (*ARRAYS, "selected"):
            array = getattr(self, name)
            if array is None:
                continue
            if name in PER_OBJECT and array.shape != (count,):
                raise ValueError(f"{name} must be (N,), got {array.shape}")
            view = array.view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)  # as the class is frozen

    @classmethod
    def empty(cls, names: tuple[str, ...]) -> Self:
        """Return the detections of an image in which nothing was found."""
        return cls(
            np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int64), names
        )

    @property
    def class_name(self) -> npt.NDArray[np.str_]:
        """The class name of each detection, `(N,)`."""
        return np.array(self._names(), np.str_)

    def _names(self) -> list[str]:
        """Return the class name of each detection."""
        return [self.names[index] for index in self.class_id]

    def zones_and_lines(self) -> Iterator[tuple[str, str]]:
        """Yield what each detection is in or has crossed, and its class, for counting them.

        Yields:
            The name of a zone and the class name of a detection in it; then the name of a line with
            the side, as in "gate left", and the class name of the track that has crossed it.
        """
        if self.zones is not None:
            for class_name, zones in zip(self._names(), self.zones, strict=True):
                for zone in zones:
                    yield zone, class_name
        if self.crossed is not None:
            track_classes = self._names() if self.track_class is None else self.track_class
            for track_class, crossings in zip(track_classes, self.crossed, strict=True):
                for line, side in crossings:
                    yield f"{line} {side}", track_class

    def places(self) -> Iterator[tuple[str, str]]:
        """The same as `zones_and_lines`, by the name that it had before."""
        return self.zones_and_lines()

    def within(self, size: Size) -> Self:
        """Return the detections that are visible in an image, with boxes cut off at its edges.

        The size of the image is its height and width.
        """
        visible = self[shown(self.xyxy, size)]
        return replace(visible, xyxy=clipped(visible.xyxy, size))

    def to_supervision(self) -> Any:  # noqa: ANN401 - of a library that is not required
        """Return the detections as `supervision.Detections`, with class names under "class_name".

        Raises:
            DependencyError: supervision is not installed.
        """
        with loading("supervision", "pip install supervision"):
            import supervision

        return supervision.Detections(  # which changes its arrays in place
            xyxy=self.xyxy.copy(),
            confidence=self.score.copy(),
            class_id=self.class_id.copy(),
            data={"class_name": self.class_name},
            tracker_id=None if self.track_id is None else self.track_id.copy(),
        )

    def to_dict(self) -> list[Fields]:
        """Return the detections as JSON has them: a dictionary of numbers and texts for each.

        Corners are rounded to 1/100 pixel, scores to 6 decimals. What only options add, such as the
        number of a track, is there if the detection has it.
        """
        columns = []
        for column in OPTIONAL_COLUMNS:
            array = getattr(self, column.array)
            if array is not None:
                columns.append((column, array))
        dictionaries = []
        rows = zip(rounded(self).tolist(), self.class_id.tolist(), strict=True)
        for index, ((score, x1, y1, x2, y2), class_id) in enumerate(rows):
            fields: Fields = {
                "class_id": class_id,
                "class_name": escape_surrogates(self.names[class_id]),
                "score": score,
                "x1": x1,
                "y1": y1,
                "x2": x2,
                "y2": y2,
            }
            for column, array in columns:
                value = column.to_json(array[index])
                if value is not ABSENT:
                    fields[column.name] = value
            dictionaries.append(fields)
        return dictionaries

    def to_coco(
        self,
        image_id: int,
        category_id: Callable[[int, tuple[str, ...]], int | None] = coco_category,
    ) -> list[Fields]:
        """Return the detections as COCO's results: a dictionary for each.

        It is `{"image_id", "category_id", "bbox": [x, y, width, height], "score"}`.

        Args:
            image_id: The image's id in `instances.json`.
            category_id: The category of a class id, given all names, or None to leave the class
                out; by default COCO's where all of its 80 classes are among the names, else the
                class id.
        """
        results = []
        for box, score, class_id, _ in self:
            left, top, right, bottom = box.tolist()
            category = category_id(class_id, self.names)
            if category is not None:
                results.append({
                    "image_id": image_id,
                    "category_id": category,
                    "bbox": [left, top, right - left, bottom - top],
                    "score": score,  # all digits: figures of an evaluation depend on them
                })  # fmt: skip
        return results

    def to_pandas(self) -> "DataFrame":
        """Return a table with a row for each detection: class_id, class_name, score, x1 to y2.

        The columns `track_id`, `track_class`, `zones`, `crossed` and `symbols` are there if the
        detections have these arrays.

        Raises:
            DependencyError: pandas is not installed.
        """
        with loading("pandas", "pip install pandas"):
            import pandas as pd

        columns: Fields = {
            "class_id": self.class_id,
            "class_name": self._names(),
            "score": self.score,
        }
        for corner, values in zip(CORNERS, self.xyxy.T, strict=True):
            columns[corner] = values
        for name in PER_OBJECT:
            array = getattr(self, name)
            if array is not None:
                columns[name] = array
        return pd.DataFrame(columns)

    def __repr__(self) -> str:
        counts = Counter(self._names())
        parts = [f"{number} {name}" for name, number in counts.items()]
        return f"Detections({', '.join(parts)})"

    def __len__(self) -> int:
        return len(self.score)

    def __iter__(self) -> Iterator[tuple[npt.NDArray[np.float32], float, int, str]]:
        """Yield the box, score, class id and class name of each detection."""
        yield from zip(
            self.xyxy, self.score.tolist(), self.class_id.tolist(), self._names(), strict=True
        )

    def __getitem__(self, index: int | slice | npt.NDArray[Any] | list[int] | list[bool]) -> Self:
        """Select detections by an index, indices, a slice, or a mask with a bool for each.

        The result is `Detections` again, with a single one for a single index.

        Raises:
            TypeError: The index is a single bool.
        """
        if isinstance(index, np.ndarray) and index.ndim == 0:
            index = index[()]  # the number in an array without axes
        if isinstance(index, bool | np.bool_):
            raise TypeError("a mask must have a bool for each detection, got a single one")
        if isinstance(index, int | np.integer):
            index = [int(index)]
        selected_arrays = {}
        for name in ARRAYS:
            array = getattr(self, name)
            if array is not None:
                selected_arrays[name] = array[index]
        return replace(self, **selected_arrays)


# By what a score and the corners x1, y1, x2, y2 are multiplied to have only whole digits left.
_SCALES = np.array([10**6, 100, 100, 100, 100], np.float64)


def rounded(detections: Detections) -> npt.NDArray[np.float64]:
    """Round scores to 6 decimals and corners to 2, as JSON has them.

    The results are those of Python's `round`, which is a hundred times slower: a float32 number has
    24 binary digits and a scale has 20 at most, so their product is exact in float64, which has 53.

    Returns:
        `(N, 5)`: the score, x1, y1, x2 and y2 of each detection.
    """
    rows = np.empty((len(detections), 5), np.float64)
    rows[:, 0] = detections.score
    rows[:, 1:] = detections.xyxy
    rows *= _SCALES
    np.rint(rows, out=rows)
    rows /= _SCALES
    return rows


def concatenated(first: Detections, second: Detections) -> Detections:
    """Join two groups of detections of one model, the first group first.

    What is added after detection, such as tracks, zones and barcodes, is left out.
    """
    selected = None
    if first.selected is not None and second.selected is not None:
        selected = np.concatenate([first.selected, second.selected])
    return Detections(
        xyxy=np.concatenate([first.xyxy, second.xyxy]),
        score=np.concatenate([first.score, second.score]),
        class_id=np.concatenate([first.class_id, second.class_id]),
        names=first.names,
        selected=selected,
    )
