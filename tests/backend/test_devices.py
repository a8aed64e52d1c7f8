"""Which backend opens for which device, with doubles of the GPUs."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest

from detcli.backend import cuda, libraries, nvidia, open_backend, open_tensors, openvino
from detcli.config.device import Device, DeviceKind, DeviceOptions
from detcli.core.errors import (
    DependencyError,
    DetcliWarning,
    DeviceError,
    DeviceMemoryError,
    ModelError,
    UsageError,
)
from detcli.model.prepared import prepare


@pytest.fixture
def prepared_model(make_model):
    return prepare(make_model())


@pytest.fixture
def engine_double(monkeypatch):
    """A double of an engine: `found` holds the arguments of each opening, `failure` its error."""

    def engine(module, name):
        engine = SimpleNamespace(count=1, found=[], failure=None)

        def open_engine(*arguments):
            if engine.failure:
                raise engine.failure
            engine.found.append(arguments)
            return SimpleNamespace(device=name)

        monkeypatch.setattr(module, "open_backend", open_engine)
        monkeypatch.setattr(module, "open_tensors", open_engine)
        return engine

    return engine


@pytest.fixture
def machine_with_gpus(engine_double, monkeypatch):
    """A machine with GPUs, and without OpenVINO."""
    gpu = engine_double(cuda, "cuda:0")

    def count_gpus():
        if isinstance(gpu.count, Exception):
            raise gpu.count
        return gpu.count

    monkeypatch.setattr("detcli.backend.has_openvino", lambda: False)
    monkeypatch.setattr(nvidia, "count_gpus", count_gpus)
    return gpu


@pytest.fixture
def intel(engine_double, monkeypatch):
    """A machine with OpenVINO."""
    monkeypatch.setattr("detcli.backend.has_openvino", lambda: True)
    return engine_double(openvino, "openvino:CPU")


@pytest.mark.parametrize(
    ("device", "opened"),
    [
        ("cuda", "cuda:0"),
        ("cuda:12", "cuda:12"),
        ("tensorrt", "tensorrt:0"),
        (Device(DeviceKind.TENSORRT, 1), "tensorrt:1"),
        ("auto", "cuda:0"),
        ("openvino", "openvino:CPU"),
        ("openvino:GPU.1", "openvino:GPU.1"),
        (Device(DeviceKind.OPENVINO, unit="NPU"), "openvino:NPU"),
    ],
)
def test_the_requested_device_is_opened(device, opened, machine_with_gpus, intel, prepared_model):
    engine = intel if opened.startswith("openvino") else machine_with_gpus
    for options in (DeviceOptions(gpu_mem_limit=1 << 30), DeviceOptions(cores=2)):
        engine.found.clear()
        name = open_backend(device, prepared_model, options).device
        assert name == open_tensors(device, b"graph", "m", options).device
        assert name == ("openvino:CPU" if engine is intel else "cuda:0")
        opened_device = Device.parse(opened)
        assert engine.found == [
            (prepared_model, opened_device, options),
            (b"graph", "m", opened_device, options),
        ]


def test_auto_prefers_a_gpu_then_openvino(machine_with_gpus, intel, prepared_model, caplog):
    caplog.set_level(logging.INFO, "detcli")
    assert open_backend("auto", prepared_model).device == "cuda:0"
    assert "cuda:0 is used" in caplog.text
    assert intel.found == []
    machine_with_gpus.count = 0
    assert open_backend("auto", prepared_model).device == "openvino:CPU"
    assert "openvino:CPU is used: NVIDIA's driver shows no GPU" in caplog.text


def test_auto_on_a_gpu_logs_that_tensorrt_could_be_faster(
    machine_with_gpus, prepared_model, caplog, monkeypatch
):
    caplog.set_level(logging.INFO, "detcli")
    monkeypatch.setattr(libraries, "faster_with_tensorrt", lambda ordinal: f"faster on {ordinal}")
    open_backend("auto", prepared_model)
    assert "faster on 0" in caplog.text
    caplog.clear()
    open_backend("auto", replace(prepared_model, half=True))
    open_backend("cuda", prepared_model)
    machine_with_gpus.count = 0
    open_backend("auto", prepared_model)
    assert "faster on" not in caplog.text


def test_auto_warns_about_what_is_installed_but_does_not_work(
    machine_with_gpus, intel, prepared_model
):
    machine_with_gpus.failure = DeviceError("no libcublas", "install it")
    with pytest.warns(DetcliWarning, match=r"^openvino:CPU is used: no libcublas \(install it\)$"):
        assert open_backend("auto", prepared_model).device == "openvino:CPU"
    intel.failure = ModelError("no MaxFool", "use cpu")
    warning = r"^the CPU is used: no libcublas \(install it\); no MaxFool \(use cpu\)$"
    with pytest.warns(DetcliWarning, match=warning):
        assert open_backend("auto", prepared_model).device == "cpu"


FAILURES = [
    DeviceError("no libcublas", "install it"),
    DependencyError("cuda-core does not load", "install it"),
    DeviceMemoryError("it does not fit", "install it"),
    ModelError("its head is float64", "install it"),
]


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("where", ["failure", "count"])
def test_auto_warns_about_an_unusable_gpu(failure, where, machine_with_gpus, prepared_model):
    setattr(machine_with_gpus, where, failure)
    with pytest.warns(DetcliWarning, match=rf"the CPU is used: {failure} \(install it\)"):
        assert open_backend("auto", prepared_model).device == "cpu"


@pytest.mark.parametrize("failure", FAILURES)
def test_a_requested_device_is_never_replaced(failure, machine_with_gpus, intel, prepared_model):
    machine_with_gpus.failure = intel.failure = failure
    keeps_its_type = isinstance(failure, (DeviceMemoryError, ModelError))
    expected = type(failure) if keeps_its_type else DeviceError
    for device in ("cuda", "tensorrt", "openvino"):
        with pytest.raises(expected, match=str(failure)) as caught:
            open_backend(device, prepared_model)
        assert caught.value.hint == "install it"
        assert keeps_its_type or caught.value.exit_code == 5


def test_unsupported_options_are_refused_first(machine_with_gpus, prepared_model):
    machine_with_gpus.failure = DeviceError("nothing is installed")
    for device, options in [
        ("cpu", DeviceOptions(half=True)),
        ("cuda", DeviceOptions(half=True)),
        ("auto", DeviceOptions(half=True)),
        ("cpu", DeviceOptions(cuda_graph=True)),
        ("tensorrt:1", DeviceOptions(cuda_graph=True)),
    ]:
        with pytest.raises(UsageError, match="--"):
            open_backend(device, prepared_model, options)


def test_gpu_options_are_ignored_on_the_cpu(machine_with_gpus, prepared_model, caplog):
    caplog.set_level(logging.INFO, "detcli")
    options = DeviceOptions(cuda_graph=False, gpu_mem_limit=1 << 30)
    assert open_backend("cpu", prepared_model, options).device == "cpu"
    machine_with_gpus.count = 0
    assert open_backend("auto", prepared_model, options).device == "cpu"
    assert "the CPU is used: NVIDIA's driver shows no GPU, OpenVINO is not installed" in caplog.text
    assert machine_with_gpus.found == []


@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_gpu_libraries_are_checked_first(device, prepared_model, monkeypatch):
    def missing(provider):
        raise DeviceError(f"no {provider}")

    monkeypatch.setattr(libraries, "require_provider", missing)
    message = f"no {Device.parse(device).provider}"
    with pytest.raises(DeviceError, match=message):
        open_backend(device, prepared_model)
    with pytest.raises(DeviceError, match=message):
        open_tensors(device, b"graph", "m")
