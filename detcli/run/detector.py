"""Detector and predict, the entry points of the library: pictures or names in, detections out."""

import copy
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self, overload

import numpy as np
import numpy.typing as npt

from detcli.config.config import Config, Inputs, Settings, Watched
from detcli.config.device import Device, DeviceOptions
from detcli.config.option import options_of
from detcli.config.typed import shortened
from detcli.core.errors import DetcliError, InputError, UsageError
from detcli.core.text import closest
from detcli.data.detections import Detections
from detcli.data.geometry import Letterbox, Picture, Size
from detcli.data.record import Origin, Record
from detcli.run import Run
from detcli.run.batches import BatchDetector
from detcli.source.fetch import load_file
from detcli.source.loading import Item, load_in_time
from detcli.source.names import is_video

INPUTS = Inputs()  # the defaults of `predict`
WATCHED = Watched()


class PillowImage(Protocol):
    """An image of Pillow, which need not be installed."""

    def convert(self, mode: str) -> Any:  # noqa: ANN401
        """Convert the image to another mode."""


AnyPicture = npt.NDArray[Any] | str | os.PathLike[str] | PillowImage | None


class Detector:
    """A model on a device: pictures in, detections out.

    A context manager, which releases the device's memory on exit. On the CPU and with OpenVINO, any
    number of threads may call it at the same time; on a GPU, each thread needs a `clone`.

    Attributes:
        contract: What the model promises: layout, classes, input size.
        names: The names of all classes, by class id.
        device: Where it runs, as in records: "cpu", "cuda:0", or "openvino:CPU (bf16)" where the
            device chooses the precision.
        model_name: The model's name, or that of its file without the suffix.
        canvas: Height and width of the network's input.
        conf: What scores must exceed, but for classes with a confidence of their own.

    Example, executed in docs/index.md:

        with Detector("yolov10n.onnx", device="cpu") as detector:
            detections = detector("street.jpg")
    """

    def __init__(
        self,
        model: str | Path,
        device: str | Device = "auto",
        settings: Settings | None = None,
        options: DeviceOptions | None = None,
        **changes: Any,  # noqa: ANN401 - see the fields of Settings
    ) -> None:
        """Load a model.

        Args:
            model: Path of an ONNX file; or a name such as "yolov10n", whose file is fetched on
                first use, see `detcli models list`.
            device: "auto", "cpu", "cuda", "cuda:N", "tensorrt", "tensorrt:N", "openvino",
                "openvino:CPU", "openvino:GPU" or "openvino:NPU".
            settings: Which detections to keep; by default up to 300 above the confidence that
                the model recommends, or 0.25.
            options: How to use the device.
            **changes: Fields of `Settings` by name, in place of those of `settings`: `conf=0.4`.

        Raises:
            ModelError: The model cannot be used.
            DeviceError: The device cannot be used.
            DeviceMemoryError: The model does not fit into the device's memory.
            UsageError: A value is of the wrong type, or the settings do not suit the model, or the
                options the device.
            OutputError: A fetched model cannot be written to the cache.
        """
        if not isinstance(model, str | os.PathLike):
            raise UsageError(
                f"model is {shortened(model)}", "give the path of an ONNX file or a name"
            )
        if not isinstance(model, str):
            model = Path(os.fsdecode(model))
        if settings is not None:
            _require_type("settings", settings, Settings, "conf=0.4")
        if options is not None:
            _require_type("options", options, DeviceOptions, "workers=2")
        with _in_python():
            changed_settings = _changed(settings or Settings(), changes)
            self._hold(BatchDetector(model, device, changed_settings, options))

    def _hold(self, detector: BatchDetector) -> None:
        """Take over the attributes of the detector that this is a front of."""
        self._detector = detector
        self.device = detector.device
        self.contract = detector.contract
        self.model_name = detector.model_name
        self.names = detector.contract.names
        self.canvas = detector.canvas
        self.conf = detector.conf

    def clone(self, device: str | Device | None = None) -> "Detector":
        """Open the same model with the same settings again, for another thread or device.

        With `DeviceOptions(workers=N)`, each of N clones has its part of the CPU's cores.

        Args:
            device: As for the constructor; by default this detector's device.

        Raises:
            DeviceError: The device cannot be used.
            DeviceMemoryError: The model does not fit into the device's memory.
        """
        clone = copy.copy(self)
        with _in_python():
            clone._hold(self._detector.clone(device))  # noqa: SLF001 - the same class
        return clone

    @overload
    def __call__(self, images: AnyPicture) -> Detections: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, images: Sequence[AnyPicture]) -> list[Detections]: ...
    def __call__(self, images: AnyPicture | Sequence[AnyPicture]) -> Detections | list[Detections]:
        """Detect objects.

        Args:
            images: A picture, or a list of pictures of any sizes, which run as one batch. A picture
                is `(H, W, 3)` uint8 BGR as from `cv2.imread`, the path of a file, which is read
                upright, or one of Pillow, which is taken as it is. An array `(N, H, W, 3)` is a
                list of N pictures.

        Returns:
            Detections, or a list of them, in pixels of each picture.

        Raises:
            TypeError: It is something else, such as None, which OpenCV makes of a file that it
                cannot read.
            ValueError: An array has a wrong shape or dtype.
            SourceError: A file cannot be read.
            DecodeError: A file is not a complete picture.
            InferenceError: The runtime failed.
            SourceError: A picture has no such region as the settings name.
        """
        if isinstance(images, np.ndarray) and images.ndim == 4:
            images = list(images)
        with _in_python():
            if isinstance(images, list | tuple):
                pictures = [_picture(image) for image in images]
                return self._detector.submit(pictures)()
            [detections] = self._detector.submit([_picture(images)])()
            return detections

    def letterbox(self, size: Size) -> Letterbox:
        """Where a picture of (height, width) lies on the network's input."""
        return self._detector.letterbox(size)

    def close(self) -> None:
        """Release the device's memory."""
        self._detector.close()

    def __repr__(self) -> str:
        return f"Detector({self.model_name!r}, device={self.device!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def predict(
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    detector: Detector,
    inputs: Inputs = INPUTS,
    watched: Watched = WATCHED,
) -> Iterator[Record]:
    """Yield a record for each picture and frame, in order, as `detcli predict` does.

    A few are read and detected on ahead, on threads. An input that fails has a record with an
    `error`, and the others go on.

    Args:
        sources: Pictures, videos, folders, patterns, addresses, cameras; one or several.
        detector: Runs with as many clones as its `DeviceOptions(workers=N)` say.
        inputs: How they are read: time limit, part and stride of videos, folders in folders.
        watched: What is found out besides: tracks, zones, lines, texts.

    Raises:
        UsageError: A value is out of range or of the wrong type, or standard input is named twice.
        DeviceError: The device cannot be used.
        DependencyError: A library is missing.
    """
    _require_type("detector", detector, Detector, '"yolov10n"')
    _require_type("inputs", inputs, Inputs, "vid_stride=2")
    _require_type("watched", watched, Watched, 'track="bytetrack"')
    source = (*inputs.source, *_names(sources))
    with _in_python():
        config = Config(inputs=replace(inputs, source=source), watched=watched)
        return _records(Run.over(config, detector._detector))  # noqa: SLF001 - what it is a front of


def _records(run: Run) -> Iterator[Record]:
    """Yield the records of a run, whose errors name settings as Python does."""
    with _in_python(), run.sources() as sources:
        watcher = run.watcher()
        with closing(run.pipeline().run(sources)) as records:
            for record in records:
                watched = watcher(record)
                if watched.error is not None:
                    _translate(watched.error)
                yield watched


def _names(sources: object) -> list[str]:
    """The names of one source or of several."""
    hint = "name pictures, videos, folders, patterns, addresses or cameras by texts or paths"
    if isinstance(sources, str | bytes | os.PathLike):
        return [os.fsdecode(sources)]
    is_number = getattr(sources, "ndim", None) == 0  # of NumPy, which says that it is iterable
    if isinstance(sources, Detector) or not isinstance(sources, Iterable) or is_number:
        raise UsageError(f"sources is {shortened(sources)}", hint)
    names: list[str] = []
    for source in sources:
        if not isinstance(source, str | bytes | os.PathLike):
            hint += "; pictures in memory go to the detector itself: detector(images)"
            raise UsageError(f"sources has {shortened(source)} in it", hint)
        names.append(os.fsdecode(source))
    return names


def _require_type(name: str, value: object, kind: type, example: str) -> None:
    """Refuse an argument of another type; `example` is what one of this type is made with."""
    if not isinstance(value, kind):
        hint = f"give an object of {kind.__name__}, as in {kind.__name__}({example})"
        raise UsageError(f"{name} is {shortened(value)}", hint)


def _changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Change fields of settings, by name."""
    names = [field.name for field in fields(Settings)]
    for name, value in changes.items():
        if name not in names:
            raise UsageError(f"Detector takes no {name}", _hint_for(name, value, names))
    return replace(settings, **changes)


def _hint_for(name: str, value: object, settings: Sequence[str]) -> str:
    """Say where an unknown argument belongs, or which field of Settings was probably meant."""
    parameters = {
        DeviceOptions: "Detector: options=",
        Inputs: "detcli.predict: inputs=",
        Watched: "detcli.predict: watched=",
    }
    for kind, parameter in parameters.items():
        if name in [field.name for field in fields(kind)]:
            return f"pass it to {parameter}{kind.__name__}({name}={value!r:.80})"
    for setting in settings:
        if name.replace("_", "-") in options_of(Config)[setting].other_names.split():
            return f"did you mean {setting}?"
    similar = closest(name, settings)
    return f"did you mean {similar}?" if similar else f"the settings are {', '.join(settings)}"


def _picture(image: object) -> Picture:
    """Convert an image to a picture as the detector takes it."""
    if isinstance(image, str | os.PathLike):
        return _read(os.fsdecode(image))
    if type(image).__module__.startswith("PIL.") and hasattr(image, "convert"):
        image = np.ascontiguousarray(np.asarray(image.convert("RGB"))[..., ::-1])  # RGB to BGR
    wanted = "a picture must be (H, W, 3) uint8 BGR, a path, or one of Pillow"
    if not isinstance(image, np.ndarray):
        said = "None, which cv2.imread returns for a file that it cannot read: pass its path"
        raise TypeError(f"{wanted}, got {said if image is None else type(image).__name__}")
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
        raise ValueError(f"{wanted}, got {image.shape} {image.dtype}")
    return Picture.whole(image)


def _read(path: str) -> Picture:
    if is_video(path) or "://" in path or os.path.isdir(path):  # noqa: PTH112 - raises nothing
        raise UsageError(
            f"{path} is not the file of one picture", "iterate over detcli.predict(path, detector)"
        )
    try:
        return load_in_time(Item(Origin(path), partial(load_file, path)))
    except InputError as error:
        raise error.about(path) from None


# The commands that some hints name stay as they are; options become what Python calls them.
OPTION = re.compile(
    r"detcli [^;,]*|--(no-)?([a-z-]+)"
    r"(?: ([0-9.]*[0-9]|[a-z-]+=[\w:,=.-]+|(?<=device )[\w:]*\w))?"
)


def _in_python_words(match: re.Match[str]) -> str:
    """What an option of the command line, with its value if it has one, is called in Python."""
    is_negated = bool(match[1])
    name = str(match[2]).replace("-", "_")
    value = match[3]
    option = options_of(Config).get(name)
    if option is None:
        return match[0]
    if not option.metavar:
        return f"{name}={not is_negated}"
    if value is None:
        return name
    return f"{name}={value}" if value[0].isdigit() else f'{name}="{value}"'


def _translate(error: DetcliError) -> None:
    """Let an error name settings as Python does: nms=0.45 for --nms 0.45."""
    error.args = (OPTION.sub(_in_python_words, str(error)),)
    error.hint = OPTION.sub(_in_python_words, error.hint)


@contextmanager
def _in_python() -> Iterator[None]:
    """Let the errors of the block name settings as Python does."""
    try:
        yield
    except DetcliError as error:
        _translate(error)
        raise
