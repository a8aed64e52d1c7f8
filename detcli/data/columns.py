"""The fields of a detection in a record, and a table of those that only options add.

The formats know these only from the table: a new one is a field of `DetectionJson`, a row of
`OPTIONAL_COLUMNS`, and an array of `Detections` or an attribute of `Barcode`.
"""

import base64
from collections.abc import Callable, Sequence
from typing import Any, Final, NotRequired, TypedDict, get_type_hints

from detcli.core import frozen
from detcli.core.text import escape_surrogates, escape_unprintable
from detcli.data.barcode import Barcode


class CrossingJson(TypedDict):
    """A line that was crossed."""

    line: str  # its name
    to: str  # the side, left or right as one goes from its first point to its second


class DetectionJson(TypedDict):
    """A detection."""

    class_id: int
    class_name: str
    score: float  # to 6 decimals
    x1: float  # its left side in pixels of the upright image, to 2 decimals
    y1: float  # its upper side
    x2: float  # its right side
    y2: float  # its lower side
    # id of the object in its video; with --track, once the tracker is sure
    track_id: NotRequired[int]
    # name of the class that this track had most often so far; with track_id
    track_class: NotRequired[str]
    # names of the zones that the middle of its lower side is in; with --zone
    zones: NotRequired[list[str]]
    # lines that it has crossed since the previous frame; with --line
    crossed: NotRequired[list[CrossingJson]]
    # the decoded text; null if the symbol could not be read or is binary; with --read
    text: NotRequired[str | None]
    # symbology of a symbol that was read: QR Code, EAN-13; for a marker, its dictionary
    symbology: NotRequired[str]
    bytes: NotRequired[str]  # binary content, in base64
    # true where it is a detection only because it was read; its score is 1 then
    confirmed: NotRequired[bool]
    # true where nothing in the symbology tells wrong text from right: no check digit, no error
    # correction
    doubt: NotRequired[bool]
    # true where the text was read in an earlier frame of this track, not in this one; with --track
    earlier: NotRequired[bool]
    # x and y of the symbol's corners in pixels, to 1 decimal: top left, top right, bottom right and
    # bottom left, were it upright; also for one that was located but not read
    corners: NotRequired[list[list[float]]]
    # class that another network assigned to its crop; with merge --classified
    classified: NotRequired[str]
    classified_score: NotRequired[float]  # the score of that class, if it is known
    # id of the group of repeats that it is in, from 1, which a person has dropped on a page of
    # `detcli report --repeated`; with --apply
    repeated: NotRequired[int]


class Absent:
    """Stands for a field that a detection does not have."""


ABSENT: Final = Absent()


def _unchanged(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the value as it is: most columns have the value of JSON in the other formats, too."""
    return value


_TYPES = get_type_hints(DetectionJson)


@frozen
class OptionalColumn:
    """A field of a detection that only an option adds, and how each format writes it."""

    name: str  # of the field, and of the column in CSV and Parquet
    # the field of `Watched` or `Outputs` that adds it; empty for what only merge adds
    option: str
    setting: str | None  # the field of `SettingsJson` in which a run notes this; None if nowhere
    array: str  # the array of `Detections` that it is made from
    # the value in JSON, made from an element of that array; ABSENT where there is none
    to_json: Callable[[Any], Any]
    to_csv: Callable[[Any], Any] = _unchanged  # the cell in CSV, made from the value in JSON
    heading: str = ""  # in the table for people; empty for a column that this does not have
    page_list: str = ""  # the list in the data of a page; empty for what a page does not show
    # the value in that list, made from the value in JSON
    to_page: Callable[[Any], Any] = _unchanged
    page_default: Any = None  # the value in that list for a detection that does not have the field

    @property
    def type(self) -> Any:  # noqa: ANN401 - an annotation
        """The type of the value in JSON."""
        return _TYPES[self.name]


def _track_id(number: int) -> int | Absent:
    """Return the id of a track; absent until the tracker is sure of the object."""
    if number > 0:
        return int(number)
    return ABSENT


def _track_class(name: str | None) -> str | Absent:
    """Return the class of a track; absent if there is no track."""
    if name is None:
        return ABSENT
    escaped: str = escape_surrogates(name)
    return escaped


def _zones(names: tuple[str, ...]) -> list[str]:
    """Return the names of the zones that a detection is in."""
    return [escape_surrogates(name) for name in names]


def _crossings(crossings: Sequence[tuple[str, str]]) -> list[CrossingJson]:
    """Return the lines that a detection has crossed, each with the side that it went to."""
    return [{"line": escape_surrogates(line), "to": side} for line, side in crossings]


def _text(barcode: Barcode | None) -> str | None:
    """Return the text of a barcode; None if it was not read, or is binary."""
    if barcode is None:
        return None
    return barcode.text


def _symbology(barcode: Barcode | None) -> str | Absent:
    """Return the symbology of a barcode, such as QR Code; absent if it was not read."""
    if barcode is None or not barcode.symbology:
        return ABSENT
    return barcode.symbology


def _bytes(barcode: Barcode | None) -> str | Absent:
    """The content in base64, for a barcode that was read but does not hold text."""
    if barcode is None or not barcode.symbology or barcode.text is not None:
        return ABSENT
    return base64.b64encode(barcode.content).decode("ascii")


def _confirmed(barcode: Barcode | None) -> bool | Absent:
    """Return true for a detection that is one only because its barcode was read; else absent."""
    if barcode is not None and barcode.confirmed:
        return True
    return ABSENT


def _doubt(barcode: Barcode | None) -> bool | Absent:
    """Return true for a barcode whose symbology has no check of the text; else absent."""
    if barcode is not None and barcode.doubt:
        return True
    return ABSENT


def _earlier(barcode: Barcode | None) -> bool | Absent:
    """Return true for a barcode that was read in an earlier frame of its track; else absent."""
    if barcode is not None and barcode.earlier:
        return True
    return ABSENT


def _corners(barcode: Barcode | None) -> list[list[float]] | Absent:
    """Return the four corners of a barcode, x and y each; absent if it was not located."""
    if barcode is None or not len(barcode.corners):
        return ABSENT
    corners: list[list[float]] = barcode.corners.round(1).tolist()
    return corners


def _repeated(number: int) -> int | Absent:
    """Return the id of a group of repeats; absent for a detection that is in none."""
    if number > 0:
        return int(number)
    return ABSENT


def _crossings_text(crossings: list[CrossingJson]) -> str:
    """Format crossed lines for a cell of CSV, as in `gate:left road:right`."""
    return " ".join(f"{crossing['line']}:{crossing['to']}" for crossing in crossings)


def _corners_text(corners: list[list[float]]) -> str:
    """Format corners for a cell of CSV, as in `1.0,2.0 30.0,2.0`."""
    return " ".join(f"{x},{y}" for x, y in corners)


def _printable_zones(names: list[str]) -> list[str]:
    """Return names of zones with unprintable characters escaped."""
    return [escape_unprintable(name) for name in names]


def _printable_crossings(crossings: list[CrossingJson]) -> list[list[str]]:
    """Return crossed lines as in the page, `[line, side]`, with characters escaped."""
    return [
        [escape_unprintable(crossing["line"]), escape_unprintable(crossing["to"])]
        for crossing in crossings
    ]


def _printable_text(text: str | None) -> str:
    """Return a string with unprintable characters escaped; empty if there is none."""
    return escape_unprintable(text or "")


OPTIONAL_COLUMNS = (
    OptionalColumn(
        name="track_id",
        option="track",
        setting="track",
        array="track_id",
        to_json=_track_id,
        heading="track",
        page_list="tracks",
        page_default=0,
    ),
    OptionalColumn(
        name="track_class",
        option="track",
        setting="track",
        array="track_class",
        to_json=_track_class,
    ),
    OptionalColumn(
        name="zones",
        option="zone",
        setting="zones",
        array="zones",
        to_json=_zones,
        to_csv=" ".join,
        heading="zones",
        page_list="zones",
        to_page=_printable_zones,
        page_default=[],
    ),
    OptionalColumn(
        name="crossed",
        option="line",
        setting="lines",
        array="crossed",
        to_json=_crossings,
        to_csv=_crossings_text,
        page_list="crossed",
        to_page=_printable_crossings,
        page_default=[],
    ),
    OptionalColumn(
        name="text",
        option="read",
        setting="read",
        array="symbols",
        to_json=_text,
        heading="text",
        page_list="texts",
        to_page=_printable_text,
        page_default="",
    ),
    OptionalColumn(
        name="symbology",
        option="read",
        setting="read",
        array="symbols",
        to_json=_symbology,
        heading="symbology",
    ),
    OptionalColumn(name="bytes", option="read", setting="read", array="symbols", to_json=_bytes),
    OptionalColumn(
        name="confirmed", option="read", setting="read", array="symbols", to_json=_confirmed
    ),
    OptionalColumn(name="doubt", option="read", setting="read", array="symbols", to_json=_doubt),
    OptionalColumn(
        name="earlier", option="read", setting="read", array="symbols", to_json=_earlier
    ),
    OptionalColumn(
        name="corners",
        option="read",
        setting="read",
        array="symbols",
        to_json=_corners,
        to_csv=_corners_text,
        page_list="corners",
        page_default=[],
    ),
    OptionalColumn(
        name="classified",
        option="",
        setting=None,
        array="",
        to_json=_unchanged,
        heading="classified",
        page_list="classified",
        to_page=_printable_text,
        page_default="",
    ),
    OptionalColumn(name="classified_score", option="", setting=None, array="", to_json=_unchanged),
    OptionalColumn(
        name="repeated",
        option="apply",
        setting=None,
        array="repeated",
        to_json=_repeated,
        heading="repeated",
        page_list="repeated",
        page_default=0,
    ),
)
"""In the order of `DetectionJson`, which all formats use."""

DETECTED_COLUMNS = tuple(column for column in OPTIONAL_COLUMNS if column.array)
"""Those that options of a run add, and that are made from the arrays of `Detections`."""

CLASSIFIED_COLUMNS = ("classified", "classified_score")
"""Those that `merge --classified` adds to records."""
