"""What convert is asked for."""

from pathlib import Path
from typing import Literal

from detcli.config.config import INPUT, OUTPUT, Config
from detcli.config.option import REQUIRED, option
from detcli.config.values import parse_tolerance, parse_writable
from detcli.core import frozen
from detcli.core.errors import UsageError

TWICE = "convert twice, into two files"

NO_ENTRY = ("", "")
"""The value of `--metadata contract`, which sets no entry of the metadata."""


def _batch(text: str) -> int | Literal["dynamic"]:
    """Parse the value of --batch: how many images, or `dynamic` for any number.

    Raises:
        ValueError: It is neither; with a message and a hint.
    """
    if text == "dynamic":
        return "dynamic"
    if not text.isdecimal() or not int(text):
        raise ValueError(f"'{text}' must be 1 or more, or dynamic", "give 1, 8 or dynamic")
    return int(text)


def _parse_entry(text: str) -> tuple[str, str]:
    """Parse a value of --metadata: "author=me" is the entry ("author", "me").

    The word `contract` sets no entry, so it is parsed as `NO_ENTRY`. It only asks for a conversion:
    any conversion writes what detcli knows about the model into the metadata.

    Raises:
        UsageError: The value is not of the form KEY=VALUE.
    """
    if text == "contract":
        return NO_ENTRY
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError(
            f"--metadata '{text}' is not KEY=VALUE", "give KEY=VALUE, as in author=me; or contract"
        )
    return key, value


@frozen
class ConversionOptions:
    """The options of `detcli convert`; those that it shares with other commands are in `config`."""

    config: Config
    output: Path = option(
        REQUIRED,
        "-o, --output OUT",
        "ONNX file to write.",
        panel=OUTPUT,
        parse=parse_writable,
    )
    cut: bool = option(
        False,
        "--cut",
        "Drop everything after the network body: [B, 4+C, N].",
        excludes={"end_to_end": ("--cut and --end-to-end are mutually exclusive", TWICE)},
    )
    guard_transpose: bool = option(
        False,
        "--guard-transpose",
        "Add a Split and a Concat after a Transpose that feeds an output; some engines drop it "
        "otherwise.",
    )
    half: bool = option(
        False,
        "--half",
        "Compute in float16, except box decoding and nodes that would overflow.",
        excludes={"int8": ("--half and --int8 are mutually exclusive", TWICE)},
    )
    keep_io: bool = option(
        False,
        "--keep-io",
        "With --half: inputs and outputs stay float32.",
        needs={"half": "leave it out, or add --half"},
    )
    int8: bool = option(
        False,
        "--int8",
        "Compute convolutions in 8 bits; needs --calibrate.",
        needs={"calibrate": "name a folder of about a hundred typical images with --calibrate"},
    )
    calibrate: tuple[str, ...] = option(
        (),
        "--calibrate FOLDER",
        "Images to calibrate --int8 and --half on: a folder, a file or a quoted glob pattern; "
        "repeatable.",
        panel=INPUT,
        needs={"int8 half": "leave it out, or add one"},
    )
    batch: int | Literal["dynamic"] | None = option(
        None, "--batch N|dynamic", "Images in a batch.", parse=_batch
    )
    metadata: tuple[tuple[str, str], ...] = option(
        (),
        "--metadata KEY=VALUE",
        "Set an entry of the metadata, or remove it with KEY=; repeatable. 'contract' writes what "
        "files beside the model and options say about it, as any conversion does.",
        parse=_parse_entry,
    )
    end_to_end: bool = option(
        False,
        "--end-to-end",
        "Append detcli's selection to the graph, for other runtimes: [B, K, 6].",
    )
    max_det: int = option(
        300,
        "--max-det K",
        "With --end-to-end: rows of the output.",
        range=(1, None),
        needs={"end_to_end": "leave it out, or add --end-to-end"},
    )
    image: str | None = option(
        None,
        "--image FILE",
        "Image to compare both models on; default: a built-in one.",
        panel=INPUT,
    )
    tolerance: dict[str, float] | None = option(
        None,
        "--tolerance LIST",
        "Allowed differences, as in score=0.02,corner=2,boxes=1%; corner is in pixels, boxes a "
        "share of all. Default: depends on the conversion.",
        parse=parse_tolerance,
        separator=",",
    )
    force: bool = option(False, "--force", "Overwrite OUT.", panel=OUTPUT)

    def __post_init__(self) -> None:
        """Check that the options change anything, and set no entry of the metadata twice.

        Raises:
            UsageError: There is nothing to do, or one entry of the metadata is set twice.
        """
        self._require_change()
        self._require_single_entries()

    def _require_change(self) -> None:
        """Check that an option asks for a change of the model; raises UsageError if none does."""
        settings = self.config.settings
        requested_changes = (
            self.cut,
            self.guard_transpose,
            self.half,
            self.int8,
            self.batch,
            self.end_to_end,
            settings.imgsz,
            settings.names,
            self.metadata,
        )
        if not any(requested_changes):
            raise UsageError(
                "there is nothing to do",
                "give at least one of --cut, --guard-transpose, --half, --int8, "
                "--batch, --imgsz, --names, --metadata, --end-to-end",
            )

    def _require_single_entries(self) -> None:
        """Check that no entry of the metadata is set twice; raises UsageError if one is."""
        values: dict[str, str] = {}
        for key, value in self.metadata:
            if key in values and (key, value) != NO_ENTRY:
                raise UsageError(
                    f"--metadata gives {key} twice: {values[key]!r} and {value!r}",
                    "give one of them",
                )
            values[key] = value

    @property
    def entries(self) -> dict[str, str]:
        """The metadata to set; an empty value removes an entry."""
        return dict(entry for entry in self.metadata if entry != NO_ENTRY)
