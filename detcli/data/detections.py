"""Detections: what was found in one image, as parallel arrays."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, fields, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from detcli.core import Fields, frozen
from detcli.core.errors import loading
from detcli.core.text import escape_surrogates
from detcli.data.coco import coco_category
from detcli.data.columns import ABSENT, DETECTED_COLUMNS
from detcli.data.geometry import Size, are_visible, area, clipped, overlap

if TYPE_CHECKING:
    import supervision
    from pandas import DataFrame

CORNERS = ("x1", "y1", "x2", "y2")  # names of a box's corners, in the order of `Detections.xyxy`

PER_OBJECT = ("track_id", "track_class", "zones", "crossed", "symbols", "repeated")
"""Arrays that `Detections` may have besides."""

ARRAYS = ("xyxy", "score", "class_id", *PER_OBJECT)

DTYPES: dict[str, type[np.generic]] = {
    "xyxy": np.float32,
    "score": np.float32,
    "class_id": np.int64,
    "track_id": np.int64,
    "track_class": np.object_,
    "zones": np.object_,
    "crossed": np.object_,
    "symbols": np.object_,
    "repeated": np.int64,
    "selected": np.float32,
}
"""The type of each array of `Detections`."""

SORT_KEYS = ("score", "area", "class_id", "class_name", "track_id")
"""What `Detections.sort_by` takes besides the names of corners."""

Index = int | slice | npt.NDArray[Any] | list[int] | list[bool]
"""Which detections to select: one or several of them, or a mask with a bool for each."""


AnyDetections = TypeVar("AnyDetections", bound="Detections")


@frozen(eq=False)
class Detections:
    """What was found in one image; row i of every array describes the same object.

    The arrays are read-only, views of those that it was made of.

    Attributes:
        xyxy: `(N, 4)` float32, the corners x1, y1, x2, y2 in pixels of the upright image, from
            its top left corner.
        score: `(N,)` float32 confidence from 0 to 1, descending.
        class_id: `(N,)` int64, an index into `names`.
        names: The names of all classes of the model, by class id.
        track_id: `(N,)` int64, the id of the object in its video, from 1; -1 where it has none
            yet. None where nothing is tracked.
        track_class: `(N,)` objects, each the name of the class that its track had most often so
            far; None where it has no track yet. None where nothing is tracked.
        zones: `(N,)` objects, each the tuple of the names of the zones that it is in; None if there
            are no zones.
        crossed: `(N,)` objects, each a tuple of the lines that it has crossed since the previous
            frame, with "left" or "right"; None if there are no lines.
        symbols: `(N,)` objects, each a `Barcode`, or None where it was neither read nor located;
            None where nothing is read.
        repeated: `(N,)` int64, the id of the group of repeats that a person has dropped, from 1; 0
            where it is in none. None if there are no such marks.
        selected: `(M,)` float32 scores of all that was selected in the image, including boxes
            without an area, which are dropped; None where they are not known, as after indexing.
        image_size: Height and width of the image in pixels; None where they are not known.

    Raises:
        ValueError: The arrays have the wrong shape or invalid values, or a class id has no name.
        TypeError: The names are not a sequence.

    Two are equal if their names, arrays and image sizes are; only `selected` is not compared. As
    they are compared by value, they have no hash. Copies, even those made by `pickle`, are
    read-only, too.

    Indexing with a boolean mask, a slice, an index or a list of indices gives `Detections` again,
    without `selected`, which describes the whole image:

        >>> found = Detections.empty(names=("person", "car"))
        >>> len(found[(found.score > 0.5) & (found.class_name == "person")])
        0
    """

    xyxy: npt.NDArray[np.float32]
    score: npt.NDArray[np.float32]
    class_id: npt.NDArray[np.int64]
    names: tuple[str, ...]
    _: KW_ONLY
    track_id: npt.NDArray[np.int64] | None = None
    track_class: npt.NDArray[np.object_] | None = None
    zones: npt.NDArray[np.object_] | None = None
    crossed: npt.NDArray[np.object_] | None = None
    symbols: npt.NDArray[np.object_] | None = None
    repeated: npt.NDArray[np.int64] | None = None
    selected: npt.NDArray[np.float32] | None = None
    image_size: Size | None = None

    if TYPE_CHECKING:  # programs may give lists and other types of arrays

        def __init__(  # noqa: PLR0913 - one for each field
            self,
            xyxy: npt.ArrayLike,
            score: npt.ArrayLike,
            class_id: npt.ArrayLike,
            names: Sequence[str],
            *,
            track_id: npt.ArrayLike | None = None,
            track_class: npt.ArrayLike | None = None,
            zones: npt.ArrayLike | None = None,
            crossed: npt.ArrayLike | None = None,
            symbols: npt.ArrayLike | None = None,
            repeated: npt.ArrayLike | None = None,
            selected: npt.ArrayLike | None = None,
            image_size: Size | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        """Convert the arrays to read-only ones of the promised types, and check them.

        Arrays of other types, and lists, are converted; others become views, which share memory.
        """
        object.__setattr__(self, "names", _as_names(self.names))  # as the class is frozen
        if self.image_size is not None:
            height, width = self.image_size
            object.__setattr__(self, "image_size", (int(height), int(width)))
        for name, dtype in DTYPES.items():
            values = getattr(self, name)
            if values is not None:
                object.__setattr__(self, name, _as_read_only_array(name, values, dtype))
        self._check_arrays()

    def _check_arrays(self) -> None:
        """Raise ValueError if the arrays do not fit together, or a class id has no name."""
        count = self.score.size
        shapes = (self.xyxy.shape, self.score.shape, self.class_id.shape)
        if shapes != ((count, 4), (count,), (count,)):
            raise ValueError(f"xyxy, score, class_id must be (N, 4), (N,), (N,), got {shapes}")
        if count and not 0 <= self.class_id.min() <= self.class_id.max() < len(self.names):
            raise ValueError(f"class_id must lie in 0..{len(self.names) - 1}, an index into names")
        for name in PER_OBJECT:
            array = getattr(self, name)
            if array is not None and array.shape != (count,):
                raise ValueError(f"{name} must be (N,), got {array.shape}")

    @classmethod
    def empty(cls, names: tuple[str, ...], *, image_size: Size | None = None) -> Self:
        """Return the detections of an image in which nothing was found.

        Args:
            names: The names of all classes of the model, by class id.
            image_size: Height and width of the image, if they are known.
        """
        return cls(
            xyxy=np.empty((0, 4), np.float32),
            score=np.empty(0, np.float32),
            class_id=np.empty(0, np.int64),
            names=names,
            image_size=image_size,
        )

    @classmethod
    def concat(cls, parts: Iterable[Self]) -> Self:
        """Join several detections of one model, in their order.

        An array that only options add is included if all parts with detections have it, `selected`
        if all parts have it, and `image_size` if it is the same everywhere. Sort the result to have
        the best first.

        Args:
            parts: One or more, such as the detections of each tile of an image; there may be none
                in each of them.

        Raises:
            ValueError: There are no parts, or their class names differ.
        """
        all_parts = list(parts)
        if not all_parts:
            raise ValueError("concat needs one part or more: Detections.empty(names) has no rows")
        first = all_parts[0]
        if any(part.names != first.names for part in all_parts):
            raise ValueError("the parts have different class names, so they are not of one model")
        image_size = first.image_size
        if any(part.image_size != image_size for part in all_parts):
            image_size = None

        parts_with_detections = [part for part in all_parts if len(part) > 0]
        array_by_name: Fields = {}
        for array_name in DTYPES:
            parts_to_join = all_parts
            is_optional = array_name in PER_OBJECT  # A part without detections may lack it.
            if is_optional and parts_with_detections:
                parts_to_join = parts_with_detections
            arrays = [getattr(part, array_name) for part in parts_to_join]
            if all(array is not None for array in arrays):
                array_by_name[array_name] = np.concatenate(arrays)
        return cls(names=first.names, image_size=image_size, **array_by_name)

    @property
    def class_name(self) -> npt.NDArray[np.str_]:
        """The class name of each detection, `(N,)`."""
        return np.array(self._names(), np.str_)

    @property
    def xywh(self) -> npt.NDArray[np.float32]:
        """The left, top, width and height of each box in pixels, `(N, 4)`, as in COCO."""
        left_top = self.xyxy[:, :2]
        right_bottom = self.xyxy[:, 2:]
        return np.concatenate([left_top, right_bottom - left_top], axis=1)

    @property
    def area(self) -> npt.NDArray[np.float32]:
        """The area of each box in square pixels, `(N,)`."""
        return area(self.xyxy)

    def iou(self, others: Self) -> npt.NDArray[np.float32]:
        """Return the intersection over union of each box with each box of other detections.

        Args:
            others: M detections, in pixels of the same image.

        Returns:
            `(N, M)`, from 0 to 1.
        """
        return overlap(self.xyxy[:, np.newaxis], others.xyxy[np.newaxis])

    def sort_by(self, key: str | npt.ArrayLike, *, descending: bool = False) -> Self:
        """Return the detections in a different order; equal ones keep their order.

        Args:
            key: "score", "area", "class_id", "class_name", "track_id", "x1", "y1", "x2" or "y2";
                or N values to sort by.
            descending: Whether the largest comes first.

        Raises:
            ValueError: The name is none of these, tracks were not asked for, or there are not N
                values.
        """
        values = self._values_to_sort_by(key)
        if values.shape != (len(self),):
            raise ValueError(f"the values to sort by must be (N,), got {values.shape}")
        if not descending:
            return with_rows(self, np.argsort(values, kind="stable"))
        # A descending order is an ascending one, read backwards. That reverses equals, too, so the
        # values are sorted from the last row to the first.
        rows_from_end = np.argsort(np.flip(values), kind="stable")  # 0 is the last row
        last_row = len(self) - 1
        return with_rows(self, last_row - np.flip(rows_from_end))

    def _values_to_sort_by(self, key: str | npt.ArrayLike) -> npt.NDArray[Any]:
        """Return the values that `sort_by` sorts by, for its argument."""
        if not isinstance(key, str):
            return np.asarray(key)
        if key in CORNERS:
            return self.xyxy[:, CORNERS.index(key)]
        if key not in SORT_KEYS:
            keys = ", ".join(SORT_KEYS + CORNERS)
            raise ValueError(f"cannot sort by '{key}': use {keys}, or an array of values")
        values = getattr(self, key)
        if values is None:
            raise ValueError(f"cannot sort by {key}: the detections have none")
        return np.asarray(values)

    def _names(self) -> list[str]:
        """Return the class name of each detection."""
        return [self.names[index] for index in self.class_id]

    def zones_and_lines(self) -> Iterator[tuple[str, str]]:
        """Yield each zone that a detection is in and each line that it has crossed, with its class.

        This is for counting them, so a zone with three cars in it comes three times.

        Yields:
            The name of a zone and the class name of a detection in it, as ("yard", "car"); then the
            name of a line with the side, and the class name of the track, as ("gate left", "car").
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

    def within(self, size: Size) -> Self:
        """Return the detections that are visible in an image, with boxes clipped to it.

        The size of the image is its height and width.
        """
        visible = with_rows(self, are_visible(self.xyxy, size))
        return replace(visible, xyxy=clipped(visible.xyxy, size))

    def to_supervision(self) -> "supervision.Detections":
        """Return the detections as `supervision.Detections`, with class names under "class_name".

        Raises:
            DependencyError: supervision is not installed.
        """
        with loading("supervision", "pip install supervision"):
            import supervision

        return supervision.Detections(  # supervision changes its arrays in place, so it gets copies
            xyxy=self.xyxy.copy(),
            confidence=self.score.copy(),
            class_id=self.class_id.copy(),
            data={"class_name": self.class_name},
            tracker_id=None if self.track_id is None else self.track_id.copy(),
        )

    def to_dict(self) -> list[Fields]:
        """Return the detections as in JSON: a dictionary of numbers and strings for each.

        Corners are rounded to 1/100 pixel, scores to 6 decimals. What only options add, such as the
        id of a track, is included if the detection has it.
        """
        columns = []
        for column in DETECTED_COLUMNS:
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
        *,
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

        The columns `track_id`, `track_class`, `zones`, `crossed`, `symbols` and `repeated` are
        included if the detections have these arrays.

        Raises:
            DependencyError: pandas is not installed.
        """
        with loading("pandas", "pip install pandas"):
            import pandas as pd

        columns: Fields = {
            "class_id": self.class_id,
            "class_name": self.class_name,  # an array, as pandas takes an empty list for numbers
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

    def __getitem__(self, index: Index) -> Self:
        """Select detections by an index, indices, a slice, or a mask with a bool for each.

        The result is `Detections` again, with a single one for a single index.

        Raises:
            TypeError: The index is a single bool.
        """
        return replace(self, selected=None, **_arrays_of_rows(self, index))

    def __eq__(self, other: object) -> bool:
        """Whether names, arrays and the size of the image are equal; `selected` is not compared."""
        if not isinstance(other, Detections):
            return NotImplemented
        if self.names != other.names or self.image_size != other.image_size:
            return False
        return all(_are_equal(getattr(self, name), getattr(other, name)) for name in ARRAYS)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        """Let `copy` and `pickle` use the constructor, which makes the arrays read-only."""
        values_by_name = {field.name: getattr(self, field.name) for field in fields(self)}
        return _from_values, (type(self), values_by_name)


def _from_values(kind: type[AnyDetections], values: dict[str, Any]) -> AnyDetections:
    """Make detections from the values of their fields by name, as copies and `pickle` do."""
    return kind(**values)


def with_rows(detections: AnyDetections, index: Index) -> AnyDetections:
    """Select some of an image's detections, as indexing does, but leave `selected` as it is.

    This is for detections that are dropped after the selection, or sorted: `selected` has the
    scores of all that was selected in the image.

    Args:
        detections: The detections.
        index: An index, indices, a slice, or a mask.

    Raises:
        TypeError: The index is a single bool.
    """
    return replace(detections, **_arrays_of_rows(detections, index))


def without_repeated(detections: AnyDetections) -> AnyDetections:
    """Return the detections of an image that are in no group of repeats that was dropped."""
    if detections.repeated is None:
        return detections
    return with_rows(detections, detections.repeated == 0)


def _arrays_of_rows(detections: Detections, index: Index) -> dict[str, Any]:
    """Select the indexed rows of each array that has one row per detection.

    Args:
        detections: The detections.
        index: An index, indices, a slice, or a mask.

    Returns:
        The selected rows by the name of the array, without the arrays that are None.

    Raises:
        TypeError: The index is a single bool.
    """
    if isinstance(index, np.ndarray) and index.ndim == 0:
        index = index[()]  # the number in an array without axes
    if isinstance(index, bool | np.bool_):
        raise TypeError("a mask must have a bool for each detection, got a single one")
    if isinstance(index, int | np.integer):
        index = [int(index)]
    rows_by_name: Fields = {}
    for name in ARRAYS:
        array = getattr(detections, name)
        if array is not None:
            rows_by_name[name] = array[index]
    return rows_by_name


def _as_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return class names as a tuple.

    Raises:
        TypeError: They are a single string, or not a sequence, such as the mapping of Ultralytics.
    """
    if isinstance(names, tuple):
        return names
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise TypeError(f"names must be a tuple of the names of all classes, got {names!r:.80}")
    return tuple(names)


def _as_read_only_array(name: str, values: Any, dtype: type[np.generic]) -> npt.NDArray[Any]:  # noqa: ANN401
    """Convert the values of a field of `Detections` to a read-only array of the field's type.

    An array that has the type already is not copied: the result shares its memory.

    Args:
        name: The name of the field, for the error message.
        values: An array, or a list.
        dtype: The type of the field; np.object_ takes any values, such as tuples.

    Raises:
        ValueError: The type is for whole numbers, and a value is not one, as a class id of 1.5.
    """
    if isinstance(values, np.ndarray):
        array = values
    elif dtype is np.object_:
        array = np.fromiter(values, np.object_)  # `np.asarray` would make rows of tuples
    else:
        array = np.asarray(values)
    if dtype is np.int64 and not _has_only_whole_numbers(array):
        raise ValueError(f"{name} must be whole numbers, got {array.dtype}")
    view = array.astype(dtype, copy=False).view()
    view.flags.writeable = False
    return view


def _has_only_whole_numbers(array: npt.NDArray[Any]) -> bool:
    """Return whether an array has integers, or floats that are all whole numbers, or is empty."""
    if array.dtype.kind in "iu" or not array.size:
        return True
    is_of_floats = array.dtype.kind == "f"
    return is_of_floats and bool(np.isfinite(array).all()) and not (array % 1 != 0).any()


def _are_equal(first: npt.NDArray[Any] | None, second: npt.NDArray[Any] | None) -> bool:
    """Whether two arrays have equal values, or both are missing; NaN is equal to NaN."""
    if first is None or second is None:
        return first is second
    is_of_floats = first.dtype.kind == "f"
    return np.array_equal(first, second, equal_nan=is_of_floats)


# By what a score and the corners x1, y1, x2, y2 are multiplied to have only whole digits left.
_SCALES = np.array([10**6, 100, 100, 100, 100], np.float64)


def rounded(detections: Detections) -> npt.NDArray[np.float64]:
    """Round scores to 6 decimals and corners to 2, as in JSON.

    The results are those of Python's `round`, which is a hundred times slower: a float32 number has
    24 binary digits and a scale has 20 at most, so their product is exact in float64, which has 53.

    Returns:
        `(N, 5)`: the score, x1, y1, x2 and y2 of each detection.
    """
    rows = np.empty((len(detections), 5), np.float64)
    rows[:, 0] = detections.score
    rows[:, 1:] = detections.xyxy
    rows *= _SCALES  # 10**6 for the score and 100 for each corner
    np.rint(rows, out=rows)
    rows /= _SCALES
    return rows
