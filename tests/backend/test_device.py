"""Device names and options: what is accepted and what is refused."""

import dataclasses

import pytest

from detcli.backend.device import Device, DeviceOptions
from detcli.errors import UsageError


@pytest.mark.parametrize("limit", [-1, 0, 2, (1 << 20) - 1])
def test_a_limit_that_is_too_small_is_refused(limit):
    with pytest.raises(UsageError, match=f"is {limit} bytes"):
        DeviceOptions(gpu_mem_limit=limit)


def test_the_smallest_limit():
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
        options.check(Device.parse(kind))
    else:
        with pytest.raises(UsageError, match="--") as caught:
            options.check(Device.parse(kind))
        assert caught.value.hint


def test_half_takes_a_float16_file_except_with_tensorrt():
    for name, wanted in [("cpu", True), ("cuda:1", True), ("auto", True), ("tensorrt:1", False)]:
        assert DeviceOptions(half=True).wants_half_file(Device.parse(name)) == wanted
        assert not DeviceOptions().wants_half_file(Device.parse(name))


def test_device_names():
    names = {
        "auto": "auto",
        "cpu": "cpu",
        "cuda": "cuda:0",
        "cuda:0": "cuda:0",
        "cuda:012": "cuda:12",
        "tensorrt": "tensorrt:0",
        "tensorrt:1": "tensorrt:1",
    }
    for name, expected in names.items():
        device = Device.parse(name)
        assert str(device) == expected
        assert Device.parse(expected) == Device.parse(device) == device
        assert (device.is_auto, device.is_gpu) == (name == "auto", ":" in expected)
    assert [str(one) for one in Device.parse_list("cpu, cuda:1")] == ["cpu", "cuda:1"]


def test_unknown_devices_are_refused():
    for name in (
        *("gpu", "", "cpu:1", "cpu:", "auto:0", "auto:", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2"),
        *("CUDA", " cuda", "cuda:\u00b2", "cuda:\u0661", "tensorrt:", "tensorrt:x", "trt", "graph"),
    ):
        with pytest.raises(UsageError, match="unknown device") as caught:
            Device.parse(name)
        assert "tensorrt" in caught.value.hint
    with pytest.raises(UsageError, match="unknown device ''"):
        Device.parse_list("cpu,")
