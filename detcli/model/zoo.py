"""The model zoo: models that go by name, and where their files are.

The published YOLOv10 models come from Hugging Face, and are fetched when they are first used;
`codes` comes with detcli. A file that exists wins over a name.
"""

import logging
import stat
from dataclasses import dataclass
from pathlib import Path

from detcli.errors import ModelError, OutputError, UsageError
from detcli.model.hub_cache import HubFile, Show, cached, forget, is_intact

DEFAULT = "yolov10n"
BUNDLED = Path(__file__).parent / "bundled"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ZooModel:
    """A model that goes by name.

    Attributes:
        name: The name.
        licence: Its SPDX identifier.
        repository: Of Hugging Face; None for a model that comes with detcli.
        revision: A commit where one is known, else the branch.
        parameters: Of the network, as published; None for a model that comes with detcli.
    """

    name: str
    licence: str
    repository: str | None = None
    revision: str = "main"
    parameters: int | None = None

    def file(self, *, half: bool = False) -> HubFile | None:
        """Its file on the hub; None for a model that comes with detcli."""
        name = "onnx/model_fp16.onnx" if half else "onnx/model.onnx"
        return HubFile(self.repository, name, self.revision) if self.repository else None

    def title(self, *, half: bool = False) -> str:
        """What records call it."""
        return f"{self.name}-fp16" if half else self.name


def _yolov10(size: str, parameters: int, revision: str = "main") -> ZooModel:
    """A published model; parameters are those of table 1 of arXiv 2405.14458."""
    name = f"yolov10{size}"
    return ZooModel(name, "AGPL-3.0", f"onnx-community/{name}", revision, parameters)


MODELS = {
    model.name: model
    for model in (
        ZooModel("codes", "Apache-2.0"),
        _yolov10("n", 2_300_000, "57657320425ee34056408a57ad9d29c4d4815bd8"),
        _yolov10("s", 7_200_000),
        _yolov10("m", 15_400_000),
        _yolov10("b", 19_100_000),
        _yolov10("l", 24_400_000),
        _yolov10("x", 29_500_000),
    )
}


@dataclass(frozen=True, slots=True)
class LocatedModel:
    """A model's file, found or fetched.

    Attributes:
        path: Where it is.
        name: What records call it.
        half: Whether it is the float16 file that was asked for.
    """

    path: Path
    name: str
    half: bool = False


def find(model: str | Path, *, half: bool = False, show: Show | None = None) -> LocatedModel:
    """A model's file, by its path or by its name; fetched if need be.

    Args:
        model: Path of an ONNX file, or a name.
        half: The float16 file of a model that goes by name and has one.
        show: Told how far fetching is.

    Raises:
        ModelError: There is neither a file nor a model of that name, or it cannot be fetched.
        OutputError: The cache cannot be written to.
    """
    path = Path(model)
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError) as error:  # a NUL is in no path
        named = by_name(str(model), getattr(error, "strerror", str(error)))
    else:
        # A folder is no model: one named like a model, with what it made, say, is passed over.
        if not is_folder or str(model) not in MODELS:
            return LocatedModel(path, path.stem)
        named = MODELS[str(model)]
    half = half and named.repository is not None
    path = there(named, half=half) or _fetch(named, half=half, show=show)
    return LocatedModel(path, named.title(half=half), half)


def by_name(name: str, reason: str | None = None) -> ZooModel:
    """The model of a name.

    Args:
        name: The name.
        reason: Why it is no path; None where a path would not do.

    Raises:
        ModelError: There is none.
    """
    if name in MODELS:
        return MODELS[name]
    import difflib  # only needed for bad news

    close = difflib.get_close_matches(Path(name).stem.lower(), MODELS, n=1, cutoff=0.8)
    guess = f"did you mean {close[0]}? " if close else ""
    known = f"one of these names: {', '.join(MODELS)}"
    if reason is None:
        raise ModelError(f"'{name}': no model has that name", f"{guess}give {known}")
    raise ModelError(
        f"cannot read the model {name}: {reason}, and no model has that name",
        f"{guess}give the path of an ONNX file, or {known}",
    )


def where(name: str, *, half: bool = False) -> Path:
    """Where a model's file is.

    Raises:
        ModelError: There is no such model, or it has not been fetched.
    """
    model = by_name(name)
    path = there(model, half=half)
    if path is None:
        command = f"detcli models pull {name}{' --half' if half else ''}"
        raise ModelError(f"{model.title(half=half)} has not been fetched", f"run: {command}")
    return path


def pull(name: str, *, half: bool = False, show: Show | None = None) -> Path:
    """Have a model's file whole and, where no commit is set, the newest there is.

    Where the hub cannot be asked for the newest, the one that is there has to do.

    Args:
        name: Of the model.
        half: The float16 file.
        show: Told how far fetching is.

    Raises:
        ModelError: There is no such model, or it cannot be fetched.
        OutputError: The cache cannot be written to.
    """
    model = by_name(name)
    path = there(model, half=half)
    file = model.file(half=half)
    if path and file and not _intact(path):
        log.warning("%s is damaged and will be fetched anew", path)
        _forget(file)
        path = None
    if path and (file is None or file.pinned):
        return path
    try:
        return _fetch(model, half=half, show=show)
    except ModelError as error:
        if path is None:
            raise
        log.warning("%s; the file that is there has to do", error)
        return path


def remove(name: str) -> int:
    """Remove a model's files from the cache.

    Returns:
        The bytes that this has freed.

    Raises:
        ModelError: There is no such model, or nothing of it has been fetched.
        UsageError: It comes with detcli.
        OutputError: The cache cannot be written to.
    """
    model = by_name(name)
    files = [file for half in (False, True) if (file := model.file(half=half))]
    if not files:
        raise UsageError(f"{name} comes with detcli and stays", "fetched models can be removed")
    freed = sum(map(_forget, files))
    if not freed:
        raise ModelError(f"nothing of {name} has been fetched", "see: detcli models list")
    return freed


def there(model: ZooModel, *, half: bool) -> Path | None:
    """Where a file is; None if it has to be fetched.

    Raises:
        ModelError: It comes with detcli, and this installation lacks it; or there is no such file.
    """
    file = model.file(half=half)
    if file is not None:
        return cached(file)
    if half:
        raise ModelError(f"{model.name} has no float16 file", "leave out --half")
    path = BUNDLED / f"{model.name}.onnx"
    if not path.is_file():
        raise ModelError(f"{path} is missing", "install detcli anew")
    return path


def _fetch(model: ZooModel, *, half: bool, show: Show | None) -> Path:
    from detcli.model.hub import fetch  # imports huggingface_hub

    file = model.file(half=half)
    if file is None:
        raise ValueError(f"{model.name} is on no hub")
    return fetch(file, model.title(half=half), model.licence, show)


def _intact(path: Path) -> bool:
    try:
        return is_intact(path)
    except OSError as error:
        raise ModelError(
            f"cannot read {path}: {error.strerror}", "check its permissions"
        ) from error


def _forget(file: HubFile) -> int:
    try:
        return forget(file)
    except OSError as error:
        raise OutputError(
            f"cannot remove {error.filename or file.path}: {error.strerror or error}",
            "check the permissions of the Hugging Face cache",
        ) from error
