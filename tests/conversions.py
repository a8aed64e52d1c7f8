"""What `detcli convert` is asked for, by the names of its options, and conversions on a picture."""

from dataclasses import fields

import colour_model

from detcli.commands.convert.options import ConversionOptions
from detcli.commands.convert.run import convert
from detcli.config.config import Config, Settings
from detcli.data.geometry import Picture
from detcli.data.record import Origin
from detcli.model.zoo import find
from detcli.source.loading import Item

SQUARES = colour_model.picture(("red", 1, 2), ("blue", 5, 5))
PICTURE = Picture.whole(SQUARES)
ITEM = Item(Origin("squares.png"), lambda: PICTURE)


def conversion(*, metadata=None, contract=False, **options):
    own = {one.name for one in fields(ConversionOptions)}
    settings = Settings(**{name: options[name] for name in options.keys() - own})
    entries = [*(metadata or {}).items(), *[("", "")] * contract]
    own = {name: options[name] for name in options.keys() & own}
    return ConversionOptions(Config(settings=settings), metadata=tuple(entries), **own)  # type: ignore[arg-type]


def converted(path, output, item=ITEM, pictures=None, **options):
    """Convert a file; returns the report."""
    return convert(find(path), conversion(output=output, **options), item, pictures)
