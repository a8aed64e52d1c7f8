"""Detector: the library's front door."""

import difflib
import logging
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, overload

import numpy as np

from detcli.backend import DeviceOptions, Limits, open_backend
from detcli.detections import Detections
from detcli.errors import DetcliWarning, ModelError, UsageError
from detcli.geometry import Image, Letterbox
from detcli.model.contract import Layout
from detcli.model.names import read_names
from detcli.model.prepared import prepare
from detcli.settings import Settings

log = logging.getLogger(__name__)


class Detector:
    """A model on a device: pictures in, detections out.

    A context manager; leaving it releases the device's memory. Not for use by several threads at
    once.

    Attributes:
        contract: What the model promises: layout, classes, input size.
        device: Where it runs, "cpu" or "cuda:0".
        model_name: The model file's name without its suffix.

    Example, executed in docs/index.md:

        with Detector("yolov10n.onnx", device="cpu") as detector:
            detections = detector(cv2.imread("street.jpg"))
    """

    def __init__(
        self,
        model: str | Path,
        device: str = "auto",
        settings: Settings | None = None,
        options: DeviceOptions | None = None,
    ) -> None:
        """Load a model.

        Args:
            model: Path of an ONNX file.
            device: "auto", "cpu", "cuda", "cuda:N", "tensorrt" or "tensorrt:N".
            settings: Which detections to keep; the default keeps up to 300 above 0.25.
            options: How to use a GPU.

        Raises:
            ModelError: The model cannot be used.
            DeviceError: The device cannot be used.
            DeviceMemoryError: The model does not fit into its memory.
            UsageError: The settings do not fit the model, or the options the device.
        """
        settings = settings or Settings()
        prepared = prepare(Path(model), settings.box_format)
        contract = prepared.contract
        for warning in contract.warnings:
            warnings.warn(f"{prepared.name}: {warning}", DetcliWarning, stacklevel=2)
        if contract.layout is Layout.ONE_TO_MANY and settings.nms is None:
            raise ModelError(
                f"{prepared.name} has a one-to-many head (several boxes for each object), which "
                "needs non-maximum suppression",
                "pass --nms 0.45 (in Python, Settings(nms=0.45))",
            )
        if settings.names is not None:
            contract = contract.with_names(read_names(Path(settings.names)), str(settings.names))
        self.contract = contract
        self.model_name = prepared.name
        self._canvas = contract.canvas(settings.imgsz)
        self._limits = Limits(
            confidence=settings.conf,
            max_det=settings.max_det,
            class_ids=_class_ids(settings.classes, contract.names),
            nms_iou=settings.nms,
        )
        self._backend = open_backend(device, replace(prepared, contract=contract), options)
        self.device = self._backend.device
        log.info(
            "%s on %s: %s, %s boxes, %d classes (names: %s), input %dx%d %s",
            *(self.model_name, self.device, contract.layout, contract.box_format),
            *(contract.class_count, contract.names_origin),
            *(self._canvas[1], self._canvas[0], contract.input_dtype),
        )

    @overload
    def __call__(self, images: Image) -> Detections: ...
    @overload
    def __call__(self, images: Sequence[Image]) -> list[Detections]: ...
    def __call__(self, images: Image | Sequence[Image]) -> Detections | list[Detections]:
        """Detect objects.

        Args:
            images: One picture, `(H, W, 3)` uint8 BGR as `cv2.imread` gives it, or a list of them
                of any sizes, which run as one batch.

        Returns:
            Detections, or a list of them, in pixels of each picture.

        Raises:
            ValueError: A picture has another shape or dtype.
            InferenceError: The runtime failed.
        """
        if isinstance(images, np.ndarray):
            return self._detect([images])[0]
        return self._detect(images) if len(images) else []

    def _detect(self, images: Sequence[Image]) -> list[Detections]:
        letterboxes = [self.letterbox(image) for image in images]
        buffer = self._backend.prepare(images, letterboxes)
        pending = self._backend.select(self._backend.infer(buffer), letterboxes, self._limits)
        return pending()

    def letterbox(self, image: Image) -> Letterbox:
        """Where a picture lies on the network's input.

        Raises:
            ValueError: It is not `(H, W, 3)` uint8.
        """
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
            raise ValueError(
                f"a picture is (H, W, 3) uint8 BGR, this is {image.shape} {image.dtype}"
            )
        return Letterbox.fit((image.shape[0], image.shape[1]), self._canvas)

    def close(self) -> None:
        """Release the device's memory."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _class_ids(wanted: Iterable[str | int], names: tuple[str, ...]) -> frozenset[int] | None:
    """Class ids of names or ids; None for no choice.

    Raises:
        UsageError: The model has no such class.
    """
    chosen = set()
    for entry in wanted:
        if entry in names:
            chosen |= {index for index, name in enumerate(names) if name == entry}
        elif str(entry).isdecimal() and int(entry) < len(names):
            chosen.add(int(entry))
        else:
            raise UsageError(f"the model has no class '{entry}'", _class_hint(str(entry), names))
    return frozenset(chosen) or None


def _class_hint(wanted: str, names: tuple[str, ...]) -> str:
    """Close matches of a name; without any, the first of the model's names."""
    if close := difflib.get_close_matches(wanted, names):
        return f"did you mean {' or '.join(close)}?"
    more = ", ..." if len(names) > 10 else ""
    return f"it has {len(names)}: {', '.join(names[:10])}{more}"
