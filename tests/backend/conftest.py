"""What the tests of the CUDA backend share: GPUs, real and not."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from detcli.core.errors import DetcliError
from detcli.model.prepared import PreparedModel, prepare

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


@pytest.fixture
def opened_on_fake_driver(driver):
    """Open a model on the tests' driver, until the end of the test."""
    from backend.cuda.doubles import open_on_host

    opened = []

    def open_model(file, *arguments, **options):
        model = file if isinstance(file, PreparedModel) else prepare(file)
        opened.append(open_on_host(driver, model, *arguments, **options))
        return opened[-1]

    yield open_model
    for backend in opened:
        backend.close()
