import threading

import pytest
from commands.bench.requests import shorten


@pytest.fixture(autouse=True, scope="module")
def _short():
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        yield


@pytest.fixture
def hang():
    """Something that hangs until the end of the test, as native code does."""
    release = threading.Event()
    yield lambda *_: release.wait(60)
    release.set()
