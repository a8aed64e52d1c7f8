"""What `detcli promise deal` is asked for."""

from pathlib import Path

from detcli.commands.promise.unit_kind import UnitKind
from detcli.config.config import INPUT, OUTPUT, Config
from detcli.config.option import REQUIRED, option
from detcli.config.values import parse_writable
from detcli.core import frozen

MAX_ROUNDS = 8

DEFAULT_EXPECTED_SHARE = 0.05
"""The share of units that is expected to show an animal, where --expect does not say it."""


def parse_share(text: str) -> float:
    """Read a share such as 5% or 0.05.

    Raises:
        ValueError: It is not a number, or not between 0 and 1. Its arguments are a message and a
            hint.
    """
    share: float | None
    try:
        if text.endswith("%"):
            share = float(text.removesuffix("%")) / 100
        else:
            share = float(text)
    except ValueError:
        share = None  # it is not a number
    if share is None or not 0 < share < 1:
        raise ValueError(f"'{text}' is not a share between 0% and 100%", "write 5%, or 0.05")
    return share


def _parse_share_or_none(text: str) -> float:
    """Read a share as `parse_share` does, or 0.

    Raises:
        ValueError: It is neither, with a message and a hint.
    """
    if text in {"0", "0%"}:
        return 0.0
    return parse_share(text)


def _parse_above(text: str) -> str:
    """Parse the value of --above: `all`, or how many units.

    Raises:
        ValueError: It is neither, with a message and a hint.
    """
    is_number = text.isascii() and text.isdecimal() and int(text[:9]) > 0
    if text != "all" and not is_number:
        raise ValueError(f"'{text}' is neither all nor a number", "write all, or 400")
    return text


@frozen
class DealOptions:
    """The options of `detcli promise deal`; those that it shares with others are in `config`."""

    config: Config
    records: str = option(
        REQUIRED,
        "RECORDS",
        "JSON Lines, CSV or Parquet of detcli predict or merge, MegaDetector's results, or the "
        "folder of a run in shards.",
    )
    output: Path = option(
        REQUIRED,
        "-o, --output DIR",
        "Make the review in this new folder: its page is DIR/index.html.",
        panel=OUTPUT,
        parse=parse_writable,
    )
    lost: tuple[float, ...] = option(
        REQUIRED,
        "--lost SHARE",
        "How many of the animals may be lost, as in 5%; 5%,10% promises the second if the first "
        "cannot be had.",
        separator=",",
        parse=parse_share,
    )
    sure: float = option(0.95, "--sure SHARE", "How sure the promise has to be.", parse=parse_share)
    unit: UnitKind = option(
        UnitKind.parse("image"),
        "--unit image|burst:60s|folder|meta:KEY",
        "What is looked at and put aside as one: an image or video, a burst of images that were "
        "taken shortly after one another, a folder, or all images that a list gives the same "
        "value.",
    )
    below: float | None = option(
        None,
        "--below SCORE",
        "Promise no threshold above this. Default: what leaves a tenth of the units above it, or "
        "twice as many as --expect.",
        range=(0, 1),
    )
    above: str = option(
        "all",
        "--above all|N",
        "Look at all that is above, or at a sample of so many, such as 400, which costs a tenth "
        "of the certainty.",
        parse=_parse_above,
    )
    expect: float = option(
        DEFAULT_EXPECTED_SHARE,
        "--expect SHARE",
        "The share of units that probably show an animal: for the plan, never for the promise.",
        parse=parse_share,
    )
    misses: int = option(
        4,
        "--misses N",
        "Plan the first round so that up to this many lost animals may turn up in it.",
        range=(0, 10_000),
    )
    rounds: int = option(
        3,
        "--rounds N",
        "At most this many rounds; a later one is needed if the one before promises too little.",
        range=(1, MAX_ROUNDS),
    )
    repeat: float = option(
        0.05,
        "--repeat SHARE",
        "Show this share of the units twice, to see how often answers change; 0 for none.",
        parse=_parse_share_or_none,
    )
    known_count: int = option(
        20,
        "--known N",
        "Mix in this many of the best-scoring units, to see whether reviewers notice them.",
        range=(0, 10_000),
    )
    images: Path | None = option(
        None,
        "--images DIR",
        "Where the images are now; default: where the records say.",
        panel=INPUT,
        parse=parse_writable,
    )
    keep_labels: Path | None = option(
        None,
        "--keep-labels REVIEW",
        "An earlier review: what was answered there of unchanged images above the threshold is "
        "not asked again.",
        panel=INPUT,
        parse=parse_writable,
    )
    seed: int | None = option(
        None,
        "--seed N",
        "Decides the draw, for tests only; default: a new one from the system.",
        range=(0, (1 << 53) - 1),
    )
    each: bool = option(
        False,
        "--each",
        "Promise it for each class by itself: a review in DIR for each, which share the doubt.",
    )
    force: bool = option(
        False, "--force", "Go on where most images have no score, or where it is not worth it."
    )
