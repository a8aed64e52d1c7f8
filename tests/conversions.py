"""What `detcli convert` is asked for, by the names of its options, and conversions on an image."""

from dataclasses import fields

import colour_model

from detcli.commands.convert.options import ConversionOptions
from detcli.commands.convert.run import convert
from detcli.config.config import Config, Settings
from detcli.data.geometry import Image
from detcli.data.record import Origin
from detcli.model.zoo import find
from detcli.source.loading import Item

SQUARES = colour_model.image(("red", 1, 2), ("blue", 5, 5))
IMAGE = Image.whole(SQUARES)
ITEM = Item(Origin("squares.png"), lambda: IMAGE)


def conversion(*, metadata=None, contract=False, **options):
    """The options of a conversion; an option that `convert` alone does not have is a setting."""
    names = {field.name for field in fields(ConversionOptions)}
    settings = {}
    conversion_options = {}
    for name, value in options.items():
        if name in names:
            conversion_options[name] = value
        else:
            settings[name] = value

    entries = list((metadata or {}).items())
    if contract:
        entries.append(("", ""))
    config = Config(settings=Settings(**settings))
    return ConversionOptions(config, metadata=tuple(entries), **conversion_options)


def converted(path, output, item=ITEM, images=None, **options):
    """Convert a file; returns the report."""
    return convert(find(path), conversion(output=output, **options), item, images)
