"""OpenVINO: it runs the network; images and selection are the CPU's own code.

Strictly: OpenVINO loads, has the device, and computes in the precision that was asked for, or an
error says why not. It translates ONNX into operators of its own, and says nothing where a
translation is wrong. That of HardSigmoid in 2026.4 takes `beta = 0`, which is not the default, for
the default. So a network is compared with ONNX Runtime's, once.
"""

import contextlib
import functools
import hashlib
import importlib
import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from detcli.backend.postprocess import HeadArray, SelectionOptions, detect_all, of_images
from detcli.backend.preprocess import Tensor, in_batches, to_tensors
from detcli.backend.protocol import (
    LOAD_TIMEOUT_S,
    MORE_MEMORY,
    RUN_TIMEOUT_S,
    HostBackend,
    Pending,
    closed_error,
    is_out_of_memory,
    run_error,
    run_with_timeout,
)
from detcli.config.device import Device, DeviceOptions, available_cores, visible_cores
from detcli.core.errors import DetcliError, DeviceError, InferenceError, ModelError, loading
from detcli.core.timing import Stage
from detcli.data.detections import Detections
from detcli.data.geometry import Letterbox
from detcli.model.contract import Contract, Layout
from detcli.model.file import PreparedModel
from detcli.storage.cache import cached

if TYPE_CHECKING:
    from detcli.backend.libraries import Placement

log = logging.getLogger(__name__)

MIN_VERSION = (2026, 4)
EXTRA = 'pip install "detcli[openvino]"; or use --device cpu'
CONVERTER = "openvino.tools.ovc"

DRIVERS = {
    "CPU": "use --device cpu",
    "GPU": "install the driver of Intel's graphics (Debian, Ubuntu: apt-get install "
    "intel-opencl-icd), or use --device openvino:CPU",
    "NPU": "install the driver of Intel's NPU, or use --device openvino:CPU",
}
"""What to do where OpenVINO lacks a device."""

SOURCE = re.compile(r"^(Exception from \S+:\d+:|Check '.*' failed at \S+:\d+:)$")
LIBRARY = re.compile(r'Cannot load library "[^"]*": ')

FAILURES = (RuntimeError, MemoryError)  # what OpenVINO raises
SETTING = "configuration key"  # of the NPU's plug-in, which does not say that there is no NPU

HALF = {"CPU": "bf16", "GPU": "f16", "NPU": "f16"}
CAPABILITY = {"f32": "FP32", "bf16": "BF16", "f16": "FP16"}
"""What OpenVINO calls a precision among the capabilities of a device."""

# Layers that take nearly all of the time, and whose precision counts.
MULTIPLYING = {"Convolution", "Deconvolution", "FullyConnected", "GroupConvolution", "MatMul"}

REQUESTS = "OPTIMAL_NUMBER_OF_INFER_REQUESTS"

NAMES = {"i8": "int8", "u8": "int8"}


@functools.cache
def library() -> Any:  # noqa: ANN401 - its types are incomplete
    """Import OpenVINO, without its converter of models, which is imported when it is called.

    That takes two thirds of the import's time and brings telemetry.
    """
    # Where there is no /sys, as in a chroot, its threads' library would say so on stderr.
    os.environ.setdefault("HWLOC_HIDE_ERRORS", "2")
    # Whoever has imported either before may use the converter.
    leaves_out_converter = sys.modules.keys().isdisjoint({"openvino", CONVERTER})
    with loading("OpenVINO", EXTRA):
        if leaves_out_converter:  # its import then fails, which OpenVINO allows for
            sys.modules[CONVERTER] = None  # type: ignore[assignment]
        try:
            openvino = importlib.import_module("openvino")
        finally:
            if leaves_out_converter:
                del sys.modules[CONVERTER]
        if leaves_out_converter:
            openvino.convert_model = _convert_model  # type: ignore[attr-defined]

    version = getattr(openvino, "__version__", "")  # an empty folder is left by pip at times
    release = re.match(r"(\d+)\.(\d+)", version)
    if release is None or (int(release[1]), int(release[2])) < MIN_VERSION:
        oldest = f"{MIN_VERSION[0]}.{MIN_VERSION[1]}"
        raise DeviceError(
            f"OpenVINO {version or 'without a version'} is older than {oldest}",
            "pip install --upgrade openvino; or use --device cpu",
        )
    return openvino


def _convert_model(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
    """OpenVINO's function of that name, whose module is imported at the first call."""
    return importlib.import_module(CONVERTER).convert_model(*arguments, **options)


@functools.cache
def core() -> Any:  # noqa: ANN401
    """OpenVINO's Core, which loads a device's plug-in when it is asked for it."""
    return library().Core()


def open_core(device: Device) -> Any:  # noqa: ANN401
    """The Core, once it has this device."""
    unit = str(device.unit)
    opened = core()
    try:
        opened.get_property(unit, "FULL_DEVICE_NAME")
    except RuntimeError as error:
        problem = reason(error)
        if SETTING in problem:
            problem = "none was found"
        hint = DRIVERS[unit.partition(".")[0]]
        raise DeviceError(f"OpenVINO cannot use {unit}: {problem}", hint) from error
    return opened


def reason(error: Exception) -> str:
    """OpenVINO's message as one line, without its source files and the folder it is in."""
    if isinstance(error, MemoryError):
        return "out of memory"
    lines = []
    for line in str(error).splitlines():
        stripped = line.strip()
        if stripped and not SOURCE.match(stripped):
            lines.append(stripped)
    return LIBRARY.sub("", " ".join(lines))


@contextlib.contextmanager
def translated(tensor: Tensor) -> Iterator[None]:
    """Raise detcli's errors where OpenVINO fails on a batch."""
    try:
        yield
    except FAILURES as error:
        raise run_error(tensor.shape, reason(error)) from error


def open_network(
    graph: bytes,
    title: str,
    device: Device,
    options: DeviceOptions,
    check: Callable[[Any], None] | None = None,
) -> tuple[Any, str]:
    """Compile a network for a device, or read the compiled network from the cache.

    Args:
        graph: The network as the content of an ONNX file.
        title: What errors call the network.
        device: One of OpenVINO's devices.
        options: Whether half precision was asked for, and how many cores and workers there are.
        check: Called with the network in float32 when it is compiled for the first time; it raises
            an error if OpenVINO computes it wrongly.

    Returns:
        OpenVINO's compiled network, and the precision that its layers compute in, see
        `precision_of`.

    Raises:
        DeviceError: OpenVINO lacks the device, or computes in another precision than asked for.
        ModelError: OpenVINO cannot load the network.
    """
    core = open_core(device)
    unit = str(device.unit)
    requested = choose_precision(core, unit, half=options.half)
    config = {"INFERENCE_PRECISION_HINT": requested}
    config.update(scheduling(device, options))
    compiled = _compiled(lambda: _load(core, graph, unit, config, check), title)

    precision = precision_of(compiled)
    if requested == "f32" and not {"f16", "bf16"}.isdisjoint(precision.split("+")):
        raise DeviceError(
            f"OpenVINO runs {title} in {precision} on {unit}, though float32 was asked for",
            "use --half to run it so on purpose, or --device cpu",
        )
    log.info(
        "%s: OpenVINO computes in %s, %d at once; asked for %s",
        title,
        precision,
        compiled.get_property(REQUESTS),
        ", ".join(f"{name}={value}" for name, value in config.items()),
    )
    return compiled, precision


def _load(
    core: Any,  # noqa: ANN401
    graph: bytes,
    unit: str,
    config: dict[str, str],
    check: Callable[[Any], None] | None,
) -> Any:  # noqa: ANN401
    """Read a compiled network from the cache, or compile its graph and add it to the cache.

    Args:
        core: OpenVINO's Core.
        graph: The network as the content of an ONNX file.
        unit: OpenVINO's name of the device, such as "CPU".
        config: OpenVINO's properties for compiling.
        check: Called with the network in float32 if it has to be compiled.
    """
    compilation = _Compilation(core, graph, unit, config, check)
    content = cached(f"prepared/{compilation.cache_key()}.openvino", compilation.export)
    if compilation.network is not None:  # it was not in the cache
        return compilation.network
    try:
        return core.import_model(content, unit, config)
    except RuntimeError as error:
        log.info("OpenVINO does not take its own copy from the cache: %s", reason(error))
        return core.compile_model(core.read_model(graph), unit, config)


class _Compilation:
    """Compiles a graph for one of OpenVINO's devices, if the cache lacks the compiled network.

    Attributes:
        network: The compiled network; None unless `export` was called.
    """

    def __init__(
        self,
        core: Any,  # noqa: ANN401
        graph: bytes,
        unit: str,
        config: dict[str, str],
        check: Callable[[Any], None] | None,
    ) -> None:
        self._core = core
        self._graph = graph
        self._unit = unit
        self._config = config
        self._check = check
        self._capabilities = core.get_property(unit, "OPTIMIZATION_CAPABILITIES")
        self.network: Any = None

    def cache_key(self) -> str:
        """Return a hash of everything that the compiled network depends on."""
        dependencies = [
            library().__version__,
            self._core.get_property(self._unit, "FULL_DEVICE_NAME"),
        ]
        # The capabilities are part of the key, since one name of a processor can stand for several
        # processors, above all in virtual machines.
        dependencies.extend(self._capabilities)
        dependencies.append(self._config["INFERENCE_PRECISION_HINT"])
        dependencies.append(hashlib.sha256(self._graph).hexdigest())
        return hashlib.sha256("\n".join(dependencies).encode()).hexdigest()

    def export(self) -> bytes:
        """Compile the graph, check it in float32, and return the network's content for the cache.

        A device without float32, such as an NPU, is not checked.
        """
        model = self._core.read_model(self._graph)
        network = self._core.compile_model(model, self._unit, self._config)
        if self._check is not None and CAPABILITY["f32"] in self._capabilities:
            float32_config = self._config | {"INFERENCE_PRECISION_HINT": "f32"}
            float32_network = network
            if self._config != float32_config:
                float32_network = self._core.compile_model(model, self._unit, float32_config)
            self._check(float32_network)
        self.network = network
        content: bytes = network.export_model().getvalue()
        return content


def _compiled(load: Callable[[], Any], title: str) -> Any:  # noqa: ANN401
    """Call a function that compiles a network, within a time limit and with detcli's errors.

    Args:
        load: Compiles the network, or reads it from the cache.
        title: What errors call the network.

    Returns:
        What `load` returns, the compiled network.

    Raises:
        ModelError: OpenVINO cannot load the network, or it does not fit into memory.
    """
    try:
        return run_with_timeout(LOAD_TIMEOUT_S, title, load)
    except FAILURES as error:
        problem = reason(error)
        if is_out_of_memory(problem):
            raise ModelError(f"{title} does not fit into memory: {problem}", MORE_MEMORY) from error
        raise ModelError(
            f"OpenVINO {library().__version__} cannot load {title}: {problem}", "use --device cpu"
        ) from error


def choose_precision(core: Any, unit: str, *, half: bool) -> str:  # noqa: ANN401
    """Choose the precision to ask OpenVINO for, which has to be one that the device computes in.

    It is always asked for, since OpenVINO's own default is half precision wherever the device has
    it.

    Args:
        core: OpenVINO's Core.
        unit: OpenVINO's name of the device, such as "CPU" or "GPU.1".
        half: Whether half precision was asked for, and not float32.

    Returns:
        "f32", or with `half` the device's "bf16" or "f16".

    Raises:
        DeviceError: The device does not compute in that precision, or would only imitate it.
    """
    precision = "f32"
    if half:
        device_kind = unit.partition(".")[0]  # "GPU" of "GPU.1", the second graphics card
        precision = HALF[device_kind]
    capabilities = core.get_property(unit, "OPTIMIZATION_CAPABILITIES")
    is_supported = CAPABILITY[precision] in capabilities
    if precision == "bf16" and not (is_supported and _multiplies_bf16(core)):
        raise DeviceError(
            "--half would be slower: this processor does not multiply in bfloat16, which OpenVINO "
            "could only imitate",
            "leave it out, or convert the model with detcli convert --int8",
        )
    if not is_supported:
        hint = "use --half, or --device openvino:CPU"
        if half:
            hint = "leave --half out"
        raise DeviceError(
            f"OpenVINO's {unit} does not compute in {precision}, but in {', '.join(capabilities)}",
            hint,
        )
    return precision


def _multiplies_bf16(core: Any) -> bool:  # noqa: ANN401
    """Find out whether this processor has instructions that multiply in bfloat16.

    OpenVINO lists bfloat16 also for processors that could only imitate it with other instructions.
    So a small convolution is compiled for bfloat16, and the name of the kernel that OpenVINO chose
    for it tells which instructions it uses.
    """
    openvino = library()
    operators = importlib.import_module("openvino.opset13")
    image = operators.parameter([1, 16, 8, 8], np.float32)
    weights = np.ones((16, 16, 3, 3), np.float32)
    layer = operators.convolution(image, weights, [1, 1], [0, 0], [0, 0], [1, 1])
    network = openvino.Model([layer], [image])
    try:
        compiled = core.compile_model(network, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})
    except RuntimeError:
        return False
    for kind, _precision, kernel in _layers(compiled):
        # The generic kernels for AVX-512 widen bfloat16 to float32 before they multiply.
        if kind in MULTIPLYING and kernel.startswith("jit_avx512"):
            return False
    return True


def scheduling(device: Device, options: DeviceOptions) -> dict[str, str]:
    """Return the properties that tell OpenVINO how to use the cores of the machine.

    Where one image is detected at a time, each is to be done soon ("LATENCY"); where there are
    several workers, as many images as possible in all ("THROUGHPUT"). How many streams and threads
    that takes is left to OpenVINO, which knows hyper-threads and efficient cores.

    Only a limit on the cores has to be given to it as a number of threads: OpenVINO sees the
    affinity of this process, but neither the quota of a container nor other processes that share
    the machine.

    Returns:
        Values by OpenVINO's names of properties.
    """
    config = {"PERFORMANCE_HINT": "LATENCY"}
    if options.workers > 1:
        config = {
            "PERFORMANCE_HINT": "THROUGHPUT",
            "PERFORMANCE_HINT_NUM_REQUESTS": str(options.workers),
        }
    core_count = available_cores()
    if options.cores:
        core_count = min(options.cores, core_count)
    if device.unit == "CPU" and core_count < visible_cores():
        config["INFERENCE_NUM_THREADS"] = str(core_count)
        # If threads were pinned, those of all processes would share the first cores.
        config["ENABLE_CPU_PINNING"] = "NO"
    return config


def precision_of(compiled: Any) -> str:  # noqa: ANN401
    """Find out which precisions the layers of a compiled network compute in.

    The layers that multiply take nearly all of the time, so their precisions count. In a network
    without any, it is the most frequent precision of all layers that compute in floats. Where
    OpenVINO does not tell the layers, it is the precision that was asked for.

    Returns:
        One precision such as "f32", or several, the most frequent first: "int8+bf16".
    """
    requested: str = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    try:
        layers = _layers(compiled)
    except RuntimeError:  # The plug-ins of some devices do not tell their layers.
        return requested

    multiplying_layers: Counter[str] = Counter()  # number of layers by precision
    float_layers: Counter[str] = Counter()
    for kind, precision, _kernel in layers:
        if kind in MULTIPLYING and (precision in CAPABILITY or precision in NAMES):
            multiplying_layers[NAMES.get(precision, precision)] += 1
        if precision in CAPABILITY:
            float_layers[precision] += 1
    if multiplying_layers:
        return "+".join(precision for precision, _count in multiplying_layers.most_common())
    if not float_layers:
        return requested
    most_frequent, _count = float_layers.most_common(1)[0]
    return most_frequent


def _layers(compiled: Any) -> list[tuple[str, str, str]]:  # noqa: ANN401
    """List the layers of a compiled network.

    Returns:
        Of each layer its kind ("Convolution"), its precision ("f32") and the name of its kernel;
        empty where OpenVINO does not tell.
    """
    layers = []
    for node in compiled.get_runtime_model().get_ops():
        info = node.get_rt_info()
        kind, precision, kernel = "", "", ""
        if "layerType" in info:
            kind = info["layerType"].astype(str)
        if "runtimePrecision" in info:
            # The names of precisions differ by plug-in: f16, FP16.
            precision = info["runtimePrecision"].astype(str).lower().replace("fp", "f")
        if "primitiveType" in info:
            kernel = info["primitiveType"].astype(str)
        layers.append((kind, precision, kernel))
    return layers


class OpenvinoTensors:
    """Any graph on one of OpenVINO's devices, with arrays as its inputs and outputs."""

    def __init__(self, graph: bytes, title: str, device: Device, options: DeviceOptions) -> None:
        self.device = str(device)
        self._title = title
        core = open_core(device)
        unit = str(device.unit)
        config = {"INFERENCE_PRECISION_HINT": choose_precision(core, unit, half=options.half)}

        def load() -> Any:  # noqa: ANN401
            return core.compile_model(core.read_model(graph), unit, config)

        compiled = _compiled(load, title)
        self._names = [output.any_name for output in compiled.outputs]
        self._request = compiled.create_infer_request()

    def run_watched(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        def infer() -> None:
            self._request.infer({name: tensor}, share_inputs=False)

        with translated(tensor):
            run_with_timeout(RUN_TIMEOUT_S, self._title, infer)
        outputs = {}
        for index, output_name in enumerate(self._names):
            outputs[output_name] = self._request.get_output_tensor(index).data.copy()
        return outputs


@dataclass(eq=False, slots=True)
class Started:
    """Images whose inference has been started, in one or several batches."""

    runs: list[tuple[Any, Tensor]]  # of each batch: OpenVINO's request with its output; its input
    unread: int = 0  # selections whose detections have not been read
    returned: bool = False  # whether its requests may run other batches


TOLERANCE = 0.02
"""Mean difference of the sorted values of a head's rows, as a share of the largest, or of 1.

Sorted, because a network that chooses among queries may order them otherwise. Of 26 files of 14
families, float32 differs by at most 0.000005, float16 by 0.00006, int8 by 0.0009; the wrong
HardSigmoid by 0.5.
"""

OPENVINO = "OpenVINO"
NOT_COMPUTED = {"Constant", "Parameter", "Result"}  # what every graph has, and nothing computes


def open_backend(model: PreparedModel, device: Device, options: DeviceOptions) -> "OpenvinoBackend":
    """Load a model with OpenVINO; the first time, its head is compared with ONNX Runtime's."""

    def check(compiled: Any) -> None:  # noqa: ANN401 - openvino's types are incomplete
        require_same_head(compiled, model)

    compiled, precision = open_network(model.graph, model.name, device, options, check)
    # Of YOLOv10-N in 8 bits, OpenVINO 2026.4 places boxes 40 pixels off where the size is free.
    if "int8" in precision and compiled.input(0).get_partial_shape()[1:].is_dynamic:
        raise ModelError(
            f"{model.name} is in 8 bits and of free size, which OpenVINO computes wrongly",
            "fix the size in a copy: detcli convert MODEL -o COPY --imgsz 640; or use --device cpu",
        )
    return OpenvinoBackend(compiled, precision, model.contract, str(device))


open_tensors = OpenvinoTensors


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


def require_same_head(compiled: Any, model: PreparedModel) -> None:  # noqa: ANN401
    """Require that OpenVINO and ONNX Runtime compute the same head from an image of noise.

    The head is the network's output before detections are selected. A network that selects them
    itself is not compared, since it detects nothing in noise; neither is a network that ONNX
    Runtime cannot run.

    Args:
        compiled: OpenVINO's network, compiled in float32.
        model: The model that it was compiled from.

    Raises:
        ModelError: The heads differ by more than TOLERANCE.
    """
    from detcli.backend.session import CPU, TensorSession  # this import is slow and seldom needed

    contract = model.contract
    if contract.layout is Layout.ROWS:
        return
    batch = _noise_batch(contract)
    try:
        session = TensorSession("cpu", CPU, model.graph, model.name)
        (expected_output,) = session.run(contract.input_name, batch).values()
    except (ModelError, InferenceError) as error:
        log.info("OpenVINO is not compared with ONNX Runtime: %s", error)
        return
    request = compiled.create_infer_request()
    request.infer([batch])
    output = request.get_output_tensor().data

    # All images of the batch are the same, so the first is enough.
    head = of_images(output, len(batch), contract)[0]
    expected_head = of_images(expected_output, len(batch), contract)[0]
    if contract.anchors_first:
        head = head.T
        expected_head = expected_head.T
    difference = _difference(head, expected_head)
    log.debug("%s: OpenVINO differs from ONNX Runtime by %g", model.name, difference)
    if difference > TOLERANCE:
        raise ModelError(
            f"OpenVINO computes something else from {model.name} than ONNX Runtime does: its head "
            f"differs by {difference:.0%}",
            "use --device cpu, and report the model to OpenVINO",
        )


def _noise_batch(contract: Contract) -> Tensor:
    """Make a network's input of one image of noise, repeated as often as a batch has images."""
    size = contract.input_shape(None)
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    image_count = contract.batch or 1
    return to_tensors(
        [noise] * image_count,
        [Letterbox.fit(size, size)] * image_count,
        contract.preprocessing,
        contract.input_dtype,
    )


def _difference(head: HeadArray, expected: HeadArray) -> float:
    """Return how far two heads `(4 + C, N)` differ in boxes or in scores, whichever is more.

    It is a share of the largest value, see TOLERANCE, and 1.0 if the heads have different shapes.
    """
    if head.shape != expected.shape:
        return 1.0
    box_difference = _difference_of_rows(head[:4], expected[:4])
    score_difference = _difference_of_rows(head[4:], expected[4:])
    return max(box_difference, score_difference)


def _difference_of_rows(rows: HeadArray, expected: HeadArray) -> float:
    """Return the mean difference of the sorted values of each row, as a share of the largest.

    Rows are sorted since networks may order equal anchors or queries otherwise. Where the largest
    absolute value is below 1, the difference is a share of 1.

    Args:
        rows: `(R, N)`.
        expected: `(R, N)`.
    """
    if not rows.size:
        return 0.0
    values = np.sort(np.nan_to_num(rows.astype(np.float64)))
    expected_values = np.sort(np.nan_to_num(expected.astype(np.float64)))
    largest = max(1.0, float(np.abs(values).max()), float(np.abs(expected_values).max()))
    return float(np.abs(values - expected_values).mean()) / largest


def placement_of(graph: bytes, title: str) -> "Placement":
    """Find out whether OpenVINO can run a graph on the CPU, and with which operators.

    OpenVINO runs a graph only if it supports all of its nodes.

    Args:
        graph: The content of an ONNX file.
        title: What messages call the graph.

    Returns:
        If OpenVINO can run it, the number of nodes by OpenVINO's own names of operators; if not,
        the reason and a hint.
    """
    from detcli.backend.libraries import Placement

    try:
        core = open_core(Device.parse("openvino"))
    except DetcliError as error:
        return Placement(OPENVINO, usable=False, reason=str(error), hint=error.hint)
    try:
        model = core.read_model(graph)
        supported_names = core.query_model(model, "CPU")
    except RuntimeError as error:
        problem = f"OpenVINO cannot load {title}: {reason(error)}"
        return Placement(OPENVINO, usable=False, reason=problem, hint="use --device cpu")

    operators: Counter[str] = Counter()
    for node in model.get_ops():
        operator = node.get_type_name()
        if operator in NOT_COMPUTED:
            continue
        if node.get_friendly_name() not in supported_names:
            problem = f"OpenVINO cannot load {title}: it has no {operator}"
            return Placement(OPENVINO, usable=False, reason=problem, hint="use --device cpu")
        operators[operator] += 1
    return Placement(OPENVINO, usable=True, taken=dict(operators.most_common()), left=())
