"""What the tests of the CUDA backend share: our kernels on the CPU, and GPUs, real and not."""

from collections.abc import Iterator

import pytest
from backend.cuda.host_gpu import HostGpu
from backend.cuda.shim import Shim, kernel_sources

from detcli.errors import DetcliError


@pytest.fixture(scope="session")
def shim(pytestconfig: pytest.Config) -> Shim:
    """The package's kernels; what was built stays in pytest's cache for the next run."""
    return Shim(kernel_sources(), pytestconfig.cache.mkdir("shim"))


@pytest.fixture(params=["forward", "reverse"])
def host_gpu(shim: Shim, request: pytest.FixtureRequest) -> Iterator[HostGpu]:
    """A GPU whose stream is late; its threads run forwards, then in reverse."""
    gpu = HostGpu(shim, late=True, reverse=request.param == "reverse")
    yield gpu
    gpu.close()


@pytest.fixture(scope="session")
def real_gpu() -> Iterator:
    """The first GPU."""
    try:
        from detcli.backend.cuda.driver import Gpu

        gpu = Gpu(0)
    except DetcliError as error:
        pytest.skip(f"no GPU: {error}")
    yield gpu
    gpu.close()


@pytest.fixture(params=["forward", "reverse", pytest.param("real", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest) -> Iterator:
    """Each GPU to run kernels on; the real one has the marker `gpu`."""
    if request.param == "real":
        yield request.getfixturevalue("real_gpu")
        return
    gpu = HostGpu(request.getfixturevalue("shim"), reverse=request.param == "reverse")
    yield gpu
    gpu.close()
