"""The CPU backend: OpenCV, ONNX Runtime, NumPy."""

from collections.abc import Sequence

from detcli.backend.postprocess import HeadArray, SelectionOptions, detect_all, of_images
from detcli.backend.preprocess import in_batches
from detcli.backend.protocol import HostBackend, Pending
from detcli.backend.session import CPU, TensorSession
from detcli.config.device import Device, DeviceOptions, available_cores
from detcli.core.timing import Stage
from detcli.data.geometry import Letterbox
from detcli.model.file import PreparedModel


def open_backend(model: PreparedModel, device: Device, options: DeviceOptions) -> "CpuBackend":  # noqa: ARG001 - an Engine's function
    return CpuBackend(model, options)


def open_tensors(graph: bytes, title: str, device: Device, options: DeviceOptions) -> TensorSession:  # noqa: ARG001
    return TensorSession(str(device), CPU, graph, title)


class CpuBackend(HostBackend):
    """Runs a model on the CPU; its buffers are NumPy arrays.

    Several sessions with one core each process more images than one session on all cores.
    """

    device = "cpu"
    precision = ""
    in_flight = 1

    def __init__(self, model: PreparedModel, options: DeviceOptions) -> None:
        super().__init__(model.contract)
        self.workers = options.workers
        threads = 0  # as many as ONNX Runtime finds best
        if options.workers > 1 or options.cores:
            cores = options.cores or available_cores()
            threads = max(1, cores // options.workers)
        self._session = TensorSession(self.device, CPU, model.graph, model.name, threads)

    def infer(self, buffer: HeadArray) -> list[HeadArray]:
        """Run the network body: `(B, 3, H, W)` -> the output of each image.

        That is its head, `(4 + C, N)` or `(N, 4 + C)`, or its rows, `(R, 6)`.
        """
        outputs: list[HeadArray] = []
        for batch in in_batches(buffer, self._contract):
            (output,) = self._session.run(self._contract.input_name, batch).values()
            outputs.extend(of_images(output, len(batch), self._contract))
        self._ended(Stage.NETWORK)
        return outputs[: len(buffer)]

    def select(
        self, buffer: list[HeadArray], letterboxes: Sequence[Letterbox], options: SelectionOptions
    ) -> Pending:
        detections = detect_all(buffer, letterboxes, options, self._contract)
        self._ended(Stage.SELECTION)
        return lambda: detections

    def close(self) -> None:
        self._session.close()
