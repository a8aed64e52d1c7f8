"""How to convert a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from detcli.errors import UsageError
from detcli.model.contract import BoxFormat

Batch = int | Literal["dynamic"]
"""Number of pictures that a graph takes at a time."""

MAX_SIDE = 16384
"""Largest input side, in pixels: its anchor grid alone has 5 million cells."""

MAX_ROWS = 300
TWICE = "convert twice, into two files"


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """How to convert a model.

    Attributes:
        cut: Drop everything after the network body.
        guard_transpose: Add a Concat after each Transpose that feeds an output.
        half: Compute in float16.
        keep_io: With `half`: inputs and outputs stay float32.
        int8: Compute convolutions in 8 bits.
        batch: Pictures in a batch; None to keep it.
        imgsz: Height and width of the input; None to keep them.
        names: A file with class names.
        metadata: Other entries of the metadata; an empty value removes one.
        end_to_end: Append the selection.
        max_det: With `end_to_end`: number of rows it keeps; None for 300.
        box_format: The format of the box rows, where the graph does not show it.
        tolerance: Values that replace the defaults for such a conversion, by their name in
            Tolerance.
        force: Overwrite the output, which may be the model itself.

    Raises:
        UsageError: Options contradict one another, or there are none.
    """

    cut: bool = False
    guard_transpose: bool = False
    half: bool = False
    keep_io: bool = False
    int8: bool = False
    batch: Batch | None = None
    imgsz: int | None = None
    names: Path | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    end_to_end: bool = False
    max_det: int | None = None
    box_format: BoxFormat | None = None
    tolerance: Mapping[str, float] = field(default_factory=dict)
    force: bool = False

    def __post_init__(self) -> None:
        if self.cut and self.end_to_end:
            raise UsageError("--cut and --end-to-end are mutually exclusive", TWICE)
        if self.half and self.int8:
            raise UsageError("--half and --int8 are mutually exclusive", TWICE)
        if self.keep_io and not self.half:
            raise UsageError("--keep-io needs --half", "leave it out, or add --half")
        if self.max_det is not None and not self.end_to_end:
            raise UsageError("--max-det needs --end-to-end", "leave it out, or add --end-to-end")
        if self.imgsz is not None and not 1 <= self.imgsz <= MAX_SIDE:
            raise UsageError(f"--imgsz is {self.imgsz}", f"give 1 to {MAX_SIDE} pixels")
        if isinstance(self.batch, int) and self.batch < 1:
            raise UsageError(f"--batch is {self.batch}", "give 1 or more")
        if self.rows < 1:
            raise UsageError(f"--max-det is {self.max_det}", "give 1 or more")
        switches = (self.cut, self.guard_transpose, self.half, self.int8, self.end_to_end)
        if not any((*switches, self.batch, self.imgsz, self.names, self.metadata)):
            raise UsageError(
                "there is nothing to do",
                "give at least one of --cut, --guard-transpose, --half, --int8, "
                "--batch, --imgsz, --names, --metadata, --end-to-end",
            )

    @property
    def rows(self) -> int:
        """Number of rows that the selection keeps."""
        return MAX_ROWS if self.max_det is None else self.max_det

    @property
    def batch_size(self) -> int | None:
        """The batch size; None for a dynamic batch."""
        return self.batch if isinstance(self.batch, int) else None
