"""Entries: records, boxes and shapes in the format of a page's data, which `folder.py` has."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from detcli.config.shapes import Shape
from detcli.core import Fields, frozen
from detcli.core.text import escape_unprintable
from detcli.data.columns import OPTIONAL_COLUMNS, DetectionJson, OptionalColumn
from detcli.data.record import RecordJson
from detcli.sink.colours import BLACK, FIRST_ZONE_COLOUR, Colour, colour_of, ink

COPIED = {"width", "height", "frame", "time_s", "time"}  # as in the record


@frozen
class BoxKind:
    """A kind of boxes in a comparison: those that are missing, for instance."""

    name: str  # as it is shown
    colour: Colour  # of its boxes, BGR
    dashed: bool = False  # whether its boxes are
    wrong: bool = True  # whether images with such boxes come first
    side: int | None = None  # the only side that has such boxes, 0 or 1; None for both


class PageBox(NamedTuple):
    """A box on an image of a page."""

    class_id: int  # of the model
    class_name: str  # any string
    score: float | None  # from 0 to 1; None for an object of a label
    corners: Sequence[float]  # x1, y1, x2, y2 in pixels of the upright image
    kind: int | None = None  # its index among the run's kinds; None for a run without any
    # score and corners of the counterpart on the other side of a comparison
    counterpart: tuple[float | None, Sequence[float]] | None = None


def begin_entry(fields: RecordJson) -> Fields:
    """Make the entry of a record, with its source, size, time, error and warnings.

    Boxes and images are added to it afterwards. The module `page/folder.py` has the format.
    """
    entry: Fields = {"source": escape_unprintable(fields["source"])}
    for name, value in fields.items():
        if name in COPIED:
            entry[name] = value
    error = fields.get("error")
    if error:
        entry["error"] = [escape_unprintable(error[name]) for name in ("type", "message", "hint")]
    warnings = fields.get("warnings")
    if warnings:
        entry["warnings"] = [escape_unprintable(warning) for warning in warnings]
    return entry


def class_list(box: PageBox) -> list[Any]:
    """Return the class of a box as in the page's data: id, name and two colours."""
    colour, text_colour = css_colours(colour_of(box.class_id))
    return [box.class_id, escape_unprintable(box.class_name), colour, text_colour]


def box_list(box: PageBox, class_number: int) -> list[Any]:
    """Return a box as a list of values, as in the page's data: see `found` in `folder.py`.

    The values are the index of its class, the score, and the four coordinates. In a comparison, the
    kind of the box follows, and then the score and the coordinates of its counterpart.
    """
    values: list[Any] = [class_number, box.score]
    values += [round(coordinate, 1) for coordinate in box.corners]
    if box.kind is not None:
        values.append(box.kind)
    if box.counterpart is not None:
        score, corners = box.counterpart
        values.append(score)
        values += [round(coordinate, 1) for coordinate in corners]
    return values


def kind_list(kind: BoxKind) -> list[Any]:
    """Return a kind of boxes as in the page's data."""
    colour, text_colour = css_colours(kind.colour)
    return [kind.name, colour, text_colour, kind.dashed, kind.wrong, kind.side]


def coordinates(shape: Shape) -> list[float]:
    """Return the points of a zone or a line as in the page's data: x, y, x, y and so on."""
    numbers: list[float] = []
    for x, y in shape.points:
        numbers += [x, y]
    return numbers


def shape_lists(shapes: Iterable[Shape]) -> list[list[Any]]:
    """Return zones and lines as in the page's data; points are x, y, x, y and so on."""
    shape_lists: list[list[Any]] = []
    for number, shape in enumerate(shapes, start=FIRST_ZONE_COLOUR):
        colour, text_colour = css_colours(colour_of(number))
        shape_lists.append([shape.name, colour, text_colour, shape.fractions, coordinates(shape)])
    return shape_lists


def optional_lists(detections: Sequence[DetectionJson]) -> dict[str, list[Any]]:
    """Return what options such as --track add to detections, as lists with a value for each one.

    The keys are the names of the lists in the page's entry. A list without any values is left out.
    """
    lists = {}
    for column in OPTIONAL_COLUMNS:
        if column.page_list:
            values = [_page_value(column, detection) for detection in detections]
            if any(values):
                lists[column.page_list] = values
    return lists


def _page_value(column: OptionalColumn, fields: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """Return the value of an optional column for a detection, as in the page's data."""
    if column.name not in fields:
        return column.page_default
    return column.to_page(fields[column.name])


def css_colours(colour: Colour) -> tuple[str, str]:
    """Return a colour, and the colour of text that is readable on it, in CSS notation."""
    blue, green, red = colour
    text_colour = "#000" if ink(colour) == BLACK else "#fff"
    return f"#{red:02x}{green:02x}{blue:02x}", text_colour


def legible(value: object) -> object:
    """Return a copy of JSON data whose strings have unprintable characters escaped.

    Tuples, named ones too, become lists.
    """
    if isinstance(value, str):
        return escape_unprintable(value)
    if isinstance(value, Sequence):
        return [legible(item) for item in value]
    return value
