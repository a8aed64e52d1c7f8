"""What `detcli convert` is asked for, by the names of its options."""

from dataclasses import fields

from detcli.commands.convert.options import ConversionOptions
from detcli.core.config import Config, Settings


def conversion(*, metadata=None, contract=False, **options):
    own = {one.name for one in fields(ConversionOptions)}
    settings = Settings(**{name: options[name] for name in options.keys() - own})
    entries = [*(metadata or {}).items(), *[("", "")] * contract]
    own = {name: options[name] for name in options.keys() & own}
    return ConversionOptions(Config(settings=settings), metadata=tuple(entries), **own)
