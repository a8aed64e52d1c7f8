"""The text form of a preprocessing: `stretch,mean=0.485:0.456:0.406,std=0.229:0.224:0.225`.

The option --preprocess changes the parts that it names; a model's metadata names all parts.
"""

import math
from dataclasses import replace
from typing import Any

from detcli.errors import UsageError
from detcli.model.contract import Contract, Interpolation, Preprocessing, Resize

METADATA_KEY = "detcli.preprocess"
"""The metadata entry that holds a preprocessing; it says what the file itself is fed."""

OPTION = "--preprocess"

MAX_TEXT = 1000  # characters
MAX_SIDE = 1 << 16  # pixels
EXAMPLE = "write for example stretch,mean=0.485:0.456:0.406,std=0.229:0.224:0.225"
WORDS: dict[str, dict[str, Any]] = {
    **{way: {"resize": way} for way in Resize if way is not Resize.SHORTEST_EDGE},
    **{way: {"interpolation": way} for way in Interpolation},
    "rgb": {"bgr": False},
    "bgr": {"bgr": True},
}
WHOLE = {
    Resize.SHORTEST_EDGE: (2, 1, MAX_SIDE),
    "longest": (1, 1, MAX_SIDE),
    "multiple": (1, 1, MAX_SIDE),
    "pad": (1, 0, 255),
}
"""Entries of whole numbers: how many, the least and the most."""
REAL = {"scale": 1, "mean": 3, "std": 3, "enlarge": 1}
"""Entries of other numbers: how many."""
PARTS = {
    "resize": ("resize", "longest", "enlarge", "edges", "multiple", "pad"),
    "interpolation": ("interpolation",),
    "values": ("scale", "mean", "std"),
    "channels": ("bgr",),
}
"""The parts that are settled independently, and the fields of each."""


def parse(text: str) -> dict[str, Any]:
    """Read the fields of a `Preprocessing` that a text names.

    Entries are separated by commas: letterbox, corner, stretch, none or shortest-edge=MIN:MAX;
    linear, bilinear or bicubic; rgb or bgr; scale=N; mean=R:G:B; std=R:G:B; pad=LEVEL;
    longest=PIXELS; enlarge=FACTOR; multiple=PIXELS.

    Raises:
        UsageError: An entry is unknown, twice there, or out of range.
    """
    if len(text) > MAX_TEXT:
        raise UsageError(f"--preprocess has {len(text)} characters", EXAMPLE)
    named: dict[str, Any] = {}
    for entry in text.split(","):
        for name, value in _read(entry.strip(), text).items():
            if name in named:
                raise UsageError(
                    f"--preprocess '{text}' says twice what {name} is", "leave one out"
                )
            named[name] = value
    return named


def change(preprocessing: Preprocessing, text: str) -> Preprocessing:
    """Change the parts that a text names.

    Raises:
        UsageError: The text is malformed.
    """
    named = parse(text)
    if "resize" in named:  # what belonged to another way goes with it
        named = {"longest": None, "enlarge": None, "edges": None, "multiple": 1} | named
    return replace(preprocessing, **named)


def overridden(contract: Contract, text: str | None) -> Contract:
    """A contract with the parts of its preprocessing that the user names, if any.

    Raises:
        UsageError: The text is malformed, asks a fixed input to follow the picture, or asks for
            other values than levels where the input is of whole numbers.
    """
    if text is None:
        return contract
    named = named_parts(text)
    changed = replace(
        contract,
        preprocessing=change(contract.preprocessing, text),
        settled=(
            *((part, by) for part, by in contract.settled if part not in named),
            *((part, OPTION) for part in PARTS if part in named),
        ),
        unsettled=tuple(part for part in contract.unsettled if part not in named),
    )
    if changed.follows_picture and contract.input_size is not None:
        height, width = contract.input_size
        raise UsageError(
            f"--preprocess {text}: this graph takes {width}x{height} pictures only",
            "use letterbox, corner or stretch",
        )
    if changed.takes_levels:
        require_levels(changed.preprocessing, text)
    return changed


def require_levels(preprocessing: Preprocessing, text: str) -> None:
    """Check that a picture's levels are fed as they are, since whole numbers hold no others.

    Raises:
        UsageError: They are not.
    """
    plain = replace(preprocessing, scale=1.0, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    if preprocessing != plain:
        raise UsageError(
            f"--preprocess {text}: this graph takes whole numbers, the levels of a picture",
            "leave scale, mean and std out",
        )


def named_parts(text: str) -> set[str]:
    """Which of `PARTS` a text names.

    Raises:
        UsageError: The text is malformed.
    """
    named = parse(text)
    return {part for part, own in PARTS.items() if not named.keys().isdisjoint(own)}


def written(preprocessing: Preprocessing) -> str:
    """The text that names all parts of a preprocessing.

    Examples:
        >>> written(Preprocessing(Resize.STRETCH, mean=(0.5, 0.5, 0.5)))
        'stretch,linear,rgb,scale=0.00392156862745098,mean=0.5:0.5:0.5,std=1:1:1,pad=114'
    """
    way = str(preprocessing.resize)
    if preprocessing.edges is not None:
        way += "={}:{}".format(*preprocessing.edges)
    entries = [way, preprocessing.interpolation, "bgr" if preprocessing.bgr else "rgb"]
    entries.append(f"scale={_number(preprocessing.scale)}")
    for name, three in (("mean", preprocessing.mean), ("std", preprocessing.std)):
        entries.append(f"{name}={':'.join(map(_number, three))}")
    entries.append(f"pad={preprocessing.pad}")
    if preprocessing.longest is not None:
        entries.append(f"longest={preprocessing.longest}")
    if preprocessing.enlarge is not None:
        entries.append(f"enlarge={_number(preprocessing.enlarge)}")
    if preprocessing.multiple != 1:
        entries.append(f"multiple={preprocessing.multiple}")
    return ",".join(entries)


def _number(value: float) -> str:
    return repr(value).removesuffix(".0")


def _read(entry: str, text: str) -> dict[str, Any]:
    """The fields that one entry names."""
    name, equals, value = entry.partition("=")
    if not equals and name in WORDS:
        return WORDS[name]
    if equals and name in REAL:
        reals = _numbers(entry, value, REAL[name], float)
        if name == "std" and 0 in reals:
            raise UsageError(f"--preprocess {entry}: nothing can be divided by 0", EXAMPLE)
        if name == "enlarge" and reals[0] < 1:
            raise UsageError(f"--preprocess {entry}: out of range", "use 1 or more")
        return {name: reals if len(reals) > 1 else reals[0]}
    if equals and name in WHOLE:
        count, least, most = WHOLE[name]
        wholes = _numbers(entry, value, count, int)
        if not all(least <= number <= most for number in wholes):
            raise UsageError(f"--preprocess {entry}: out of range", f"use {least} to {most}")
        if name == Resize.SHORTEST_EDGE:
            return {"resize": Resize.SHORTEST_EDGE, "edges": wholes}
        return {name: wholes[0]}
    known = [*WORDS, *(f"{name}=" for name in (*WHOLE, *REAL))]
    raise UsageError(
        f"--preprocess '{text}': '{entry}' is unknown", f"the entries are: {', '.join(known)}"
    )


def _numbers(entry: str, value: str, count: int, kind: type[float]) -> tuple[float, ...]:
    try:
        numbers = tuple(map(kind, value.split(":")))
        finite = all(map(math.isfinite, numbers))
    except (ValueError, OverflowError):
        numbers, finite = (), False
    if len(numbers) != count or not finite:
        wanted = "one number" if count == 1 else f"{count} numbers with colons between them"
        raise UsageError(f"--preprocess {entry}: '{value}' is not {wanted}", EXAMPLE)
    return numbers
