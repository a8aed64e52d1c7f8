"""The backend: several batches at once, each in a request of OpenVINO."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from detcli.backend.openvino.library import library, translated
from detcli.backend.openvino.network import REQUESTS
from detcli.backend.postprocess import HeadArray, SelectionOptions, detect_all, of_images
from detcli.backend.preprocess import Tensor, in_batches
from detcli.backend.protocol import HostBackend, Pending, closed_error
from detcli.core.timing import Stage
from detcli.data.detections import Detections
from detcli.data.geometry import Letterbox
from detcli.model.contract import Contract


@dataclass(eq=False, slots=True)
class Started:
    """Images whose inference has been started, in one or several batches."""

    runs: list[tuple[Any, Tensor]]  # of each batch: OpenVINO's request with its output; its input
    unread: int = 0  # selections whose detections have not been read
    returned: bool = False  # whether its requests may run other batches


class OpenvinoBackend(HostBackend):
    """Runs a model with OpenVINO, as many batches at once as its device has streams.

    A batch has a request, and with it an input and an output of its own, until its detections are
    read.
    """

    workers = 1

    def __init__(self, compiled: Any, precision: str, contract: Contract, device: str) -> None:  # noqa: ANN401 - openvino's types are incomplete
        super().__init__(contract)
        self.device = device
        self.precision = precision
        # One is prepared while the others run.
        self.in_flight: int = compiled.get_property(REQUESTS) + 1
        self._network = compiled
        self.idle: list[Any] = []  # requests, whose outputs have been read

    def infer(self, buffer: Tensor) -> Started:
        """Start the network on the images of a buffer, without waiting for it.

        Args:
            buffer: `(B, C, H, W)`, the preprocessed images.
        """
        if self._network is None:
            raise closed_error()
        runs = []
        for batch in in_batches(buffer, self._contract):
            # Another thread may take the last idle request at any time, so it is not asked before
            # whether there is one.
            try:
                request = self.idle.pop()
            except IndexError:
                request = self._network.create_infer_request()
            with translated(batch):
                request.set_input_tensor(library().Tensor(batch, shared_memory=True))
                request.start_async()
            runs.append((request, batch))
        started = Started(runs)
        if self._observer is not None:
            _wait_for(started)
        self._ended(Stage.NETWORK)
        return started

    def select(
        self, buffer: Started, letterboxes: Sequence[Letterbox], options: SelectionOptions
    ) -> Pending:
        """Return a function that waits for the network and gives the detections of each image.

        Args:
            buffer: The started inference, from `infer`. Several selections may read it.
            letterboxes: How each image lies on the network's input. There may be fewer than images
                in the buffer, whose last ones are padding then.
            options: Which detections to keep.
        """
        buffer.unread += 1

        # Calling it twice must neither select twice nor count the buffer as read twice.
        @functools.cache
        def wait() -> list[Detections]:
            return self._read(buffer, letterboxes, options)

        # Whoever measures the stages needs the time of this one, so it may not be put off.
        if self._observer is not None:
            wait()
        self._ended(Stage.SELECTION)
        return wait

    def _read(
        self, buffer: Started, letterboxes: Sequence[Letterbox], options: SelectionOptions
    ) -> list[Detections]:
        """Wait for the network, select each image's detections, and free requests read by all."""
        _wait_for(buffer)
        outputs: list[HeadArray] = []
        for request, batch in buffer.runs:
            output = request.get_output_tensor().data
            outputs.extend(of_images(output, len(batch), self._contract))
        image_outputs = outputs[: len(letterboxes)]
        detections = detect_all(image_outputs, letterboxes, options, self._contract)
        buffer.unread -= 1
        if buffer.unread == 0 and not buffer.returned:
            buffer.returned = True
            self.idle.extend(request for request, _batch in buffer.runs)
        return detections

    def close(self) -> None:
        self._network = None
        self.idle.clear()


def _wait_for(started: Started) -> None:
    for request, batch in started.runs:
        with translated(batch):
            request.wait()
