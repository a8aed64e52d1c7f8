"""Ways of reading a model that an experiment can tell apart, part by part."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, get_args

from detcli.errors import UsageError
from detcli.model.contract import BoxFormat, Preprocessing, Resize
from detcli.model.resolve_preprocessing import FAMILY

Part = Literal["values", "channels", "boxes", "resize"]
"""What can be tried."""

TRIABLE: tuple[Part, ...] = get_args(Part)
ROUNDS: tuple[tuple[Part, ...], ...] = (("values", "channels", "boxes"), ("resize",))
"""Parts that are tried together; a later round keeps what the earlier ones found best."""

LEAST = 5
"""Fewer pictures decide nothing."""

LEVEL = 1 / 255
Channels = tuple[float, float, float]
NONE, ALL = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
VALUES: dict[str, tuple[float, Channels, Channels]] = {
    "0 to 1": (LEVEL, NONE, ALL),
    "0 to 255": (1.0, NONE, ALL),
    "ImageNet's mean and std": (LEVEL, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "-1 to 1": (LEVEL, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "0 to 255 less ImageNet's mean": (1.0, (123.675, 116.28, 103.53), ALL),
}
"""Scale, mean and standard deviation; the latter of red, green and blue."""
OWN = "as it is"
"""The name of a model's own values where they are none of these."""


@dataclass(frozen=True, slots=True)
class Interpretation:
    """A way of reading a model.

    Attributes:
        preprocessing: How pictures become the input.
        box_format: The format of the boxes.
        names: What it is called, by part.
    """

    preprocessing: Preprocessing
    box_format: BoxFormat
    names: dict[Part, str]


def parse_parts(text: str) -> tuple[Part, ...]:
    """Read a list of parts: "values,channels".

    Raises:
        UsageError: One is unknown, or there is none.
    """
    wanted = [one.strip() for one in text.split(",")]
    for one in wanted:
        if one not in TRIABLE:
            raise UsageError(f"--parts '{text}': '{one}' is unknown", f"use {', '.join(TRIABLE)}")
    return tuple(part for part in TRIABLE if part in wanted)


def open_parts(settled: Mapping[str, str]) -> tuple[Part, ...]:
    """The parts that neither the file, what lies beside it, nor the user settles.

    Args:
        settled: What settles each part.
    """
    return tuple(part for part in TRIABLE if settled.get(part, FAMILY) == FAMILY)


def candidates(base: Interpretation, parts: Sequence[Part]) -> list[Interpretation]:
    """All combinations of what can be tried for some parts, the base first."""
    combined = []
    for chosen in product(*(_names(base, part) for part in parts)):
        names = dict(zip(parts, chosen, strict=True))
        combined.append(_changed(base, names))
    combined.sort(key=lambda one: one.names != {part: _own(base, part) for part in parts})
    return combined


def _names(base: Interpretation, part: Part) -> Iterable[str]:
    """What can be tried for a part."""
    if part == "values":
        return dict.fromkeys([*VALUES, _own(base, part)])
    if part == "channels":
        return "rgb", "bgr"
    if part == "boxes":
        return [*BoxFormat]
    return dict.fromkeys([Resize.LETTERBOX, Resize.CORNER, Resize.STRETCH, _own(base, part)])


def _own(base: Interpretation, part: Part) -> str:
    """What the base does about a part."""
    own = base.preprocessing
    if part == "values":
        seen = own.scale, _colours(own.mean, own.bgr), _colours(own.std, own.bgr)
        return next((name for name, values in VALUES.items() if values == seen), OWN)
    if part == "channels":
        return "bgr" if own.bgr else "rgb"
    return base.box_format if part == "boxes" else own.resize


def _changed(base: Interpretation, names: dict[Part, str]) -> Interpretation:
    """The base, changed in some parts."""
    own = base.preprocessing
    bgr = names.get("channels", _own(base, "channels")) == "bgr"
    mean, std = _colours(own.mean, own.bgr), _colours(own.std, own.bgr)
    values = VALUES.get(names.get("values", OWN), (own.scale, mean, std))
    scale, mean, std = values
    changed = replace(
        own, scale=scale, mean=_colours(mean, bgr), std=_colours(std, bgr), bgr=bgr
    )  # fmt: skip
    if (resize := names.get("resize", own.resize)) != own.resize:
        changed = replace(
            changed, resize=Resize(resize), longest=None, enlarge=None, edges=None, multiple=1
        )
    boxes = BoxFormat(names["boxes"]) if "boxes" in names else base.box_format
    return Interpretation(changed, boxes, base.names | names)


def _colours(channels: Channels, bgr: bool) -> Channels:  # noqa: FBT001 - a form, not a flag
    """Numbers of red, green and blue from those of the channels as they are fed, and back."""
    first, green, last = channels
    return (last, green, first) if bgr else channels


def option_text(part: Part, candidate: Interpretation) -> str:
    """A part in the words of --preprocess; the boxes in those of --box-format."""
    own = candidate.preprocessing
    if part == "values":
        numbers = (":".join(map(_number, three)) for three in (own.mean, own.std))
        return "scale={},mean={},std={}".format(_number(own.scale), *numbers)
    return _own(candidate, part)


def _number(value: float) -> str:
    return repr(value).removesuffix(".0")
