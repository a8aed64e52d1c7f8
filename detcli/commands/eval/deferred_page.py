"""A page whose boxes are known only after the run: its images are written before."""

from collections.abc import Container
from functools import partial
from pathlib import Path
from typing import NamedTuple

from detcli.core import Fields
from detcli.data.record import Record, RecordJson
from detcli.page.entries import BoxKind
from detcli.page.page import Conclusion, Page, PageImage
from detcli.page.run_info import RunInfo, versions


class StoredRecord(NamedTuple):
    """A record whose image is on the page already, and whose boxes are not."""

    image_id: int
    fields: RecordJson  # its JSON, without boxes
    image: Fields  # what the page says about its image; empty if that could not be read


class DeferredPage:
    """A page of eval: images are written during the run, and the rest when all are compared.

    A subclass has a method that adds the boxes of `_records` and sets `_conclusion`.
    """

    def __init__(
        self, path: Path, kinds: tuple[BoxKind, ...], inputs: Container[Path], *, linked: bool
    ) -> None:
        """Create the page, which has no images and no figures yet.

        Args:
            path: The folder of the page.
            kinds: What a box can be, such as missed, and how it is shown.
            inputs: The files that the page must not overwrite.
            linked: Whether it shows image files where they are.
        """
        about = RunInfo("eval", [*versions()], kinds)
        self._page = Page(path, about, inputs, linked=linked)
        self._records: list[StoredRecord] = []
        self._conclusion = Conclusion()

    def keep(self, image_id: int, record: Record) -> None:
        """Write the image of a record."""
        fields = record.to_json()
        image = Fields()
        if record.picture is not None:
            fields["detections"] = []
            page_image = partial(PageImage, record.picture.pixels, record.origin.path)
            image = self._page.store(page_image)
        self._records.append(StoredRecord(image_id, fields, image))

    def close(self) -> None:
        """Complete the page with what it has so far."""
        self._page.close(self._conclusion)
