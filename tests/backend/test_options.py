"""Options of a device: what is refused, and what is let through."""

import dataclasses

import pytest

from detcli import DeviceOptions
from detcli.errors import UsageError


@pytest.mark.parametrize("limit", [-1, 0, 2, (1 << 20) - 1])
def test_a_limit_in_some_other_unit_is_refused(limit):
    with pytest.raises(UsageError, match=f"is {limit} bytes"):
        DeviceOptions(gpu_mem_limit=limit)


def test_the_least_limit():
    assert DeviceOptions(gpu_mem_limit=1 << 20).gpu_mem_limit == 1 << 20


def test_options_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DeviceOptions().half = True


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        (DeviceOptions(), {"auto", "cpu", "cuda", "tensorrt"}),
        (DeviceOptions(cuda_graph=False), {"auto", "cpu", "cuda", "tensorrt"}),
        (DeviceOptions(gpu_mem_limit=1 << 30), {"auto", "cpu", "cuda", "tensorrt"}),
        (DeviceOptions(cuda_graph=True), {"auto", "cuda"}),
        (DeviceOptions(half=True), {"tensorrt"}),
    ],
)
@pytest.mark.parametrize("kind", ["auto", "cpu", "cuda", "tensorrt"])
def test_a_device_refuses_what_it_cannot_do_and_nothing_else(options, kinds, kind):
    if kind in kinds:
        options.check(kind)
    else:
        with pytest.raises(UsageError, match="--") as caught:
            options.check(kind)
        assert caught.value.hint


@pytest.mark.parametrize(
    ("device", "wanted"),
    [("cpu", True), ("cuda:1", True), ("auto", True), ("tensorrt", False), ("tensorrt:1", False)],
)
def test_half_is_a_file_except_where_tensorrt_makes_its_own(device, wanted):
    assert DeviceOptions(half=True).wants_half_file(device) == wanted
    assert not DeviceOptions().wants_half_file(device)
