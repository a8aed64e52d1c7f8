"""Models by their paths or names, for every command; fetching shows how far it is."""

import contextlib
import logging
import sys
from collections.abc import Iterator

from detcli.model.hub_cache import Show
from detcli.model.zoo import Found, find

log = logging.getLogger(__name__)


def find_model(model: str, *, half: bool = False) -> Found:
    """A model's file; `detcli.model.zoo.find` for the command line.

    Args:
        model: Path or name, as the user gave it.
        half: The float16 file of a model that goes by name and has one.

    Raises:
        ModelError: There is neither a file nor a model of that name, or it cannot be fetched.
        OutputError: The cache cannot be written to.
    """
    with fetching() as show:
        return find(model, half=half, show=show)


@contextlib.contextmanager
def fetching() -> Iterator[Show | None]:
    """A bar on stderr while the block fetches, if that is a terminal and nobody asked for silence.

    Yields:
        What moves the bar; it appears when that is first called. None for no bar.
    """
    silent = not log.isEnabledFor(logging.WARNING)  # what --quiet sets
    if silent or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    with contextlib.ExitStack() as stack:
        show = None

        def advance(done: int, total: int | None) -> None:
            nonlocal show
            if show is None:
                show = _bar(stack)
            show(done, total)

        yield advance


def _bar(stack: contextlib.ExitStack) -> Show:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn
    from rich.progress import TimeRemainingColumn as TimeLeftColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeLeftColumn())
    console = Console(stderr=True)
    bar = stack.enter_context(Progress(*columns, console=console, transient=True))
    task = bar.add_task("", total=None)
    return lambda done, total: bar.update(task, completed=done, total=total)
