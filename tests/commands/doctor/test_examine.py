"""Processes that crash and hang, the test detector, and the examination of a made-up machine."""

import importlib
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from backend.cuda.doubles import open_on_host
from commands.doctor.fakes import compile_library, fake_driver

import detcli.backend
import detcli.core.device
from detcli.backend.nvidia import DriverFacts, GpuFacts
from detcli.backend.runtime import libraries, onnxruntime
from detcli.backend.runtime.libraries import CUDA, TENSORRT, Unloadable
from detcli.commands.doctor import examine, installation
from detcli.commands.doctor.examine import Outcome, ask, evaluate, examine_devices, load
from detcli.commands.doctor.installation import DoctorProblem
from detcli.core.detections import Detections
from detcli.core.errors import DeviceError

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="libraries of Linux")

MIXTURE = DoctorProblem("installed over each other", "pip uninstall both")
WRONG = Outcome(["wrong", ""])


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
    done = subprocess.CompletedProcess([], -200, "", "")
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", lambda *_args, **_kwargs: done)
        assert load("json", "loads").error == "crashed with signal 200"
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert load("json", "loads").error == "Python does not start: No such file or directory"


def test_the_required_modules_have_their_attributes():
    for name, attribute in installation.REQUIRED.items():
        assert hasattr(importlib.import_module(name), attribute)


def test_the_cpu_passes_and_no_files_are_written(cache, tmp_path, monkeypatch):
    assert examine.trial("cpu") is None
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    assert ask("trial", "cpu") == Outcome()
    assert not cache.exists()


def test_the_kernels_pass(driver, monkeypatch):
    monkeypatch.setattr(detcli.backend, "open_backend", lambda _, file: open_on_host(driver, file))
    assert examine.trial("cuda") is None
    assert driver.launched


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found[:1],
        lambda found: changed(found, xyxy=found.xyxy + 1),
        lambda found: changed(found, score=found.score / 2),
        lambda found: changed(found, class_id=found.class_id[::-1].copy()),
        lambda found: changed(found, xyxy=np.full_like(found.xyxy, np.nan)),
    ],
    ids=["one missing", "boxes", "scores", "classes", "NaN"],
)
def test_a_wrong_answer_is_noticed(change, monkeypatch):
    detect = examine._detect  # noqa: SLF001
    monkeypatch.setattr(examine, "_detect", lambda device: change(detect(device)))
    reason, remedy = examine.trial("cpu")
    assert reason.startswith("the test detector gave wrong boxes")
    assert remedy


def changed(found, **other):
    parts = {"xyxy": found.xyxy, "score": found.score, "class_id": found.class_id} | other
    return Detections(**parts, names=found.names)


def test_a_device_error_is_reported_without_folders(monkeypatch):
    def refuse(*_):
        raise DeviceError("no /home/zaphod/x.so", "pip install 'detcli[cuda]'")

    monkeypatch.setenv("USER", "detcli")  # a service account; commands in hints stay as they are
    monkeypatch.setattr(detcli.backend, "open_backend", refuse)
    assert examine.trial("cuda") == ("no x.so", "pip install 'detcli[cuda]'")


@linux
def test_a_driver_that_answers_and_one_that_crashes(tmp_path, monkeypatch):
    fake_driver(tmp_path, version=12040, gpus=2, capability=(8, 6))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    nvidia = ask("examine_gpu").value[0]
    gpu = {"name": "Made Up 9000", "capability": "8.6", "memory_bytes": 8 << 30}
    assert (nvidia["driver_cuda"], nvidia["gpus"]) == ("12.4", [gpu, gpu])
    code = "int cuDriverGetVersion(int *version) { __builtin_trap(); }"
    compile_library(tmp_path / "libcuda.so.1", code)
    assert ask("examine_gpu").error.startswith("crashed with SIG")


def test_what_is_wrong_with_the_gpu_is_told_without_folders(monkeypatch):
    failure = Unloadable("libcudnn.so.9", "no /home/zaphod/y.so", "cuDNN", "pip install x")
    facts = DriverFacts("/home/zaphod/lib/libcuda.so.1: file too short")
    monkeypatch.setattr(examine, "ask_driver", lambda: facts)
    monkeypatch.setattr(
        installation, "read_host", lambda: installation.HostFacts(hardware=True, driver="580")
    )
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA])
    monkeypatch.setattr(onnxruntime, "cuda_version", "13.0.1", raising=False)
    monkeypatch.setattr(libraries, "unloadable_libraries", lambda _: (failure,))
    monkeypatch.setattr(installation, "find_mixture", lambda: MIXTURE)
    answer = Outcome(json.loads(json.dumps(examine.examine_gpu())))
    nvidia, lacking = examine._read_gpu(answer)  # noqa: SLF001
    assert (nvidia.driver, nvidia.driver_cuda, nvidia.runtime_cuda) == ("580", None, "13.0")
    driver, library = lacking[CUDA]
    assert driver.reason == "the NVIDIA driver does not load: libcuda.so.1: file too short"
    assert library == DoctorProblem("faulty: libcudnn.so.9 (cuDNN: no y.so)", "pip install x")
    assert lacking[TENSORRT] == (driver, MIXTURE)


@pytest.fixture
def machine(monkeypatch):
    """A machine without a GPU and without real processes; a test sets each answer."""
    problem = {"reason": "no GPU", "command": None, "advice": "use --device cpu"}
    nvidia = {"driver": None, "driver_cuda": None, "runtime_cuda": "13.0", "gpus": []}
    lacking = {CUDA: [problem], TENSORRT: [problem]}
    answers = {"examine_gpu": Outcome([nvidia, lacking]), "trial": Outcome(), "tried": []}

    def answer(name, *arguments):
        answers["tried"] += arguments
        return answers[name]

    monkeypatch.setattr(examine, "ask", answer)
    monkeypatch.setattr(examine, "has_openvino", lambda: False)
    monkeypatch.setattr(installation, "find_mixture", lambda: None)
    return answers


def test_an_intact_machine_has_no_problems(machine):
    gpu = GpuFacts("NVIDIA H200", "9.0", 1 << 37)
    machine["examine_gpu"].value[0]["gpus"] = [asdict(gpu)]
    report = examine.examine()
    assert report.problems == ()
    assert [device.usable for device in report.devices] == [True, False, False, False]
    assert report.nvidia.gpus == (gpu,)
    (absent,) = report.devices[-1].problems
    assert absent == DoctorProblem("OpenVINO is not installed", "pip install 'detcli[openvino]'")
    assert machine["tried"] == ["cpu"]


def test_a_crashing_gpu_library_leaves_the_cpu_usable(machine):
    machine["examine_gpu"] = Outcome(error="crashed with SIGSEGV")
    cpu, cuda, tensorrt, _ = examine.examine().devices
    assert cpu.usable
    (problem,) = cuda.problems
    assert problem.reason.endswith(" cannot be tested: crashed with SIGSEGV")
    assert cuda.problems == tensorrt.problems


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
def test_what_does_not_load_stops_every_device(machine, monkeypatch, broken, reason):
    machine["trial"] = WRONG
    monkeypatch.setattr(examine, "load", lambda name, _: Outcome(error=broken.get(name)))
    report = examine.examine()
    builds = " ".join(installation.owners("cv2"))  # two where one does not load, see the Makefile
    assert [problem.reason for problem in report.problems] == [reason.format(cv2=builds)]
    assert all(device.problems == report.problems for device in report.devices)
    assert machine["tried"] == ["cpu"]


def test_a_python_that_does_not_start_is_not_blamed_on_numpy(machine):
    machine["trial"] = Outcome(error="Python does not start: Permission denied")
    reason = "nothing could be tested: Python does not start: Permission denied"
    assert examine.examine().problems == (DoctorProblem(reason),)


def test_a_mixture_is_one_problem_whether_it_loads_or_not(machine, monkeypatch):
    monkeypatch.setattr(installation, "find_mixture", lambda: MIXTURE)
    report = examine.examine()
    assert report.problems == (MIXTURE,)
    assert report.devices[0].usable
    machine["trial"] = WRONG
    monkeypatch.setattr(examine, "load", lambda name, _: Outcome(error=name[:4] == "onnx" or None))
    monkeypatch.setattr(installation, "explain", lambda *_: MIXTURE)
    report = examine.examine()
    assert report.problems == report.devices[0].problems[:1] == (MIXTURE,)


def test_devices_that_lack_nothing_are_tried_with_the_ordinal_that_was_asked_for(machine):
    found = examine_devices(None, (), {})
    assert [device.name for device in found] == ["cpu", "cuda", "tensorrt", "openvino"]
    assert [found[number].provider for number in (0, 3)] == ["CPUExecutionProvider", None]
    assert all(device.usable and not device.problems for device in found)
    assert machine["tried"] == ["cuda", "tensorrt", "openvino"]  # the CPU was tried before
    for wanted in ("cuda:1", "openvino:GPU"):
        assert wanted in [device.name for device in examine_devices(wanted, (), {})]
        assert wanted in machine["tried"]


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (Outcome(["r", "pip install x; or use --device cpu"]),
         DoctorProblem("r", "pip install x", "or use --device cpu")),
        (Outcome(["r", "wait"]), DoctorProblem("r", None, "wait")),
        (Outcome(error="crashed with SIGSEGV"),
         DoctorProblem("the test detector could not run: crashed with SIGSEGV", None)),
    ],
)  # fmt: skip
def test_a_device_is_usable_only_if_the_trial_succeeds(machine, outcome, problem):
    machine["trial"] = outcome
    device = examine_devices(None, (), {})[1]
    assert (device.usable, device.problems) == (False, (problem,))


def test_every_device_of_this_machine_is_tried_by_its_name():
    """A name is written into the code of a process."""
    for device in detcli.core.device.DeviceKind:
        given = str(detcli.backend.Device(device))
        assert evaluate(f"str(*{(given,)!r})") == Outcome(given)
