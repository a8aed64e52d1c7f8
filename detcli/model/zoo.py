"""The model zoo: models known by name, and where their files are.

Published models are fetched from Hugging Face on first use, with the files beside them that say
how images are prepared; `codes` is bundled with detcli. An existing file takes precedence over a
name.
"""

import logging
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from detcli.core import frozen
from detcli.core.errors import ModelError
from detcli.core.text import closest, looks_like_address, public_name
from detcli.model.hub import HubFile, Show, is_intact

if TYPE_CHECKING:
    from detcli.model.file import ModelFile

DEFAULT = "yolov10n"
BUNDLED = Path(__file__).parent / "bundled"

log = logging.getLogger(__name__)


@frozen
class ZooModel:
    """A model known by name."""

    name: str  # such as yolov10n
    licence: str  # SPDX identifier of its licence
    repository: str | None = None  # repository on Hugging Face; None for a bundled model
    revision: str = ""  # A commit where one is known, else a branch; empty for a bundled model
    parameters: int | None = None  # number of parameters, as published; None for a bundled model
    beside: tuple[str, ...] = ()  # paths of the repository's files that belong to the model

    def neighbours(self) -> list[HubFile]:
        """List the configuration files on the hub that belong to the model's file."""
        if self.repository is None:
            return []
        return [HubFile(self.repository, path, self.revision) for path in self.beside]

    def file(self, *, half: bool = False) -> HubFile | None:
        """Return the model's file on the hub; None for a model that detcli bundles."""
        if self.repository is None:
            return None
        path = "onnx/model_fp16.onnx" if half else "onnx/model.onnx"
        return HubFile(self.repository, path, self.revision)

    @property
    def pinned(self) -> bool:
        """True if the name always means the same file: it is bundled, or has a fixed commit."""
        file = self.file()
        return file is None or file.pinned

    def title(self, *, half: bool = False) -> str:
        """Return the name under which records and messages mention the model."""
        if half:
            return f"{self.name}-fp16"
        return self.name


CONFIGURATION = ("config.json", "preprocessor_config.json")

# Conversions by Hugging Face's ONNX community of the authors' weights, at a commit where one is
# known. Parameters are those that the authors publish; None where that could not be looked up.
FREE = (
    ("dfine-n", "dfine_n_coco-ONNX", "380d2839c327efaf65dd0fe0c2c10ab7fadd5473", None),
    ("dfine-s", "dfine_s_coco-ONNX", "a3cf03147a9b86c78475139115c8ac142577352d", 10_000_000),
    ("dfine-m", "dfine_m_coco-ONNX", "489756db2825cb068a588fe930af239a656d1fe1", 19_000_000),
    ("dfine-l", "dfine_l_coco-ONNX", "e09b218185400510b68d067bbd0c9379d905ffcd", 31_000_000),
    ("dfine-x", "dfine_x_coco-ONNX", "b67b16d98f1f95e2af0b6d0b8f74ad956557fe8c", 62_000_000),
    ("rfdetr-nano", "rfdetr_nano-ONNX", "eae21cee0687a91bcf9fa071605c48d7705d2d91", 30_500_000),
    ("rfdetr-small", "rfdetr_small-ONNX", "63463b68b200177d1fea7015f11f3cebb0ba4eeb", 32_100_000),
    ("rfdetr-medium", "rfdetr_medium-ONNX", "main", 33_700_000),
    ("rfdetr-large", "rfdetr_large-ONNX", "4988fbacee4aa815e43c2e0666377ab26bddf1e8", None),
    (
        "rtdetrv2-r18",
        "rtdetr_v2_r18vd-ONNX",
        "936f90b6a476c6da4dfe053fc521af55285976ba",
        20_000_000,
    ),
    ("rtdetrv2-r34", "rtdetr_v2_r34vd-ONNX", "main", 31_000_000),
    ("rtdetrv2-r50", "rtdetr_v2_r50vd-ONNX", "main", 42_000_000),
    (
        "rtdetrv2-r101",
        "rtdetr_v2_r101vd-ONNX",
        "20760ebd6e97f223ce139bcf9c30ba993dfe953b",
        76_000_000,
    ),
)
YOLO26 = (
    ("yolo26n", "yolo26n-ONNX", "a8dc7e14743e1cea8ccd493bd99b4c2827de1acf", 2_400_000),
    ("yolo26s", "yolo26s-ONNX", "37669b009f416cb1df28751257d6ec5f8e4b4e20", 9_500_000),
    ("yolo26m", "yolo26m-ONNX", "a1db4877f0a3ed68554c231cdae958e2280087e3", 20_400_000),
    ("yolo26l", "yolo26l-ONNX", "7a72d097ea1719e10eda2d89f75b6e9c009f7f6b", 24_800_000),
    ("yolo26x", "yolo26x-ONNX", "032eec52a570b81e5f9d66485b9322bd9b7f4053", 55_700_000),
)

# With the parameters of table 1 of arXiv 2405.14458.
YOLOV10 = (
    ("yolov10n", "57657320425ee34056408a57ad9d29c4d4815bd8", 2_300_000),
    ("yolov10s", "main", 7_200_000),
    ("yolov10m", "main", 15_400_000),
    ("yolov10b", "main", 19_100_000),
    ("yolov10l", "main", 24_400_000),
    ("yolov10x", "main", 29_500_000),
)


def _models() -> Iterator[ZooModel]:
    """Yield all models of the zoo in the order in which `detcli models` lists them."""
    yield ZooModel("codes", "Apache-2.0")  # detcli's bundled detector of codes
    for licence, conversions in (("Apache-2.0", FREE), ("AGPL-3.0", YOLO26)):
        for name, repository, revision, parameters in conversions:
            yield ZooModel(
                name=name,
                licence=licence,
                repository=f"onnx-community/{repository}",
                revision=revision,
                parameters=parameters,
                beside=CONFIGURATION,
            )
    # The configuration in these repositories does not describe the model, see `WITHOUT_SIDECAR`.
    for name, revision, parameters in YOLOV10:
        yield ZooModel(
            name=name,
            licence="AGPL-3.0",
            repository=f"onnx-community/{name}",
            revision=revision,
            parameters=parameters,
        )


MODELS = {model.name: model for model in _models()}


def find(
    model: str | Path, *, half: bool = False, show: Show | None = None, fetch: bool = True
) -> "ModelFile":
    """Find a model's file by path or by its name in the zoo; it is fetched if necessary.

    An existing file takes precedence over a model of the same name.

    Args:
        model: Path of an ONNX file, or a name.
        half: Whether to use the float16 file, of a named model that has one.
        show: Called with the progress of a download.
        fetch: False makes it an error that the file has to be fetched.

    Raises:
        ModelError: There is no file and no model of this name, or the model cannot be fetched.
        OutputError: The cache cannot be written to.
    """
    from detcli.model.file import ModelFile  # `--help` needs none

    if looks_like_address(str(model)):
        raise ModelError(
            f"the model {public_name(str(model))} is an address, and models are read from a disk",
            "fetch it first, as curl -LO does, and name the file",
        )
    zoo_model = _zoo_model_unless_path(model)
    if zoo_model is None:
        path = Path(model)
        return ModelFile(path, path.stem)

    half = half and zoo_model.repository is not None
    if fetch:
        path = local_path(zoo_model, half=half) or _fetch(zoo_model, half=half, show=show)
    else:
        path = model_path(zoo_model.name, half=half)
    return ModelFile(path, zoo_model.title(half=half), half)


def _zoo_model_unless_path(model: str | Path) -> ZooModel | None:
    """Look up a model of the zoo, unless what the user gave is an existing path.

    A file takes precedence over a model of the same name. But a folder named like a model, such as
    one with its results, does not hide the model.

    Args:
        model: The name of a model, or a path.

    Returns:
        The model of the zoo; None if the path of a file is meant, or of a folder without a model of
        that name.

    Raises:
        ModelError: There is neither a file or folder nor a model of this name.
    """
    name = str(model)
    try:
        mode = Path(model).stat().st_mode
    except OSError as error:  # usually as there is no such file, so it is the name of a model
        return model_by_name(name, error.strerror)
    except ValueError as error:  # a path with a NUL character
        return model_by_name(name, str(error))
    is_folder = stat.S_ISDIR(mode)
    if is_folder:
        return MODELS.get(name)
    return None


def model_by_name(name: str, reason: str | None = None) -> ZooModel:
    """Look up a model of the zoo by its name.

    Args:
        name: The name, or a path that the user gave in its place.
        reason: Why no file could be read under this path, for the message. None where only a name
            can be given, so that the message speaks of no path.

    Raises:
        ModelError: No model has that name. The hint proposes the most similar name. If there is
            none, it lists all names, or only says how to list them for what looks like a path.
    """
    if name in MODELS:
        return MODELS[name]

    path = Path(name)
    question = ""
    similar_name = closest(path.stem, MODELS)
    if similar_name:
        question = f"did you mean {similar_name}? "
    looks_like_path = path.name != name or bool(path.suffix)
    if similar_name or looks_like_path:
        choices = "a name that detcli models list shows"
    else:
        choices = f"one of these names: {', '.join(MODELS)}"

    if reason is None:
        raise ModelError(f"'{name}': no model has that name", f"{question}give {choices}")
    raise ModelError(
        f"cannot read the model {name}: {reason}, and no model has that name",
        f"{question}give the path of an ONNX file, or {choices}",
    )


def model_path(name: str, *, half: bool = False) -> Path:
    """Return the path of a named model's file without using the network.

    Raises:
        ModelError: There is no such model, or its file has not been fetched yet.
    """
    model = model_by_name(name)
    path = local_path(model, half=half)
    if path is None:
        command = f"detcli models pull {name}"
        if half:
            command += " --half"
        raise ModelError(f"{model.title(half=half)} has not been fetched", f"run: {command}")
    return path


def pull(name: str, *, half: bool = False, show: Show | None = None) -> Path:
    """Fetch the newest file of a model into the cache, and return its path.

    Nothing is fetched for a bundled model, or if the cached file comes from a fixed commit and is
    intact. If the hub cannot be reached for an update, the cached file is used.

    Args:
        name: The name of the model.
        half: Whether to fetch the float16 file.
        show: Called with the progress of the download.
    """
    model = model_by_name(name)
    path = local_path(model, half=half)
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


def local_path(model: ZooModel, *, half: bool) -> Path | None:
    """Return the path of a model's file, bundled or cached; None if it has to be fetched.

    It has to be fetched as well if a configuration file that belongs to it is not cached.

    Raises:
        ModelError: A bundled model is missing, or has no float16 file.
    """
    file_on_hub = model.file(half=half)
    if file_on_hub is None:
        return _bundled_path(model, half=half)
    has_configuration = all(neighbour.cached() for neighbour in model.neighbours())
    if not has_configuration:
        return None
    return file_on_hub.cached()


def _bundled_path(model: ZooModel, *, half: bool) -> Path:
    """Return the path of a model that comes with detcli.

    Raises:
        ModelError: The file is missing, or a float16 file is asked for and does not exist.
    """
    if half:
        raise ModelError(f"{model.name} has no float16 file", "leave out --half")
    path = BUNDLED / f"{model.name}.onnx"
    if not path.is_file():
        raise ModelError(f"{path} is missing", "reinstall detcli")
    return path


def _fetch(model: ZooModel, *, half: bool, show: Show | None) -> Path:
    """Fetch a model's file and its configuration files; return the path of the model's file."""
    file = model.file(half=half)
    if file is None:
        raise ValueError(f"{model.name} is not on a hub")
    path = file.fetch(model.title(half=half), model.licence, show)
    for neighbour in model.neighbours():
        neighbour.fetch(f"{neighbour.path} of {model.name}", model.licence)
    return path
