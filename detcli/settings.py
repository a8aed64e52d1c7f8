"""Classes as settings name them, for a model with these names."""

import difflib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from detcli.errors import UsageError


def class_ids(wanted: Iterable[str | int], names: tuple[str, ...]) -> frozenset[int] | None:
    """Class ids of names or ids; None if none are given.

    Raises:
        UsageError: The model has no such class.
    """
    chosen = set()
    for entry in wanted:
        if entry in names:
            chosen |= {index for index, name in enumerate(names) if name == entry}
        elif str(entry).isdecimal() and int(entry) < len(names):
            chosen.add(int(entry))
        else:
            raise UsageError(f"the model has no class '{entry}'", _class_hint(str(entry), names))
    return frozenset(chosen) or None


def _class_hint(wanted: str, names: tuple[str, ...]) -> str:
    """Suggest close matches of a name, or list the first of the model's names."""
    if close := difflib.get_close_matches(wanted, names):
        return f"did you mean {' or '.join(close)}?"
    more = ", ..." if len(names) > 10 else ""
    return f"its {len(names)} classes are: {', '.join(names[:10])}{more}"


def class_thresholds(
    conf: float, class_conf: Iterable[tuple[str | int, float]], names: tuple[str, ...]
) -> npt.NDArray[np.float32]:
    """The confidence that each class must exceed: `(C,)` float32.

    Raises:
        UsageError: The model has no such class.
    """
    thresholds = np.full(len(names), conf, np.float32)
    for entry, least in class_conf:
        thresholds[sorted(class_ids([entry], names) or ())] = least
    return thresholds
