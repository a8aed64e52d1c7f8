"""Records as JSON text, byte for byte as Python's `json` module writes them, but faster.

Most of the time of `json` goes into numbers, which orjson writes ten times faster. But orjson puts
no spaces after commas and colons. So it writes the numbers only, and they are put between the
strings that all detections of a class have in common. Without orjson, which has no wheels for
free-threaded Pythons, `json` writes everything.
"""

import functools
import json
from typing import Any

import numpy as np
import numpy.typing as npt

from detcli.core.text import escape_surrogates
from detcli.data.columns import DETECTED_COLUMNS
from detcli.data.detections import Detections, rounded

try:
    import orjson

    has_orjson = True
except ImportError:
    has_orjson = False

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)

MARKS_OF_OTHER_TEXT = ("e", "0.0000", "n")
"""Text by which a list of orjson may differ from that of `json`, or `json` may refuse the list.

It is in numbers with an exponent, such as 1e+16; in those below 0.0001, which Python writes with an
exponent; and in null, which stands for infinity and NaN. A few other numbers have it, too.
"""


def encode(value: Any) -> str:  # noqa: ANN401 - JSON
    """Encode a value as one line of JSON, with characters beyond ASCII as they are.

    Raises:
        ValueError: A number is infinite, or not a number.
    """
    return _ENCODER.encode(value)


def loads(text: bytes) -> Any:  # noqa: ANN401 - JSON
    """Read JSON as `json` does, three times as fast where orjson is installed.

    orjson refuses what strict readers refuse, such as NaN and halves of surrogate pairs, which
    records of earlier versions may have. That is left to `json`, and so are its errors.

    Raises:
        ValueError: It is not JSON.
        RecursionError: It is nested too deeply.
    """
    if not has_orjson:
        return json.loads(text)
    try:
        return orjson.loads(text)
    except ValueError:
        return json.loads(text)


def encode_detections(detections: Detections) -> str:
    """Encode detections as a list in JSON: the string that `encode` makes of their `to_dict`.

    That takes long for many numbers. orjson writes them all at once, and is used where it writes
    them as Python does.
    """
    if not has_orjson or _has_optional_fields(detections):
        return encode(detections.to_dict())
    numbers = rounded(detections)  # (N, 5): score, x1, y1, x2, y2
    texts = _number_texts(numbers)  # five for each detection, one detection after the other
    if texts is None:
        return encode(detections.to_dict())

    class_fields = _class_fields(detections.names)  # strings such as '"class_id": 0, ...'
    scores = texts[0::5]
    left, top, right, bottom = (texts[column::5] for column in range(1, 5))
    objects = []
    for class_id, score, x1, y1, x2, y2 in zip(
        detections.class_id.tolist(), scores, left, top, right, bottom, strict=True
    ):
        box = f'"x1": {x1}, "y1": {y1}, "x2": {x2}, "y2": {y2}'
        objects.append(f'{{{class_fields[class_id]}, "score": {score}, {box}}}')
    return f"[{', '.join(objects)}]"


def _has_optional_fields(detections: Detections) -> bool:
    """Return whether detections have more than a class, a score and a box, such as tracks."""
    for column in DETECTED_COLUMNS:  # noqa: SIM110 - `any` takes twice as long
        if getattr(detections, column.array) is not None:
            return True
    return False


def _number_texts(numbers: npt.NDArray[np.float64]) -> list[str] | None:
    """Return the text of each number of an array, row by row, as Python writes it.

    None if orjson, which is faster, may not write all of them as Python does.
    """
    if numbers.size == 0:
        return []
    flat_numbers = numbers.ravel()
    json_list = orjson.dumps(flat_numbers, option=orjson.OPT_SERIALIZE_NUMPY).decode("ascii")
    for mark in MARKS_OF_OTHER_TEXT:
        if mark in json_list:
            return None
    return json_list[1:-1].split(",")  # it is a list such as "[0.5,10.0]"


@functools.lru_cache(maxsize=16)  # one for each model of the process
def _class_fields(names: tuple[str, ...]) -> list[str]:
    """Return the two fields of JSON that all detections of a class share, by class id."""
    class_fields = []
    for class_id, name in enumerate(names):
        name_text = encode(escape_surrogates(name))
        class_fields.append(f'"class_id": {class_id}, "class_name": {name_text}')
    return class_fields
