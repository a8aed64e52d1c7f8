"""OpenVINO's import, its devices, and what it says when something is missing."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from detcli.backend import open_backend
from detcli.backend.openvino import network as module
from detcli.backend.openvino.network import open_core, reason
from detcli.core.device import Device
from detcli.core.errors import DeviceError
from detcli.model.file import prepare


@pytest.fixture(autouse=True)
def _afresh():
    """Each test imports OpenVINO and opens its core as if for the first time."""
    module.library.cache_clear()
    module.core.cache_clear()
    yield
    module.library.cache_clear()
    module.core.cache_clear()


def test_a_missing_package_is_a_device_error(make_model, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(DeviceError, match="OpenVINO does not load") as caught:
        open_backend("openvino", prepare(make_model()))
    assert caught.value.exit_code == 5
    assert "pip install 'detcli[openvino]'" in caught.value.hint


@pytest.mark.parametrize(
    ("package", "told"),
    [
        ({"__version__": "2024.6.0-1-x"}, r"2024.6.0-1-x is older than 2026\.4"),
        ({}, "without a version is older"),  # an empty folder
    ],
)
def test_an_old_version_is_refused(package, told, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(**package))
    with pytest.raises(DeviceError, match=told) as caught:
        module.library()
    assert "--upgrade" in caught.value.hint


class Core:
    """Stands for a core without a device; `said` is why."""

    def __init__(self, said):
        self.said = said

    def get_property(self, *_):
        raise RuntimeError(self.said)


NO_LIBRARY = """Exception from src/inference/src/cpp/core.cpp:268:
Cannot load library "/home/me/x/libopenvino_intel_gpu_plugin.so": libOpenCL.so.1: cannot open
"""
NO_NPU = """Exception from src/plugins/plugin_property_manager.cpp:732:
Unsupported configuration key: FULL_DEVICE_NAME

"""


@pytest.mark.parametrize(
    ("device", "said", "told", "hint"),
    [
        ("openvino:GPU", NO_LIBRARY, "libOpenCL.so.1: cannot open", "intel-opencl-icd"),
        ("openvino:NPU", NO_NPU, "none was found", "driver of Intel's NPU"),
        ("openvino:GPU.7", "no such device", "no such device", "driver"),
        ("openvino:CPU", "no plug-in", "no plug-in", "--device cpu"),
    ],
)
def test_a_missing_device_is_named_with_what_installs_it(device, said, told, hint, monkeypatch):
    monkeypatch.setattr(module, "core", lambda: Core(said))
    with pytest.raises(DeviceError) as caught:
        open_core(Device.parse(device))
    assert str(caught.value) == f"OpenVINO cannot use {device.partition(':')[2]}: {told}"
    assert hint in caught.value.hint


def test_reasons_are_one_line_without_source_files():
    said = (
        "Exception from src/inference/src/cpp/core.cpp:105:\n"
        "Check 'false' failed at src/frontends/unconverted_ops_report.cpp:151:\n"
        "Model wasn't fully converted.\n-- No conversion rule found for operations: MaxFool-18\n\n"
    )
    told = "Model wasn't fully converted. -- No conversion rule found for operations: MaxFool-18"
    assert reason(RuntimeError(said)) == told
    assert reason(MemoryError()) == "out of memory"


def in_a_process(code):
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.split()


def test_the_converter_and_its_telemetry_are_imported_when_they_are_called():
    loaded = in_a_process(
        "import sys\n"
        "from detcli.backend.openvino.network import library\n"
        "found = library()\n"
        "print(*(name for name in sys.modules if name.startswith('openvino')))\n"
    )
    assert "openvino._pyopenvino" in loaded
    assert not [
        name for name in loaded if name.startswith(("openvino_telemetry", "openvino.tools."))
    ]
    kept = in_a_process(
        "from detcli.backend.openvino.network import library\n"
        "try:\n"
        "    library().convert_model('no-such-file')\n"
        "except Exception as error:\n"
        "    print(type(error).__module__)\n"
        "from openvino.tools.ovc import convert_model\n"
        "print(convert_model.__module__)\n"
    )
    assert kept[0].startswith("openvino")
    assert kept[1].startswith("openvino.tools")


def test_a_converter_that_is_imported_already_stays():
    kept = in_a_process(
        "import openvino\n"
        "before = openvino.convert_model\n"
        "from detcli.backend.openvino.network import library\n"
        "print(library().convert_model is before)\n"
    )
    assert kept == ["True"]
