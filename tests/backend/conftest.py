"""What the tests of the CUDA backend share: GPUs, real and not."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from detcli.core.errors import DetcliError

if TYPE_CHECKING:
    from backend.cuda.libcuda import FakeDriver


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


@pytest.fixture
def fake_gpu(driver: "FakeDriver") -> Iterator:
    """A GPU that does nothing before somebody waits for it."""
    from detcli.backend.cuda.driver import Gpu

    assert driver.waiting == 0
    gpu = Gpu(0)
    yield gpu
    driver.fail("", 0)
    gpu.close()


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest):
    """A GPU of cuda-core to run kernels on, by each driver; NVIDIA's has the marker `gpu`."""
    return request.getfixturevalue(f"{request.param}_gpu")
