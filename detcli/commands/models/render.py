"""What `detcli models list` found, for people."""

from collections.abc import Iterator

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from detcli.commands.models.listing import ListedFile, ListedModel, Listing, State

STYLES = {State.BUNDLED: "green", State.FETCHED: "green", State.MISSING: "red", State.TO_FETCH: ""}


def render(listing: Listing) -> Iterator[Table]:
    """Lay out a listing: a line a model, and one below it for a float16 file that was fetched."""
    table = Table("model", "", "size", "licence", "from", "revision", box=None, pad_edge=False)
    table.columns[2].justify = "right"
    for model in listing.models:
        for file in model.files:
            if not file.half or file.state is State.FETCHED:
                table.add_row(
                    "  --half" if file.half else model.name,
                    Text(file.state, STYLES[file.state]),
                    _size(model, file),
                    model.licence,
                    model.repository or "detcli",
                    (file.revision or "")[:7],
                )
    yield table


def _size(model: ListedModel, file: ListedFile) -> str:
    """Its size; where it has not been fetched, what its parameters take, four bytes each."""
    if file.bytes is not None:
        return decimal(file.bytes)
    return "" if model.parameters is None else f"~{decimal(4 * model.parameters)}"
