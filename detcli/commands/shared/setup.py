"""Sets up a run: the process, and which model runs where and how, as the options say."""

from dataclasses import dataclass
from pathlib import Path

from detcli.backend.device import Device, DeviceOptions
from detcli.commands.shared.options import parse_confidence, parse_list, parse_size
from detcli.commands.shared.progress import fetching
from detcli.detector import Detector
from detcli.model.contract import BoxFormat
from detcli.model.file import ModelFile
from detcli.model.zoo import find
from detcli.pipeline import Pipeline
from detcli.run import keep_freed_memory as keep_freed_memory
from detcli.run import set_up_process as set_up_process
from detcli.settings import Settings
from detcli.source.decode import TIMEOUT_S
from detcli.tiling import Tiling


def find_model(model: str, *, half: bool = False) -> ModelFile:
    """Find a model's file, as `detcli.model.zoo.find` does, with a bar while it is fetched.

    Args:
        model: Path or name, as the user gave it.
        half: Whether to take the float16 file of a model given by name.

    Raises:
        ModelError: No file or model has this name, or the model cannot be fetched.
        OutputError: The cache cannot be written to.
    """
    with fetching() as show:
        return find(model, half=half, show=show)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Which model runs where, and how."""

    model: str  # its path or name, as it was given
    devices: tuple[Device, ...]  # one detector or more runs on each
    settings: Settings
    device_options: DeviceOptions
    batch: int | None  # pictures in a batch; None for what suits the device

    def find_model(self) -> ModelFile:
        """Locate the model's file, which is fetched if need be.

        Raises:
            ModelError: No file or model has this name, or it cannot be fetched.
            OutputError: The cache cannot be written to.
        """
        half = self.device_options.wants_half_file(self.devices[0])
        return find_model(self.model, half=half)

    def open_detector(self, model: ModelFile) -> Detector:
        """The model that `find_model` located, on the first device; for errors see `Detector`."""
        return Detector(model, self.devices[0], self.settings, self.device_options)

    def open_pipeline(self, detector: Detector, input_timeout_s: float = TIMEOUT_S) -> Pipeline:
        """A pipeline over the detector and its clones, on all devices."""
        clones = [*[detector.device] * (detector.workers - 1), *map(str, self.devices[1:])]
        return Pipeline(detector, self.batch or detector.batch, clones, input_timeout_s)


def run_options(  # noqa: PLR0913 - one parameter an option
    model: str,
    device: str,
    *,
    batch: int | None,
    cuda_graph: bool | None,
    gpu_mem_limit: str | None,
    half: bool,
    nms: float | None,
    imgsz: int | None,
    box_format: BoxFormat | None,
    conf: str | float | None = None,
    max_det: int = 300,
    classes: str | None = None,
    unique: bool = False,
    rect: bool = False,
    preprocess: str | None = None,
    boxes_only: bool = False,
    tile: str | None = None,
    names: Path | None = None,
    workers: int = 1,
) -> RunOptions:
    """Read the options that predict, eval and bench share; each is named as on the command line.

    Raises:
        UsageError: A value is malformed or out of range.
    """
    every, class_conf = (conf, ()) if isinstance(conf, float) else parse_confidence(conf)
    return RunOptions(
        model=model,
        devices=Device.parse_list(device),
        settings=Settings(
            conf=every,
            class_conf=class_conf,
            max_det=max_det,
            classes=() if classes is None else parse_list(classes),
            nms=nms,
            unique=unique,
            imgsz=imgsz,
            rect=rect,
            names=names,
            box_format=box_format,
            preprocess=preprocess,
            boxes_only=boxes_only,
            tile=None if tile is None else Tiling.parse(tile),
        ),
        device_options=DeviceOptions(
            cuda_graph=cuda_graph,
            gpu_mem_limit=None if gpu_mem_limit is None else parse_size(gpu_mem_limit),
            half=half,
            workers=workers,
        ),
        batch=batch,
    )
