"""The CPU backend: OpenCV, ONNX Runtime, NumPy."""

from collections.abc import Sequence

from detcli.backend.image_boxes import detect_all
from detcli.backend.network_output import split_by_image
from detcli.backend.optimised import open_on_cpu
from detcli.backend.postprocess import HeadArray, SelectionOptions
from detcli.backend.preprocess import in_batches
from detcli.backend.protocol import HostBackend, Pending
from detcli.backend.session import CPU, TensorSession
from detcli.config.device import Device, DeviceOptions, available_cores
from detcli.core.timing import Stage
from detcli.data.geometry import Letterbox
from detcli.model.prepared import PreparedModel


def open_backend(model: PreparedModel, device: Device, options: DeviceOptions) -> "CpuBackend":  # noqa: ARG001 - an Engine's function
    """Load a model on the CPU, see `backend.open_backend`."""
    return CpuBackend(model, options)


def open_tensors(graph: bytes, title: str, device: Device, options: DeviceOptions) -> TensorSession:  # noqa: ARG001
    """Load a serialised ONNX graph on the CPU, see `backend.open_tensors`."""
    return TensorSession(str(device), CPU, graph, title)


class CpuBackend(HostBackend):
    """Runs a model on the CPU; its buffers are NumPy arrays.

    Several sessions with one core each process more images than one session on all cores.
    """

    device = "cpu"
    precision = ""
    in_flight = 1

    def __init__(self, model: PreparedModel, options: DeviceOptions) -> None:
        """Load a model into a session of ONNX Runtime.

        Args:
            model: The model that the network and its contract come from.
            options: How many backends run side by side (`workers`), and on how many cores of the
                CPU altogether. Each gets an equal share of the cores.
        """
        super().__init__(model.contract)
        self.workers = options.workers
        threads = 0  # as many as ONNX Runtime finds best
        if options.workers > 1 or options.cores:
            cores = options.cores or available_cores()
            threads = max(1, cores // options.workers)
        self._session = open_on_cpu(model, threads, spins=options.spins)

    def infer(self, buffer: HeadArray) -> list[HeadArray]:
        """Run the network on a batch, and return the output of each image.

        Args:
            buffer: The letterboxed images, `(B, 3, H, W)`. They are split, or filled up with
                images of zeros, where the graph takes batches of a different size.

        Returns:
            B arrays. Each holds a box and C class scores for each of N anchors, `(4 + C, N)` or
            `(N, 4 + C)`; or R detections, `(R, 6)`, if the graph selects these itself.

        Raises:
            InferenceError: ONNX Runtime failed.
        """
        outputs: list[HeadArray] = []
        for batch in in_batches(buffer, self._contract):
            # The prepared graph has a single output, which holds all images of the batch.
            (output,) = self._session.run(self._contract.input_name, batch).values()
            outputs.extend(split_by_image(output, len(batch), self._contract))
        self._end_stage(Stage.NETWORK)
        return outputs[: len(buffer)]  # without the images of zeros

    def select(
        self, buffer: list[HeadArray], letterboxes: Sequence[Letterbox], options: SelectionOptions
    ) -> Pending:
        """Select the detections from the outputs of `infer`, see `Backend.select`.

        They are ready when this returns, so the function that it returns does not wait.
        """
        detections = detect_all(buffer, letterboxes, options, self._contract)
        self._end_stage(Stage.SELECTION)
        return lambda: detections

    def close(self) -> None:
        """Release the memory of the session, after which `infer` raises InferenceError."""
        self._session.close()
