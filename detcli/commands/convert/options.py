"""How to convert a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from detcli.errors import UsageError
from detcli.model.contract import BoxFormat

BatchSize = int | Literal["dynamic"]
"""Number of pictures that a graph takes at a time."""

MAX_SIDE = 16384
"""Largest input side, in pixels: its anchor grid alone has 5 million cells."""

MAX_ROWS = 300
TWICE = "convert twice, into two files"


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """How to convert a model.

    Raises:
        UsageError: Options contradict one another, or there are none.
    """

    cut: bool = False  # drop everything after the network body
    guard_transpose: bool = False  # add a Concat after each Transpose that feeds an output
    half: bool = False  # compute in float16
    keep_io: bool = False  # with `half`: inputs and outputs stay float32
    int8: bool = False  # compute convolutions in 8 bits
    batch: BatchSize | None = None  # pictures in a batch; None to keep it
    imgsz: int | None = None  # height and width of the input; None to keep them
    names: Path | None = None  # a file with class names
    metadata: Mapping[str, str] = field(default_factory=dict)  # an empty value removes an entry
    contract: bool = False  # nothing but what neighbours and options say, which is always written
    end_to_end: bool = False  # append the selection
    max_det: int | None = None  # with `end_to_end`: number of rows it keeps; None for 300
    box_format: BoxFormat | None = None  # of the box rows, where the graph does not show it
    preprocess: str | None = None  # parts of it, where the model does not say
    tolerance: Mapping[str, float] = field(default_factory=dict)  # replaces the defaults
    force: bool = False  # overwrite the output, which may be the model itself

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
        entries = self.names or self.metadata or self.contract
        if not any((*switches, self.batch, self.imgsz, entries)):
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
