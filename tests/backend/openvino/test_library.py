"""OpenVINO's import, its devices, and its messages."""

import subprocess
import sys
from types import SimpleNamespace
from unittest import mock

import optional
import pytest

from detcli.backend import open_backend
from detcli.backend.openvino import library
from detcli.backend.openvino.library import open_core, reason
from detcli.config.device import Device
from detcli.core.errors import DeviceError
from detcli.model.prepared import prepare

pytestmark = optional.needs("openvino")


@pytest.fixture
def _afresh():
    """The test imports OpenVINO and opens its core as if for the first time."""
    library.import_openvino.cache_clear()
    library.openvino_core.cache_clear()
    yield
    library.import_openvino.cache_clear()
    library.openvino_core.cache_clear()


@pytest.mark.usefixtures("_afresh")
def test_a_missing_package_is_a_device_error(make_model, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(DeviceError, match="OpenVINO does not load") as caught:
        open_backend("openvino", prepare(make_model()))
    assert caught.value.exit_code == 5
    assert 'pip install "detcli[openvino]"' in caught.value.hint


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ({"__version__": "2024.6.0-1-x"}, r"2024.6.0-1-x is older than 2026\.4"),
        ({}, "without a version is older"),  # an empty folder
    ],
)
@pytest.mark.usefixtures("_afresh")
def test_an_old_version_is_refused(package, message, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(**package))
    with pytest.raises(DeviceError, match=message) as caught:
        library.import_openvino()
    assert "--upgrade" in caught.value.hint


NO_LIBRARY = """Exception from src/inference/src/cpp/core.cpp:268:
Cannot load library "/home/me/x/libopenvino_intel_gpu_plugin.so": libOpenCL.so.1: cannot open
"""

NO_NPU = """Exception from src/plugins/plugin_property_manager.cpp:732:
Unsupported configuration key: FULL_DEVICE_NAME

"""


@pytest.mark.parametrize(
    ("device", "openvino_message", "message", "hint"),
    [
        ("openvino:GPU", NO_LIBRARY, "libOpenCL.so.1: cannot open", "intel-opencl-icd"),
        ("openvino:NPU", NO_NPU, "none was found", "driver of Intel's NPU"),
        ("openvino:GPU.7", "no such device", "no such device", "driver"),
        ("openvino:CPU", "no plug-in", "no plug-in", "--device cpu"),
    ],
)
def test_a_missing_device_is_named_with_what_installs_it(
    device, openvino_message, message, hint, monkeypatch
):
    absent = SimpleNamespace(get_property=mock.Mock(side_effect=RuntimeError(openvino_message)))
    monkeypatch.setattr(library, "openvino_core", lambda: absent)
    with pytest.raises(DeviceError) as caught:
        open_core(Device.parse(device))
    assert device.removeprefix("openvino:") in str(caught.value)
    assert message in str(caught.value)
    assert hint in caught.value.hint


def test_reasons_are_one_line_without_source_files():
    openvino_message = (
        "Exception from src/inference/src/cpp/core.cpp:105:\n"
        "Check 'false' failed at src/frontends/unconverted_ops_report.cpp:151:\n"
        "Model wasn't fully converted.\n-- No conversion rule found for operations: MaxFool-18\n\n"
    )
    expected = (
        "Model wasn't fully converted. -- No conversion rule found for operations: MaxFool-18"
    )
    assert reason(RuntimeError(openvino_message)) == expected
    assert reason(MemoryError()) == "out of memory"


def in_a_process(code):
    process = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    return process.stdout.split()


@pytest.mark.slow
def test_the_converter_and_its_telemetry_are_imported_when_they_are_called():
    loaded = in_a_process(
        "import sys\n"
        "from detcli.backend.openvino.library import import_openvino\n"
        "import_openvino()\n"
        "print(*(name for name in sys.modules if name.startswith('openvino')))\n"
    )
    assert "openvino._pyopenvino" in loaded
    for name in loaded:
        assert not name.startswith(("openvino_telemetry", "openvino.tools."))
    output = in_a_process(
        "from detcli.backend.openvino.library import import_openvino\n"
        "try:\n"
        "    import_openvino().convert_model('no-such-file')\n"
        "except Exception as error:\n"
        "    print(type(error).__module__)\n"
        "from openvino.tools.ovc import convert_model\n"
        "print(convert_model.__module__)\n"
    )
    assert output[0].startswith("openvino")
    assert output[1].startswith("openvino.tools")


def test_a_converter_that_is_imported_already_stays():
    output = in_a_process(
        "import openvino\n"
        "before = openvino.convert_model\n"
        "from detcli.backend.openvino.library import import_openvino\n"
        "print(import_openvino().convert_model is before)\n"
    )
    assert output == ["True"]
