"""OpenVINO: it runs the network; pictures and selection are the CPU's own code.

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

from detcli.backend.postprocess import HeadArray, SelectionOptions, detect_all, of_pictures
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
    """Compile a network, or read it from the cache; and the precision that it computes in."""
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
    """Compile a graph, or read what was compiled before."""
    compiled_now = []
    capabilities = core.get_property(unit, "OPTIMIZATION_CAPABILITIES")

    def build() -> bytes:
        model = core.read_model(graph)
        compiled = core.compile_model(model, unit, config)
        if check is not None and CAPABILITY["f32"] in capabilities:  # an NPU has no float32
            exact_config = config | {"INFERENCE_PRECISION_HINT": "f32"}
            exact = compiled
            if config != exact_config:
                exact = core.compile_model(model, unit, exact_config)
            check(exact)
        compiled_now.append(compiled)
        content: bytes = compiled.export_model().getvalue()
        return content

    # The same name of a processor can stand for several, above all in virtual machines.
    facts = [library().__version__, core.get_property(unit, "FULL_DEVICE_NAME")]
    facts.extend(capabilities)
    facts.append(config["INFERENCE_PRECISION_HINT"])
    facts.append(hashlib.sha256(graph).hexdigest())
    key = hashlib.sha256("\n".join(facts).encode()).hexdigest()
    content = cached(f"prepared/{key}.openvino", build)
    if compiled_now:
        return compiled_now[0]
    try:
        return core.import_model(content, unit, config)
    except RuntimeError as error:
        log.info("OpenVINO does not take its own copy from the cache: %s", reason(error))
        return core.compile_model(core.read_model(graph), unit, config)


def _compiled(load: Callable[[], Any], title: str) -> Any:  # noqa: ANN401
    """Load a network within the time limit, with detcli's errors."""
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
    """The precision to ask for: "f32", or with `half` the device's "bf16" or "f16".

    OpenVINO's own default is half precision wherever the device has it.
    """
    precision = HALF[unit.partition(".")[0]] if half else "f32"
    capabilities = core.get_property(unit, "OPTIMIZATION_CAPABILITIES")
    is_listed = CAPABILITY[precision] in capabilities
    if precision == "bf16" and not (is_listed and _multiplies_bf16(core)):
        raise DeviceError(
            "--half would be slower: this processor does not multiply in bfloat16, which OpenVINO "
            "could only imitate",
            "leave it out, or convert the model with detcli convert --int8",
        )
    if not is_listed:
        raise DeviceError(
            f"OpenVINO's {unit} does not compute in {precision}, but in {', '.join(capabilities)}",
            "leave --half out" if half else "use --half, or --device openvino:CPU",
        )
    return precision


def _multiplies_bf16(core: Any) -> bool:  # noqa: ANN401
    """Whether a convolution in bfloat16 runs on instructions for it.

    OpenVINO lists bfloat16 for any processor that some instructions could imitate it on, so a small
    convolution is compiled, and the kernel's name tells.
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
    kernels = [kernel for kind, _, kernel in _layers(compiled) if kind in MULTIPLYING]
    # The generic kernels for AVX-512 widen bfloat16 themselves.
    return all(not kernel.startswith("jit_avx512") for kernel in kernels)


def scheduling(device: Device, options: DeviceOptions) -> dict[str, str]:
    """Streams and threads: OpenVINO's own rules, which know hyper-threads and efficient cores.

    One picture at a time is to be fast; of many, as many as the machine does best at once. OpenVINO
    sees a process's affinity, but neither a container's quota nor the processes beside this one, so
    these are given as a number of threads, which the system places: pinned, the threads of all
    processes would share the first cores.
    """
    config = {"PERFORMANCE_HINT": "LATENCY"}
    if options.workers > 1:
        requests = str(options.workers)
        config = {"PERFORMANCE_HINT": "THROUGHPUT", "PERFORMANCE_HINT_NUM_REQUESTS": requests}
    cores = min(options.cores or available_cores(), available_cores())
    if device.unit == "CPU" and cores < visible_cores():
        config |= {"INFERENCE_NUM_THREADS": str(cores), "ENABLE_CPU_PINNING": "NO"}
    return config


def precision_of(compiled: Any) -> str:  # noqa: ANN401
    """What the layers of a compiled network compute in, the most frequent first: "int8+bf16"."""
    requested: str = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    try:
        layers = _layers(compiled)
    except RuntimeError:  # a plug-in that does not say
        return requested

    multiplying: Counter[str] = Counter()
    all_layers: Counter[str] = Counter()  # others than these precisions convert at its ends
    for kind, precision, _ in layers:
        if kind in MULTIPLYING and (precision in CAPABILITY or precision in NAMES):
            multiplying[NAMES.get(precision, precision)] += 1
        if precision in CAPABILITY:
            all_layers[precision] += 1
    if multiplying:
        return "+".join(name for name, _ in multiplying.most_common())
    if not all_layers:
        return requested
    most_frequent, _ = all_layers.most_common(1)[0]
    return most_frequent


def _layers(compiled: Any) -> list[tuple[str, str, str]]:  # noqa: ANN401
    """Kind, precision and kernel of each layer that runs."""
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
    """A batch that runs."""

    runs: list[tuple[Any, Tensor]]  # its requests, which own their outputs, and their inputs
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
        if self._network is None:
            raise closed_error()
        runs = []
        for batch in in_batches(buffer, self._contract):
            try:
                request = self.idle.pop()
            except IndexError:  # of other threads, perhaps
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
        buffer.unread += 1

        @functools.cache
        def wait() -> list[Detections]:
            _wait_for(buffer)
            outputs: list[HeadArray] = []
            for request, batch in buffer.runs:
                output = request.get_output_tensor().data
                outputs.extend(of_pictures(output, len(batch), self._contract))
            outputs = outputs[: len(letterboxes)]
            detections = detect_all(outputs, letterboxes, options, self._contract)
            buffer.unread -= 1
            if buffer.unread == 0 and not buffer.returned:
                buffer.returned = True
                self.idle.extend(request for request, _ in buffer.runs)
            return detections

        if self._observer is not None:
            wait()
        self._ended(Stage.SELECTION)
        return wait

    def close(self) -> None:
        self._network = None
        self.idle.clear()


def _wait_for(started: Started) -> None:
    for request, batch in started.runs:
        with translated(batch):
            request.wait()


def require_same_head(compiled: Any, model: PreparedModel) -> None:  # noqa: ANN401
    """Compare a network that was compiled in float32 with ONNX Runtime on a picture of noise.

    One that selects its rows itself is not compared, since noise gives none.
    """
    from detcli.backend.session import CPU, TensorSession  # not at each start

    contract = model.contract
    if contract.layout is Layout.ROWS:
        return
    size = contract.input_shape(None)
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
    head = of_pictures(request.get_output_tensor().data, count, contract)[0]
    expected_head = of_pictures(expected, count, contract)[0]
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


def _difference(head: HeadArray, expected: HeadArray) -> float:
    """How far heads `(4 + C, N)` differ in boxes or in scores, whichever is more; see TOLERANCE."""
    if head.shape != expected.shape:
        return 1.0
    of_boxes = _difference_of_rows(head[:4], expected[:4])
    of_scores = _difference_of_rows(head[4:], expected[4:])
    return max(of_boxes, of_scores)


def _difference_of_rows(rows: HeadArray, expected: HeadArray) -> float:
    """The mean difference of the sorted values of rows, as a share of the largest, or of 1."""
    if not rows.size:
        return 0.0
    values = np.sort(np.nan_to_num(rows.astype(np.float64)))
    expected_values = np.sort(np.nan_to_num(expected.astype(np.float64)))
    largest = max(float(np.abs(values).max()), float(np.abs(expected_values).max()))
    return float(np.abs(values - expected_values).mean()) / max(1.0, largest)


def placement_of(graph: bytes, title: str) -> "Placement":
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
        supported = core.query_model(model, "CPU")
    except RuntimeError as error:
        problem = f"OpenVINO cannot load {title}: {reason(error)}"
        return Placement(OPENVINO, usable=False, reason=problem, hint="use --device cpu")

    operators: Counter[str] = Counter()
    for node in model.get_ops():
        operator = node.get_type_name()
        if operator in NOT_COMPUTED:
            continue
        if node.get_friendly_name() not in supported:
            problem = f"OpenVINO cannot load {title}: it has no {operator}"
            return Placement(OPENVINO, usable=False, reason=problem, hint="use --device cpu")
        operators[operator] += 1
    return Placement(OPENVINO, usable=True, taken=dict(operators.most_common()), left=())
