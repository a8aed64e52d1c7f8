import pytest

from detcli.backend.nvidia import DriverFacts, GpuFacts
from detcli.config.device import Device
from detcli.data.record import Origin
from detcli.run import machine as module
from detcli.run.machine import FileHashes, describe_run

FACTS = DriverFacts(
    status=0,
    cuda="13.2",
    gpus=(GpuFacts("NVIDIA H200", "9.0", 1), GpuFacts("NVIDIA L4", "8.9", 1)),
)


@pytest.mark.parametrize(
    ("devices", "gpu"),
    [
        (["cuda:0"], "NVIDIA H200"),
        (["cuda:1", "tensorrt:0"], "NVIDIA L4, NVIDIA H200"),
        (["cuda:0", "cuda:0"], "NVIDIA H200"),
        (["cuda:7"], "unknown"),
    ],
)
def test_gpus_have_names_and_their_driver_a_version(monkeypatch, devices, gpu):
    monkeypatch.setattr(module, "ask_driver", lambda: FACTS)
    monkeypatch.setattr(module, "driver_version", lambda: "580.65.06")
    provenance = describe_run([Device.parse(device) for device in devices], "float16")
    assert provenance["gpu"] == gpu
    assert provenance["driver"] == "580.65.06"
    assert provenance["driver_cuda"] == "13.2"
    assert provenance["precision"] == "float16"
    assert provenance["openvino"] is None


def test_without_a_gpu_the_driver_is_not_asked(monkeypatch):
    monkeypatch.setattr(module, "ask_driver", None)
    provenance = describe_run([Device.parse("openvino")], None)
    assert provenance["gpu"] is None
    assert provenance["driver"] is None
    assert provenance["driver_cuda"] is None
    assert provenance["openvino"] == module.package_version("openvino")


@pytest.mark.parametrize(
    "origin",
    [
        Origin("-"),
        Origin("-", frame=1),
        Origin("http://host/" + "x" * 300, frame=1),
        Origin("camera:0", frame=1),
        Origin("\0", frame=1),
    ],
)
def test_what_is_no_file_has_no_hash(origin):
    assert FileHashes().of(origin) is None
