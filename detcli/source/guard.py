"""Guard: no output is written over an input."""

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from detcli.source.address import is_address, is_camera
from detcli.source.folders import Identity, identity, is_media, match, search
from detcli.source.item import Item
from detcli.source.sources import DEFAULTS, STDIN, SourceOptions

# What results are written to again and again. Nobody keeps a picture under such a name.
_RESULTS = frozenset({".csv", ".json", ".jsonl", ".txt"})


class InputGuard:
    """Tells whether a file is one of the inputs, by whatever path or link it is reached.

    Looks at the inputs when it is first asked about a file that exists: only that can be lost.
    What a list will name cannot be known; then any file that exists is taken for an input, unless
    its suffix is one of results.
    """

    def __init__(self, names: Sequence[str], options: SourceOptions = DEFAULTS) -> None:
        self._names = [name for name in names if not _is_elsewhere(name)]
        self._options = options

    def __contains__(self, path: object) -> bool:
        if not isinstance(path, Path) or (found := identity(path)) is None:
            return False
        target = os.path.realpath(path)
        has_list = self._options.files_from is not None
        return (
            (has_list and Path(target).suffix.lower() not in _RESULTS)
            or found in self._named
            or (is_media(target) and found in self._in_folders)
        )

    @cached_property
    def _named(self) -> frozenset[Identity | None]:
        """Files that are named, or that a pattern stands for."""
        return frozenset(identity(file) for name in self._files() for file in _matches(name))

    @cached_property
    def _in_folders(self) -> frozenset[Identity | None]:
        """Pictures and videos in folders."""
        omit = {identity(path) for path in self._options.written}
        folders = (name for name in self._names if Path(name).is_dir())
        parts = (
            part
            for folder in folders
            for part in search(folder, recursive=self._options.recursive, omit=omit)
            if not isinstance(part, Item)
        )
        return frozenset(identity(file) for part in parts for file in part)

    def _files(self) -> Iterator[str]:
        yield from (name for name in self._names if not Path(name).is_dir())
        if self._options.files_from not in {None, STDIN}:
            yield str(self._options.files_from)


def _matches(name: str) -> list[str]:
    return [name] if os.path.lexists(name) else match(name)


def _is_elsewhere(name: str) -> bool:
    return name == STDIN or is_address(name) or is_camera(name)
