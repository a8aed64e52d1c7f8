"""A CudaBackend without a GPU: the tests' driver, and ONNX Runtime on the CPU for the network."""

import onnxruntime
import pytest
from backend.cuda.libcuda import FakeDriver

from detcli.backend.cuda.backend import CudaBackend
from detcli.backend.cuda.network import Network
from detcli.backend.libraries import CUDA, require_provider
from detcli.backend.nvidia import count_gpus
from detcli.core.errors import DeviceError
from detcli.model.file import PreparedModel


def skip_without_network_on_gpu() -> None:
    """Skip a test only where there is no GPU, or ONNX Runtime lacks CUDA."""
    if count_gpus() == 0:
        pytest.skip("no GPU")
    try:
        require_provider(CUDA)
    except DeviceError as error:
        pytest.skip(f"no network on the GPU: {error}")


class StreamSession:
    """A session whose runs on device memory wait for their turn on the stream."""

    def __init__(self, session, driver: FakeDriver, gpu) -> None:
        self._session = session
        self._driver = driver
        self._gpu = gpu

    def __getattr__(self, name):
        return getattr(self._session, name)

    def run_with_iobinding(self, binding, options):
        failures = []

        def run():
            try:
                self._session.run_with_iobinding(binding, options)
            except Exception as error:  # noqa: BLE001 - an exception cannot pass through the driver
                failures.append(error)

        self._driver.enqueue(run, self._gpu.stream)
        try:
            options.get_run_config_entry("disable_synchronize_execution_providers")
        except RuntimeError:  # it has not been set
            self._gpu.synchronize()
        if failures:
            raise failures[0]


def open_on_host(
    driver: FakeDriver, model: PreparedModel, wrap=StreamSession, **options
) -> CudaBackend:
    """Open a model as `cuda.open_backend` does; `wrap` makes a double of the session."""
    from detcli.backend.cuda.driver import Gpu

    gpu = Gpu(0)
    session = onnxruntime.InferenceSession(model.graph, providers=["CPUExecutionProvider"])
    network = Network(wrap(session, driver, gpu), model.contract, device=("cpu", 0), **options)
    return CudaBackend(gpu, network, model.contract, "host")
