"""The network body on a GPU: it reads and writes device memory that its caller owns.

Input and output are bound to addresses (I/O binding) on the session's stream; nothing is copied to
the host. If a captured CUDA graph is replayed, ONNX Runtime launches one graph instead of several
hundred kernels. A graph silently writes to the addresses that it was captured with, whatever is
bound later. So each pair of addresses has its own graph. The caller uses the same pair for all
batches of the same shape, and has read the output on the stream before the next run writes to it.
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
from detcli.backend.providers import cuda_provider, profile_of, tensorrt_provider
from detcli.backend.session import (
    FAILURES,
    FATAL,
    REPLAYS_RIGHTLY,
    OptionRefusedError,
    onnxruntime,
    open_session,
    reason,
)
from detcli.config.device import Device, DeviceOptions
from detcli.core.errors import DetcliWarning, DeviceError, ModelError
from detcli.model.contract import Contract, Layout
from detcli.model.prepared import PreparedModel

NUMBERS_OF_BOX = 4
MAX_GRAPHS = 32  # CUDA graphs kept at once; each takes memory, and some runs to capture
# Consecutive runs with the same input shape after which a network with dynamic axes captures a
# graph. Full batches and the individual frames of a camera have such shapes; a short last batch
# does not.
MIN_REPEATS = 3
MAX_BINDINGS = 128  # bindings kept at once; creating one again takes microseconds
NO_GRAPH = -1  # the id of a graph that keeps ONNX Runtime from capturing a run

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
    options: Any  # ONNX Runtime's options of the runs
    graph: int = NO_GRAPH  # the id of the CUDA graph that the runs capture and replay


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
        """Wrap a session of ONNX Runtime.

        Args:
            session: The session, whose work runs on the stream of the backend's GPU.
            contract: What the model says about its input and output.
            device: ONNX Runtime's name of the memory that addresses are in, and the GPU's ordinal.
            uses_graph: Whether runs are captured as CUDA graphs and replayed.
            only_repeated: Whether to do so only after several runs of the same shape in a row.

        Raises:
            ModelError: The output is neither float32 nor float16.
        """
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
        self.rows_vary = _rows_vary(contract)
        self._only_repeated = only_repeated
        self._last_shape = (0, 0, 0, 0)
        self._repeats = 0  # how many runs directly before the last had its shape
        self._session = session
        self._contract = contract
        self._output_name = output.name
        self._device = device
        # The number of anchors by the input's height and width, if the graph does not declare it.
        self._anchor_counts: dict[tuple[int, int], int] = {}
        # By input address, output address and shape; the most recently used are at the end.
        self._bindings: dict[tuple[int, int, InputShape], _Binding] = {}
        self._captured_count = 0

    def output_shape(self, shape: InputShape) -> tuple[int, int, int]:
        """Return the shape of the output for an input of this shape.

        Do not call this if `rows_vary`: the shape then depends on the images, and not on the shape
        of the input alone.

        Args:
            shape: `(B, 3, H, W)` of the input.

        Returns:
            `(B, 4 + C, N)` or `(B, N, 4 + C)`, a box and the scores of C classes for each of N
            places of the image (anchors); or `(B, R, 6)` from a network that selects detections
            itself.
        """
        batch = shape[0]
        if self._contract.layout is Layout.ROWS:
            row_count = self._anchor_count(shape)  # counted in the same way
            return batch, row_count, 6  # a box, its score and its class
        anchor_count = self._anchor_count(shape)
        numbers_per_anchor = NUMBERS_OF_BOX + self._contract.class_count
        if self._contract.anchors_first:
            return batch, anchor_count, numbers_per_anchor
        return batch, numbers_per_anchor, anchor_count

    def _anchor_count(self, shape: InputShape) -> int:
        """Return the number of anchors in the output of each image, for an input of this shape.

        If the graph does not declare it, it is taken from a run on zeros, once for each height and
        width.
        """
        if self._contract.anchor_count is not None:
            return self._contract.anchor_count
        _, _, height, width = shape
        if (height, width) not in self._anchor_counts:
            self._anchor_counts[height, width] = self._count_anchors(shape)
        return self._anchor_counts[height, width]

    def _count_anchors(self, shape: InputShape) -> int:
        """Run the network on zeros, and count the anchors in its output for an image.

        The input has the whole shape of the runs to come, not that of a single image, since each
        new shape costs the planning of all convolutions.
        """
        zeros = np.zeros(shape, self.input_dtype)
        with self._translate_failures(zeros.shape):
            run_options = self._run_options(NO_GRAPH, wait=True)
            inputs = {self._contract.input_name: zeros}
            (output,) = self._session.run(None, inputs, run_options)
        head = split_by_image(output, len(zeros), self._contract)[0]
        anchor_axis = 0 if self._contract.anchors_first else 1
        anchor_count: int = head.shape[anchor_axis]
        return anchor_count

    def run(self, input_address: int, output_address: int, shape: InputShape) -> None:
        """Enqueue a run of the network on the session's stream.

        If CUDA graphs are used, the second run with the same addresses and shape records a graph,
        and later ones replay it. The first is an ordinary run, as recording takes time that a
        single image need not spend. See `_may_capture` for when graphs are recorded at all.

        Args:
            input_address: The device address of the input.
            output_address: The device address that the output is written to.
            shape: `(B, 3, H, W)` of the input; B is `batch` unless that is None.
        """
        self._count_repeats(shape)
        key = (input_address, output_address, shape)
        with self._translate_failures(shape):
            # The bindings are in the order of their last use: this one is taken out, and put back
            # as the last after its run. A binding whose run fails is dropped.
            binding = self._bindings.pop(key, None)
            if binding is None:
                binding = self._bind(input_address, output_address, shape)
            elif binding.graph == NO_GRAPH and self._may_capture():
                self._plan_capture(binding)  # so that this run records a graph
            self._execute(binding)
            self._bindings[key] = binding

    def _plan_capture(self, binding: _Binding) -> None:
        """Let the next run of a binding capture a CUDA graph, under a new id."""
        binding.graph = self._captured_count
        self._captured_count += 1
        binding.options = self._run_options(binding.graph)

    def _count_repeats(self, shape: InputShape) -> None:
        """Count how many runs in a row, before a run of this shape, had the same shape."""
        if shape == self._last_shape:
            self._repeats += 1
        else:
            self._repeats = 0
        self._last_shape = shape

    def _may_capture(self) -> bool:
        """Return whether the next run may capture a CUDA graph: a recording that is replayed.

        With `only_repeated` it may if it follows several runs of the same shape.
        """
        if not self.uses_graph or self._captured_count >= MAX_GRAPHS:
            return False
        return not self._only_repeated or self._repeats >= MIN_REPEATS

    def run_to_host(self, input_address: int, shape: InputShape) -> list[HeadArray]:
        """Run the network and wait for its output, whose size only the run shows.

        Args:
            input_address: The device address of the input.
            shape: `(B, 3, H, W)` of the input.

        Returns:
            The output for each image, in ordinary memory.
        """
        with self._translate_failures(shape):
            io = self._bind_input(input_address, shape)
            io.bind_output(self._output_name, "cpu")
            self._session.run_with_iobinding(io, self._run_options(NO_GRAPH, wait=True))
            output: HeadArray = io.copy_outputs_to_cpu()[0]
            return split_by_image(output, shape[0], self._contract)

    def close(self) -> None:
        """Release the session and its memory; every later run raises InferenceError."""
        self._bindings.clear()
        self._session = None

    def _execute(self, binding: _Binding) -> None:
        """Run the network on the addresses of a binding.

        If a CUDA graph cannot be captured or replayed, graphs are not used any more, with a
        warning, and the network runs again without them.
        """
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
        """Bind the network's input and output to a pair of device addresses.

        Args:
            input_address: The device address of the input.
            output_address: The device address that the output is written to.
            shape: `(B, 3, H, W)` of the input.

        Returns:
            A binding for runs without a CUDA graph.
        """
        self._drop_old_bindings()
        output_shape = self.output_shape(shape)
        io = self._bind_input(input_address, shape)
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

    def _drop_old_bindings(self) -> None:
        """Make room for a binding: drop the least recently used ones, but none that has a graph."""
        without_graph = []
        for key, binding in self._bindings.items():
            if binding.graph == NO_GRAPH:
                without_graph.append(key)
        for key in without_graph:
            if len(self._bindings) < MAX_BINDINGS:
                break
            del self._bindings[key]

    def _bind_input(self, address: int, shape: InputShape) -> Any:  # noqa: ANN401
        """Return ONNX Runtime's binding of the input to a device address, without an output.

        Args:
            address: The device address of the input.
            shape: `(B, 3, H, W)` of the input.
        """
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

    def _run_options(self, graph_id: int, *, wait: bool = False) -> Any:  # noqa: ANN401
        """Make the options that ONNX Runtime takes for one run.

        Args:
            graph_id: The id of the CUDA graph that the run captures or replays, or NO_GRAPH.
            wait: Whether the host waits until the GPU has finished the run, and not only until the
                run is enqueued.
        """
        options = onnxruntime.RunOptions()
        options.log_severity_level = FATAL
        if not wait:
            options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        if self._can_capture:
            options.add_run_config_entry("gpu_graph_id", str(graph_id))
        return options

    @contextlib.contextmanager
    def _translate_failures(self, shape: tuple[int, ...]) -> Iterator[None]:
        """Turn a failure of ONNX Runtime in the block into an error that says what to do.

        Args:
            shape: `(B, 3, H, W)` of the input that the network runs on.

        Raises:
            InferenceError: The network is closed, or its run failed.
        """
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
    model: PreparedModel,
    device: Device,
    stream: int,
    options: DeviceOptions,
    images_per_run: int = BATCHES[-1],
) -> Network:
    """Load a model on a GPU, with TensorRT, with CUDA graphs or without either.

    Args:
        model: The model to load.
        device: The GPU, and whether TensorRT runs the network on it.
        stream: The address of the CUDA stream that all runs are enqueued on.
        options: The settings of the device; `cuda_graph` is None where graphs are used if possible.
        images_per_run: How many images the network usually runs on at a time, if it takes any
            number. TensorRT is fastest at these.
    """
    if device.uses_tensorrt:
        return _open_tensorrt(model, device, stream, options, images_per_run)
    if _should_use_graphs(model, options):
        network = _open_with_graphs(model, device, stream, options)
        if network is not None:
            return network
    ordinal = device.ordinal or 0
    provider = cuda_provider(ordinal, stream, options, half=model.half)
    session = open_session(model.graph, [provider], model.name)
    return Network(session, model.contract, ("cuda", ordinal))


def _should_use_graphs(model: PreparedModel, options: DeviceOptions) -> bool:
    """Decide whether to open a model with CUDA graphs, recordings of runs that are replayed.

    There are three reasons not to:

    - This version of ONNX Runtime replays graphs wrongly, which is logged.
    - The number of rows in the model's output varies, so each run is an ordinary one, which a
      session with graphs would only slow down. There is a warning if the user asks for graphs.
    - The option --no-cuda-graph.

    Raises:
        DeviceError: The user asks for graphs, and this ONNX Runtime replays them wrongly.
    """
    if not REPLAYS_RIGHTLY:
        if options.cuda_graph:
            raise DeviceError(
                "--cuda-graph needs ONNX Runtime 1.30 or later, and this is "
                f"{onnxruntime.__version__}, which can give wrong boxes when it replays a CUDA "
                "graph",
                'leave --cuda-graph out, or pip install --upgrade "detcli[cuda]"',
            )
        log.info(
            "without CUDA graphs: ONNX Runtime %s replays them wrongly, from 1.30 on they are used",
            onnxruntime.__version__,
        )
        return False
    if _rows_vary(model.contract):
        if options.cuda_graph:
            warnings.warn(
                "without CUDA graphs: the number of rows varies", DetcliWarning, stacklevel=3
            )
        return False
    return options.cuda_graph is not False


def _rows_vary(contract: Contract) -> bool:
    """Return whether only a run of the network says how many rows its output has."""
    return contract.layout is Layout.ROWS and contract.anchor_count is None


def _open_tensorrt(
    model: PreparedModel,
    device: Device,
    stream: int,
    options: DeviceOptions,
    images_per_run: int,
) -> Network:
    """Load a model with TensorRT; nodes that TensorRT does not know run on CUDA.

    TensorRT builds an engine, the network compiled for the GPU, which takes minutes. It is built
    once for a range of input shapes, the profile. Without a profile, or if TensorRT refuses it, an
    engine is built for each new input shape.

    Args:
        model: The model to load.
        device: The GPU.
        stream: The address of the CUDA stream that all runs are enqueued on.
        options: The settings of the device.
        images_per_run: How many images the network usually runs on at a time.
    """
    ordinal = device.ordinal or 0
    cuda = cuda_provider(ordinal, stream, options, half=model.half)

    def open_with(profile: dict[str, str]) -> Network:
        """Load the model with a profile, or without one if it is empty."""
        tensorrt = tensorrt_provider(ordinal, stream, options, model, profile)
        session = open_session(model.graph, (tensorrt, cuda), model.name)
        return Network(session, model.contract, ("cuda", ordinal))

    profile = profile_of(model, images_per_run)
    if profile:
        try:
            return open_with(profile)
        except OptionRefusedError as error:
            log.info("TensorRT plans for each number of images anew: %s", error)
    return open_with({})


def _open_with_graphs(
    model: PreparedModel, device: Device, stream: int, options: DeviceOptions
) -> Network | None:
    """Load a model whose runs are captured as CUDA graphs and replayed.

    A graph takes time and memory, and each shape of the input needs its own. So where inputs have
    different shapes, only those that come several times in a row are captured, unless the user
    asks for graphs with --cuda-graph.

    Returns:
        The network; None if ONNX Runtime cannot capture graphs of this model.
    """
    contract = model.contract
    ordinal = device.ordinal or 0
    provider = cuda_provider(ordinal, stream, options, half=model.half, graph=True)
    is_requested = bool(options.cuda_graph)
    try:
        session = open_session(model.graph, (provider,), model.name)
    except OptionRefusedError as error:
        if is_requested:
            warnings.warn(f"without CUDA graphs: {error}", DetcliWarning, stacklevel=3)
        else:
            log.info("without CUDA graphs: %s", error)
        return None
    has_fixed_shape = contract.batch is not None and contract.input_size is not None
    return Network(
        session,
        contract,
        ("cuda", ordinal),
        uses_graph=True,
        only_repeated=not is_requested and not has_fixed_shape,
    )
