"""`detcli doctor` as a command, with libraries that are really broken."""

import functools
import getpass
import json
import os
import re
import sys
from types import SimpleNamespace

import pytest
from commands.doctor.fakes import compile_library, fake_driver
from rich.console import Console

from detcli.backend.nvidia import GpuFacts
from detcli.commands.doctor import examine, render
from detcli.commands.doctor.examine import (
    Cache,
    CachePart,
    DoctorDefault,
    DoctorDevice,
    DoctorReport,
    Nvidia,
)
from detcli.commands.doctor.installation import DoctorProblem

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux libraries")


@pytest.fixture
def doctor(detcli):
    """Run it with environment variables and return its JSON report."""

    def run(*arguments, code=0, **variables):
        environment = {**os.environ, **variables}
        done = detcli("doctor", "--format", "json", *arguments, env=environment, timeout=300)
        assert "Traceback" not in done.stderr
        assert done.returncode == code, done.stderr
        report = json.loads(done.stdout)
        report["devices"] = {device["name"]: device for device in report["devices"]}
        return report

    return run


@pytest.fixture(scope="module")
def _asked_once():
    """Questions that take a process each are asked once for all tests that use this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examine, "ask", functools.cache(examine.ask))
        yield


@pytest.fixture
def doctor_here(invoke, _asked_once, monkeypatch):
    """The report of a run in this process, where only NVIDIA's libraries are asked about anew."""
    once, anew = examine.ask, examine.ask.__wrapped__

    def ask(name, *arguments):
        return (anew if name == "examine_gpu" else once)(name, *arguments)

    monkeypatch.setattr(examine, "ask", ask)

    def run(*arguments):
        done = invoke("doctor", *arguments)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        report["devices"] = {device["name"]: device for device in report["devices"]}
        return report

    return run


def reasons(device):
    return [problem["reason"] for problem in device["problems"]]


@pytest.fixture
def _no_gpu():
    from detcli.backend.nvidia import ask_driver

    if ask_driver().load_error is None:
        pytest.skip("this machine has a driver")


def test_a_pipe_gets_json_the_cpu_is_usable_and_nothing_is_written(detcli, cache):
    done = detcli("doctor", "--device", "cpu")
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert report["devices"][0]["usable"] is True
    assert report["cache"]["cleared_bytes"] is None
    assert not cache.exists()


@pytest.mark.usefixtures("_asked_once")
def test_defaults_are_shown_with_their_origin(invoke, tmp_path, monkeypatch):
    path = tmp_path / "detcli.toml"
    path.write_text('device = "cpu"\nsave = "~/out"\nmodel = "codes"\n')
    monkeypatch.setenv("DETCLI_CONFIG", str(path))
    monkeypatch.setenv("DETCLI_MODEL", "~/mine/best.onnx")
    monkeypatch.delenv("DETCLI_DEVICE")
    monkeypatch.setenv("HOME", str(tmp_path))
    report = json.loads(invoke("doctor").stdout)
    assert [tuple(default.values()) for default in report["defaults"]] == [
        ("model", "~/mine/best.onnx", "DETCLI_MODEL"),
        ("device", "cpu", "~/detcli.toml"),
        ("save", "~/out", "~/detcli.toml"),
    ]


@pytest.mark.usefixtures("_asked_once")
def test_defaults_that_cannot_be_used_are_a_problem(invoke, tmp_path, monkeypatch):
    (tmp_path / "detcli.toml").write_text("modle = 3")
    monkeypatch.setenv("DETCLI_CONFIG", str(tmp_path / "detcli.toml"))
    done = invoke("doctor")
    assert done.returncode == 6
    report = json.loads(done.stdout)
    assert report["defaults"] == []
    (problem,) = report["problems"]
    assert problem["reason"].endswith("detcli.toml: predict has no option 'modle'")
    assert problem["advice"].startswith("did you mean model?")


@linux
def test_a_driver_that_is_too_old_for_the_wheel(doctor_here, tmp_path, monkeypatch):
    fake_driver(tmp_path, version=11080)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    report = doctor_here()
    if report["nvidia"]["runtime_cuda"] is None:
        pytest.skip("this ONNX Runtime has no CUDA")
    assert report["nvidia"]["driver_cuda"] == "11.8"
    assert report["nvidia"]["gpus"] == [
        {"name": "Made Up 9000", "capability": "9.0", "memory_bytes": 8 << 30}
    ]
    first = reasons(report["devices"]["cuda"])[0]
    assert first.startswith("the driver supports CUDA up to 11.8, but ")


@linux
def test_an_empty_library_and_one_of_another_version_are_named(doctor_here, tmp_path, monkeypatch):
    """cuDNN is damaged, and the others lack symbols that the provider needs."""
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has no CUDA")
    fake_driver(tmp_path)
    (tmp_path / "libcudnn.so.9").touch()
    for name in ("libcublasLt.so.13", "libcublas.so.13", "libcurand.so.10", "libcudart.so.13"):
        compile_library(tmp_path / name, "int nothing;")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    cuda = doctor_here()["devices"]["cuda"]
    said = "; ".join(reasons(cuda))
    if "libcudnn.so.9" not in said:
        pytest.skip("this machine has CUDA's libraries, which are found first")
    if "libcublasLt.so.12" in said:
        pytest.skip("this ONNX Runtime is for CUDA 12; the extra `cuda` asks for a newer one")
    assert "libcudnn.so.9 (cuDNN: file too short)" in said
    assert "another version: it lacks " in said
    assert "which libonnxruntime_providers_cuda.so needs" in said
    assert cuda["problems"][0]["command"] == "pip install 'detcli[cuda]'"


def test_two_wheels_over_each_other(doctor_here, tmp_path, monkeypatch):
    for name, version in (("onnxruntime", "1.0.0"), ("onnxruntime-directml", "1.1.0")):
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}")
        (folder / "top_level.txt").write_text("onnxruntime\n")
    monkeypatch.syspath_prepend(tmp_path)
    report = doctor_here("--device", "cpu")  # exits with 0: it is usable
    (problem,) = report["problems"]
    assert "onnxruntime and onnxruntime-directml" in problem["reason"]
    assert "installed over each other" in problem["reason"]
    assert problem["command"].startswith("pip uninstall -y onnxruntime onnxruntime-directml ")
    assert report["devices"]["cpu"]["usable"]


def test_a_library_that_does_not_load_is_reported_once(doctor, tmp_path):
    """The other libraries load NumPy, and do not load either."""
    (tmp_path / "numpy.py").write_text("raise ImportError('libodd.so.1: file too short')")
    report = doctor(code=6, PYTHONPATH=str(tmp_path))
    (problem,) = report["problems"]
    assert "does not load: libodd.so.1: file too short" in problem["reason"]
    assert problem["command"].startswith("pip ")
    assert not report["devices"]["cpu"]["usable"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signal")
def test_a_library_that_crashes_is_reported(doctor, tmp_path):
    (tmp_path / "cv2.py").write_text("import os\nos.kill(os.getpid(), 11)")
    (problem,) = doctor(code=6, PYTHONPATH=str(tmp_path))["problems"]
    assert "does not load: crashed with SIGSEGV" in problem["reason"]


def test_the_empty_folder_of_a_removed_package_is_reported(doctor, tmp_path):
    """It can be imported, but has no attributes."""
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime/__init__.py").touch()
    report = doctor(code=6, PYTHONPATH=str(tmp_path))
    (problem,) = report["problems"]
    assert "has no attribute" in problem["reason"]
    assert " --force-reinstall --no-deps " in problem["command"]


@pytest.mark.skipif(sys.platform == "win32", reason="HOME is another variable there")
def test_no_personal_names_and_no_values_of_variables(detcli, tmp_path):
    """Every variable's value and every folder contains a marker."""
    home = tmp_path / "zaphod-home"
    (home / "site").mkdir(parents=True)
    (home / "site/libcudnn.so.9").touch()
    marked = {
        name: f"zaphod-{number}"
        for number, name in enumerate(("USER", "LOGNAME", "USERNAME", "CUDA_HOME", "MY_TOKEN",
                                       "CUDA_CACHE_PATH", "DISPLAY", "HOSTNAME"))
    }  # fmt: skip
    folders = {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "zaphod-cache"),
        "LD_LIBRARY_PATH": str(home / "site"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(home / "site"), *sys.path])),
        "TMPDIR": str(home),
    }
    environment = {**os.environ, **marked, **folders}
    del environment["DETCLI_CACHE_DIR"]
    done = detcli("doctor", "--format", "json", env=environment, cwd=home, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "zaphod" not in done.stdout
    assert str(tmp_path) not in done.stdout
    assert "$XDG_CACHE_HOME/detcli" in done.stdout
    assert "MY_TOKEN" not in done.stdout
    if len(getpass.getuser()) > len("root"):
        assert getpass.getuser() not in done.stdout
    assert [path.name for path in home.iterdir()] == ["site"]  # nothing was written


@pytest.mark.usefixtures("_no_gpu", "_asked_once")
def test_a_required_device_that_cannot_be_used(invoke):
    done = invoke("doctor", "--device", "cuda:1")
    assert done.returncode == 5
    assert "detcli: cuda:1 cannot be used: " in done.stderr
    assert json.loads(done.stdout)["devices"]


@pytest.mark.parametrize("device", ["gpu", "auto", "cpu:1", "cuda:", "cuda:x", ""])
def test_an_unknown_device(invoke, device):
    done = invoke("doctor", "--device", device)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(r"unknown device|cannot be required", done.stderr)


def test_the_required_device_is_found_by_its_ordinal(invoke, monkeypatch):
    usable = SimpleNamespace(name="cuda:0", usable=True)
    problem = SimpleNamespace(reason="there is no GPU number 1, only 1", command=None, advice="x")
    other = SimpleNamespace(name="cuda:1", usable=False, problems=[problem])
    report = SimpleNamespace(devices=[usable, other], problems=())
    monkeypatch.setattr("detcli.commands.doctor.examine.examine", lambda *_: report)
    monkeypatch.setattr("detcli.commands.doctor.write_report", lambda *_: None)
    assert invoke("doctor", "--device", "cuda:0").returncode == 0
    done = invoke("doctor", "--device", "cuda:1")
    assert done.returncode == 5
    assert "cuda:1 cannot be used: there is no GPU number 1" in done.stderr


@pytest.mark.usefixtures("_asked_once")
def test_clearing_the_cache(invoke, cache, make_model, make_picture):
    invoke("predict", make_picture("a.png"), "-m", make_model(tail="authors"), "--device", "cpu")
    size = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
    assert size > 0
    (cache / "prepared/diploma.txt").write_text("three years")
    report = json.loads(invoke("doctor", "--clear-cache").stdout)
    assert report["cache"]["cleared_bytes"] == size
    assert {part["files"] for part in report["cache"]["parts"]} == {0}
    assert [path.name for path in cache.rglob("*") if path.is_file()] == ["diploma.txt"]


LONG = "pip install " + " ".join(f"'a-package-of-a-long-name-{number}>=1'" for number in range(9))
NO_GPU = DoctorProblem("this machine has no NVIDIA GPU", None, "use --device cpu")
MISSING = DoctorProblem("missing: libcudnn.so.9 (cuDNN)", LONG)
OWN = DoctorProblem("missing: \x1b[2Jlibnvinfer.so.10", "pip install 'detcli[cuda]'", "half")
DISTRUSTED = DoctorProblem("the cache, since others can write", "chmod -R go-w ~/x", "then")


def test_the_table_of_a_report():
    gpu = GpuFacts("NVIDIA H200", "9.0", 150_000_000_000)
    parts = (CachePart("prepared", 2, 2048),)
    report = DoctorReport(
        detcli="0.1.0",
        python="3.11.7 (CPython)",
        nvidia=Nvidia("580.65", "13.0", None, (gpu,)),
        devices=(
            DoctorDevice("cpu", "CPUExecutionProvider", usable=True, problems=()),
            DoctorDevice("cuda", "C", usable=False, problems=(NO_GPU, MISSING)),
            DoctorDevice("tensorrt", "T", usable=False, problems=(NO_GPU, MISSING, OWN)),
            DoctorDevice("openvino", None, usable=False, problems=(OWN,)),
        ),
        problems=(DoctorProblem("numpy does not load", "pip install numpy"),),
        cache=Cache("~/x", False, parts, 4096, (DISTRUSTED,)),  # noqa: FBT003
        defaults=(DoctorDefault("conf", "0.4", "a\nb"),),
    )
    console = Console(width=60)
    with console.capture() as text:
        for part in render(report):
            console.print(part, soft_wrap=bool(getattr(part, "no_wrap", False)))
    assert [line.rstrip() for line in text.get().splitlines()] == [
        "problem: numpy does not load",
        "    fix: pip install numpy",
        "not used: the cache, since others can write",
        "    fix: chmod -R go-w ~/x",
        "    then",
        "cpu       usable: the test detector ran on it",
        "cuda      not usable",
        "  this machine has no NVIDIA GPU",
        "    use --device cpu",
        "  missing: libcudnn.so.9 (cuDNN)",
        f"    fix: {LONG}",  # on one line at any width, to be copied
        "tensorrt  not usable",
        "  for the same reasons, and:",
        "  missing: \\x1b[2Jlibnvinfer.so.10",
        "    fix: pip install 'detcli[cuda]'",
        "    half",
        "openvino  not usable",
        "  for the same reasons",
        "",
        "detcli                       0.1.0",
        "Python                       3.11.7 (CPython)",
        "NVIDIA driver                580.65",
        "it supports CUDA up to       13.0",
        "ONNX Runtime built for CUDA  -",
        "GPU 0                        NVIDIA H200, compute capability",
        "                             9.0, 150.0 GB",
        "cache                        ~/x, not writable",
        "  prepared                   2.0 kB",
        "  cleared                    4.1 kB",
        "default conf                 0.4, a\\nb",
    ]
