"""Installed packages, from made-up metadata."""

import sys

import pytest

from detcli.commands.doctor import packages
from detcli.commands.doctor.packages import explain, find_mixture, owners, package_versions


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a package's metadata on an otherwise empty path."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    def put(name, version, *modules, requires=()):
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {line}" for line in requires]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")
        (folder / "top_level.txt").write_text("\n".join(modules) + "\n")

    return put


@pytest.fixture(params=[True, False])
def gpu_wheel(request, monkeypatch):
    """With and without a GPU wheel."""
    monkeypatch.setattr(packages, "gpu_wheel_exists", lambda: request.param)
    return request.param


def test_two_wheels_of_onnx_runtime_over_each_other(install, gpu_wheel):
    install("onnxruntime", "1.30.0", "onnxruntime")
    install("onnxruntime_gpu", "1.31.1", "onnxruntime")
    problem = find_mixture()
    assert problem.reason == "onnxruntime and onnxruntime-gpu are installed over each other"
    assert problem.command == (
        "pip uninstall -y onnxruntime onnxruntime-gpu && "
        f"pip install {'onnxruntime-gpu' if gpu_wheel else 'onnxruntime'}"
    )


def test_wheels_in_different_folders_are_not_over_each_other(install, tmp_path, monkeypatch):
    """A virtual environment hides the system's packages, which pip would not remove."""
    install("onnxruntime-gpu", "1.31.1", "onnxruntime")
    (tmp_path / "onnxruntime_gpu-1.31.1.dist-info").rename(tmp_path / "kept")
    other = tmp_path / "system"
    other.mkdir()
    (tmp_path / "kept").rename(other / "onnxruntime_gpu-1.31.1.dist-info")
    install("onnxruntime", "1.30.0", "onnxruntime")
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(other)])
    assert owners("onnxruntime") == {"onnxruntime": "1.30.0"}
    assert find_mixture() is None


def test_one_wheel_with_several_metadata_folders_is_not_a_problem(install):
    install("onnxruntime-gpu", "1.30.0", "onnxruntime")
    install("onnxruntime_gpu", "1.31.1", "onnxruntime")
    assert list(owners("onnxruntime")) == ["onnxruntime-gpu"]
    assert find_mixture() is None


def test_the_rest_of_an_interrupted_removal_is_not_a_package(install, tmp_path):
    (tmp_path / "~nnxruntime-1.30.0.dist-info").mkdir()
    (tmp_path / "~nnxruntime-1.30.0.dist-info/top_level.txt").write_text("onnxruntime\n")
    install("onnxruntime", "1.31.0", "onnxruntime")
    assert owners("onnxruntime") == {"onnxruntime": "1.31.0"}
    assert package_versions()["onnxruntime"] == "1.31.0"


@pytest.mark.usefixtures("install")
def test_a_missing_package_is_installed_as_detcli_requires_it(gpu_wheel):
    """Not onnxruntime where detcli's extra would install onnxruntime-gpu over it."""
    wanted = "onnxruntime-gpu" if gpu_wheel else "onnxruntime"
    problem = explain("onnxruntime", "No module named 'onnxruntime'")
    assert (problem.reason, problem.command) == (
        f"{wanted} is not installed", f"pip install {wanted}"
    )  # fmt: skip
    assert explain("cv2", "No module named 'cv2'").command == "pip install opencv-python"


def test_a_damaged_package_is_reinstalled_alone_and_in_the_same_version(install):
    install("onnxruntime-gpu", "1.30.0", "onnxruntime")
    problem = explain("onnxruntime", "module 'onnxruntime' has no attribute 'InferenceSession'")
    assert problem.reason.startswith("onnxruntime-gpu does not load: module ")
    assert problem.command == "pip install --force-reinstall --no-deps onnxruntime-gpu==1.30.0"


@pytest.mark.parametrize(
    "said",
    [
        "crashed with SIGILL: it was built for a newer CPU",
        "libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by x.so)",
    ],
)
def test_errors_that_reinstalling_would_not_fix(install, said):
    install("numpy", "2.4.0", "numpy")
    problem = explain("numpy", said)
    assert problem.command is None
    assert problem.advice


@pytest.mark.parametrize("both", [False, True])
def test_opencv_without_a_display_library(install, both):
    """The headless build goes over it, also where pip has overwritten that since."""
    install("opencv-python", "5.0.0", "cv2")
    if both:
        install("opencv-python-headless", "5.0.0", "cv2")
    said = "libGL.so.1: cannot open shared object file: No such file or directory"
    problem = explain("cv2", said)
    assert problem.command == (
        "pip install --force-reinstall --no-deps opencv-python-headless==5.0.0"
    )
    assert "apt-get install libgl1" in problem.advice


def test_a_mixture_of_opencv_that_does_not_load(install):
    install("opencv-contrib-python", "5.0.0", "cv2")
    install("opencv-python", "5.0.0", "cv2")
    assert explain("cv2", "file too short").command == (
        "pip uninstall -y opencv-contrib-python opencv-python && pip install opencv-python"
    )


def test_only_relevant_packages_are_listed(install):
    asked = ["numpy>=2.1", "rich", "simplejpeg>=1.9; python_version < '3.15'",
             "pytest>=8.3; extra == 'dev'", "torch; extra == 'train'",
             "matplotlib; extra == 'plots'",
             "onnxruntime; platform_machine != 'x86_64'"]  # fmt: skip
    install("detcli", "0.1.0", "detcli", requires=asked)
    install("NumPy", "2.4.0", "numpy")
    install("nvidia-cudnn-cu13", "9.15.0", "nvidia")
    install("secret-project-of-zaphod", "1.0", "secret")
    assert package_versions() == {
        "matplotlib": None,
        "numpy": "2.4.0",
        "nvidia-cudnn-cu13": "9.15.0",
        "rich": None,
        "simplejpeg": None,
    }


def test_a_checkout_that_is_not_installed(install):
    install("onnx", "1.20.0", "onnx")
    assert package_versions() == {"onnx": "1.20.0"}


@pytest.mark.parametrize(
    ("system", "machine", "exists"),
    [
        ("linux", "x86_64", True),
        ("win32", "AMD64", True),
        ("linux", "aarch64", False),
        ("darwin", "arm64", False),
    ],
)
def test_machines_with_gpu_wheels(monkeypatch, system, machine, exists):
    monkeypatch.setattr(packages.sys, "platform", system)
    monkeypatch.setattr(packages.platform, "machine", lambda: machine)
    assert packages.gpu_wheel_exists() is exists
