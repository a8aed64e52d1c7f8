"""ThumbnailPacks: the thumbnails of a run in few files, of up to a thousand each.

    thumbnails/0/0.js, thumbnails/0/1.js    packs of run 0: one line per thumbnail, added whole

Packs are scripts, as a page from a disk may load those. Each line calls a function of
files/thumbnails.js:

    thumbnail(NAME, JPEG)
        NAME    the name of the image, "RUN/PACK/NUMBER"
        JPEG    the bytes of the thumbnail in base64
"""

import base64
import contextlib
from pathlib import Path

from detcli.storage.files import AppendedFile, make_folder, write_file, writing
from detcli.storage.folder import Folder, sync

PACK_IMAGES = 1000  # a pack ends with this many thumbnails, or this many bytes
PACK_BYTES = 2 << 20


class ThumbnailPacks:
    """Writes the thumbnails of a run, one pack after the other.

    Attributes:
        number: The index of the pack that the next thumbnail goes to.
    """

    def __init__(self, folder: Path) -> None:
        """Prepare the packs of a run.

        Args:
            folder: The folder of the run's packs, which is made for the first thumbnail.
        """
        self.number = 0
        self._folder = folder
        self._pack: AppendedFile | None = None  # the current one; None to begin one
        self._pack_images = 0
        self._pack_bytes = 0

    def add(self, name: str, jpeg: bytes) -> None:
        """Add a thumbnail to the current pack, and end the pack if it is full.

        A pack is a file of up to 1000 thumbnails. If there is no current pack, one begins. A full
        pack is put on the disk, and `number` rises, as the next thumbnail goes to a new one.

        Args:
            name: The name of its image.
            jpeg: The bytes of the thumbnail.

        Raises:
            OutputError: It cannot be written.
        """
        if self._pack is None:
            make_folder(self._folder)
            self._pack = AppendedFile(self._folder / f"{self.number}.js")
            self._pack_images = 0
            self._pack_bytes = 0

        jpeg_base64 = base64.b64encode(jpeg).decode("ascii")
        line = f'thumbnail("{name}", "{jpeg_base64}");\n'
        self._pack.write(line)
        self._pack_images += 1
        self._pack_bytes += len(line)

        if self._pack_images == PACK_IMAGES or self._pack_bytes >= PACK_BYTES:
            self.end_pack()

    def sync(self) -> None:
        """Put what was added on the disk, where it survives a power cut."""
        if self._pack is not None:
            sync(self._pack.file.fileno())
            self._sync_folder()

    def end_pack(self) -> None:
        """Put the current pack on the disk and close it; the next thumbnail begins another one.

        Nothing is done if no pack has begun.

        Raises:
            OutputError: It could not be put on the disk.
        """
        pack = self._pack
        if pack is not None:
            self._pack = None
            self.number += 1
            pack.commit()
            self._sync_folder()

    def _sync_folder(self) -> None:
        """Put the names of the packs on the disk."""
        with writing(self._folder), contextlib.closing(Folder(self._folder)) as folder:
            folder.sync()


def repair_last_pack(folder: Path) -> None:
    """Remove incomplete lines from the last pack of a run, as only that one may have any.

    Args:
        folder: The folder of the run's packs, which may not exist.
    """
    numbers = [int(path.stem) for path in folder.glob("*.js") if path.stem.isdecimal()]
    if numbers:
        keep_complete_lines(folder / f"{max(numbers)}.js", b"thumbnail(")


def keep_complete_lines(script: Path, line_start: bytes) -> None:
    """Remove incomplete lines from a script, which a kill or a power cut may leave.

    Args:
        script: The file, whose lines each call a function.
        line_start: How such a call begins.
    """
    lines = script.read_bytes().splitlines(keepends=True)
    complete_lines = []
    for line in lines:
        if line.startswith(line_start) and line.endswith(b");\n"):
            complete_lines.append(line)
    if complete_lines != lines:
        write_file(script, b"".join(complete_lines))
