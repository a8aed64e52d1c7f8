"""The backend: several batches at once, each in a request of OpenVINO."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from detcli.backend.image_boxes import detect_all
from detcli.backend.network_output import split_by_image
from detcli.backend.openvino.library import (
    CompiledModel,
    InferRequest,
    converted_errors,
    import_openvino,
)
from detcli.backend.openvino.network import REQUEST_COUNT
from detcli.backend.postprocess import HeadArray, SelectionOptions
from detcli.backend.preprocess import Tensor, in_batches
from detcli.backend.protocol import HostBackend, Pending, closed_error
from detcli.core.timing import Stage
from detcli.data.detections import Detections
from detcli.data.geometry import Letterbox
from detcli.model.contract import Contract


@dataclass(eq=False, slots=True)
class Started:
    """Images whose inference has been started, in one or several batches.

    Attributes:
        runs: For each batch, the request that computes it and holds its output, and its input.
        unread_count: How many selections have been asked for whose detections have not been read.
        are_requests_free: Whether its requests may run other batches, as all detections are read.
    """

    runs: list[tuple[InferRequest, Tensor]]
    unread_count: int = 0
    are_requests_free: bool = False


class OpenvinoBackend(HostBackend):
    """Runs a model with OpenVINO, as many batches at once as its device has streams.

    A batch has a request, and with it an input and an output of its own, until its detections are
    read. Then the request is idle, and the next batch may take it.
    """

    workers = 1

    def __init__(
        self, compiled: CompiledModel, precision: str, contract: Contract, device: str
    ) -> None:
        """Make a backend from a network that OpenVINO has compiled.

        Args:
            compiled: The compiled network.
            precision: What its layers compute in, such as "f32" or "int8+bf16".
            contract: What the model says about its input and output.
            device: The name of the device, such as "openvino:CPU".
        """
        super().__init__(contract)
        self.device = device
        self.precision = precision
        # One batch is prepared while the others run.
        self.in_flight: int = compiled.get_property(REQUEST_COUNT) + 1
        self._compiled = compiled
        self.idle_requests: list[InferRequest] = []

    def infer(self, buffer: Tensor) -> Started:
        """Start the network on the images of a buffer, without waiting for it.

        While an observer measures the stages, it does wait, so that the network's time is told
        apart from that of the selection.

        Args:
            buffer: `(B, C, H, W)`, the preprocessed images.

        Returns:
            The started inference, for `select`.

        Raises:
            InferenceError: The backend is closed, or OpenVINO failed.
        """
        if self._compiled is None:
            raise closed_error()
        runs = []
        for batch in in_batches(buffer, self._contract):
            request = self._idle_or_new_request()
            with converted_errors(batch):
                request.set_input_tensor(import_openvino().Tensor(batch, shared_memory=True))
                request.start_async()
            runs.append((request, batch))
        started = Started(runs)
        if self._observer is not None:
            _wait_for_network(started)
        self._end_stage(Stage.NETWORK)
        return started

    def _idle_or_new_request(self) -> InferRequest:
        """Take a request that is idle, or create another one if there is none."""
        # Checking for an idle request first would not help: another thread might take it before
        # this call does.
        try:
            return self.idle_requests.pop()
        except IndexError:
            return self._compiled.create_infer_request()

    def select(
        self, buffer: Started, letterboxes: Sequence[Letterbox], options: SelectionOptions
    ) -> Pending:
        """Return a function that waits for the network and selects the detections of each image.

        While an observer measures the stages, the function is called before this returns: the time
        of the selection can only be measured if it does not end later.

        Args:
            buffer: The started inference, from `infer`. Several selections may read it; it counts
                those that have not read it yet.
            letterboxes: How each image lies on the network's input. There may be fewer than images
                in the buffer, whose last ones are padding then.
            options: Which detections to keep.

        Returns:
            The function, which raises InferenceError if OpenVINO failed. Later calls return the
            same list.
        """
        buffer.unread_count += 1

        # The cache makes a second call return the first list, without counting as another
        # selection.
        @functools.cache
        def wait_for_detections() -> list[Detections]:
            return self._read_detections(buffer, letterboxes, options)

        if self._observer is not None:
            wait_for_detections()
        self._end_stage(Stage.SELECTION)  # only tells the observer, if there is one
        return wait_for_detections

    def _read_detections(
        self, started: Started, letterboxes: Sequence[Letterbox], options: SelectionOptions
    ) -> list[Detections]:
        """Wait for the network, and select the detections of each image from its output.

        The output is in OpenVINO's requests, which the network ran in. The last selection that
        reads it makes them idle, so that another batch can use them.

        Args:
            started: The started inference. The count of selections that have not read it falls by
                one.
            letterboxes: How each image lies on the network's input. Images without one are padding.
            options: Which detections to keep.
        """
        _wait_for_network(started)
        outputs: list[HeadArray] = []
        for request, batch in started.runs:
            batch_output = request.get_output_tensor().data
            outputs.extend(split_by_image(batch_output, len(batch), self._contract))
        outputs_without_padding = outputs[: len(letterboxes)]
        detections = detect_all(outputs_without_padding, letterboxes, options, self._contract)

        started.unread_count -= 1
        is_read_by_all = started.unread_count == 0
        if is_read_by_all and not started.are_requests_free:
            started.are_requests_free = True
            self.idle_requests.extend(request for request, _batch in started.runs)
        return detections

    def close(self) -> None:
        """Release the network. What has been started can still be read, since requests keep it."""
        self._compiled = None
        self.idle_requests.clear()


def _wait_for_network(started: Started) -> None:
    """Wait until OpenVINO has computed all batches of a started inference.

    Raises:
        InferenceError: OpenVINO failed on a batch.
    """
    for request, batch in started.runs:
        with converted_errors(batch):
            request.wait()
