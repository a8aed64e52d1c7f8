"""Arrays to a GPU and back."""

import numpy as np
import pytest

from detcli.backend.cuda.transfer import download, upload


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [np.float16, np.uint32])
def test_there_and_back(gpu, random, shape, dtype):
    array = random.integers(0, 100, shape).astype(dtype)
    memory = upload(gpu, array)
    np.testing.assert_array_equal(download(gpu, memory.address, shape, dtype), array)
    memory.close()


def test_a_view_is_packed(gpu, random):
    array = random.integers(0, 100, (6, 8))[::2, 1::3]
    memory = upload(gpu, array)
    np.testing.assert_array_equal(download(gpu, memory.address, array.shape, array.dtype), array)
    memory.close()
