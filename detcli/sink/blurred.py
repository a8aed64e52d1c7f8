"""Whether images of earlier runs in a folder show what `--blur` hides."""

import contextlib
import json
import os
import re
import warnings
from collections.abc import Collection
from pathlib import Path

from detcli.core.errors import DetcliWarning
from detcli.source.names import is_media
from detcli.storage.files import write_file

NOTE = ".detcli-blurred"
"""The file of a folder that names the classes that are hidden in all images in it."""

PACK_OF_THUMBNAILS = re.compile(r"/thumbnails/[0-9]+/[0-9]+\.js$")


def note_hidden_classes(folder: Path, hidden_classes: Collection[str]) -> None:
    """Update the note in a folder, which lists the classes that are hidden in all of its images.

    Each run does this before it writes its first image. After a run with `--blur person,car` and
    one with `--blur person`, all images hide persons; after one that hides nothing, there is no
    note. A run that hides classes warns if images of earlier runs may show them.

    Args:
        folder: The folder that the run saves images in.
        hidden_classes: The names of the classes that this run hides.
    """
    note = folder / NOTE
    if not hidden_classes:
        with contextlib.suppress(FileNotFoundError):
            note.unlink()
        return

    hidden_in_all = set(hidden_classes)
    if _has_images(folder):
        hidden_in_all &= _noted_classes(note)
    if hidden_in_all != set(hidden_classes):
        warnings.warn(
            f"{folder} has images of other runs, which may show {', '.join(hidden_classes)}: "
            "--blur changes none of them; use an empty folder",
            DetcliWarning,
            stacklevel=2,
        )
    if hidden_in_all:
        write_file(note, json.dumps(sorted(hidden_in_all)).encode())


def _noted_classes(note: Path) -> set[str]:
    """Read the names of the hidden classes; empty if the file is missing or cannot be read."""
    try:
        classes = json.loads(note.read_bytes())
    except (OSError, ValueError, RecursionError):
        return set()
    if not isinstance(classes, list):
        return set()
    return {name for name in classes if isinstance(name, str)}


def _has_images(folder: Path) -> bool:
    """Return whether an image or a video is in a folder, or in one below it.

    A pack of thumbnails of an HTML report counts as well.
    """
    for parent, _, file_names in os.walk(folder):
        for file_name in file_names:
            path = Path(parent, file_name).as_posix()
            if is_media(file_name) or PACK_OF_THUMBNAILS.search(path):
                return True
    return False
