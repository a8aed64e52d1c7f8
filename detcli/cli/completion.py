"""Completion in the shell, by Typer's scripts: candidates, and what bash needs for colons."""

import contextlib
import importlib.util
import io
import os
import re
import sys
from collections.abc import Iterator

from detcli.core.errors import DeviceError

VARIABLE = "_DETCLI_COMPLETE"


def complete_device(incomplete: str) -> list[str]:
    """The devices of this machine, whether they work or not, and the same after a comma."""
    from detcli.backend.nvidia import count_gpus
    from detcli.config.device import Device, DeviceKind, has_openvino

    try:
        gpus = range(count_gpus())
    except DeviceError:
        gpus = range(0)
    gpu_kinds = []
    if gpus:
        gpu_kinds.append(DeviceKind.CUDA)
        if importlib.util.find_spec("tensorrt_libs") is not None:
            gpu_kinds.append(DeviceKind.TENSORRT)
    names = [str(DeviceKind.AUTO), str(DeviceKind.CPU)]
    for kind in gpu_kinds:
        names.append(str(kind))
        names += [str(Device(kind, gpu)) for gpu in gpus]
    if has_openvino():
        names.append(str(DeviceKind.OPENVINO))
    earlier_devices, comma, _ = incomplete.rpartition(",")
    return [f"{earlier_devices}{comma}{name}" for name in names]


def complete_model(incomplete: str) -> list[str]:
    """The models with names, ONNX files, and folders."""
    from detcli.model.zoo import MODELS

    return [*MODELS, *complete_files(incomplete, suffixes=(".onnx",))]


def complete_files(incomplete: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    """Folders, and files with these suffixes, whose paths begin like this."""
    folder = incomplete[: incomplete.rfind("/") + 1]
    start = incomplete.removeprefix(folder)
    with contextlib.suppress(OSError, ValueError):
        with os.scandir(os.path.expanduser(folder) or ".") as entries:  # noqa: PTH111 - as it is typed
            names = sorted((entry.name, entry.is_dir()) for entry in entries)
        for name, is_folder in names:
            is_hidden = name.startswith(".") and not start.startswith(".")
            if name.startswith(start) and name.isprintable() and not is_hidden:
                if is_folder:
                    yield f"{folder}{name}/"
                elif name.lower().endswith(suffixes):
                    yield folder + name


@contextlib.contextmanager
def bash_words() -> Iterator[None]:
    """Let Typer see `cuda:1` and `--format=csv` as words, and quote its candidates.

    Bash takes each for three, and replaces what follows the last colon or equals sign, so
    candidates lose what is before it.
    """
    pieces = os.environ.get("COMP_WORDS", "").split("\n")
    position = os.environ.get("COMP_CWORD", "")
    if os.environ.get(VARIABLE) != "complete_bash" or not position.isdecimal():
        yield
        return
    current = ""
    if int(position) < len(pieces):
        current = pieces[int(position)]
    words = _join_pieces(pieces[: int(position)] + [current])
    value = words[-1]
    if value.startswith("--"):
        value = value.partition("=")[2]
    prefix = ""
    if ":" in pieces:
        prefix = value.rpartition(":")[0]
    os.environ.update(COMP_WORDS="\n".join(words), COMP_CWORD=str(len(words) - 1))
    stdout = sys.stdout
    with contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            yield
        finally:
            candidates = output.getvalue().splitlines()
            if len(candidates) == 1 and candidates[0].endswith("/"):
                # With one candidate, bash would end the word after the folder.
                candidates.append(f"{candidates[0]}...")
            for candidate in candidates:
                quoted = _quote_for_bash(candidate, current[:1])
                stdout.write(quoted.removeprefix(f"{prefix}:") + "\n")


def _join_pieces(pieces: list[str]) -> list[str]:
    """Words as they were typed, from the pieces that bash cut them into at `:` and `=`."""
    words: list[str] = []
    for piece in pieces:
        if words and (piece in {":", "="} or words[-1].endswith((":", "="))):
            words[-1] += piece
        else:
            words.append(piece)
    return words


def _quote_for_bash(candidate: str, quote: str) -> str:
    """A candidate as bash reads it back, behind the quotation mark that was typed, if any."""
    if quote == "'":
        return candidate.replace("'", "'\\''")
    special = r"[^\w@%+=:,./~-]"
    if quote == '"':
        special = r'["$`\\]'
    return re.sub(special, r"\\\g<0>", candidate)
