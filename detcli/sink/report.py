"""ReportSink: the page of a run, for people who look rather than read."""

from collections.abc import Container
from pathlib import Path

from detcli.record import Record
from detcli.sink.page.page import About, Page, Rendering, render


class ReportSink:
    """Adds each record to a page, see `Page`.

    Raises:
        UsageError: The folder has something else in it, or another run is writing to it.
        OutputError: It cannot be written to.
    """

    def __init__(
        self,
        path: Path,
        about: About,
        inputs: Container[Path] = (),
        *,
        resumed: bool = False,
        only_detections: bool = False,
    ) -> None:
        """Open a page, see `Page`; with `only_detections`, other records have no picture on it."""
        self._page = Page(path, about, inputs, resumed=resumed)
        self._only_detections = only_detections

    def write(self, record: Record) -> None:
        """Add a record.

        Raises:
            OutputError: It cannot be written.
        """

        def rendering() -> Rendering | None:
            if record.picture is None or (self._only_detections and not record.detections):
                return None
            return render(record.picture.pixels)

        self._page.add(record.to_json(), rendering)

    def discard(self) -> None:
        """Give the page up before it has begun: what was there stays."""
        self._page.discard()

    def close(self) -> None:
        """Say on the page that the run has ended.

        Raises:
            OutputError: The page cannot be written.
        """
        self._page.close()
