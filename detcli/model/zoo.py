"""The model zoo: models known by name, and where their files are.

The published YOLOv10 models are fetched from Hugging Face on first use; `codes` is bundled with
detcli. An existing file takes precedence over a name.
"""

import logging
import stat
from dataclasses import dataclass
from pathlib import Path

from detcli.errors import ModelError, UsageError
from detcli.model.hub_cache import HubFile, Show, is_intact

DEFAULT = "yolov10n"
BUNDLED = Path(__file__).parent / "bundled"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ZooModel:
    """A model known by name.

    Attributes:
        name: The name.
        licence: SPDX identifier of its licence.
        repository: Repository on Hugging Face; None for a bundled model.
        revision: A commit where one is known, else a branch; empty for a bundled model.
        parameters: Number of parameters, as published; None for a bundled model.
    """

    name: str
    licence: str
    repository: str | None = None
    revision: str = ""
    parameters: int | None = None

    def file(self, *, half: bool = False) -> HubFile | None:
        """Its file on the hub; None for a bundled model."""
        name = "onnx/model_fp16.onnx" if half else "onnx/model.onnx"
        return HubFile(self.repository, name, self.revision) if self.repository else None

    def title(self, *, half: bool = False) -> str:
        """Its name in records."""
        return f"{self.name}-fp16" if half else self.name


# With the parameters of table 1 of arXiv 2405.14458.
PUBLISHED = (
    ("yolov10n", "57657320425ee34056408a57ad9d29c4d4815bd8", 2_300_000),
    ("yolov10s", "main", 7_200_000),
    ("yolov10m", "main", 15_400_000),
    ("yolov10b", "main", 19_100_000),
    ("yolov10l", "main", 24_400_000),
    ("yolov10x", "main", 29_500_000),
)

MODELS = {"codes": ZooModel("codes", "Apache-2.0")} | {
    name: ZooModel(name, "AGPL-3.0", f"onnx-community/{name}", revision, parameters)
    for name, revision, parameters in PUBLISHED
}


@dataclass(frozen=True, slots=True)
class LocatedModel:
    """A model's file, found or fetched.

    Attributes:
        path: Path of the file.
        name: The name in records.
        half: Whether it is the float16 file that was asked for.
    """

    path: Path
    name: str
    half: bool = False


def find(model: str | Path, *, half: bool = False, show: Show | None = None) -> LocatedModel:
    """Find a model's file by path or name; it is fetched if necessary.

    Args:
        model: Path of an ONNX file, or a name.
        half: Whether to use the float16 file, of a named model that has one.
        show: Called with the progress of a download.

    Raises:
        ModelError: There is no file and no model of this name, or the model cannot be fetched.
        OutputError: The cache cannot be written to.
    """
    path = Path(model)
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError) as error:  # a NUL is not allowed in a path
        named = by_name(str(model), getattr(error, "strerror", str(error)))
    else:
        # A folder named like a model, such as one with its results, does not hide the model.
        if not is_folder or str(model) not in MODELS:
            return LocatedModel(path, path.stem)
        named = MODELS[str(model)]
    half = half and named.repository is not None
    path = there(named, half=half) or _fetch(named, half=half, show=show)
    return LocatedModel(path, named.title(half=half), half)


def by_name(name: str, reason: str | None = None) -> ZooModel:
    """Look up a model by name.

    Args:
        name: Name of the model.
        reason: Why the name is not the path of a file; None where a path is not accepted.

    Raises:
        ModelError: No model has this name.
    """
    if name in MODELS:
        return MODELS[name]
    import difflib  # only errors need it

    close = difflib.get_close_matches(Path(name).stem.lower(), MODELS, n=1, cutoff=0.8)
    guess = f"did you mean {close[0]}? " if close else ""
    known = f"one of these names: {', '.join(MODELS)}"
    if reason is None:
        raise ModelError(f"'{name}': no model has that name", f"{guess}give {known}")
    raise ModelError(
        f"cannot read the model {name}: {reason}, and no model has that name",
        f"{guess}give the path of an ONNX file, or {known}",
    )


def is_named(path: Path) -> bool:
    """Whether a file is one of a named model in the cache, by whichever path it was given."""
    folders = {file.folder for model in MODELS.values() if (file := model.file(half=False))}
    return not folders.isdisjoint(path.absolute().parts)


def where(name: str, *, half: bool = False) -> Path:
    """Path of a model's file.

    Raises:
        ModelError: No model has this name, or it has not been fetched.
    """
    model = by_name(name)
    path = there(model, half=half)
    if path is None:
        command = f"detcli models pull {name}{' --half' if half else ''}"
        raise ModelError(f"{model.title(half=half)} has not been fetched", f"run: {command}")
    return path


def pull(name: str, *, half: bool = False, show: Show | None = None) -> Path:
    """Fetch a model's file, unless it is cached, intact and pinned to a commit.

    If the hub cannot be reached for an update, the cached file is used.

    Args:
        name: Name of the model.
        half: Whether to fetch the float16 file.
        show: Called with the progress of a download.

    Raises:
        ModelError: No model has this name, or it cannot be fetched.
        OutputError: The cache cannot be written to.
    """
    model = by_name(name)
    path = there(model, half=half)
    file = model.file(half=half)
    if path and file and not is_intact(path):
        log.warning("%s is damaged; fetching it again", path)
        file.forget()
        path = None
    if path and (file is None or file.pinned):
        return path
    try:
        return _fetch(model, half=half, show=show)
    except ModelError as error:
        if path is None:
            raise
        log.warning("%s; using the cached file", error)
        return path


def remove(name: str) -> int:
    """Remove a model's files from the cache.

    Returns:
        The number of bytes freed.

    Raises:
        ModelError: No model has this name, or no file of it has been fetched.
        UsageError: The model is bundled with detcli.
        OutputError: The cache cannot be written to.
    """
    model = by_name(name)
    files = [file for half in (False, True) if (file := model.file(half=half))]
    if not files:
        raise UsageError(f"{name} is bundled with detcli", "only fetched models can be removed")
    freed = sum(file.forget() for file in files)
    if not freed:
        raise ModelError(f"{name} has not been fetched", "see: detcli models list")
    return freed


def there(model: ZooModel, *, half: bool) -> Path | None:
    """Path of a model's file; None if it has to be fetched.

    Raises:
        ModelError: A bundled model has no float16 file, or is missing from the installation.
    """
    file = model.file(half=half)
    if file is not None:
        return file.cached()
    if half:
        raise ModelError(f"{model.name} has no float16 file", "leave out --half")
    path = BUNDLED / f"{model.name}.onnx"
    if not path.is_file():
        raise ModelError(f"{path} is missing", "reinstall detcli")
    return path


def _fetch(model: ZooModel, *, half: bool, show: Show | None) -> Path:
    from detcli.model.hub import fetch  # imports huggingface_hub

    file = model.file(half=half)
    if file is None:
        raise ValueError(f"{model.name} is not on a hub")
    return fetch(file, model.title(half=half), model.licence, show)
