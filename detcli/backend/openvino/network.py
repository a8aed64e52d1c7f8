"""Networks of OpenVINO: compiled for a device, or read from the cache."""

import hashlib
import logging
from collections.abc import Callable
from typing import Any

from detcli.backend.openvino.library import FAILURES, library, open_core, reason, translated
from detcli.backend.openvino.precision import CAPABILITY, choose_precision, precision_of
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
from detcli.storage.cache import cached

log = logging.getLogger(__name__)

REQUESTS = "OPTIMAL_NUMBER_OF_INFER_REQUESTS"


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
