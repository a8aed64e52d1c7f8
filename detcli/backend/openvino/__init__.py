"""OpenVINO: it runs the network; pictures and selection are the CPU's own code.

network.py has OpenVINO itself, and the networks that it compiles. OpenVINO translates ONNX into
operators of its own, and says nothing where a translation is wrong. That of HardSigmoid in 2026.4
takes `beta = 0`, which is not the default, for the default. So a network is compared with ONNX
Runtime's, once.
"""

import functools
import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from detcli.backend.openvino.network import (
    REQUESTS,
    OpenvinoTensors,
    Tensor,
    library,
    open_core,
    open_network,
    reason,
    translated,
)
from detcli.backend.postprocess import HeadArray, SelectionOptions, detect_all, of_pictures
from detcli.backend.preprocess import in_batches, to_tensors
from detcli.backend.protocol import HostBackend, Pending, closed_error
from detcli.core.detections import Detections
from detcli.core.device import Device, DeviceOptions
from detcli.core.errors import DetcliError, InferenceError, ModelError
from detcli.core.geometry import Letterbox
from detcli.core.timing import Stage
from detcli.model.contract import Contract, Layout
from detcli.model.file import PreparedModel

if TYPE_CHECKING:
    from detcli.backend.libraries import Placement

log = logging.getLogger(__name__)

Started = list[tuple[Any, Tensor]]  # a batch's requests, which own their outputs, and inputs

TOLERANCE = 0.02
"""Mean difference of the sorted values of a head's rows, as a share of the largest, or of 1.

Sorted, because a network that chooses among queries may order them otherwise. Of 26 files of 14
families, float32 differs by at most 0.000005, float16 by 0.00006, int8 by 0.0009; the wrong
HardSigmoid by 0.5.
"""


OPENVINO = "OpenVINO"
UNCOUNTED = {"Constant", "Parameter", "Result"}  # what every graph has, and nothing computes


def open_backend(model: PreparedModel, device: Device, options: DeviceOptions) -> "OpenvinoBackend":

    def check(compiled: Any) -> None:  # noqa: ANN401 - openvino's types are incomplete
        require_same_head(compiled, model)

    compiled, precision = open_network(model.graph, model.name, device, options, check)
    return OpenvinoBackend(compiled, precision, model.contract, str(device))


def open_tensors(
    graph: bytes, title: str, device: Device, options: DeviceOptions
) -> OpenvinoTensors:
    return OpenvinoTensors(graph, title, device, options)


class OpenvinoBackend(HostBackend):
    """Runs a model with OpenVINO, as many batches at once as its device has streams.

    A batch has a request, and with it an input and an output of its own, until its detections are
    read.
    """

    workers = 1

    def __init__(self, compiled: Any, precision: str, contract: Contract, device: str) -> None:  # noqa: ANN401 - openvino's types are incomplete
        super().__init__(contract)
        self.device, self.precision = device, precision
        # One is prepared while the others run.
        self.in_flight: int = compiled.get_property(REQUESTS) + 1
        self._network = compiled
        self.idle: list[Any] = []  # requests, whose outputs have been read

    def infer(self, buffer: Tensor) -> Started:
        if self._network is None:
            raise closed_error()
        started = []
        for part in in_batches(buffer, self._contract):
            try:
                request = self.idle.pop()
            except IndexError:  # of other threads, perhaps
                request = self._network.create_infer_request()
            with translated(part):
                request.set_input_tensor(library().Tensor(part, shared_memory=True))
                request.start_async()
            started.append((request, part))
        if self._observer is not None:
            _wait_for(started)
        self._ended(Stage.NETWORK)
        return started

    def select(
        self, buffer: Started, letterboxes: Sequence[Letterbox], options: SelectionOptions
    ) -> Pending:

        @functools.cache
        def wait() -> list[Detections]:
            _wait_for(buffer)
            outputs: list[HeadArray] = []
            for request, part in buffer:
                output = request.get_output_tensor().data
                outputs.extend(of_pictures(output, len(part), self._contract))
            found = detect_all(outputs[: len(letterboxes)], letterboxes, options, self._contract)
            self.idle.extend(request for request, _ in buffer)
            return found

        if self._observer is not None:
            wait()
        self._ended(Stage.SELECTION)
        return wait

    def close(self) -> None:
        self._network = None
        self.idle.clear()


def _wait_for(started: Started) -> None:
    for request, part in started:
        with translated(part):
            request.wait()


def require_same_head(compiled: Any, model: PreparedModel) -> None:  # noqa: ANN401
    """Compare a network that was compiled in float32 with ONNX Runtime on a picture of noise.

    One that selects its rows itself is not compared, since noise gives none.
    """
    from detcli.backend.session import CPU, TensorSession  # not at each start

    contract = model.contract
    if contract.layout is Layout.ROWS:
        return
    size = contract.canvas(None)
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    count = contract.batch or 1
    tensors = to_tensors(
        [noise] * count,
        [Letterbox.fit(size, size)] * count,
        contract.preprocessing,
        contract.input_dtype,
    )
    try:
        session = TensorSession("cpu", CPU, model.graph, model.name)
        (expected,) = session.run(contract.input_name, tensors).values()
    except (ModelError, InferenceError) as error:
        log.info("OpenVINO is not compared with ONNX Runtime: %s", error)
        return
    request = compiled.create_infer_request()
    request.infer([tensors])
    own = request.get_output_tensor().data
    heads = [of_pictures(head, count, contract)[0] for head in (own, expected)]
    pair = (head.T if contract.anchors_first else head for head in heads)
    difference = _difference(*pair)
    log.debug("%s: OpenVINO differs from ONNX Runtime by %g", model.name, difference)
    if difference > TOLERANCE:
        raise ModelError(
            f"OpenVINO computes something else from {model.name} than ONNX Runtime does: its head "
            f"differs by {difference:.0%}",
            "use --device cpu, and report the model to OpenVINO",
        )


def _difference(own: HeadArray, expected: HeadArray) -> float:
    """How far heads `(4 + C, N)` differ in boxes or in scores, whichever is more; see TOLERANCE."""
    if own.shape != expected.shape:
        return 1.0
    shares = []
    for part in (slice(0, 4), slice(4, None)):
        pair = [np.sort(np.nan_to_num(head[part].astype(np.float64))) for head in (own, expected)]
        scale = max(1.0, *(float(np.abs(values).max(initial=0)) for values in pair))
        shares.append(float(np.abs(pair[0] - pair[1]).mean()) / scale if pair[0].size else 0.0)
    return max(shares)


def place(graph: bytes, title: str) -> "Placement":
    """Ask OpenVINO which nodes its CPU takes; it runs a graph only if it takes them all.

    They are counted as OpenVINO reads them, by its own names of operators. `title` names the graph
    in errors.
    """
    from detcli.backend.libraries import Placement

    try:
        core = open_core(Device.parse("openvino"))
    except DetcliError as error:
        return Placement(OPENVINO, usable=False, reason=str(error), hint=error.hint)
    try:
        model = core.read_model(graph)
        taken = core.query_model(model, "CPU")
    except RuntimeError as error:
        why = f"OpenVINO cannot load {title}: {reason(error)}"
        return Placement(OPENVINO, usable=False, reason=why, hint="use --device cpu")
    nodes = [
        (node.get_friendly_name(), node.get_type_name())
        for node in model.get_ops()
        if node.get_type_name() not in UNCOUNTED
    ]
    if missing := [kind for name, kind in nodes if name not in taken]:
        why = f"OpenVINO cannot load {title}: it has no {missing[0]}"
        return Placement(OPENVINO, usable=False, reason=why, hint="use --device cpu")
    counts = Counter(kind for _, kind in nodes)
    return Placement(OPENVINO, usable=True, taken=dict(counts.most_common()), left=())
