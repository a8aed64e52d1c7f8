import pytest
from commands.bench.requests import shorten


@pytest.fixture(autouse=True, scope="module")
def _short():
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        yield
