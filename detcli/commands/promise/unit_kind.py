"""What a reviewer looks at and answers at once, as `--unit` says it."""

from enum import StrEnum
from typing import Self

from detcli.config.values import parse_duration
from detcli.core import frozen
from detcli.core.errors import UsageError
from detcli.core.text import looks_like_address, public_name

HINT = "write image, burst:60s, folder or meta:KEY"


class Grouping(StrEnum):
    """How records become units."""

    IMAGE = "image"
    BURST = "burst"
    FOLDER = "folder"
    META = "meta"


@frozen
class UnitKind:
    """What a unit is: an image or video, burst, folder, or all that a list gives the same value."""

    grouping: Grouping
    gap_s: float = 0.0  # between two images of a burst, at most
    key: str = ""  # in the `meta` of records

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `image`, `burst:60s`, `folder` or `meta:KEY`.

        Raises:
            UsageError: It is none of these.
        """
        if looks_like_address(text):
            raise UsageError(f"--unit {public_name(text)} is an address", HINT)
        name, _, value = text.partition(":")
        if text in {"image", "folder"}:
            return cls(Grouping(text))
        if name == "burst" and value:
            return cls(Grouping.BURST, gap_s=parse_duration(value))
        if name == "meta" and value:
            return cls(Grouping.META, key=value)
        raise UsageError(f"--unit '{text}' is not a unit", HINT)

    def __str__(self) -> str:
        if self.grouping is Grouping.BURST:
            return f"burst:{self.gap_s:.12g}s"
        if self.grouping is Grouping.META:
            return f"meta:{self.key}"
        return self.grouping

    @property
    def noun(self) -> str:
        """The name of a unit in messages: an image, although it may be a video."""
        if self.grouping is Grouping.META:
            return "unit"
        return self.grouping
