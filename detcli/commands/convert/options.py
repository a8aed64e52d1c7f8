"""What is to become of a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from detcli.errors import UsageError
from detcli.model.contract import BoxFormat

Batch = int | Literal["dynamic"]
"""How many pictures a graph takes at a time."""

LARGEST_SIDE = 16384
"""Of a picture that a network takes whole, in pixels: its anchor grid alone has 5 million cells."""

MOST_ROWS = 300


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """What is to become of a model.

    Attributes:
        cut: Leave the network body alone.
        guard_transpose: Put a Concat behind a Transpose that feeds an output.
        half: Compute in float16.
        keep_io: With `half`: inputs and outputs stay float32.
        int8: Compute convolutions in 8 bits.
        batch: Pictures in a batch; None leaves it.
        imgsz: Height and width of the input; None leaves them.
        names: A file with class names.
        metadata: Other entries of the metadata; an empty value removes one.
        end_to_end: Append the selection.
        max_det: With `end_to_end`: how many rows it keeps; None for 300.
        box_format: What the head's boxes are, where the graph does not show it.

    Raises:
        UsageError: They do not go together, or nothing is asked for.
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

    def __post_init__(self) -> None:
        for first, second in (("cut", "end_to_end"), ("half", "int8")):
            if getattr(self, first) and getattr(self, second):
                raise UsageError(
                    f"{_option(first)} and {_option(second)} exclude each other",
                    "convert twice, into two files",
                )
        if self.keep_io and not self.half:
            raise UsageError("--keep-io belongs to --half", "leave it out, or add --half")
        if self.max_det is not None and not self.end_to_end:
            raise UsageError("--max-det belongs to --end-to-end", "leave it out, or add that")
        if self.imgsz is not None and not 1 <= self.imgsz <= LARGEST_SIDE:
            raise UsageError(
                f"--imgsz is {self.imgsz}", f"a side length is 1 to {LARGEST_SIDE} pixels"
            )
        if isinstance(self.batch, int) and self.batch < 1:
            raise UsageError(f"--batch is {self.batch}", "a batch has 1 picture or more")
        if self.rows < 1:
            raise UsageError(f"--max-det is {self.max_det}", "keep one row or more")
        wanted = (self.cut, self.guard_transpose, self.half, self.int8, self.end_to_end)
        given = (self.batch, self.imgsz, self.names, self.metadata or None)
        if not any(wanted) and all(value is None for value in given):
            raise UsageError(
                "there is nothing to do",
                "say what is to become of the model: --cut, --guard-transpose, --half, --int8, "
                "--batch, --imgsz, --names, --metadata, --end-to-end; several go together",
            )

    @property
    def rows(self) -> int:
        """How many rows the selection keeps."""
        return MOST_ROWS if self.max_det is None else self.max_det

    @property
    def batch_size(self) -> int | None:
        """The batch as a graph has it; None for any."""
        return self.batch if isinstance(self.batch, int) else None


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
