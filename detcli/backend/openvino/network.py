"""Networks of OpenVINO: compiled for a device, or read from the cache."""

import hashlib
import logging
from collections.abc import Callable

from detcli.backend.openvino.library import (
    FAILURES,
    CompiledModel,
    Core,
    Model,
    converted_errors,
    import_openvino,
    open_core,
    reason,
)
from detcli.backend.openvino.precision import CAPABILITIES, choose_precision, precision_of
from detcli.backend.preprocess import Tensor
from detcli.backend.protocol import (
    LOAD_TIMEOUT_S,
    MORE_MEMORY,
    RUN_TIMEOUT_S,
    is_out_of_memory,
    run_with_timeout,
)
from detcli.config.device import Device, DeviceOptions, available_cores, visible_cores
from detcli.core.errors import DeviceError, ModelError
from detcli.model.prepared import StoredGraph
from detcli.storage.cache import cached

log = logging.getLogger(__name__)

PRECISION = "INFERENCE_PRECISION_HINT"
"""OpenVINO's property for the precision that a network is to be computed in."""

REQUEST_COUNT = "OPTIMAL_NUMBER_OF_INFER_REQUESTS"
"""OpenVINO's property for the number of batches that a network runs side by side."""

CompiledModelCheck = Callable[[CompiledModel], None]
"""Takes a network that is compiled in float32, and raises an error if it computes wrongly."""


def open_network(
    graph: StoredGraph,
    title: str,
    device: Device,
    options: DeviceOptions,
    check: CompiledModelCheck | None = None,
) -> tuple[CompiledModel, str]:
    """Compile a network for a device, or read the compiled network from the cache.

    Args:
        graph: The network, which is only read if it has to be compiled.
        title: How error messages refer to the network.
        device: One of OpenVINO's devices.
        options: Whether half precision was asked for, and how many cores and workers there are.
        check: Called with the network in float32 when it is compiled for the first time; it raises
            an error if OpenVINO computes it wrongly.

    Returns:
        OpenVINO's compiled network, and the precision that its layers compute in, see
        `precision_of`.

    Raises:
        DeviceError: OpenVINO lacks the device, or computes in a precision other than the one asked
            for.
        ModelError: OpenVINO cannot load the network.
    """
    core = open_core(device)
    device_name = str(device.unit)
    config = {PRECISION: choose_precision(core, device_name, half=options.half)}
    config.update(scheduling(device, options))
    compiled = _compile_within_limit(
        lambda: _read_or_compile(core, graph, device_name, config, check), title
    )
    precision = precision_of(compiled)
    if config[PRECISION] == "f32":
        _require_float32(precision, title, device_name)
    log.info(
        "%s: OpenVINO computes in %s, %d at once; asked for %s",
        title,
        precision,
        compiled.get_property(REQUEST_COUNT),
        ", ".join(f"{name}={value}" for name, value in config.items()),
    )
    return compiled, precision


def _require_float32(precision: str, title: str, device_name: str) -> None:
    """Raise a DeviceError if a network that should be in float32 computes in half precision.

    Args:
        precision: The precisions that its layers compute in, such as "f32" or "int8+bf16".
        title: How error messages refer to the network.
        device_name: OpenVINO's name of the device, such as "CPU".
    """
    precisions = precision.split("+")
    if "f16" in precisions or "bf16" in precisions:
        raise DeviceError(
            f"OpenVINO runs {title} in {precision} on {device_name}, though float32 was asked for",
            "use --half to run it so on purpose, or --device cpu",
        )


def scheduling(device: Device, options: DeviceOptions) -> dict[str, str]:
    """Return the properties that tell OpenVINO how to use the cores of the machine.

    With one worker each image is to be done soon ("LATENCY"), with several as many images as
    possible in all ("THROUGHPUT"). OpenVINO itself chooses the streams and threads for that, as it
    knows hyper-threads and efficient cores.

    Args:
        device: One of OpenVINO's devices.
        options: The number of workers, and of cores for this process.

    Returns:
        Values by OpenVINO's names of properties.
    """
    properties = {"PERFORMANCE_HINT": "LATENCY"}
    if options.workers > 1:
        properties = {
            "PERFORMANCE_HINT": "THROUGHPUT",
            "PERFORMANCE_HINT_NUM_REQUESTS": str(options.workers),
        }

    # OpenVINO sees the affinity of this process, but neither the quota of a container nor how many
    # cores other processes are to have. So if they are fewer than it sees, it has to be told.
    core_count = available_cores()
    if options.cores:
        core_count = min(options.cores, core_count)
    if device.unit == "CPU" and core_count < visible_cores():
        properties["INFERENCE_NUM_THREADS"] = str(core_count)
        # If threads were pinned, those of all processes would share the first cores.
        properties["ENABLE_CPU_PINNING"] = "NO"
    return properties


def _read_or_compile(
    core: Core,
    graph: StoredGraph,
    device_name: str,
    config: dict[str, str],
    check: CompiledModelCheck | None,
) -> CompiledModel:
    """Read a compiled network from the cache, or compile its graph and add it to the cache.

    Args:
        core: OpenVINO's Core.
        graph: The network, which is only read if it has to be compiled.
        device_name: OpenVINO's name of the device, such as "CPU".
        config: OpenVINO's properties for compiling.
        check: Called with the network in float32 if it has to be compiled.
    """
    compilation = _Compilation(core, graph, device_name, config, check)
    # `cached` calls `export` only if the cache lacks the network. `compiled` is then the network,
    # which need not be read from the bytes that were exported.
    exported_network = cached(f"prepared/{compilation.cache_key()}.openvino", compilation.export)
    if compilation.compiled is not None:
        return compilation.compiled

    try:
        return core.import_model(exported_network, device_name, config)
    except RuntimeError as error:
        log.info("OpenVINO does not take its own copy from the cache: %s", reason(error))
        return core.compile_model(core.read_model(graph.content), device_name, config)


class _Compilation:
    """Compiles a graph for one of OpenVINO's devices, if the cache lacks the compiled network.

    Attributes:
        compiled: The compiled network; None unless `export` was called.
    """

    def __init__(
        self,
        core: Core,
        graph: StoredGraph,
        device_name: str,
        config: dict[str, str],
        check: CompiledModelCheck | None,
    ) -> None:
        """Prepare a compilation; nothing is compiled before `export` is called.

        Args:
            core: OpenVINO's Core.
            graph: The network, which is only read if it has to be compiled.
            device_name: OpenVINO's name of the device, such as "CPU".
            config: OpenVINO's properties for compiling, the precision among them.
            check: Called with the network in float32 after it has been compiled.
        """
        self._core = core
        self._graph = graph
        self._device_name = device_name
        self._config = config
        self._check = check
        self._device_capabilities = core.get_property(device_name, "OPTIMIZATION_CAPABILITIES")
        self.compiled: CompiledModel = None

    def cache_key(self) -> str:
        """Return a hash of everything that the compiled network depends on."""
        dependencies = [
            import_openvino().__version__,
            self._core.get_property(self._device_name, "FULL_DEVICE_NAME"),
        ]
        # The capabilities are part of the key, since one name of a processor can stand for several
        # processors, above all in virtual machines.
        dependencies.extend(self._device_capabilities)
        dependencies.append(self._config[PRECISION])
        dependencies.append(self._graph.key)
        return hashlib.sha256("\n".join(dependencies).encode()).hexdigest()

    def export(self) -> bytes:
        """Compile the graph, check it in float32, and return the content of its cache entry.

        The compiled network is then in `compiled`. A device without float32, such as an NPU, is not
        checked.
        """
        model = self._core.read_model(self._graph.content)
        compiled = self._core.compile_model(model, self._device_name, self._config)
        computes_float32 = CAPABILITIES["f32"] in self._device_capabilities
        if self._check is not None and computes_float32:
            self._check(self._in_float32(model, compiled))
        self.compiled = compiled
        content: bytes = compiled.export_model().getvalue()
        return content

    def _in_float32(self, model: Model, compiled: CompiledModel) -> CompiledModel:
        """Compile the network again in float32, unless it is in float32 already.

        Args:
            model: The network, as OpenVINO reads it.
            compiled: The same, compiled in the precision that was asked for.
        """
        if self._config[PRECISION] == "f32":
            return compiled
        float32_config = self._config | {PRECISION: "f32"}
        return self._core.compile_model(model, self._device_name, float32_config)


def _compile_within_limit(
    compile_network: Callable[[], CompiledModel], title: str
) -> CompiledModel:
    """Call a function that compiles a network, within a time limit and with detcli's errors.

    Args:
        compile_network: Compiles the network, or reads it from the cache.
        title: How error messages refer to the network.

    Returns:
        The compiled network that the function returns.

    Raises:
        ModelError: OpenVINO cannot load the network, it does not fit into memory, or it takes
            longer than LOAD_TIMEOUT_S.
    """
    try:
        return run_with_timeout(LOAD_TIMEOUT_S, title, compile_network)
    except FAILURES as error:
        problem = reason(error)
        if is_out_of_memory(problem):
            raise ModelError(f"{title} does not fit into memory: {problem}", MORE_MEMORY) from error
        version = import_openvino().__version__
        raise ModelError(
            f"OpenVINO {version} cannot load {title}: {problem}", "use --device cpu"
        ) from error


class OpenvinoTensors:
    """Any graph on one of OpenVINO's devices, with arrays as its inputs and outputs."""

    def __init__(self, graph: bytes, title: str, device: Device, options: DeviceOptions) -> None:
        """Compile a graph for a device; the cache is neither read nor written.

        Args:
            graph: The content of an ONNX file.
            title: How error messages refer to the graph.
            device: One of OpenVINO's devices.
            options: Whether half precision was asked for; the other settings are not used.

        Raises:
            DeviceError: OpenVINO lacks the device, or it does not compute in that precision.
            ModelError: OpenVINO cannot load the graph.
        """
        self.device = str(device)
        self._title = title
        core = open_core(device)
        device_name = str(device.unit)
        config = {PRECISION: choose_precision(core, device_name, half=options.half)}

        def compile_graph() -> CompiledModel:
            return core.compile_model(core.read_model(graph), device_name, config)

        compiled = _compile_within_limit(compile_graph, title)
        self._output_names = [output.any_name for output in compiled.outputs]
        self._request = compiled.create_infer_request()

    def run_watched(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """Feed one input of the graph, within RUN_TIMEOUT_S.

        Args:
            name: The name of the input.
            tensor: Its value.

        Returns:
            Copies of all outputs by their names.

        Raises:
            InferenceError: OpenVINO failed.
            ModelError: The run took too long.
        """

        def infer() -> None:
            self._request.infer({name: tensor}, share_inputs=False)

        with converted_errors(tensor):
            run_with_timeout(RUN_TIMEOUT_S, self._title, infer)
        outputs = {}
        for index, output_name in enumerate(self._output_names):
            outputs[output_name] = self._request.get_output_tensor(index).data.copy()
        return outputs
