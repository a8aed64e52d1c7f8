"""The text form of a preprocessing: `stretch,mean=0.485:0.456:0.406,std=0.229:0.224:0.225`.

The option --preprocess changes the parts that it names; a model's metadata names all parts.
"""

import hashlib
import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from detcli.core.errors import ModelError, UsageError
from detcli.core.files import open_regular
from detcli.model.contract import Contract, Interpolation, Preprocessing, Resize

METADATA_KEY = "detcli.preprocess"
"""The metadata entry that holds a preprocessing; it says what the file itself is fed."""

OPTION, FAMILY = "--preprocess", "the family's rule"
"""What may settle a part, among others."""

MAX_TEXT = 1000  # characters
MAX_SIDE = 1 << 16  # pixels
EXAMPLE = "write for example stretch,mean=0.485:0.456:0.406,std=0.229:0.224:0.225"
WORDS: dict[str, dict[str, Any]] = {
    **{way: {"resize": way} for way in Resize if way is not Resize.SHORTEST_EDGE},
    **{way: {"interpolation": way} for way in Interpolation},
    "rgb": {"bgr": False},
    "bgr": {"bgr": True},
}
NUMBERS: dict[str, tuple[type[float], int, float, float]] = {
    "scale": (float, 1, -math.inf, math.inf),
    "mean": (float, 3, -math.inf, math.inf),
    "std": (float, 3, -math.inf, math.inf),
    "enlarge": (float, 1, 1, math.inf),
    "longest": (int, 1, 1, MAX_SIDE),
    "multiple": (int, 1, 1, MAX_SIDE),
    "pad": (int, 1, 0, 255),
    Resize.SHORTEST_EDGE: (int, 2, 1, MAX_SIDE),
}
"""Entries of numbers: their type, how many, the least and the most."""
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
    """Change the parts that a text names."""
    named = parse(text)
    if "resize" in named:  # what belonged to another way goes with it
        named = {"longest": None, "enlarge": None, "edges": None, "multiple": 1} | named
    return replace(preprocessing, **named)


def overridden(contract: Contract, text: str | None) -> Contract:
    """A contract with the parts of its preprocessing that the user names, if any."""
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
    """Check that a picture's levels are fed as they are, since whole numbers hold no others."""
    plain = replace(preprocessing, scale=1.0, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    if preprocessing != plain:
        raise UsageError(
            f"--preprocess {text}: this graph takes whole numbers, the levels of a picture",
            "leave scale, mean and std out",
        )


def named_parts(text: str) -> set[str]:
    """Which of `PARTS` a text names."""
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
    name, equals, value = entry.partition("=")
    if not equals and name in WORDS:
        return WORDS[name]
    if not equals or name not in NUMBERS:
        known = ", ".join([*WORDS, *(f"{name}=" for name in NUMBERS)])
        raise UsageError(
            f"--preprocess '{text}': '{entry}' is unknown", f"the entries are: {known}"
        )
    kind, count, least, most = NUMBERS[name]
    numbers = _numbers(value, kind)
    if len(numbers) != count:
        wanted = "one number" if count == 1 else f"{count} numbers with colons between them"
        raise UsageError(f"--preprocess {entry}: '{value}' is not {wanted}", EXAMPLE)
    if not all(least <= number <= most for number in numbers):
        hint = f"use {least} or more" if most == math.inf else f"use {least} to {most}"
        raise UsageError(f"--preprocess {entry}: out of range", hint)
    if name == "std" and 0 in numbers:
        raise UsageError(f"--preprocess {entry}: nothing can be divided by 0", EXAMPLE)
    if name == Resize.SHORTEST_EDGE:
        return {"resize": Resize.SHORTEST_EDGE, "edges": numbers}
    return {name: numbers if count > 1 else numbers[0]}


def _numbers(value: str, kind: type[float]) -> tuple[float, ...]:
    """Finite numbers with colons between them; none if one is not."""
    try:
        numbers = tuple(map(kind, value.split(":")))
        return numbers if all(map(math.isfinite, numbers)) else ()
    except (ValueError, OverflowError):
        return ()


PREPROCESSOR = "preprocessor_config.json"
CONFIG = "config.json"
MAX_BYTES = (1 << 22) - 1  # of either file; names of some thousand classes take far less
MAX_CLASSES = 100_000
HINT = "mend the file, or move the model away from it"

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RESAMPLING = {2: Interpolation.BILINEAR, 3: Interpolation.BICUBIC}
"""Pillow's numbers of the filters that detcli has."""
EDGE_PROCESSORS = ("Detr", "Yolos", "ConditionalDetr", "DeformableDetr", "Deta", "GroundingDino")
LONGEST_EDGE = 1333  # their default, where a file gives the shortest edge alone
YOLOS_MULTIPLE = 16  # YolosImageProcessor rounds both sides down to a multiple of it


@dataclass(frozen=True, slots=True)
class Resizing:
    """How a processor fits pictures."""

    resize: Resize
    # height and width of the input, for all ways but SHORTEST_EDGE and NONE
    size: tuple[int, int] | None = None
    edges: tuple[int, int] | None = None
    multiple: int = 1


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What the files beside a model say."""

    path: Path | None  # the file that says how pictures are prepared; None if there is none
    sha256: str  # of the content of all files; what was made of them depends on it
    resizing: Resizing | None = None  # how pictures are fitted; None where that is not clear
    # how they are resampled; None for a filter that detcli lacks
    interpolation: Interpolation | None = None
    # scale, mean, std and order of the channels; None without a preprocessor_config.json
    values: Preprocessing | None = None
    # class names by class id; None where config.json does not give all
    names: tuple[str, ...] | None = None
    model_type: str | None = None  # what Transformers call the architecture
    # of all files, by name
    contents: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def read(cls, model: Path) -> Self | None:
        """Read the files beside a model, or in the folder above `onnx/`; None if there are none."""
        folder = model.absolute().parent
        for place in (folder, folder.parent) if folder.name == "onnx" else (folder,):
            contents = {name: _read_beside(place / name) for name in (PREPROCESSOR, CONFIG)}
            if found := cls._parsed(place, contents):
                return found
        return None

    @classmethod
    def _parsed(cls, folder: Path, contents: dict[str, bytes | ModelError | None]) -> Self | None:
        path = folder / PREPROCESSOR if contents[PREPROCESSOR] is not None else None
        processor = _object(folder / PREPROCESSOR, contents[PREPROCESSOR]) if path else {}
        try:
            config = _object(folder / CONFIG, contents[CONFIG])
        except ModelError:
            if path is not None:
                raise
            return None  # some other program's
        if path is None and not config.keys() & {"model_type", "id2label"}:
            return None
        parts = {name: part for name, part in contents.items() if isinstance(part, bytes)}
        digest = hashlib.sha256(b"".join(hashlib.sha256(one).digest() for one in parts.values()))
        kind = config.get("model_type")
        resizing = interpolation = values = None
        if path is not None:
            reader = _Processor(path, processor)
            resizing, values = reader.resizing(), reader.values()
            interpolation = RESAMPLING.get(reader.integer("resample", 2, least=0))
        return cls(
            path,
            digest.hexdigest(),
            resizing,
            interpolation,
            values,
            _names(config.get("id2label")),
            kind if isinstance(kind, str) else None,
            parts,
        )


def _read_beside(path: Path) -> bytes | ModelError | None:
    """A file's bytes; an error that counts only where the file does; None if there is none."""
    try:
        with open_regular(path, MAX_BYTES) as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return ModelError(f"cannot read {path}: {error.strerror}", HINT)


def _object(path: Path, content: bytes | ModelError | None) -> dict[str, Any]:
    """Parse a JSON object; no file is an empty one."""
    if isinstance(content, ModelError):
        raise content
    try:
        parsed = json.loads(content) if content is not None else {}
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON", HINT) from error
    if not isinstance(parsed, dict):
        raise ModelError(f"{path} is not a JSON object", HINT)
    return parsed


def _names(labels: object) -> tuple[str, ...] | None:
    """The names of `id2label`, if it has one for each id from 0 on."""
    if not isinstance(labels, dict) or not 0 < len(labels) <= MAX_CLASSES:
        return None
    names = tuple(labels.get(str(number)) for number in range(len(labels)))
    found = tuple(name for name in names if isinstance(name, str))
    return found if len(found) == len(names) else None


class _Processor:
    """Reads the fields of a preprocessor_config.json and checks them."""

    def __init__(self, path: Path, fields: dict[str, Any]) -> None:
        self._path, self._fields = path, fields
        kinds = (fields.get(key) for key in ("image_processor_type", "feature_extractor_type"))
        self._kind = next((kind for kind in kinds if isinstance(kind, str)), "")

    def values(self) -> Preprocessing:
        """Scale, mean, std and order of the channels."""
        bgr = self._flag("do_flip_channel_order", default=False)
        scale = self._number("rescale_factor", 1 / 255) if self._flag("do_rescale") else 1.0
        if not self._flag("do_normalize", default="image_mean" in self._fields):
            return Preprocessing(scale=scale, bgr=bgr)
        mean, std = self._three("image_mean", IMAGENET_MEAN), self._three("image_std", IMAGENET_STD)
        if 0 in std:
            raise self._error("image_std", "has a 0")
        return Preprocessing(scale=scale, mean=mean, std=std, bgr=bgr)

    def resizing(self) -> Resizing | None:
        """How pictures are fitted; None where detcli has no such way."""
        if not self._flag("do_resize"):
            return Resizing(Resize.NONE)
        size = self._fields.get("size")
        sides = size if isinstance(size, dict) else {}
        known = {name for name, value in sides.items() if value is not None}
        padded = self._padded()
        if known == {"height", "width"}:
            stretched = self._side(sides, "height"), self._side(sides, "width")
            return Resizing(Resize.STRETCH, stretched) if padded in {None, stretched} else None
        if known == {"max_height", "max_width"} and padded is not None:
            limits = self._side(sides, "max_height"), self._side(sides, "max_width")
            return Resizing(Resize.CORNER, padded) if limits == padded else None
        if isinstance(size, int) and self._kind.startswith(EDGE_PROCESSORS):
            longest = self._fields.get("max_size")
            sides = {"shortest_edge": size, "longest_edge": longest}
            known = {"shortest_edge"} if longest is None else {*sides}
        if "shortest_edge" not in known or known - {"shortest_edge", "longest_edge"} or padded:
            return None
        multiple = YOLOS_MULTIPLE if self._kind.startswith("Yolos") else 1
        most = self._side(sides, "longest_edge") if len(known) > 1 else LONGEST_EDGE
        edges = self._side(sides, "shortest_edge"), most
        return Resizing(Resize.SHORTEST_EDGE, edges=edges, multiple=multiple)

    def integer(self, name: str, default: int, *, least: int = 1) -> int:
        value = self._fields.get(name)
        return default if value is None else self._whole(name, value, least)

    def _padded(self) -> tuple[int, int] | None:
        """Height and width that pictures are padded to, if to any of their own."""
        size = self._fields.get("pad_size")
        if not isinstance(size, dict) or not self._flag("do_pad", default=False):
            return None
        return self._side(size, "height"), self._side(size, "width")

    def _side(self, sides: dict[str, Any], name: str) -> int:
        return self._whole(f"size, {name}", sides.get(name), 1)

    def _whole(self, name: str, value: object, least: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_SIDE:
            raise self._error(name, f"is not a whole number from {least} to {MAX_SIDE}")
        return value

    def _flag(self, name: str, *, default: bool = True) -> bool:
        value = self._fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._error(name, "is neither true nor false")
        return value

    def _number(self, name: str, default: float) -> float:
        value = self._fields.get(name, default)
        if not _finite(value):
            raise self._error(name, "is not a number")
        return float(value)

    def _three(self, name: str, default: tuple[float, float, float]) -> tuple[float, float, float]:
        value = self._fields.get(name)
        three = default if value is None else value
        if _finite(three):
            three = [three] * 3
        if not isinstance(three, (list, tuple)) or len(three) != 3 or not all(map(_finite, three)):
            raise self._error(name, "is neither a number nor three of them")
        return float(three[0]), float(three[1]), float(three[2])

    def _error(self, name: str, what: str) -> ModelError:
        return ModelError(f"{self._path}: {name} {what}", HINT)


def _finite(value: object) -> bool:
    try:
        return not isinstance(value, bool) and math.isfinite(value)  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        return False
