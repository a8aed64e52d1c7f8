"""What the tests of the CUDA backend share: our kernels on the CPU, and GPUs, real and not."""

import random
from collections.abc import Callable, Iterator

import pytest
from backend.cuda.host_gpu import HostGpu
from backend.cuda.libcuda import FakeDriver
from backend.cuda.shim import Shim, kernel_sources

from detcli.errors import DetcliError


@pytest.fixture(scope="session")
def shim(pytestconfig: pytest.Config) -> Shim:
    """The package's kernels; what was built stays in pytest's cache for the next run."""
    return Shim(kernel_sources(), pytestconfig.cache.mkdir("shim"))


def order_of_each_launch(request: pytest.FixtureRequest) -> Callable[[], bool]:
    """Draws whether threads run in reverse, the same for a test each time it runs.

    What lacks a barrier shows in one of the two orders; test_barriers.py runs its cases in both.
    """
    chance = random.Random(request.node.nodeid)  # noqa: S311
    return lambda: bool(chance.getrandbits(1))


@pytest.fixture
def host_gpu(shim: Shim, request: pytest.FixtureRequest) -> Iterator[HostGpu]:
    """A GPU whose stream is late."""
    gpu = HostGpu(shim, late=True, reverse=order_of_each_launch(request))
    yield gpu
    gpu.close()


@pytest.fixture(scope="session")
def _driver_on_the_cpu(shim: Shim, pytestconfig: pytest.Config) -> FakeDriver:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed")
    return FakeDriver(shim, pytestconfig.cache.mkdir("shim"))


@pytest.fixture
def driver(
    _driver_on_the_cpu: FakeDriver,
    pytestconfig: pytest.Config,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[FakeDriver]:
    """A driver without a GPU, whose streams are late."""
    # The compiler needs seconds for each file, and tests whether it runs are elsewhere.
    monkeypatch.setenv("DETCLI_CACHE_DIR", str(pytestconfig.cache.mkdir("cubins")))
    _driver_on_the_cpu.start(reverse=order_of_each_launch(request))
    yield _driver_on_the_cpu
    _driver_on_the_cpu.stop()


@pytest.fixture(scope="session")
def real_gpu(pytestconfig: pytest.Config) -> Iterator:
    """The first GPU."""
    if pytestconfig.option.markexpr != "gpu":
        pytest.skip("a process has one driver: pytest -m gpu takes NVIDIA's")
    try:
        from detcli.backend.cuda.driver import Gpu

        gpu = Gpu(0)
    except DetcliError as error:
        pytest.skip(f"no GPU: {error}")
    yield gpu
    gpu.close()


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest) -> Iterator:
    """A GPU of cuda-core to run kernels on, by each driver; NVIDIA's has the marker `gpu`."""
    if request.param == "real":
        yield request.getfixturevalue("real_gpu")
        return
    request.getfixturevalue("driver")
    from detcli.backend.cuda.driver import Gpu

    gpu = Gpu(0)
    yield gpu
    gpu.close()
