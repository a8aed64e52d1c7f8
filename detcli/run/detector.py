"""Detector: a model on a device, the entry point of the library."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Self, overload

import numpy as np

from detcli.core.config import Settings
from detcli.core.detections import Detections
from detcli.core.device import Device, DeviceOptions
from detcli.core.geometry import Image, Letterbox, Picture
from detcli.run.batches import BatchDetector


class Detector:
    """A model on a device: pictures in, detections out.

    A context manager, which releases the device's memory on exit. Not thread-safe.

    Attributes:
        contract: What the model promises: layout, classes, input size.
        device: Where it runs, as in records: "cpu", "cuda:0", or "openvino:CPU (bf16)" where the
            device chooses the precision.
        model_name: The model's name, or that of its file without the suffix.
        canvas: Height and width of the network's input.
        conf: What scores must exceed, but for classes with a confidence of their own.

    Example, executed in docs/index.md:

        with Detector("yolov10n.onnx", device="cpu") as detector:
            detections = detector(cv2.imread("street.jpg"))
    """

    def __init__(
        self,
        model: str | Path,
        device: str | Device = "auto",
        settings: Settings | None = None,
        options: DeviceOptions | None = None,
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

        Raises:
            ModelError: The model cannot be used.
            DeviceError: The device cannot be used.
            DeviceMemoryError: The model does not fit into the device's memory.
            UsageError: The settings do not suit the model, or the options the device.
            OutputError: A fetched model cannot be written to the cache.
        """
        self._hold(BatchDetector(model, device, settings, options))

    def _hold(self, detector: BatchDetector) -> None:
        self._detector, self.device = detector, detector.device
        self.contract, self.model_name = detector.contract, detector.model_name
        self.canvas, self.conf = detector.canvas, detector.conf

    def clone(self, device: str | Device | None = None) -> "Detector":
        """Open the same model with the same settings again, for another thread or device.

        Args:
            device: As for the constructor; by default this detector's device.

        Raises:
            DeviceError: The device cannot be used.
            DeviceMemoryError: The model does not fit into the device's memory.
        """
        other = copy.copy(self)
        other._hold(self._detector.clone(device))  # noqa: SLF001 - the same class
        return other

    @overload
    def __call__(self, images: Image) -> Detections: ...
    @overload
    def __call__(self, images: Sequence[Image]) -> list[Detections]: ...
    def __call__(self, images: Image | Sequence[Image]) -> Detections | list[Detections]:
        """Detect objects.

        Args:
            images: A picture, `(H, W, 3)` uint8 BGR as from `cv2.imread`, or a list of pictures
                of any sizes, which run as one batch.

        Returns:
            Detections, or a list of them, in pixels of each picture.

        Raises:
            ValueError: A picture has a wrong shape or dtype.
            InferenceError: The runtime failed.
            SourceError: A picture has no such region as the settings name.
        """
        if isinstance(images, np.ndarray):
            return self._detector.submit([_checked(images)])()[0]
        return self._detector.submit([_checked(image) for image in images])()

    def letterbox(self, size: tuple[int, int]) -> Letterbox:
        """Where a picture of (height, width) lies on the network's input."""
        return self._detector.letterbox(size)

    def close(self) -> None:
        """Release the device's memory."""
        self._detector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _checked(image: Image) -> Picture:
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
        raise ValueError(f"a picture must be (H, W, 3) uint8 BGR, got {image.shape} {image.dtype}")
    return Picture.whole(image)
