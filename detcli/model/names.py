"""Class names: from a file, from a model's metadata, or COCO's."""

import ast
import contextlib
import json
from pathlib import Path
from typing import Any

from detcli.errors import UsageError

# The 80 classes of COCO 2017, in the order of YOLO models.
COCO = tuple(
    "person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, "
    "fire hydrant, stop sign, parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, "
    "bear, zebra, giraffe, backpack, umbrella, handbag, tie, suitcase, frisbee, skis, snowboard, "
    "sports ball, kite, baseball bat, baseball glove, skateboard, surfboard, tennis racket, "
    "bottle, wine glass, cup, fork, knife, spoon, bowl, banana, apple, sandwich, orange, "
    "broccoli, carrot, hot dog, pizza, donut, cake, chair, couch, potted plant, bed, "
    "dining table, toilet, tv, laptop, mouse, remote, keyboard, cell phone, microwave, oven, "
    "toaster, sink, refrigerator, book, clock, vase, scissors, teddy bear, hair drier, "
    "toothbrush".split(", ")
)

# COCO numbers these classes from 1 to 90; ten numbers are unused.
UNUSED = frozenset({12, 26, 29, 30, 45, 66, 68, 69, 71, 83})
COCO_IDS = tuple(number for number in range(1, 91) if number not in UNUSED)
COCO_FROM = {91: 0, 90: 1}
"""COCO's number of the first class, by the number of classes, in models that keep unused numbers.

DETR, RF-DETR and torchvision begin at 0, which is unused; TensorFlow's models at 1.
"""

METADATA = "the model's metadata"
"""The origin of names that the model itself provides."""

MAX_TEXT, MAX_NAME = 1 << 20, 1000
"""Characters of all names, as Python's parser takes hundreds of bytes for each, and of one name.

The 20,000 names of ImageNet take half of it.
"""

NOT_A_LITERAL = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)


def parse_names(text: str) -> list[str] | None:
    """Read names from a list or a mapping by class id, in JSON or Python notation.

    Exporters write `{0: 'person', 1: 'car'}`; a gap in the ids becomes `class_1`.
    Returns None for anything else.
    """
    value = _parsed(text) if len(text) <= MAX_TEXT else None
    if not isinstance(value, dict):
        value = dict(enumerate(value)) if isinstance(value, list | tuple) else {}
    try:
        by_id = {int(key): str(name) for key, name in value.items()}
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    if not by_id or min(by_id) < 0 or max(by_id) >= 2 * len(by_id) + 100:
        return None
    if any(len(name) > MAX_NAME for name in by_id.values()):
        return None
    return [by_id.get(index, f"class_{index}") for index in range(max(by_id) + 1)]


def _parsed(text: str) -> Any:  # noqa: ANN401 - whatever it says
    """What a text says in JSON or Python notation; None for anything else."""
    try:
        return json.loads(text)
    except ValueError:
        with contextlib.suppress(*NOT_A_LITERAL):
            return ast.literal_eval(text)
    except RecursionError:
        pass
    return None


def class_names(text: str, count: int) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """Names of a model's classes, their origin, and warnings about them.

    Args:
        text: The metadata entry `names`; empty if there is none.
        count: The number of classes of the graph.
    """
    names = parse_names(text)
    if names and len(names) == count:
        return tuple(names), METADATA, ()
    if names:
        warning = f"the metadata names {len(names)} classes, the graph has {count}"
        filled = [*names[:count], *(f"class_{i}" for i in range(len(names), count))]
        return tuple(filled), METADATA, (warning,)
    if count == len(COCO):
        return COCO, "COCO, since the model names none of its 80 classes", ()
    if (first := COCO_FROM.get(count)) is not None:
        known = dict(zip(COCO_IDS, COCO, strict=True))
        numbered = (known.get(first + i, f"class_{i}") for i in range(count))
        origin = f"COCO by its numbers, since the model names none of its {count} classes"
        return tuple(numbered), origin, ()
    return tuple(f"class_{i}" for i in range(count)), "numbers, since the model names none", ()


def read_names(path: Path) -> tuple[str, ...]:
    """Read a names file: one name per line in class id order, or JSON (a list or a mapping).

    Raises:
        UsageError: The file cannot be read or has no names.
    """
    hint = "give a text file with one class name per line, or a JSON list"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read names from {path}: {error.strerror}", hint) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"cannot read names from {path}: it is not UTF-8 text", hint) from error
    if text.lstrip().startswith(("{", "[")):
        names = parse_names(text)
    else:
        lines = text.rstrip().splitlines()
        names = [line.strip() or f"class_{index}" for index, line in enumerate(lines)]
    if not names:
        raise UsageError(f"no class names in {path}", hint)
    return tuple(names)
