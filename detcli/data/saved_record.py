"""Records and marks that are read back: they may be damaged, or come from a stranger."""

import json
import re
from collections.abc import Callable, Collection
from functools import cache
from typing import (
    Any,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from detcli.core import Fields
from detcli.core.text import escape_surrogates, escape_unprintable
from detcli.data.json_text import loads
from detcli.data.record import BOX, SCHEMA_VERSION, MarkJson, RecordJson, set_source

RECORD_START = b'{"schema_version"'
"""How the line of every record begins; that of a line cut off by a kill may be shorter."""

MAX_CLASS = 1_000_000  # class ids must be below this; no real model has a million classes
MAX_NUMBER = 1e15  # scores and corners must be below this, which float32 holds
MAX_WHOLE_NUMBER = (1 << 53) - 1  # float64 holds all whole numbers up to this one
MAX_SHOWN = 40  # characters of a value shown in an error

UNREAD = {"meta", "part"}  # fields that are checked where they are read
ANY_OBJECT = {"settings", "provenance"}  # objects whose fields differ by version

FIELDS_OF_FAILED_INPUT: tuple[str, ...] = ("schema_version", "source", "error")
"""The fields that a record must have whose input could not be read or detected."""

FIELDS_OF_IMAGE: tuple[str, ...] = ("schema_version", "source", "width", "height", "detections")
"""The fields that the record of any other input must have."""

BASE64 = re.compile("(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")

CHECKS: dict[str, Callable[[Any], object]] = {
    "schema_version": lambda number: number == SCHEMA_VERSION,
    "class_id": lambda number: number < MAX_CLASS,
    "width": bool,
    "height": bool,
    "corners": lambda corners: all(len(corner) == 2 for corner in corners),
    "box": lambda box: len(box) == len(BOX),
    "mark": lambda mark: mark in {"keep", "drop"},
    "repeated": bool,
    "box_fractions": lambda box: len(box) == len(BOX),
    **dict.fromkeys(("confirmed", "doubt", "earlier"), bool),
    "source_bytes": BASE64.fullmatch,
}
"""What a field of the right type has to be besides."""


@cache
def _field_types(typed_dict: Any) -> Fields:  # noqa: ANN401 - a TypedDict
    """Return the types of the fields of an object that are checked when it is read, by name."""
    types = {}
    for name, field_type in get_type_hints(typed_dict).items():
        if name in ANY_OBJECT:
            types[name] = dict
        elif name not in UNREAD:
            types[name] = field_type
    return types


@cache
def _origin_and_arguments(expected: Any) -> tuple[Any, Any]:  # noqa: ANN401 - an annotation
    """Split an annotation such as `list[int]` into its class, `list`, and its arguments, `int`.

    The arguments of a union are its members. A TypedDict is a `dict` without arguments here, as its
    fields are checked elsewhere.

    Examples:
        >>> _origin_and_arguments(list[int])
        (<class 'list'>, (<class 'int'>,))
        >>> _origin_and_arguments(str)
        (<class 'str'>, ())
    """
    if is_typeddict(expected):
        return dict, ()
    origin = get_origin(expected)  # None for a plain class
    return origin or expected, get_args(expected)


def _fault_of_value(value: Any, expected: Any, required: Collection[str] = ()) -> str | None:  # noqa: ANN401
    """Check that a JSON value has the expected type, and return what is wrong with it.

    Args:
        value: The value, which others may have written.
        expected: A type such as `float`, `list[int]` or a TypedDict. An `int` has to be 0 or more,
            a `float` finite.
        required: The fields that an object must have; all that its TypedDict requires if empty.

    Returns:
        The first fault with the path to it, as in "[3].score is null"; None if the value is right.
    """
    if not _is_instance(value, expected):
        return _describe(value)
    origin, arguments = _origin_and_arguments(expected)
    if is_typeddict(expected):
        return _fault_of_fields(value, expected, required or expected.__required_keys__)
    if origin is list:
        for index, element in enumerate(value):
            fault = _fault_of_value(element, arguments[0])
            if fault is not None:
                return f"[{index}]{fault}"
    return None


def _is_instance(value: Any, expected: Any) -> bool:  # noqa: ANN401
    """Return whether a JSON value has the expected type, without checking its elements or fields.

    So `["a"]` counts as a `list[int]`. But for a union, the elements are checked: `["a"]` is not a
    `list[int] | None`, as it is of neither member. An `int` has to be 0 or more, a `float` within
    the range that is read.
    """
    if expected is float:
        is_number = type(value) in {int, float}  # a bool is not
        return is_number and abs(value) < MAX_NUMBER  # NaN is less than no number
    if expected is int:
        return type(value) is int and 0 <= value <= MAX_WHOLE_NUMBER

    origin, arguments = _origin_and_arguments(expected)
    # Of the annotations of records, only lists and unions have arguments.
    is_union = bool(arguments) and origin is not list
    if not is_union:
        return isinstance(value, origin)
    for member in arguments:
        fault = _fault_of_value(value, member)
        if fault is None:
            return True
    return False


def _fault_of_fields(
    fields: Fields,
    typed_dict: Any,  # noqa: ANN401
    required: Collection[str],
) -> str | None:
    """Check the fields of a JSON object, and return what is wrong with the first faulty one.

    Args:
        fields: The object; fields that its TypedDict does not name are not checked.
        typed_dict: The types of its fields.
        required: The names of fields that must not be missing.

    Returns:
        The fault, as in ".score is null" or ".width is missing"; None if all fields are right.
    """
    for name, field_type in _field_types(typed_dict).items():
        if name not in fields:
            if name in required:
                return f".{name} is missing"
            continue
        value = fields[name]
        fault = _fault_of_value(value, field_type)
        if fault is None and name in CHECKS and not CHECKS[name](value):
            fault = _describe(value)
        if fault is not None:
            return f".{name}{fault}"
    return None


def _describe(value: Any) -> str:  # noqa: ANN401 - of a record that others wrote
    """Describe a faulty value for the end of a message, as in ` is null`."""
    return f" is {json.dumps(value, default=str)[:MAX_SHOWN]}"


def read_fields(where: str, fields: Any, **readers: Callable[[Any], Any]) -> list[Any]:  # noqa: ANN401
    """Read the given fields of a JSON object that others wrote, and convert each with its reader.

    Args:
        where: The name of the object in errors, such as "images[3]".
        fields: The object; other values are an error.
        readers: By the name of each field, the function that converts its value.

    Returns:
        The converted values, in the order of `readers`.

    Raises:
        ValueError: A field is missing or cannot be read, as in "images[3].id is null".
    """
    if not isinstance(fields, dict):
        message = f"{where}{_describe(fields)}"
        raise ValueError(message)  # noqa: TRY004 - as all that is wrong with it
    values = []
    for name, read in readers.items():
        if name not in fields:
            raise ValueError(f"{where}.{name} is missing")
        try:
            values.append(read(fields[name]))
        except (LookupError, TypeError, ValueError, OverflowError):
            raise ValueError(f"{where}.{name}{_describe(fields[name])}") from None
    return values


def finite(value: Any) -> float:  # noqa: ANN401 - text or JSON
    """Convert a value to a number; raises ValueError for NaN, and for MAX_NUMBER and above."""
    number = float(value)
    if not abs(number) < MAX_NUMBER:
        raise ValueError(f"{number:g} is out of range")
    return number


def coco_box(value: Any) -> tuple[float, float, float, float]:  # noqa: ANN401 - JSON
    """Check a box in COCO's form, a list of left, top, width and height; raises as `finite`."""
    left, top, width, height = value
    return finite(left), finite(top), finite(width), finite(height)


def to_record(fields: Any) -> RecordJson:  # noqa: ANN401 - JSON
    """Check that a value read from JSON is a record, and convert it from an earlier version.

    Args:
        fields: The value, which others may have written. If it is an error whose hint is null, the
            hint is replaced by an empty string, in place.

    Returns:
        The record. It has all fields that every reader needs; any other field may be missing.

    Raises:
        ValueError: It is not a record; the message says what is wrong.
    """
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - as all that is wrong with it
    if _has_usual_outline(fields) and _are_usual_detections(fields["detections"]):
        return cast("RecordJson", fields)  # the other checks would pass, ten times as slowly

    if fields.get("schema_version") == 1:
        fields = _converted_to_version_2(fields)
    error = fields.get("error")
    if isinstance(error, dict) and "hint" in error and error["hint"] is None:
        error["hint"] = ""

    required = FIELDS_OF_IMAGE
    if "error" in fields:
        required = FIELDS_OF_FAILED_INPUT
    fault = _fault_of_value(fields, RecordJson, required)
    if fault is not None:
        raise ValueError(fault.removeprefix("."))  # ".width is missing" without its dot
    return cast("RecordJson", fields)


def _loads_or_none(line: bytes) -> Any:  # noqa: ANN401 - JSON
    """Read a line of JSON; None, which is not a record either, if it is not JSON."""
    try:
        return loads(line)
    except (ValueError, RecursionError):
        return None


def parse_record(line: bytes) -> RecordJson:
    """Parse a line of JSON Lines as a record.

    Raises:
        ValueError: It is not a record; the message says what is wrong.
        RecursionError: It is nested too deeply.
    """
    fields = _loads_or_none(line)
    return to_record(fields)


_OUTLINE_TYPES: dict[str, type] = {
    "schema_version": int,
    "source": str,
    "index": int,
    "input": int,
    "frame": int,
    "time_s": float,
    "time": str,
    "taken": str,
    "taken_offset": str,
    "burst": int,
    "burst_score": float,
    "width": int,
    "height": int,
    "detections": list,
    "model": str,
    "device": str,
    "precision": str,
    "sha256": str,
    "file_stamp": str,
}
"""The fields that most records have, with the class of their values."""


def parse_outline(line: bytes) -> RecordJson:
    """Parse a line of JSON Lines as a record, without checking the individual detections.

    This is for those who read a million records to know which inputs they belong to. It takes a
    quarter of the time of `parse_record`, most of which goes into detections. A record that fails
    this quick check, such as that of a failed input, goes through the full one.

    Raises:
        ValueError: It is not a record; the message says what is wrong.
        RecursionError: It is nested too deeply.
    """
    fields = _loads_or_none(line)
    if isinstance(fields, dict) and _has_usual_outline(fields):
        return cast("RecordJson", fields)
    return to_record(fields)


def _has_usual_outline(fields: Fields) -> bool:
    """Return whether a JSON object is an ordinary record of an image, by a quick check.

    Such a record has no other fields than most records have, with values of the right types. The
    detections are not looked at. If this is False, the object may still be a record: the full check
    decides.
    """
    for name, value in fields.items():
        if type(value) is not _OUTLINE_TYPES.get(name):
            return False
        if type(value) is int and not 0 <= value <= MAX_WHOLE_NUMBER:
            return False
        if type(value) is float and not abs(value) < MAX_NUMBER:  # nor NaN
            return False
    if fields.get("schema_version") != SCHEMA_VERSION or "source" not in fields:
        return False
    has_size = fields.get("width", 0) > 0 and fields.get("height", 0) > 0
    return has_size and "detections" in fields


_USUAL_DETECTION = {"class_id", "class_name", "score", *BOX}
"""The fields of a detection without those that only options add."""


def _are_usual_detections(detections: list[Any]) -> bool:
    """Return whether every item of a JSON list is an ordinary detection, by a quick check.

    Such a detection has exactly the fields of `_USUAL_DETECTION`, without those that only options
    add. If this is False, the items may still be detections: the full check decides.
    """
    for detection in detections:
        if type(detection) is not dict or detection.keys() != _USUAL_DETECTION:
            return False

        class_id = detection["class_id"]
        if type(class_id) is not int or not 0 <= class_id < MAX_CLASS:
            return False
        if type(detection["class_name"]) is not str:
            return False

        for name in ("score", *BOX):
            number = detection[name]
            if type(number) is not float or not abs(number) < MAX_NUMBER:
                return False
    return True


def parse_scored(line: bytes) -> RecordJson:
    """Parse a line of JSON Lines as a record, and check only class and score of its detections.

    This is for those who count a million records by class and score, and look at no box. A record
    that fails this quick check, such as one whose detections have zones, goes through the full one.

    Raises:
        ValueError: It is not a record; the message says what is wrong.
        RecursionError: It is nested too deeply.
    """
    record = parse_outline(line)
    for detection in record.get("detections", ()):
        if not _has_usual_score(detection):
            return parse_record(line)
    return record


FIELDS_TO_CHECK = frozenset({"zones", "classified", "repeated"})
"""Fields of a detection that commands that count scores also look at."""


def _has_usual_score(detection: Any) -> bool:  # noqa: ANN401 - JSON
    """Return whether a detection has a class and a score, and no zones or repeats: a quick check.

    If this is False, the JSON value may still be a detection: the full check decides.
    """
    if type(detection) is not dict or not FIELDS_TO_CHECK.isdisjoint(detection):
        return False
    class_id = detection.get("class_id")
    score = detection.get("score")
    if type(class_id) is not int or type(score) is not float:
        return False
    has_name = type(detection.get("class_name")) is str
    return has_name and 0 <= class_id < MAX_CLASS and abs(score) < MAX_NUMBER


def to_marks(value: Any) -> list[MarkJson]:  # noqa: ANN401 - JSON
    """Check that a value read from JSON is a list of marks.

    Raises:
        ValueError: It is not; the message says what is wrong.
    """
    fault = _fault_of_value(value, list[MarkJson])
    if fault is not None:
        raise ValueError(f"marks{fault}")

    # A key that is passed over could be what limits the mark: without it, it might drop an image
    # where only a box was meant.
    known_keys = MarkJson.__annotations__.keys()
    for number, mark in enumerate(value):
        for key in mark:
            if key not in known_keys:
                name = escape_unprintable(key)
                raise ValueError(f"marks[{number}].{name} is not a key of a mark")
    return cast("list[MarkJson]", value)


def _converted_to_version_2(fields: Fields) -> Fields:
    """Convert a record of version 1 of the JSON format to version 2.

    It may be damaged: what does not have the form of version 1 is left as it is, for the check that
    follows. The field `input`, which version 1 lacks, stays missing.
    """
    converted: Fields = escape_surrogates({**fields, "schema_version": SCHEMA_VERSION})
    source = fields.get("source")
    if isinstance(source, str):
        set_source(cast("RecordJson", converted), source)

    # Version 1 has device and precision in one field, as in "openvino:CPU (bf16)".
    device_and_precision = re.fullmatch(r"(.+) \((\w+)\)", str(fields.get("device")))
    if device_and_precision is not None:
        converted["device"] = device_and_precision[1]
        converted["precision"] = device_and_precision[2]

    detections = converted.get("detections")
    if isinstance(detections, list):
        converted["detections"] = [_detection_in_version_2(detection) for detection in detections]
    return converted


def _detection_in_version_2(fields: Any) -> Any:  # noqa: ANN401 - JSON
    """Convert a detection of version 1 of the JSON format to version 2.

    Version 1 has the box in a list, version 2 in the fields x1, y1, x2 and y2, which come after the
    class and the score. A detection that is damaged is returned as it is.
    """
    if not isinstance(fields, dict):
        return fields
    box: Any = fields.get("box")
    is_list_of_numbers = _fault_of_value(box, list[float]) is None
    if not is_list_of_numbers or len(box) != len(BOX):
        return fields

    remaining = dict(fields)
    del remaining["box"]
    converted = {}
    for name in ("class_id", "class_name", "score"):
        converted[name] = remaining.pop(name, None)
    converted.update(zip(BOX, box, strict=True))
    converted.update(remaining)
    return converted
