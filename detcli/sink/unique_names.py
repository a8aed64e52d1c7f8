"""UniqueNames: gives each file of a folder a name of its own, on any file system."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator

NUMBER_AT_END = re.compile(r"_[0-9]+$")
"""The number in a file's name that tells it from others with the same prefix."""

NO_INPUT = "no input"
"""Stands in for the hash of an input, to reserve a name that no input may have."""


class UniqueNames:
    """Gives unique names to the files of one folder.

    Names that differ only in case or in how accents are encoded count as equal, as some file
    systems do not distinguish them. Inputs are told apart by a hash of their path. If a different
    input already has a name, the hash is added to it, `a-1f3c9b20`. If the same input has it, a
    number is added, `a-2`.

    A prefix is a name for files that differ only in a number, such as the frames of a video. Once
    `a` is a prefix, no other file gets the name `a_7`, so its files need not be remembered.
    """

    def __init__(self) -> None:
        # How often each name with each suffix was tried.
        self._uses: Counter[tuple[str, str]] = Counter()
        # Names of files with their suffix, and prefixes with their `_`.
        self._taken: set[str] = set()
        # What can no longer be a prefix, as a file has a name that begins with it.
        self._unusable_prefixes: set[str] = set()
        # The hash of the input that first got a name, by name and suffix.
        self._owners: dict[tuple[str, str], str] = {}
        # The hash of the input that a name is reserved for, whatever the suffix.
        self._reserved: dict[str, str] = {}

    def reserve(self, name: str, input_hash: str) -> None:
        """Reserve a name for the files of the input with this hash."""
        self._reserved.setdefault(fold(name), input_hash)

    def withhold(self, name: str) -> None:
        """Let no input have this name without its hash, except one it is already reserved for."""
        self.reserve(name, NO_INPUT)

    def choose_file_name(
        self,
        name: str,
        suffix: str,
        usable: Callable[[str], bool] | None = None,
        input_hash: str = "",
    ) -> str:
        """Choose a unique name for a file, and record that it is taken.

        Args:
            name: The name that the file should have, without its suffix.
            suffix: The suffix of the file.
            usable: Is called with a unique name and its suffix, and returns whether the file may
                have it. If not, the next name is tried. None if any unique name will do.
            input_hash: The hash of the input that the file is for; empty if its names are told
                apart by numbers only.

        Returns:
            The name with its suffix: `bus.jpg` if possible, else with the hash, a number, or both,
            as in `bus-1f3c9b20.jpg` or `bus-2.jpg`.
        """
        candidates = self._candidates(name, suffix, input_hash)  # never ends
        while True:
            candidate = next(candidates)
            file_name = candidate + suffix
            is_free = self._is_free(candidate, suffix)
            if is_free and (usable is None or usable(file_name)):
                break
        self._taken.add(fold(candidate) + suffix.lower())
        self._unusable_prefixes.update(prefixes_of(candidate))
        return file_name

    def _is_free(self, name: str, suffix: str) -> bool:
        """Return whether no file has this name, and no file of a taken prefix may get it later."""
        folded_file_name = fold(name) + suffix.lower()
        if folded_file_name in self._unusable_prefixes or folded_file_name in self._taken:
            return False
        return self._taken.isdisjoint(prefixes_of(name))

    def choose_prefix(
        self, name: str, usable: Callable[[str], bool] | None = None, input_hash: str = ""
    ) -> str:
        """Choose a unique prefix for files whose names append `_` and a number to it.

        The arguments are those of `choose_file_name`; `usable` is given the prefix with its `_`.
        """
        return self.choose_file_name(name, "_", usable, input_hash).removesuffix("_")

    def _candidates(self, name: str, suffix: str, input_hash: str) -> Iterator[str]:
        """Yield the names to try for a file, without the suffix, the best first; they never end.

        They are `a`, `a-2`, `a-3` and so on. If `a` belongs to a different input, they are
        `a-1f3c9b20`, `a-1f3c9b20-2` and so on. The numbers go on where an earlier call stopped, so
        no name is tried twice.
        """
        first_name = name
        if input_hash and self._owner_of(name, suffix, input_hash) != input_hash:
            first_name = f"{name}-{input_hash}"
        key = (fold(first_name), suffix.lower())
        while True:
            self._uses[key] += 1
            number = self._uses[key]
            if number == 1:
                yield first_name
            else:
                yield f"{first_name}-{number}"

    def _owner_of(self, name: str, suffix: str, input_hash: str) -> str:
        """Return the hash of the input that a name belongs to.

        It is the input that the name is reserved for; else the first that asks for it with this
        suffix. If none has asked before, that is the input with this hash, which is recorded.
        """
        reserved_for = self._reserved.get(fold(name))
        if reserved_for:
            return reserved_for
        return self._owners.setdefault((fold(name), suffix.lower()), input_hash)


def fold(name: str) -> str:
    """Return a name without what some file systems ignore: case, and how accents are encoded."""
    return unicodedata.normalize("NFC", name.casefold())


def prefixes_of(name: str) -> list[str]:
    """List the prefixes of numbered files that this name could belong to, each with its `_`.

    Examples:
        >>> prefixes_of("a_1_2")  # file 2 of the prefix a_1, or a_1 as file 1 of the prefix a
        ['a_1_', 'a_']
    """
    prefixes = []
    beginning = fold(name)
    number = NUMBER_AT_END.search(beginning)
    while number is not None:
        beginning = beginning[: number.start()]
        prefixes.append(f"{beginning}_")
        number = NUMBER_AT_END.search(beginning)
    return prefixes
