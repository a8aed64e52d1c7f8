"""What the tests of the CUDA backend share: our kernels on the CPU, and GPUs, real and not."""

import random
from collections.abc import Callable, Iterator

import pytest
from backend.cuda.host_gpu import HostGpu
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
def real_gpu() -> Iterator:
    """The first GPU."""
    try:
        from detcli.backend.cuda.driver import Gpu

        gpu = Gpu(0)
    except DetcliError as error:
        pytest.skip(f"no GPU: {error}")
    yield gpu
    gpu.close()


@pytest.fixture(params=["host", pytest.param("real", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest) -> Iterator:
    """Each GPU to run kernels on; the real one has the marker `gpu`."""
    if request.param == "real":
        yield request.getfixturevalue("real_gpu")
        return
    gpu = HostGpu(request.getfixturevalue("shim"), reverse=order_of_each_launch(request))
    yield gpu
    gpu.close()
