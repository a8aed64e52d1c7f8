"""Which backend opens for which device, with doubles of the GPUs."""

import logging
from types import SimpleNamespace

import pytest

from detcli.backend import cuda, libraries, nvidia, open_backend, open_tensors, openvino
from detcli.core.device import Device, DeviceKind, DeviceOptions
from detcli.core.errors import (
    DependencyError,
    DetcliWarning,
    DeviceError,
    DeviceMemoryError,
    ModelError,
    UsageError,
)
from detcli.model.file import prepare

LIMIT = DeviceOptions(gpu_mem_limit=1 << 30)


@pytest.fixture
def model(make_model):
    return prepare(make_model())


@pytest.fixture
def gpu(monkeypatch):
    """A machine with GPUs; `found` holds the arguments of each opening, `failure` its error."""
    gpu = SimpleNamespace(count=1, found=[], failure=None)

    def open_engine(*arguments):
        if gpu.failure:
            raise gpu.failure
        gpu.found.append(arguments)
        return SimpleNamespace(device="cuda:0")

    def count_gpus():
        if isinstance(gpu.count, Exception):
            raise gpu.count
        return gpu.count

    monkeypatch.setattr("detcli.backend.has_openvino", lambda: False)
    monkeypatch.setattr(nvidia, "count_gpus", count_gpus)
    monkeypatch.setattr(cuda, "open_backend", open_engine)
    monkeypatch.setattr(cuda, "open_tensors", open_engine)
    return gpu


@pytest.mark.parametrize(
    ("device", "opened"),
    [
        ("cuda", "cuda:0"),
        ("cuda:12", "cuda:12"),
        ("tensorrt", "tensorrt:0"),
        (Device(DeviceKind.TENSORRT, 1), "tensorrt:1"),
        ("auto", "cuda:0"),
    ],
)
def test_the_requested_gpu_is_opened(device, opened, gpu, model):
    assert open_backend(device, model, LIMIT).device == "cuda:0"
    assert gpu.found == [(model, Device.parse(opened), LIMIT)]
    assert open_tensors(device, b"graph", "m", LIMIT).device == "cuda:0"
    assert gpu.found[1:] == [(b"graph", "m", Device.parse(opened), LIMIT)]


@pytest.fixture
def intel(monkeypatch):
    """A machine with OpenVINO; `found` and `failure` as of the GPUs."""
    intel = SimpleNamespace(found=[], failure=None)

    def open_engine(*arguments):
        if intel.failure:
            raise intel.failure
        intel.found.append(arguments)
        return SimpleNamespace(device="openvino:CPU")

    monkeypatch.setattr("detcli.backend.has_openvino", lambda: True)
    monkeypatch.setattr(openvino, "open_backend", open_engine)
    monkeypatch.setattr(openvino, "open_tensors", open_engine)
    return intel


@pytest.mark.parametrize(
    ("device", "opened"),
    [
        ("openvino", "openvino:CPU"),
        ("openvino:GPU.1", "openvino:GPU.1"),
        (Device(DeviceKind.OPENVINO, unit="NPU"), "openvino:NPU"),
    ],
)
def test_the_requested_device_of_openvino_is_opened(device, opened, intel, model):
    assert open_backend(device, model, DeviceOptions(half=True)).device == "openvino:CPU"
    assert intel.found == [(model, Device.parse(opened), DeviceOptions(half=True))]
    assert open_tensors(device, b"graph", "m").device == "openvino:CPU"
    assert intel.found[1:] == [(b"graph", "m", Device.parse(opened), DeviceOptions())]


def test_auto_prefers_a_gpu_then_openvino(gpu, intel, model, caplog):
    caplog.set_level(logging.INFO, "detcli")
    assert open_backend("auto", model).device == "cuda:0"
    assert "cuda:0 is used" in caplog.text
    assert intel.found == []
    gpu.count = 0
    assert open_backend("auto", model).device == "openvino:CPU"
    assert "openvino:CPU is used: NVIDIA's driver shows no GPU" in caplog.text


def test_auto_warns_about_what_is_installed_but_does_not_work(gpu, intel, model):
    gpu.failure = DeviceError("no libcublas", "install it")
    with pytest.warns(DetcliWarning, match=r"^openvino:CPU is used: no libcublas \(install it\)$"):
        assert open_backend("auto", model).device == "openvino:CPU"
    intel.failure = ModelError("no MaxFool", "use cpu")
    told = r"^the CPU is used: no libcublas \(install it\); no MaxFool \(use cpu\)$"
    with pytest.warns(DetcliWarning, match=told):
        assert open_backend("auto", model).device == "cpu"


@pytest.mark.parametrize("failure", [DeviceError("no plug-in"), DependencyError("it is broken")])
def test_openvino_is_never_replaced_where_it_is_asked_for(failure, intel, model):
    intel.failure = failure
    with pytest.raises(DeviceError, match=str(failure)) as caught:
        open_backend("openvino", model)
    assert caught.value.exit_code == 5


FAILURES = [
    DeviceError("no libcublas", "install it"),
    DependencyError("cuda-core does not load", "install it"),
    DeviceMemoryError("it does not fit", "install it"),
    ModelError("its head is float64", "install it"),
]


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("where", ["failure", "count"])
def test_auto_warns_about_an_unusable_gpu(failure, where, gpu, model):
    setattr(gpu, where, failure)
    with pytest.warns(DetcliWarning, match=rf"the CPU is used: {failure} \(install it\)"):
        assert open_backend("auto", model).device == "cpu"


@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_requested_gpu_is_never_replaced(device, failure, gpu, model):
    gpu.failure = failure
    kept = isinstance(failure, (DeviceMemoryError, ModelError))
    expected = type(failure) if kept else DeviceError
    with pytest.raises(expected, match=str(failure)) as caught:
        open_backend(device, model)
    assert caught.value.hint == "install it"


def test_unsupported_options_are_refused_first(gpu, model):
    gpu.failure = DeviceError("nothing is installed")
    for device, options in [
        ("cpu", DeviceOptions(half=True)),
        ("cuda", DeviceOptions(half=True)),
        ("auto", DeviceOptions(half=True)),
        ("cpu", DeviceOptions(cuda_graph=True)),
        ("tensorrt:1", DeviceOptions(cuda_graph=True)),
    ]:
        with pytest.raises(UsageError, match="--"):
            open_backend(device, model, options)


def test_gpu_options_are_ignored_on_the_cpu(gpu, model, caplog):
    caplog.set_level(logging.INFO, "detcli")
    options = DeviceOptions(cuda_graph=False, gpu_mem_limit=1 << 30)
    assert open_backend("cpu", model, options).device == "cpu"
    gpu.count = 0
    assert open_backend("auto", model, options).device == "cpu"
    assert "the CPU is used: NVIDIA's driver shows no GPU, OpenVINO is not installed" in caplog.text
    assert gpu.found == []


@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_gpu_libraries_are_checked_first(device, model, monkeypatch):
    required = []

    def missing(provider):
        required.append(provider)
        raise DeviceError("no libcudnn", "install it")

    monkeypatch.setattr(libraries, "require_provider", missing)
    for opening in (open_backend, lambda device, _: open_tensors(device, b"graph", "m")):
        with pytest.raises(DeviceError, match="no libcudnn"):
            opening(device, model)
    assert required == [Device.parse(device).provider] * 2
