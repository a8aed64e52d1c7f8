"""Device names and options: what is accepted and what is refused."""

import dataclasses
import math

import pytest

from detcli.config.device import (
    Device,
    DeviceKind,
    DeviceOptions,
    available_cores,
    check_device_options,
    cpu_quota,
    wants_half_file,
)
from detcli.core.errors import UsageError

KINDS = ["auto", "cpu", "cuda", "tensorrt", "openvino"]


@pytest.mark.parametrize("limit", [-1, 0, 2, (1 << 20) - 1])
def test_a_limit_that_is_too_small_is_refused(limit):
    with pytest.raises(UsageError, match=f"is {limit} bytes"):
        DeviceOptions(gpu_mem_limit=limit)


@pytest.mark.parametrize("name", ["workers", "cores"])
def test_a_detector_needs_a_core(name):
    with pytest.raises(UsageError, match=f"{name} is 0"):
        DeviceOptions(**{name: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "limit"), [("workers", 1024), ("cores", 65536)])
def test_more_than_any_machine_has_is_refused(name, limit):
    assert getattr(DeviceOptions(**{name: limit}), name) == limit
    with pytest.raises(UsageError, match=f"{name} is {limit + 1}") as error:
        DeviceOptions(**{name: limit + 1})
    assert error.value.hint == f"give 1 to {limit}"


def test_the_smallest_limit():
    assert DeviceOptions(gpu_mem_limit=1 << 20).gpu_mem_limit == 1 << 20


def test_options_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DeviceOptions().half = True


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        (DeviceOptions(), set(KINDS)),
        (DeviceOptions(cuda_graph=False), set(KINDS)),
        (DeviceOptions(gpu_mem_limit=1 << 30), set(KINDS)),
        (DeviceOptions(cuda_graph=True), {"auto", "cuda"}),
        (DeviceOptions(half=True), {"tensorrt", "openvino"}),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_device_refuses_what_it_cannot_do_and_nothing_else(options, kinds, kind):
    if kind in kinds:
        check_device_options(options, Device.parse(kind))
    else:
        with pytest.raises(UsageError, match="--") as caught:
            check_device_options(options, Device.parse(kind))
        assert caught.value.hint


def test_half_takes_a_float16_file_unless_the_device_computes_so_by_itself():
    for name in ("cpu", "cuda:1", "auto", "tensorrt:1", "openvino:GPU"):
        takes_half_file = name in {"cpu", "cuda:1", "auto"}
        assert wants_half_file(DeviceOptions(half=True), Device.parse(name)) == takes_half_file
        assert not wants_half_file(DeviceOptions(), Device.parse(name))


def test_device_names():
    names = {
        "auto": "auto",
        "cpu": "cpu",
        "cuda": "cuda:0",
        "cuda:0": "cuda:0",
        "cuda:012": "cuda:12",
        "tensorrt": "tensorrt:0",
        "tensorrt:1": "tensorrt:1",
        "openvino": "openvino:CPU",
        "openvino:CPU": "openvino:CPU",
        "openvino:GPU": "openvino:GPU",
        "openvino:GPU.1": "openvino:GPU.1",
        "openvino:NPU": "openvino:NPU",
    }
    for name, expected in names.items():
        device = Device.parse(name)
        assert str(device) == expected
        assert Device.parse(expected) == Device.parse(device) == device
        assert device.is_auto == (name == "auto")
        assert device.is_gpu == expected.startswith(("cuda", "tensorrt"))
    assert type(str(Device(DeviceKind.OPENVINO))) is str  # whose repr is Python, as doctor needs


def test_unknown_devices_are_refused():
    for name in (
        "gpu",
        "",
        "cpu:1",
        "cpu:",
        "auto:0",
        "auto:",
        "cuda:",
        "cuda:x",
        "cuda:-1",
        "cuda:1:2",
        "CUDA",
        " cuda",
        "cuda:\u00b2",
        "cuda:\u0661",
        "tensorrt:",
        "tensorrt:x",
        "trt",
        "graph",
        "openvino:",
        "openvino:cpu",
        "openvino:0",
        "openvino:GPU.",
        "openvino:GPU.x",
        "openvino:TPU",
        "OpenVINO",
        "openvino:CPU.1",
        "openvino:CPU (bf16)",
        "openvino:AUTO",
    ):
        with pytest.raises(UsageError, match="unknown device") as caught:
            Device.parse(name)
        assert "tensorrt" in caught.value.hint
    with pytest.raises(UsageError, match="'cpu,cuda' names several devices"):
        Device.parse("cpu,cuda")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("cuad", "cuda"),
        ("cuda:O", "cuda"),
        ("gpu", "cuda"),
        ("gpu:1", "cuda:1"),
        ("2", "cuda:2"),
        ("trt", "tensorrt"),
        ("CPU", "cpu"),
        ("openvino:gpu", "openvino:GPU"),
    ],
)
def test_a_mistyped_device_names_the_one_that_was_meant(typed, meant):
    with pytest.raises(UsageError, match="unknown device") as caught:
        Device.parse(typed)
    assert caught.value.hint.startswith(f"did you mean {meant}? use auto, cpu")


@pytest.mark.parametrize("typed", ["banana", "", "-1", ":", "x:1"])
def test_what_resembles_no_device_names_none(typed):
    with pytest.raises(UsageError, match="unknown device") as caught:
        Device.parse(typed)
    assert caught.value.hint.startswith("use auto, cpu")


def control_groups(root, membership, **files):
    """A machine whose control groups hold these files."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(membership)
    for path, content in files.items():
        file = root / "sys/fs/cgroup" / path.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_name(file.name.replace("_max", ".max").replace("cfs_", "cpu.cfs_")).write_text(
            content
        )
    return root


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/\n", {"cpu_max": "200000 100000\n"}, 2),  # docker run --cpus 2
        ("0::/\n", {"cpu_max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu_max": "10000 100000\n"}, 0.1),
        ("0::/a/b\n", {"a__b__cpu_max": "max 100000\n", "a__cpu_max": "300000 100000\n"}, 3),
        ("0::/a/b\n", {"a__b__cpu_max": "100000 100000\n", "a__cpu_max": "300000 100000\n"}, 1),
        ("4:cpu:/\n", {"cpu__cfs_quota_us": "400000\n", "cpu__cfs_period_us": "100000\n"}, 4),
        ("4:cpu:/\n", {"cpu__cfs_quota_us": "-1\n", "cpu__cfs_period_us": "100000\n"}, math.inf),
        ("0::/\n", {"cpu_max": "max 100000\n"}, math.inf),
        ("0::/\n", {"cpu_max": ""}, math.inf),
        ("0::/\n", {"cpu_max": "1 0"}, math.inf),
        ("garbage", {}, math.inf),
        ("", {}, math.inf),
    ],
)
def test_the_quota_of_a_container(membership, files, cores, tmp_path):
    assert cpu_quota(control_groups(tmp_path, membership, **files)) == cores


def test_a_system_without_control_groups_limits_nothing(tmp_path):
    assert cpu_quota(tmp_path) == math.inf


@pytest.mark.parametrize(("quota", "cores"), [(0.1, 1), (1, 1), (1.5, 2), (math.inf, 8)])
def test_a_quota_limits_the_cores(quota, cores, monkeypatch):
    monkeypatch.setattr("detcli.config.device.visible_cores", lambda: 8)
    monkeypatch.setattr("detcli.config.device.cpu_quota", lambda: quota)
    assert available_cores() == cores


def test_methods_that_version_0_1_0_had_warn():
    options = DeviceOptions(half=True)
    with pytest.warns(DeprecationWarning, match=r"DeviceOptions\.wants_half_file is not public"):
        assert options.wants_half_file(Device.parse("cpu"))  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match=r"DeviceOptions\.check is not public"):
        check = options.check  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="--half has no effect"):
        check(Device.parse("cpu"))
    with pytest.raises(AttributeError, match="no attribute 'cheque'"):
        _ = options.cheque  # type: ignore[attr-defined]


def test_the_deprecated_methods_are_not_listed():
    assert {"check", "wants_half_file"}.isdisjoint(dir(DeviceOptions))
