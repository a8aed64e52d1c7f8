"""Barcode: what a detection was read as."""

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

UNCHECKED = {"Codabar", "Code 39", "Code 39 Extended", "Code 39 Standard", "ITF"}
"""Symbologies that need neither a check digit nor error correction, in zxing-cpp's words."""


@dataclass(frozen=True, eq=False, slots=True)  # not `frozen`, which pprint does not lay out
class Barcode:
    """Where a barcode, a matrix code or a marker is, and what it says."""

    text: str | None  # the decoded text; None if the content is binary, or could not be read
    # as in "QR Code" and "EAN-13"; for a marker, its dictionary in OpenCV; empty if it was not read
    symbology: str
    content: bytes  # its bytes; empty for a marker
    # `(4, 2)` float64 x and y in pixels of the image: top left, top right, bottom right and
    # bottom left, were it upright; `(0, 2)` where they are not known
    corners: npt.NDArray[np.float64]
    class_name: str  # its class in the words of the bundled model
    confirmed: bool = False  # whether it is a detection only because it was read
    earlier: bool = False  # whether it was read in an earlier frame of its track, not in this one

    def __eq__(self, other: object) -> bool:
        """Whether all values are equal; barcodes are compared by value, and so have no hash."""
        if not isinstance(other, Barcode):
            return NotImplemented
        for field in fields(self):
            value = getattr(self, field.name)
            other_value = getattr(other, field.name)
            if not np.array_equal(value, other_value):
                return False
        return True

    __hash__ = None  # type: ignore[assignment]

    @property
    def doubt(self) -> bool:
        """Whether nothing in its symbology tells a wrong text from the right one."""
        return self.symbology in UNCHECKED
