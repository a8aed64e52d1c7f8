"""The network body on a GPU: it reads and writes device memory that its caller owns.

Input and output are bound to addresses (I/O binding) on the session's stream; nothing is copied to
the host. If a captured CUDA graph is replayed, ONNX Runtime launches one graph instead of some
hundred kernels. A graph silently writes to the addresses that it was captured with, whatever is
bound later. So each pair of addresses has its own graph, and data that is still needed must not lie
at an address that a later run writes to.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from detcli.backend.network_output import split_by_image
from detcli.backend.postprocess import HeadArray
from detcli.backend.protocol import (
    BATCHES,
    closed_error,
    is_out_of_memory,
    out_of_memory,
    run_error,
)
from detcli.backend.session import (
    BLOCKS_WHILE_REPLAYING,
    FAILURES,
    FATAL,
    OptionRefusedError,
    cuda_provider,
    onnxruntime,
    open_session,
    profile_of,
    reason,
    tensorrt_provider,
)
from detcli.config.device import Device, DeviceOptions
from detcli.core.errors import DetcliWarning, ModelError
from detcli.model.contract import Contract, Layout
from detcli.model.file import PreparedModel

MAX_GRAPHS = 32  # each takes memory, and some runs to capture
# Runs of one shape in a row that a graph with dynamic axes is captured after: these are full
# batches, or a camera's single frames, and not the short batch at the end.
REPEATS = 3
MAX_BINDINGS = 128  # creating one again takes microseconds
NO_GRAPH = -1  # keeps ONNX Runtime from capturing a run

ELEMENT_TYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
}

InputShape = tuple[int, int, int, int]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Binding:
    """Addresses that the network reads and writes, and how it runs on them."""

    io: Any  # ONNX Runtime's binding of input and output to a pair of addresses
    options: Any  # of its runs
    graph: int = NO_GRAPH  # that the runs capture and replay


class Network:
    """A session that runs on device addresses, for one thread: graphs are captured per thread."""

    def __init__(
        self,
        session: Any,  # noqa: ANN401 - onnxruntime has no types
        contract: Contract,
        device: tuple[str, int] = ("cuda", 0),
        *,
        uses_graph: bool = False,
        only_repeated: bool = False,
    ) -> None:
        (output,) = session.get_outputs()
        if output.type not in ELEMENT_TYPES:
            raise ModelError(
                f"the head {output.name} is a {output.type}, not float32 or float16",
                "export the model in one of them, or use --device cpu",
            )

        self.batch = contract.batch
        self.input_dtype = np.dtype(contract.input_dtype)
        self.output_dtype = ELEMENT_TYPES[output.type]
        self.uses_graph = uses_graph
        self._can_capture = uses_graph
        self.rows_vary = contract.layout is Layout.ROWS and contract.anchor_count is None
        self._only_repeated = only_repeated
        self._last_shape = (0, 0, 0, 0)
        self._repeats = 0  # earlier runs of that shape in a row
        self._session = session
        self._contract = contract
        self._output_name = output.name
        self._device = device
        self._anchors: dict[tuple[int, int], int] = {}
        self._bindings: dict[tuple[int, int, InputShape], _Binding] = {}
        self._captured = 0

    def output_shape(self, shape: InputShape) -> tuple[int, int, int]:
        """Shape of the output for an input of shape `(B, 3, H, W)`, unless `rows_vary`.

        That is `(B, 4 + C, N)`, or as the contract says `(B, N, 4 + C)` or rows `(B, R, 6)`. If the
        graph does not say N, an ordinary run finds it, once for each H and W.
        """
        batch, _, height, width = shape
        anchors = self._contract.anchor_count
        if anchors is None:
            anchors = self._anchors.get((height, width))
        if anchors is None:
            # Of the shape that will run, as each new one costs the planning of all convolutions.
            zeros = np.zeros(shape, self.input_dtype)
            with self._failures(zeros.shape):
                run_options = self._run_options(NO_GRAPH, wait=True)
                inputs = {self._contract.input_name: zeros}
                (head,) = self._session.run(None, inputs, run_options)
            first_head = split_by_image(head, len(zeros), self._contract)[0]
            anchors = first_head.shape[0 if self._contract.anchors_first else 1]
            self._anchors[height, width] = anchors

        if self._contract.layout is Layout.ROWS:
            return batch, anchors, 6
        rows = 4 + self._contract.class_count
        if self._contract.anchors_first:
            return batch, anchors, rows
        return batch, rows, anchors

    def run(self, input_address: int, output_address: int, shape: InputShape) -> None:
        """Enqueue the network on the session's stream.

        The first run of a pair of addresses is an ordinary one, so a single image need not wait
        for a capture. If graphs are used, the second run captures one and later runs replay it;
        with `only_repeated`, the first later run that ends a row of runs of its shape captures.
        Shape is `(B, 3, H, W)`; B is `batch` unless that is None.
        """
        key = (input_address, output_address, shape)
        if shape == self._last_shape:
            self._repeats += 1
        else:
            self._repeats = 0
        self._last_shape = shape
        with self._failures(shape):
            binding = self._bindings.get(key)
            if binding is None:
                binding = self._bind(input_address, output_address, shape)
            elif binding.graph == NO_GRAPH and self._may_capture(shape):
                binding.graph = self._captured
                self._captured += 1
                binding.options = self._run_options(binding.graph)
            self._bindings.pop(key, None)  # it is gone if the run fails
            self._execute(binding)
            self._bindings[key] = binding

    def _may_capture(self, shape: InputShape) -> bool:
        """True if a run of this shape may capture a graph."""
        if not self.uses_graph or self._captured >= MAX_GRAPHS:
            return False
        if self._only_repeated and self._repeats < REPEATS:
            return False
        # The launches of a large batch take little beside its work, and the host has other things
        # to do than to wait for it.
        return not BLOCKS_WHILE_REPLAYING or shape[0] < BATCHES[-1]

    def run_to_host(self, input_address: int, shape: InputShape) -> list[HeadArray]:
        """Run the network and wait for its output, of whatever size."""
        with self._failures(shape):
            io = self._bound_input(input_address, shape)
            io.bind_output(self._output_name, "cpu")
            self._session.run_with_iobinding(io, self._run_options(NO_GRAPH, wait=True))
            output: HeadArray = io.copy_outputs_to_cpu()[0]
            return split_by_image(output, shape[0], self._contract)

    def close(self) -> None:
        self._bindings.clear()
        self._session = None

    def _execute(self, binding: _Binding) -> None:
        """Run; if a graph cannot be captured or replayed, stop using graphs and run again."""
        try:
            self._session.run_with_iobinding(binding.io, binding.options)
        except FAILURES as error:
            if binding.graph == NO_GRAPH or is_out_of_memory(str(error)):
                raise
            warnings.warn(f"without CUDA graphs: {reason(error)}", DetcliWarning, stacklevel=2)
            self.uses_graph = False
            binding.graph = NO_GRAPH
            binding.options = self._run_options(NO_GRAPH)
            self._session.run_with_iobinding(binding.io, binding.options)

    def _bind(self, input_address: int, output_address: int, shape: InputShape) -> _Binding:
        """Bind a pair of addresses, dropping the oldest bindings if there are too many."""
        without_graph = []
        for key, binding in self._bindings.items():
            if binding.graph == NO_GRAPH:
                without_graph.append(key)
        for key in without_graph:
            if len(self._bindings) < MAX_BINDINGS:
                break
            del self._bindings[key]

        output_shape = self.output_shape(shape)
        io = self._bound_input(input_address, shape)
        device_type, ordinal = self._device
        io.bind_output(
            self._output_name,
            device_type,
            ordinal,
            self.output_dtype.type,
            output_shape,
            output_address,
        )
        return _Binding(io, self._run_options(NO_GRAPH))

    def _bound_input(self, address: int, shape: InputShape) -> Any:  # noqa: ANN401
        """A binding of the input to an address."""
        io = self._session.io_binding()
        device_type, ordinal = self._device
        io.bind_input(
            self._contract.input_name,
            device_type,
            ordinal,
            self.input_dtype.type,
            shape,
            address,
        )
        return io

    def _run_options(self, graph: int, *, wait: bool = False) -> Any:  # noqa: ANN401
        """Options of a run: its graph, and whether the host waits for the end."""
        options = onnxruntime.RunOptions()
        options.log_severity_level = FATAL
        if not wait:
            options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        if self._can_capture:
            options.add_run_config_entry("gpu_graph_id", str(graph))
        return options

    @contextlib.contextmanager
    def _failures(self, shape: tuple[int, ...]) -> Iterator[None]:
        """Translate ONNX Runtime's failures on an input of this shape."""
        if self._session is None:
            raise closed_error()
        try:
            yield
        except FAILURES as error:
            problem = reason(error)
            if is_out_of_memory(problem):
                raise out_of_memory(shape, problem, fixed=self.batch is not None) from error
            failure = run_error(shape, problem)
            if self.uses_graph:
                failure.hint = "see whether --no-cuda-graph helps, or --device cpu"
            raise failure from error


def open_network(
    model: PreparedModel, device: Device, stream: int, options: DeviceOptions
) -> Network:
    """Load a model on a GPU, to run on the stream at an address.

    With TensorRT, nodes that it does not know run on CUDA.
    """
    if device.uses_tensorrt:
        return _open_tensorrt(model, device, stream, options)
    if options.cuda_graph is not False:
        network = _open_with_graphs(model, device, stream, options)
        if network is not None:
            return network
    ordinal = device.ordinal or 0
    provider = cuda_provider(ordinal, stream, options, half=model.half)
    session = open_session(model.graph, [provider], model.name)
    return Network(session, model.contract, ("cuda", ordinal))


def _open_tensorrt(
    model: PreparedModel, device: Device, stream: int, options: DeviceOptions
) -> Network:
    """Load a model with TensorRT, for the shapes that it will take, if they can be told."""
    ordinal = device.ordinal or 0
    cuda = cuda_provider(ordinal, stream, options, half=model.half)
    profile = profile_of(model)
    if profile:
        tensorrt = tensorrt_provider(ordinal, stream, options, model, profile)
        try:
            session = open_session(model.graph, (tensorrt, cuda), model.name)
            return Network(session, model.contract, ("cuda", ordinal))
        except OptionRefusedError as error:
            log.info("TensorRT plans for each number of images anew: %s", error)
    tensorrt = tensorrt_provider(ordinal, stream, options, model, {})
    session = open_session(model.graph, [tensorrt, cuda], model.name)
    return Network(session, model.contract, ("cuda", ordinal))


def _open_with_graphs(
    model: PreparedModel, device: Device, stream: int, options: DeviceOptions
) -> Network | None:
    """Load a model to be run by CUDA graphs; None if ONNX Runtime cannot capture them."""
    if options.cuda_graph and BLOCKS_WHILE_REPLAYING:
        warnings.warn(
            "before ONNX Runtime 1.28, replaying a CUDA graph blocks, so batches of "
            f"{BATCHES[-1]} and more run without",
            DetcliWarning,
            stacklevel=3,
        )

    contract = model.contract
    ordinal = device.ordinal or 0
    provider = cuda_provider(ordinal, stream, options, half=model.half, graph=True)
    try:
        session = open_session(model.graph, (provider,), model.name)
        is_static = contract.batch is not None and contract.input_size is not None
        return Network(
            session,
            contract,
            ("cuda", ordinal),
            uses_graph=True,
            only_repeated=options.cuda_graph is None and not is_static,
        )
    except OptionRefusedError as error:
        if options.cuda_graph:
            warnings.warn(f"without CUDA graphs: {error}", DetcliWarning, stacklevel=3)
        else:
            log.info("without CUDA graphs: %s", error)
    return None
