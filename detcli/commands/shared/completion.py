"""Completion in the shell: of devices and models, and of names with spaces and colons.

Typer's own scripts for bash and zsh split such names: bash takes a colon for the end of a word, and
what is inserted is not quoted. For fish, it does not find values after `--option=`. For PowerShell,
Typer's script is used unchanged.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from typer import _completion_shared as shared
from typer._click.shell_completion import ShellComplete, add_completion_class
from typer._completion_classes import BashComplete, FishComplete, ZshComplete

if TYPE_CHECKING:
    from typer._click.shell_completion import CompletionItem

BASH = r"""
%(complete_func)s() {
    local IFS=$'\n' found
    mapfile -t found < <(
        COMP_LINE=${COMP_LINE:0:COMP_POINT} COMP_WORDBREAKS=$COMP_WORDBREAKS \
            %(autocomplete_var)s=complete_bash "$1" 2> /dev/null
    )
    [[ ${found[0]} == nospace ]] && compopt -o nospace
    COMPREPLY=("${found[@]:1}")
}

complete -o default -F %(complete_func)s %(prog_name)s
"""

ZSH = r"""
#compdef %(prog_name)s

%(complete_func)s() {
    local typed=${(Q)PREFIX} line
    local before=${(F)${(@Q)words[1,CURRENT-1]}}
    local -a found described folders
    found=("${(@f)$(COMP_WORDS="$before"$'\n'"$typed" %(autocomplete_var)s=complete_zsh \
        ${(Q)words[1]} 2> /dev/null)}")
    found=(${found:#})
    (( $#found )) || { _files; return }
    [[ $PREFIX == --*=* ]] && compset -P '*=' && typed=${typed#*=}
    local folder=
    [[ $typed == */* ]] && compset -P '*/' && folder=${typed%%/*}/
    for line in $found; do
        line=${line#$folder}
        if [[ $line == */ ]]; then
            folders+=("$line")
        elif [[ $line == *$'\t'* ]]; then
            described+=("${${line%%%%$'\t'*}//:/\\:}:${line#*$'\t'}")
        else
            described+=("${line//:/\\:}")
        fi
    done
    (( $#described )) && _describe %(prog_name)s described
    (( $#folders )) && compadd -S '' -- $folders
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"  # the first completion loads this file
else
    compdef %(complete_func)s %(prog_name)s
fi
"""

# Typer's own starts detcli four times for each key.
FISH = r"""
function %(complete_func)s
    set -l found (env %(autocomplete_var)s=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args \
        _TYPER_COMPLETE_ARGS=(commandline -cp) %(prog_name)s 2> /dev/null | string match -v '')
    if set -q found[1]
        string join \n -- $found
    else # a path, as fish completes one for commands that it does not know
        set -l token (commandline -ct)
        set -l option (string match --regex -- '^--[^=]*=' $token)
        set -l start (string replace -- "$option" '' "$token")
        for path in (complete -C "'' $start")
            echo "$option$path"
        end
    end
end

complete --command %(prog_name)s --no-files --arguments "(%(complete_func)s)"
"""

SAFE = r"([^\w@%+=:,./~-])"
"""What bash does not take literally outside quotes."""


def complete_device(incomplete: str) -> list[str]:
    """The devices of this machine, and the same after a comma."""
    from detcli.backend.device import names_here

    before, comma, _ = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in names_here()]


def complete_model(incomplete: str) -> list[str]:
    """The models with names, ONNX files, and folders."""
    from detcli.model.zoo import MODELS

    return [*MODELS, *_files(incomplete, (".onnx",))]


def complete_side(incomplete: str) -> list[str]:
    """What a side of a comparison may be: a model, or saved records."""
    from detcli.commands.shared.saved import SUFFIXES
    from detcli.model.zoo import MODELS

    return [*MODELS, *_files(incomplete, (".onnx", *SUFFIXES))]


def _files(incomplete: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    """Folders, and files with these suffixes, whose paths begin like this."""
    folder = incomplete[: incomplete.rfind("/") + 1]
    start = incomplete.removeprefix(folder)
    with contextlib.suppress(OSError, ValueError):
        with os.scandir(os.path.expanduser(folder) or ".") as entries:  # noqa: PTH111 - as it is typed
            found = sorted((entry.name, entry.is_dir()) for entry in entries)
        for name, is_folder in found:
            hidden = name.startswith(".") and not start.startswith(".")
            if name.startswith(start) and name.isprintable() and not hidden:
                if is_folder:
                    yield f"{folder}{name}/"
                elif name.lower().endswith(suffixes):
                    yield folder + name


def register() -> None:
    """Let Typer use these scripts, for completing and for `--install-completion`."""
    for name, kind in (("bash", Bash), ("fish", Fish), ("zsh", Zsh)):
        add_completion_class(kind, name)
        shared._completion_scripts[name] = kind.source_template  # noqa: SLF001 - it has no interface


class Word(NamedTuple):
    """A word of a command line.

    Attributes:
        text: The word without quotes and backslashes.
        kept: Its beginning, which bash leaves as it is: what is inserted replaces the rest.
        quote: The quote that is still open; may be empty.
    """

    text: str
    kept: str = ""
    quote: str = ""


def split(line: str, breaks: str) -> list[Word]:
    r"""Split a line as bash does; the last word is the one to complete, and may be empty.

    Args:
        line: The command line up to the cursor.
        breaks: COMP_WORDBREAKS, the characters at which bash begins a new word to replace.

    Examples:
        >>> split(r"detcli -m my\ mod", ":=")[-1]
        Word(text='my mod', kept='', quote='')
        >>> split("detcli --device=cuda:", ":=")[-1]
        Word(text='--device=cuda:', kept='--device=cuda:', quote='')
    """
    words: list[Word] = []
    text: str | None = None  # None between words
    kept = quote = ""
    characters = iter(line)
    for character in characters:
        if character in " \t\n" and not quote:
            if text is not None:
                words.append(Word(text))
            text, kept = None, ""
            continue
        text = text or ""
        if character == "\\" and quote != "'":
            following = next(characters, "")
            keeps = quote and following not in '"\\$`'
            text += f"\\{following}" if keeps else following
        elif character == quote or (character in "\"'" and not quote):
            quote = "" if quote else character
            kept = text
        else:
            text += character
            if character in breaks and not quote:
                kept = text
    return [*words, Word(text or "", kept, quote)]


class Bash(BashComplete):
    """Completion in bash: quotes what is inserted, and knows where bash inserts it."""

    source_template = BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the cursor, and the one at it."""
        *before, last = self._words()
        return [word.text for word in before[1:]], last.text

    def format_completion(self, item: "CompletionItem") -> str:
        """What to insert."""
        word = self._words()[-1]
        return quoted(whole(item.value, word.text).removeprefix(word.kept), word.quote)

    def complete(self) -> str:
        """Whether a space follows, then the candidates, one a line."""
        candidates = ShellComplete.complete(self)
        if not candidates:
            return ""
        return f"nospace\n{candidates}" if candidates.endswith("/") else f"\n{candidates}"

    @staticmethod
    def _words() -> list[Word]:
        breaks = os.environ.get("COMP_WORDBREAKS", "")
        return split(os.environ.get("COMP_LINE", ""), breaks)


class Fish(FishComplete):
    """Completion in fish, which does its own quoting."""

    source_template = FISH

    def format_completion(self, item: "CompletionItem") -> str:
        """A candidate and its description."""
        return whole(super().format_completion(item), self.get_completion_args()[1])


class Zsh(ZshComplete):
    """Completion in zsh, which does its own quoting."""

    source_template = ZSH

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the cursor, and the one at it."""
        *before, last = os.environ.get("COMP_WORDS", "").split("\n")
        return before[1:], last

    def format_completion(self, item: "CompletionItem") -> str:
        """A candidate and its description."""
        return f"{item.value}\t{item.help}" if item.help else str(item.value)

    def complete(self) -> str:
        """The candidates, one a line."""
        return ShellComplete.complete(self)


def whole(candidate: str, typed: str) -> str:
    """A candidate for the whole word; that for `--device=c` is a value."""
    option, equals, _ = typed.partition("=")
    of_option = equals and option.startswith("-") and not candidate.startswith("-")
    return f"{option}={candidate}" if of_option else candidate


def quoted(text: str, quote: str) -> str:
    """A text as bash reads it, within an open quote or without."""
    if quote == "'":
        return text.replace("'", r"'\''")
    return re.sub(r'(["\\$`])', r"\\\1", text) if quote else re.sub(SAFE, r"\\\1", text)
