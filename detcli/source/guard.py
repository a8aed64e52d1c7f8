"""The guard of the inputs: no output is written over a file that is read."""

import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from detcli.config.inputs import InputOptions
from detcli.core.errors import UsageError
from detcli.source.loading import STDIN, Item
from detcli.source.names import FileIdentity, identity, is_media, is_path, match, search
from detcli.storage.objects import Address

DEFAULTS = InputOptions()


class InputGuard:
    """Determines whether a path or link leads to an input of the run, so that none is overwritten.

    The inputs are looked up when the guard is first asked about a file that exists, since only
    such a file can be lost. The names in a list are not known in advance.
    """

    def __init__(
        self, names: Sequence[str], inputs: InputOptions = DEFAULTS, written: Sequence[Path] = ()
    ) -> None:
        self._all_names = frozenset(names)
        self._paths = [name for name in names if is_path(name)]
        self._inputs = inputs
        self._written = written

    def __contains__(self, path: object) -> bool:
        """Whether a path or the address of an object is one of the inputs.

        Paths are compared by the files that they lead to, so that a link to an input is one, too.
        """
        if isinstance(path, Address):
            return str(path) in self._all_names
        if not isinstance(path, Path):
            return False
        file_identity = identity(path)
        if file_identity is None:  # there is no such file
            return False
        if file_identity in self._identities_of_named_files:
            return True
        return _is_media_file(path) and file_identity in self._identities_of_files_in_folders

    def refuse(self, outputs: Iterable[Path | Address | None]) -> None:
        """Refuse to write over an input.

        Args:
            outputs: The files and objects that are to be written; None stands for no output. If
                inputs come from a list, which is not read here, any existing image or video may be
                one of them, and is refused.

        Raises:
            UsageError: An output is one of the inputs.
        """
        has_list = self._inputs.files_from is not None
        for path in outputs:
            may_be_listed = has_list and isinstance(path, Path) and _is_media_file(path)
            if path in self or may_be_listed:
                raise UsageError(f"{path} is one of the inputs", "write to another file")

    @cached_property
    def _identities_of_named_files(self) -> frozenset[FileIdentity | None]:
        """Device and inode of each input that is a named file, or a file that matches a pattern.

        The list of --files-from is among them. Folders are not.
        """
        names = [name for name in self._paths if not os.path.isdir(name)]
        if self._inputs.files_from not in {None, STDIN}:
            names.append(str(self._inputs.files_from))
        identities: set[FileIdentity | None] = set()
        for name in names:
            if os.path.lexists(name):
                identities.add(identity(name))
            else:  # a pattern, such as pics/*.jpg, or a missing file, which matches nothing
                identities.update(identity(file) for file in match(name))
        return frozenset(identities)

    @cached_property
    def _identities_of_files_in_folders(self) -> frozenset[FileIdentity | None]:
        """Device and inode of each image and video in the folders that are inputs.

        Folders that the run writes into are not searched, and a folder that cannot be listed counts
        as empty here.
        """
        omit = {identity(path) for path in self._written}
        identities: set[FileIdentity | None] = set()
        for folder in self._paths:
            if not os.path.isdir(folder):
                continue
            for files_or_error in search(folder, recursive=self._inputs.recursive, omit=omit):
                if not isinstance(files_or_error, Item):
                    identities.update(identity(file) for file in files_or_error)
        return frozenset(identities)


def _is_media_file(path: Path) -> bool:
    """True for a file with the suffix of an image or video, even through links."""
    target = os.path.realpath(path)
    return is_media(target) and os.path.isfile(target)
