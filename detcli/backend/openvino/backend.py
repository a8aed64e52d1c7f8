"""OpenvinoBackend: the CPU's own code before and behind a network that OpenVINO runs."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from detcli.backend.openvino.library import FAILURES, reason
from detcli.backend.openvino.network import OpenvinoNetwork, Tensor
from detcli.backend.postprocess import HeadArray, SelectionOptions, detect_all
from detcli.backend.preprocess import in_batches, to_tensors
from detcli.backend.protocol import Observer, Pending, closed_error, run_error
from detcli.core.detections import Detections
from detcli.core.geometry import Image, Letterbox, new_image
from detcli.core.timing import Stage
from detcli.model.contract import Contract


@dataclass(frozen=True, eq=False, slots=True)
class Runs:
    """The runs of a batch: each has a request, which owns its output, and its input."""

    pictures: int
    started: list[tuple[Any, Tensor]]


class OpenvinoBackend:
    """Runs a model with OpenVINO, as many batches at once as its device has streams.

    A batch is one picture, as on the CPU. It has a request, and with it an input and an output of
    its own, until its detections are read.
    """

    workers = 1

    def __init__(self, network: OpenvinoNetwork, contract: Contract, device: str) -> None:
        self.device = device
        self.precision = network.precision
        self.in_flight = network.requests + 1  # one is prepared while the others run
        self.network: OpenvinoNetwork | None = network
        self._contract = contract
        self.idle: list[Any] = []  # requests, whose outputs have been read
        self._observer: Observer | None = None

    def best_batch(self, canvas: tuple[int, int]) -> int:  # noqa: ARG002 - of any size
        """As many pictures as the graph takes; one where it takes any number."""
        return self._contract.batch or 1

    def allocate(self, size: tuple[int, int]) -> Image:
        """An array for a picture, in ordinary memory."""
        return new_image(size)

    def prepare(self, images: Sequence[Image], letterboxes: Sequence[Letterbox]) -> Tensor:
        """Turn pictures into a tensor `(B, 3, H, W)`, see `backend.preprocess`."""
        tensors = to_tensors(images, letterboxes, self._contract)
        self._ended(Stage.PREPROCESS)
        return tensors

    def infer(self, buffer: Tensor) -> Runs:
        """Start the network body on `(B, 3, H, W)`."""
        if self.network is None:
            raise closed_error()
        runs = Runs(len(buffer), [])
        for part in in_batches(buffer, self._contract):
            request = self.idle.pop() if self.idle else self.network.request()
            self.network.start(request, part)
            runs.started.append((request, part))
        if self._observer is not None:
            for request, part in runs.started:
                with _failures(part):
                    request.wait()
        self._ended(Stage.NETWORK)
        return runs

    def select(
        self, buffer: Runs, letterboxes: Sequence[Letterbox], options: SelectionOptions
    ) -> Pending:
        """Select detections of each picture as soon as the network has ended."""

        @functools.cache
        def wait() -> list[Detections]:
            outputs: list[HeadArray] = []
            for request, part in buffer.started:
                with _failures(part):
                    request.wait()
                outputs.extend(request.get_output_tensor().data)  # views
            found = detect_all(outputs[: buffer.pictures], letterboxes, options, self._contract)
            self.idle.extend(request for request, _ in buffer.started)
            return found

        if self._observer is not None:
            wait()
        self._ended(Stage.SELECTION)
        return wait

    def observe(self, observer: Observer | None) -> None:
        """Tell an observer which stage has ended; the network is then waited for."""
        self._observer = observer

    def _ended(self, stage: Stage) -> None:
        if self._observer is not None:
            self._observer(stage)

    def close(self) -> None:
        self.network = None
        self.idle.clear()


@contextmanager
def _failures(tensor: Tensor) -> Iterator[None]:
    """Translate what a run of this tensor raises."""
    try:
        yield
    except FAILURES as error:
        raise run_error(tensor.shape, reason(error)) from error
