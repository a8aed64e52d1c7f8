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
    has_tensorrt = importlib.util.find_spec("tensorrt_libs") is not None
    kinds = [DeviceKind.CUDA, *[DeviceKind.TENSORRT] * has_tensorrt] if gpus else []
    named = [name for kind in kinds for name in (kind, *(Device(kind, gpu) for gpu in gpus))]
    named += [DeviceKind.OPENVINO] * has_openvino()
    before, comma, _ = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in (DeviceKind.AUTO, DeviceKind.CPU, *named)]


def complete_model(incomplete: str) -> list[str]:
    """The models with names, ONNX files, and folders."""
    from detcli.model.zoo import MODELS

    return [*MODELS, *complete_files(incomplete, (".onnx",))]


def complete_files(incomplete: str, suffixes: tuple[str, ...]) -> Iterator[str]:
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


@contextlib.contextmanager
def bash_words() -> Iterator[None]:
    """Let Typer see `cuda:1` and `--format=csv` as words, and quote its candidates.

    Bash takes each for three, and replaces what follows the last colon or equals sign, so
    candidates lose what is before it.
    """
    words = os.environ.get("COMP_WORDS", "").split("\n")
    at = os.environ.get("COMP_CWORD", "")
    if os.environ.get(VARIABLE) != "complete_bash" or not at.isdecimal():
        yield
        return
    before, current = words[: int(at)], "".join(words[int(at) : int(at) + 1])
    joined: list[str] = []
    for word in [*before, current]:
        if joined and (word in {":", "="} or joined[-1].endswith((":", "="))):
            joined[-1] += word
        else:
            joined.append(word)
    value = joined[-1].partition("=")[2] if joined[-1].startswith("--") else joined[-1]
    prefix = value.rpartition(":")[0] if ":" in words else ""
    os.environ.update(COMP_WORDS="\n".join(joined), COMP_CWORD=str(len(joined) - 1))
    stdout = sys.stdout
    with contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            yield
        finally:
            found = output.getvalue().splitlines()
            if len(found) == 1 and found[0].endswith("/"):
                found.append(f"{found[0]}...")  # or bash would end the word after the folder
            for line in found:
                stdout.write(f"{_quoted(line, current[:1]).removeprefix(f'{prefix}:')}\n")


def _quoted(line: str, quote: str) -> str:
    """A candidate as bash reads it back, behind the quotation mark that was typed, if any."""
    if quote == "'":
        return line.replace("'", "'\\''")
    special = r'["$`\\]' if quote == '"' else r"[^\w@%+=:,./~-]"
    return re.sub(special, r"\\\g<0>", line)
