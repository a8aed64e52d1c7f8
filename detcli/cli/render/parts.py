"""What the tables of several commands are made of."""

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from detcli.printable import printable


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Titles and what there is to say of each, in two columns."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for title, value in rows:
        table.add_row(Text(printable(title)), Text(printable(value)))
    return table


def line(*parts: tuple[str, str]) -> Text:
    """A line of texts, each with its style."""
    return Text.assemble(*((printable(text), style) for text, style in parts), no_wrap=True)
