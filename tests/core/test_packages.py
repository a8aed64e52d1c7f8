"""Packages that install the same files: whose they are, and what mends them."""

import sys
import tomllib
from pathlib import Path

import pytest
from installed import install_metadata
from packaging.requirements import Requirement

from detcli.backend import libraries
from detcli.backend.libraries import CUDA, not_built_in
from detcli.commands.bench.cold_start import predict_command
from detcli.commands.doctor.examine import evaluate
from detcli.config.config import Config
from detcli.core import packages
from detcli.core.errors import DependencyError
from detcli.core.opencv import cv2
from detcli.core.packages import PIP_REINSTALL, explain, find_mixture, owners
from detcli.run.shards.local import _Process
from detcli.sink.window import check_display

ROOT = Path(__file__).parents[2]


@pytest.fixture
def installed_metadata(tmp_path, monkeypatch):
    """Put a package's metadata on an otherwise empty path."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return lambda name, version, module, folder=tmp_path: install_metadata(
        folder, name, version, module
    )


@pytest.fixture(params=[True, False])
def gpu_wheel(request, monkeypatch):
    """With and without a GPU wheel."""
    for module in (packages, libraries):
        monkeypatch.setattr(module, "gpu_wheel_exists", lambda: request.param)
    return request.param


def test_two_wheels_of_onnx_runtime_over_each_other(installed_metadata, gpu_wheel):
    installed_metadata("onnxruntime", "1.30.0", "onnxruntime")
    installed_metadata("onnxruntime_gpu", "1.31.1", "onnxruntime")
    reason, remedy = find_mixture()
    assert reason == "onnxruntime and onnxruntime-gpu are installed over each other"
    assert remedy.startswith(
        "pip uninstall -y onnxruntime onnxruntime-gpu && "
        f"pip install {'onnxruntime-gpu' if gpu_wheel else 'onnxruntime'}; "
    )
    assert explain("onnxruntime", "cannot import name 'x'") == (reason, remedy)
    if gpu_wheel:
        assert not_built_in(CUDA, "1.30.0") == (reason, remedy)


def test_an_onnx_runtime_built_for_the_cpu_only(installed_metadata, gpu_wheel):
    installed_metadata("onnxruntime", "1.26.0", "onnxruntime")
    reason, remedy = not_built_in(CUDA, "1.26.0")
    if gpu_wheel:
        assert reason == f"the installed onnxruntime 1.26.0 was built without {CUDA}"
        assert remedy.startswith('pip uninstall -y onnxruntime && pip install "detcli[cuda]"; ')
    else:
        assert reason.startswith("PyPI has no ONNX Runtime with CUDA for ")
        assert remedy == "use --device cpu"


def test_what_is_no_mixture(installed_metadata, tmp_path, monkeypatch):
    # A virtual environment hides the system's packages, which pip would not remove.
    installed_metadata("onnxruntime-gpu", "1.31.1", "onnxruntime", folder=tmp_path / "system")
    installed_metadata("onnxruntime_gpu", "1.30.0", "onnxruntime", folder=tmp_path / "system")
    installed_metadata("onnxruntime", "1.30.0", "onnxruntime")
    # What an interrupted removal left is not a package.
    (tmp_path / "~nnxruntime-1.29.0.dist-info").mkdir()
    (tmp_path / "~nnxruntime-1.29.0.dist-info/top_level.txt").write_text("onnxruntime\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "system")])
    assert owners("onnxruntime") == {"onnxruntime": "1.30.0"}
    assert find_mixture() is None
    # One wheel may have several folders of metadata.
    monkeypatch.setattr(sys, "path", [str(tmp_path / "system")])
    assert list(owners("onnxruntime")) == ["onnxruntime-gpu"]
    assert find_mixture() is None


@pytest.mark.usefixtures("installed_metadata")
def test_a_missing_package_is_installed_as_detcli_requires_it(gpu_wheel):
    """Not onnxruntime where detcli's extra would install onnxruntime-gpu over it."""
    expected = "onnxruntime-gpu" if gpu_wheel else "onnxruntime"
    problem = explain("onnxruntime", "No module named 'onnxruntime'")
    assert problem == (f"{expected} is not installed", f"pip install {expected}")
    assert explain("cv2", "No module named 'cv2'")[1] == f'{PIP_REINSTALL} "opencv-python>=5.0"'


NO_LIBGL = "libGL.so.1: cannot open shared object file: No such file"
INSTALL_HEADLESS = (
    f'{PIP_REINSTALL} "opencv-python-headless>=5.0"; or install what it needs (Debian, Ubuntu: apt'
)


@pytest.mark.parametrize(
    ("packages", "message", "remedy"),
    [
        (["onnxruntime-gpu"], "module 'x' has no attribute 'y'",
         f"{PIP_REINSTALL} onnxruntime-gpu==5.0.0"),
        (["numpy"], "crashed with SIGILL: it was built for a newer CPU", "this system is too old"),
        (["numpy"], "libstdc++.so.6: version `G' not found (required by x.so)",
         "this system is too old"),
        # The headless build goes over it, also where pip has overwritten that since.
        (["opencv-python"], NO_LIBGL, INSTALL_HEADLESS),
        (["opencv-python", "opencv-python-headless"], NO_LIBGL, INSTALL_HEADLESS),
        (["opencv-python"], "cannot import name 'imdecode'",
         f'{PIP_REINSTALL} "opencv-python>=5.0"'),
        (["opencv-contrib-python", "opencv-python"], "cannot import name 'imdecode'",
         f'{PIP_REINSTALL} "opencv-python>=5.0"'),
        (["opencv-contrib-python-headless", "opencv-python"], "cannot import name 'imdecode'",
         f'{PIP_REINSTALL} "opencv-python-headless>=5.0"'),
    ],
)  # fmt: skip
def test_a_package_that_does_not_load(installed_metadata, packages, message, remedy):
    module = {"onnxruntime-gpu": "onnxruntime", "numpy": "numpy"}.get(packages[0], "cv2")
    for package in packages:
        installed_metadata(package, "5.0.0", module)
    reason, explanation = explain(module, message)
    assert reason == f"{' '.join(packages)} does not load: {message}"
    assert explanation.startswith(remedy)
    assert ("apt-get" in explanation) == ("shared object" in message)


def test_machines_with_gpu_wheels(monkeypatch):
    """As the requirements say."""
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    gpu_requirements = []
    for line in requirements:
        requirement = Requirement(line)
        if requirement.name == "onnxruntime-gpu":
            gpu_requirements.append(requirement)
    (gpu,) = gpu_requirements
    for where in ("linux x86_64", "win32 AMD64", "linux aarch64", "darwin arm64", "darwin x86_64",
                  "win32 ARM64", "linux armv7l", "linux i686"):  # fmt: skip
        system, machine = where.split()
        monkeypatch.setattr(packages.sys, "platform", system)
        monkeypatch.setattr(packages.platform, "machine", lambda machine=machine: machine)
        environment = {"sys_platform": system, "platform_machine": machine}
        assert packages.gpu_wheel_exists() is gpu.marker.evaluate(environment)


@pytest.mark.parametrize(
    ("start", "purpose"),
    [
        (lambda: _Process(None, None), "--on local"),
        (lambda: evaluate("1"), "doctor"),
        (lambda: predict_command(Config(), Path("a.jpg")), "a cold start"),
        (check_display, "--show"),
    ],
)
def test_what_starts_python_says_so_in_a_frozen_program(monkeypatch, start, purpose):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(cv2, "currentUIFramework", lambda: "QT5", raising=False)
    with pytest.raises(DependencyError, match=f"^{purpose} starts Python, and this program is"):
        start()
