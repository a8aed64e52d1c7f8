"""Processes that crash and hang, the test detector, and the examination of a made-up machine."""

import importlib
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from backend.cuda.doubles import open_on_host
from commands.doctor.fakes import compile_library, fake_driver

import detcli.backend
import detcli.config.device
from detcli.backend import libraries
from detcli.backend.libraries import CUDA, Unloadable
from detcli.backend.nvidia import DriverFacts, GpuFacts
from detcli.backend.session import onnxruntime
from detcli.commands.doctor import examine, installation
from detcli.commands.doctor.examine import Outcome, ask, evaluate, load
from detcli.commands.doctor.installation import DoctorProblem
from detcli.config.device import Device, DeviceKind
from detcli.core.errors import DeviceError
from detcli.core.packages import owners
from detcli.data.detections import Detections

pytestmark = pytest.mark.slow

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="libraries of Linux")

MIXTURE = DoctorProblem("installed over each other", "pip uninstall both")
NO_GPU = DoctorProblem("no GPU", None, "use --device cpu")
WRONG = Outcome([{"reason": "wrong"}])


CHAINED = """
try:
    raise OSError("/home/zaphod/lib/libGL.so.1: cannot open shared object file")
except OSError as error:
    raise ImportError("x") from error
"""
KILLED = "import os\nos.kill(os.getpid(), {:d})"
QUIT = "import os, sys\nsys.stderr.write('{}')\nsys.stderr.flush()\nos._exit(3)"
signals = pytest.mark.skipif(sys.platform == "win32", reason="has no signals")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("print('{\"error\": 1}', end='')", None),
        (CHAINED, "libGL.so.1: cannot open shared object file"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        pytest.param(KILLED.format(11), "crashed with SIGSEGV", marks=signals),
        pytest.param(
            KILLED.format(4), "crashed with SIGILL: it was built for a newer CPU", marks=signals
        ),
        (QUIT.format("first\\ngiving up\\n"), "giving up"),
        (QUIT.format(""), "exited with code 3"),
    ],
)
def test_a_module_that_loads_raises_crashes_or_exits(tmp_path, monkeypatch, code, error):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "odd_library.py").write_text(code)
    assert load("odd_library", "__name__") == Outcome(error=error)


def test_an_empty_folder_lacks_the_attribute(tmp_path, monkeypatch):
    """As left behind by a package that had overwritten another's files."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "odd_folder/capi").mkdir(parents=True)
    assert "has no attribute 'Session'" in load("odd_folder", "Session").error


def test_the_process_leaves_no_core_file_no_cache_and_no_telemetry(monkeypatch):
    resource = pytest.importorskip("resource")
    core = f"__import__('resource').getrlimit({resource.RLIMIT_CORE})"
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    limits, environment = evaluate(f"[{core}, dict(__import__('os').environ)]").value
    assert limits == [0, 0]
    assert environment["ORT_DISABLE_TELEMETRY"] == "1"
    assert not Path(environment["DETCLI_CACHE_DIR"]).is_dir()


def test_a_process_that_hangs_or_does_not_start(monkeypatch):
    monkeypatch.setattr(examine, "TIMEOUT_S", 0.2)
    assert evaluate("__import__('time').sleep(60)").error == "no answer within 0.2 s"
    completed = subprocess.CompletedProcess([], -200, "", "")
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", lambda *_args, **_kwargs: completed)
        assert load("json", "loads").error == "crashed with signal 200"
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert load("json", "loads").error == "Python does not start: No such file or directory"


def test_the_required_modules_have_their_attributes():
    for name, attribute in installation.REQUIRED.items():
        assert hasattr(importlib.import_module(name), attribute)


def test_the_cpu_passes_and_no_files_are_written(cache, tmp_path, monkeypatch):
    assert examine.trial("cpu") == []
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    assert ask("trial", "cpu") == Outcome([])
    assert not cache.exists()


def test_the_kernels_pass(driver, monkeypatch):
    monkeypatch.setattr(examine, "_what_device_lacks", lambda _: [])
    monkeypatch.setattr(detcli.backend, "open_backend", lambda _, file: open_on_host(driver, file))
    assert examine.trial("cuda") == []
    assert driver.launched


@pytest.mark.parametrize(
    "change",
    [
        lambda detections: detections[:1],
        lambda detections: changed(detections, xyxy=detections.xyxy + 1),
        lambda detections: changed(detections, score=detections.score / 2),
        lambda detections: changed(detections, class_id=detections.class_id[::-1].copy()),
        lambda detections: changed(detections, xyxy=np.full_like(detections.xyxy, np.nan)),
    ],
    ids=["one missing", "boxes", "scores", "classes", "NaN"],
)
def test_a_wrong_answer_is_noticed(change, monkeypatch):
    detect = examine._detect  # noqa: SLF001
    monkeypatch.setattr(examine, "_detect", lambda device: change(detect(device)))
    (problem,) = examine.trial("cpu")
    assert problem["reason"].startswith("the test detector gave wrong boxes")
    assert problem["advice"]


def changed(detections, **fields):
    parts = {
        "xyxy": detections.xyxy,
        "score": detections.score,
        "class_id": detections.class_id,
    } | fields
    return Detections(**parts, names=detections.names)


@pytest.mark.parametrize(
    ("hint", "command", "advice"),
    [
        ('pip install "detcli[cuda]"', 'pip install "detcli[cuda]"', ""),
        ("pip install x; or use --device cpu", "pip install x", "or use --device cpu"),
        ("wait", None, "wait"),
    ],
)
def test_a_device_error_is_reported_without_folders(monkeypatch, hint, command, advice):
    def refuse(*_):
        raise DeviceError("no /home/zaphod/x.so", hint)

    monkeypatch.setenv("USER", "detcli")  # a service account; commands in hints stay as they are
    monkeypatch.setattr(detcli.backend, "open_backend", refuse)
    assert examine.trial("cpu") == [{"reason": "no x.so", "command": command, "advice": advice}]


@linux
def test_a_driver_that_answers_and_one_that_crashes(tmp_path, monkeypatch):
    fake_driver(tmp_path, version=12040, gpus=2, capability=(8, 6))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    nvidia = ask("describe_nvidia").value
    gpu = {"name": "Made Up 9000", "capability": "8.6", "memory_bytes": 8 << 30}
    assert nvidia["driver_cuda"] == "12.4"
    assert nvidia["gpus"] == [gpu, gpu]
    code = "int cuDriverGetVersion(int *version) { __builtin_trap(); }"
    compile_library(tmp_path / "libcuda.so.1", code)
    assert ask("describe_nvidia").error.startswith("crashed with SIG")
    assert ask("trial", "cuda").error.startswith("crashed with SIG")


def test_what_a_gpu_lacks_is_told_without_folders(monkeypatch):
    failure = Unloadable("libcudnn.so.9", "no /home/zaphod/y.so", "cuDNN", "pip install x")
    facts = DriverFacts("/home/zaphod/lib/libcuda.so.1: file too short")
    host = installation.HostFacts(hardware=True, driver="580")
    monkeypatch.setattr(examine, "ask_driver", lambda: facts)
    monkeypatch.setattr(installation, "read_host", lambda: host)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA])
    monkeypatch.setattr(onnxruntime, "cuda_version", "13.0.1", raising=False)
    monkeypatch.setattr(libraries, "unloadable_libraries", lambda _: (failure,))
    monkeypatch.setattr(libraries, "find_mixture", lambda: (MIXTURE.reason, MIXTURE.command))
    driver_fields, library_fields = examine.trial("cuda:1")
    driver = DoctorProblem(**driver_fields)
    library = DoctorProblem(**library_fields)
    assert driver.reason == "the NVIDIA driver does not load: libcuda.so.1: file too short"
    assert library == DoctorProblem("faulty: libcudnn.so.9 (cuDNN: no y.so)", "pip install x")
    assert examine.trial("tensorrt") == [asdict(driver), asdict(MIXTURE)]


def test_what_is_asked_is_plain_text():
    """A member of an enumeration is a str too, but its repr is no Python."""
    assert ask("trial", DeviceKind.CPU) == Outcome([])


def test_openvino_may_be_absent(monkeypatch):
    monkeypatch.setattr(examine, "has_openvino", lambda: False)
    absent = DoctorProblem("OpenVINO is not installed", 'pip install "detcli[openvino]"')
    for device in ("openvino", "openvino:GPU"):
        assert examine.trial(device) == [asdict(absent)]
    assert examine.trial("cpu") == []


@pytest.fixture
def doctor_answers(monkeypatch):
    """A machine whose GPU is never found, without real processes; a test sets each answer."""
    nvidia = {"driver": None, "driver_cuda": None, "runtime_cuda": "13.0", "gpus": []}
    lacking = Outcome([asdict(NO_GPU)])
    answers = {"describe_nvidia": Outcome(nvidia), "cpu": Outcome([]), "openvino": Outcome([])}
    answers |= dict.fromkeys(("cuda", "cuda:1", "tensorrt"), lacking)
    monkeypatch.setattr(examine, "ask", lambda *question: answers[question[-1]])
    monkeypatch.setattr(examine, "find_mixture", lambda: None)
    return answers


def test_an_intact_machine_has_no_problems(doctor_answers):
    gpu = GpuFacts("NVIDIA H200", "9.0", 1 << 37)
    doctor_answers["describe_nvidia"].value["gpus"] = [asdict(gpu)]
    report = examine.examine()
    assert report.problems == ()
    cpu, cuda, tensorrt, openvino = report.devices
    assert cpu.name == "cpu"
    assert cpu.usable is True
    assert cpu.problems == ()
    assert cpu.provider == "CPUExecutionProvider"
    assert cuda.name == "cuda"
    assert cuda.usable is False
    assert cuda.problems == (NO_GPU,)
    assert tensorrt.name == "tensorrt"
    assert tensorrt.usable is False
    assert openvino.name == "openvino"
    assert openvino.usable is True
    assert openvino.provider is None
    assert report.nvidia.gpus == (gpu,)


def test_a_crashing_gpu_library_leaves_the_cpu_usable(doctor_answers):
    doctor_answers["describe_nvidia"] = doctor_answers["cuda:1"] = Outcome(
        error="crashed with SIGSEGV"
    )
    report = examine.examine(Device.parse("cuda:1"))
    assert report.devices[0].usable
    assert report.devices[1].name == "cuda:1"
    assert report.devices[1].usable is False
    reason = "the test detector could not run: crashed with SIGSEGV"
    assert report.devices[1].problems == (DoctorProblem(reason),)
    assert report.nvidia.driver_cuda is None
    assert report.nvidia.gpus == ()


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"cv2": "crashed with SIGSEGV"}, "{cv2} does not load: crashed with SIGSEGV"),
        # Reported once, and not for each that needs it.
        (dict.fromkeys(installation.REQUIRED, "x: file too short"),
         "numpy does not load: x: file too short"),
        ({}, "wrong"),  # everything loads
    ],
)  # fmt: skip
def test_what_does_not_load_stops_every_device(doctor_answers, monkeypatch, broken, reason):
    doctor_answers["cpu"] = WRONG
    monkeypatch.setattr(examine, "load", lambda name, _: Outcome(error=broken.get(name)))
    report = examine.examine()
    builds = " ".join(owners("cv2"))  # two where one does not load, see the Makefile
    (problem,) = report.problems
    assert problem.reason == reason.format(cv2=builds)
    for device in report.devices:
        assert device.problems == report.problems


def test_a_python_that_does_not_start_is_not_blamed_on_numpy(doctor_answers):
    doctor_answers["cpu"] = Outcome(error="Python does not start: Permission denied")
    reason = "nothing could be tested: Python does not start: Permission denied"
    assert examine.examine().problems == (DoctorProblem(reason),)


def test_a_mixture_is_one_problem_whether_it_loads_or_not(doctor_answers, monkeypatch):
    monkeypatch.setattr(examine, "find_mixture", lambda: (MIXTURE.reason, MIXTURE.command))
    report = examine.examine()
    assert report.problems == (MIXTURE,)
    assert report.devices[0].usable
    doctor_answers["cpu"] = WRONG
    monkeypatch.setattr(examine, "load", lambda name, _: Outcome(error=name[:4] == "onnx" or None))
    monkeypatch.setattr(examine, "explain", lambda *_: (MIXTURE.reason, MIXTURE.command))
    report = examine.examine()
    assert report.problems == report.devices[0].problems[:1] == (MIXTURE,)


def test_every_device_of_this_machine_is_tried_by_its_name():
    """A name is written into the code of a process."""
    for device in DeviceKind:
        device_name = str(Device(device))
        assert evaluate(f"str(*{(device_name,)!r})") == Outcome(device_name)
