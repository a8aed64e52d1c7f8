"""Python's garbage collector while a command starts, when next to nothing is garbage."""

import gc

SELDOM = 100_000
"""How many more objects are made than freed before garbage is collected, while modules load.

Python's own number is 700: it would check a hundred times what the modules keep.
"""

_usual_thresholds: list[tuple[int, int, int]] = []  # what was set before `collect_seldom`


def collect_seldom() -> None:
    """Collect garbage rarely until `collect_as_usual` is called: for a process that is starting."""
    _usual_thresholds.append(gc.get_threshold())
    gc.set_threshold(SELDOM)


def collect_as_usual() -> None:
    """Collect garbage as often as before `collect_seldom`, if that was called.

    Objects made until now are assumed to be kept by the process, and are not checked again.
    """
    if _usual_thresholds:
        gc.freeze()
        gc.set_threshold(*_usual_thresholds.pop())
