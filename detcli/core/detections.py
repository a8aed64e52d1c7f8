"""Detections: what was found in one picture, as parallel arrays."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from detcli.core.errors import loading
from detcli.core.geometry import clipped, shown

PER_OBJECT = ("track_id", "zones", "crossed", "symbols")
"""Arrays that `Detections` may have besides."""


@dataclass(frozen=True, eq=False, slots=True)
class Symbol:
    """What a symbol says."""

    text: str | None  # the decoded text; None if the content is binary
    symbology: str  # as in "QR Code" and "EAN-13"; of a marker its dictionary in OpenCV
    content: bytes  # its bytes; empty for a marker
    # `(4, 2)` float64 x and y in pixels of the picture: top left, top right, bottom right and
    # bottom left of the symbol, were it upright
    corners: npt.NDArray[np.float64]
    class_name: str  # its class in the words of the bundled model


@dataclass(frozen=True, eq=False, slots=True)
class Detections:
    """What was found in one picture; row i of every array describes the same object.

    Attributes:
        xyxy: `(N, 4)` float32, the corners x1, y1, x2, y2 in pixels of the upright picture, from
            its top left corner.
        score: `(N,)` float32 confidence from 0 to 1, descending.
        class_id: `(N,)` int64, an index into `names`.
        names: The names of all classes of the model, by class id.
        track_id: `(N,)` int64, the number of the object in its video, from 1; -1 where it has none
            yet. None where nothing is tracked.
        zones: `(N,)` objects, each the tuple of the names of the zones that it is in; None without
            zones.
        crossed: `(N,)` objects, each a tuple of the lines that it has crossed since the
            frame before, with "left" or "right"; None without lines.
        symbols: `(N,)` objects, each what a symbol says, or None where it could not be read; None
            where nothing is read.

    Raises:
        ValueError: The arrays have wrong shapes, or a class id has no name.

    Indexing with a boolean mask, a slice, an index or a list of indices gives `Detections` again:

        >>> found = Detections.empty(names=("person", "car"))
        >>> len(found[found.score > 0.5])
        0
    """

    xyxy: npt.NDArray[np.float32]
    score: npt.NDArray[np.float32]
    class_id: npt.NDArray[np.int64]
    names: tuple[str, ...]
    track_id: npt.NDArray[np.int64] | None = None
    zones: npt.NDArray[np.object_] | None = None
    crossed: npt.NDArray[np.object_] | None = None
    symbols: npt.NDArray[np.object_] | None = None

    def __post_init__(self) -> None:
        count = len(self.score)
        shapes = (self.xyxy.shape, self.score.shape, self.class_id.shape)
        if shapes != ((count, 4), (count,), (count,)):
            raise ValueError(f"xyxy, score, class_id must be (N, 4), (N,), (N,), got {shapes}")
        for name in PER_OBJECT:
            extra = getattr(self, name)
            if extra is not None and extra.shape != (count,):
                raise ValueError(f"{name} must be (N,), got {extra.shape}")
        if count and not 0 <= self.class_id.min() <= self.class_id.max() < len(self.names):
            raise ValueError(f"class_id must lie in 0..{len(self.names) - 1}, an index into names")

    @classmethod
    def empty(cls, names: tuple[str, ...]) -> Self:
        """No detections."""
        return cls(
            np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int64), names
        )

    @property
    def class_name(self) -> list[str]:
        """The class name of each detection."""
        return [self.names[index] for index in self.class_id]

    def places(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each zone that a detection is in, and of its class.

        And of each line that it has crossed, with the side: "gate left".
        """
        if self.zones is not None:
            for name, zones in zip(self.class_name, self.zones, strict=True):
                yield from ((zone, name) for zone in zones)
        if self.crossed is not None:
            for name, crossed in zip(self.class_name, self.crossed, strict=True):
                yield from ((f"{line} {side}", name) for line, side in crossed)

    def within(self, size: tuple[int, int]) -> Self:
        """Those that show in a picture of (height, width), cut off at its edges."""
        found = self[shown(self.xyxy, size)]
        return replace(found, xyxy=clipped(found.xyxy, size))

    def to_supervision(self) -> Any:  # noqa: ANN401 - of a library that is not required
        """The same as `supervision.Detections`, with class names under "class_name".

        Raises:
            DependencyError: supervision is not installed.
        """
        with loading("supervision", "pip install supervision"):
            import supervision

        names = np.array(self.class_name, dtype=str)
        return supervision.Detections(
            xyxy=self.xyxy,
            confidence=self.score,
            class_id=self.class_id,
            data={"class_name": names},
            tracker_id=self.track_id,
        )

    def __len__(self) -> int:
        return len(self.score)

    def __iter__(self) -> Iterator[tuple[npt.NDArray[np.float32], float, int, str]]:
        """Yield the box, score, class id and class name of each detection."""
        yield from zip(
            self.xyxy, self.score.tolist(), self.class_id.tolist(), self.class_name, strict=True
        )

    def __getitem__(self, index: int | slice | npt.NDArray[Any] | list[int] | list[bool]) -> Self:
        if isinstance(index, int | np.integer):
            index = [int(index)]  # a single detection is Detections, too
        extras = {
            name: None if getattr(self, name) is None else getattr(self, name)[index]
            for name in PER_OBJECT
        }
        return type(self)(
            self.xyxy[index], self.score[index], self.class_id[index], self.names, **extras
        )
