"""Python's garbage collector while a command starts, when next to nothing is garbage."""

import gc

SELDOM = 100_000
"""How many more objects are made than freed until garbage is looked for, while modules load.

Python's own number is 700: it would look a hundred times at what the modules keep.
"""

_usual_thresholds: list[tuple[int, int, int]] = []  # what was set before `collect_seldom`


def collect_seldom() -> None:
    """Look for garbage seldom, until `collect_as_usual` is called: for a process that starts."""
    _usual_thresholds.append(gc.get_threshold())
    gc.set_threshold(SELDOM)


def collect_as_usual() -> None:
    """Look for garbage as often as before `collect_seldom`, if that was called.

    What was made until now is taken for what the process keeps, and not looked at again.
    """
    if _usual_thresholds:
        gc.freeze()
        gc.set_threshold(*_usual_thresholds.pop())
