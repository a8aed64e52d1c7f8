"""Shell completion with Typer's scripts: candidates, and what bash needs for colons."""

import contextlib
import importlib.util
import io
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from detcli.core.errors import DetcliError, DeviceError

VARIABLE = "_DETCLI_COMPLETE"


def complete_device(incomplete: str) -> list[str]:
    """List the devices of this machine that may complete a word of --device in the shell.

    Args:
        incomplete: The word so far, perhaps with devices before it, as in "cuda:0,cu".

    Returns:
        All devices, whether they work or not, each after the devices that the word already has.
    """
    from detcli.config.device import DeviceKind, has_openvino

    names = [str(DeviceKind.AUTO), str(DeviceKind.CPU)]
    names += _gpu_device_names()
    if has_openvino():
        names.append(str(DeviceKind.OPENVINO))
    earlier_devices, comma, _ = incomplete.rpartition(",")
    return [f"{earlier_devices}{comma}{name}" for name in names]


def _gpu_device_names() -> list[str]:
    """List the devices that run on this machine's GPUs, such as "cuda", "cuda:0" and "cuda:1".

    With TensorRT there are also "tensorrt", "tensorrt:0" and so on. A name without a number means
    the first GPU.
    """
    from detcli.backend.nvidia import count_gpus
    from detcli.config.device import Device, DeviceKind

    try:
        gpu_count = count_gpus()
    except DeviceError:
        return []
    if gpu_count == 0:
        return []
    kinds = [DeviceKind.CUDA]
    if importlib.util.find_spec("tensorrt_libs") is not None:
        kinds.append(DeviceKind.TENSORRT)
    names = []
    for kind in kinds:
        names.append(str(kind))
        names += [str(Device(kind, gpu)) for gpu in range(gpu_count)]
    return names


def complete_model(incomplete: str) -> list[str]:
    """The models with names, ONNX files, and folders."""
    from detcli.model.zoo import MODELS

    return [*MODELS, *complete_files(incomplete, suffixes=(".onnx",))]


def complete_classes(ctx: Any, incomplete: str) -> list[str]:  # noqa: ANN401 - of Click
    """List the classes that may complete a word of --classes or --blur in the shell.

    They are the classes of the model on the line, or of the default model, if its file is on this
    disk.

    Args:
        ctx: Click's context, with the options that are already on the line.
        incomplete: The word so far, perhaps with classes before it, as in "car,pe".

    Returns:
        Whole words, as in "car,person".
    """
    if ctx.params.get("names"):  # a file with different names
        return []
    logging.disable()  # log messages would be printed into the line
    try:
        class_names = _class_names_of_model(ctx.params)
    except DetcliError:
        return []
    finally:
        logging.disable(logging.NOTSET)
    earlier_classes, comma, _ = incomplete.rpartition(",")
    candidates = [f"{earlier_classes}{comma}{class_name}" for class_name in class_names]
    return [candidate for candidate in candidates if candidate.startswith(incomplete)]


def _class_names_of_model(typed: Mapping[str, Any]) -> Sequence[str]:
    """Read the class names of the model that is typed or set, or of the default model.

    Raises:
        DetcliError: It is not on this disk, or cannot be used.
    """
    from detcli.cli.defaults import collect_values, read_defaults
    from detcli.config.config import Config
    from detcli.config.option import options_of
    from detcli.model.prepared import prepare
    from detcli.model.zoo import find

    option = options_of(Config)["model"]
    raw_values = collect_values({"model": option}, typed, read_defaults())
    model = option.default
    if "model" in raw_values:
        model = raw_values["model"].value
    file = find(model, fetch=False)
    return prepare(file.path).contract.names


def complete_files(incomplete: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    """Yield the folders, and the files with one of these suffixes, whose paths begin like this.

    Hidden ones are only yielded if the dot was typed.
    """
    folder = incomplete[: incomplete.rfind("/") + 1]
    name_start = incomplete.removeprefix(folder)
    for name, is_folder in _entries(folder):
        is_hidden = name.startswith(".") and not name_start.startswith(".")
        if is_hidden or not name.startswith(name_start) or not name.isprintable():
            continue
        if is_folder:
            yield f"{folder}{name}/"
        elif name.lower().endswith(suffixes):
            yield folder + name


def _entries(folder: str) -> list[tuple[str, bool]]:
    """List the names in a folder, and whether each is a folder; empty if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        path = os.path.expanduser(folder) or "."  # noqa: PTH111 - as it is typed
        with os.scandir(path) as entries:
            return sorted((entry.name, entry.is_dir()) for entry in entries)
    return []


class _BashLine(NamedTuple):
    """The line of the shell that is to be completed, as bash has cut it into pieces."""

    earlier_pieces: list[str]
    current_piece: str  # where the cursor is; empty for a new word
    is_cut_at_colons: bool  # as lines with colons are, unless COMP_WORDBREAKS says otherwise


def _line_of_bash() -> _BashLine | None:
    """Read the line from the variables that bash sets; None if bash completes nothing now."""
    pieces = os.environ.get("COMP_WORDS", "").split("\n")
    position_text = os.environ.get("COMP_CWORD", "")
    if os.environ.get(VARIABLE) != "complete_bash" or not position_text.isdecimal():
        return None
    position = int(position_text)
    current_piece = ""
    if position < len(pieces):
        current_piece = pieces[position]
    return _BashLine(pieces[:position], current_piece, ":" in pieces)


@contextlib.contextmanager
def bash_words() -> Iterator[None]:
    """Let completion by Typer work in bash for words with a colon or an equals sign.

    When the user presses Tab, bash runs detcli with the words of the line in environment variables,
    and Typer prints candidates for the last word. But bash cuts a word at colons and equals signs,
    `cuda:1` into `cuda`, `:` and `1`, and replaces only the last piece with a candidate.

    So this joins the pieces again, and changes the variables for Typer. What Typer prints in the
    block is held back. After the block it is printed without the pieces that bash does not replace:
    `1` instead of `cuda:1`.
    """
    line = _line_of_bash()
    if line is None:
        yield
        return
    words = _join_pieces([*line.earlier_pieces, line.current_piece])
    os.environ.update(COMP_WORDS="\n".join(words), COMP_CWORD=str(len(words) - 1))

    # Bash leaves what is before the last colon on the line, so candidates must not repeat it.
    unreplaced_prefix = ""
    if line.is_cut_at_colons:
        unreplaced_prefix = _prefix_before_colon(words[-1])

    real_stdout = sys.stdout
    with contextlib.redirect_stdout(io.StringIO()) as output_of_typer:
        try:
            yield
        finally:  # Typer ends completion with an exception
            for candidate in _candidates_for_bash(output_of_typer.getvalue()):
                quoted = _quote_for_bash(candidate, line.current_piece[:1])
                real_stdout.write(quoted.removeprefix(f"{unreplaced_prefix}:") + "\n")


def _candidates_for_bash(output: str) -> list[str]:
    """List the candidates that Typer has printed; a lone folder gets a second one beside it.

    With one candidate, bash would end the word after the folder.
    """
    candidates = output.splitlines()
    if len(candidates) == 1 and candidates[0].endswith("/"):
        candidates.append(f"{candidates[0]}...")
    return candidates


def _prefix_before_colon(word: str) -> str:
    """Return what bash keeps of a word when it inserts a candidate: all before the last colon.

    For `--device=cuda:1`, that is "cuda": the candidates are values, without their option.
    """
    value = word
    if word.startswith("--"):
        value = word.partition("=")[2]
    return value.rpartition(":")[0]


def _join_pieces(pieces: list[str]) -> list[str]:
    """Join the pieces of a line that bash has cut at `:` and `=` to the words that were typed.

    For example, ["--device", "cuda", ":", "1"] becomes ["--device", "cuda:1"].
    """
    words: list[str] = []
    for piece in pieces:
        if words and (piece in {":", "="} or words[-1].endswith((":", "="))):
            words[-1] += piece
        else:
            words.append(piece)
    return words


def _quote_for_bash(candidate: str, quote: str) -> str:
    """Escape a candidate so that bash reads it back as one word.

    Args:
        candidate: The candidate.
        quote: The first character of the word on the line: the word is inside quotation marks if
            this is one.
    """
    if quote == "'":
        return candidate.replace("'", "'\\''")
    special = r"[^\w@%+=:,./~-]"
    if quote == '"':
        special = r'["$`\\]'
    return re.sub(special, r"\\\g<0>", candidate)
