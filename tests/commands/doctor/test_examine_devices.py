"""Each device on a made-up machine: what it lacks, what is reported first, what is tried."""

import sys

import pytest

from detcli.backend.runtime.libraries import CUDA, TENSORRT, explain
from detcli.commands.doctor import examine as examine_module
from detcli.commands.doctor import packages, process
from detcli.commands.doctor.examine import examine_devices, trial_problems
from detcli.commands.doctor.packages import RuntimeFacts, find_copies
from detcli.commands.doctor.process import Outcome
from detcli.commands.doctor.report import DoctorProblem

CPU = "CPUExecutionProvider"
WANTED = "libcublasLt.so.13"
CUDA_EXTRA = "pip install 'detcli[cuda]'"


def missing(*names):
    said = "{}: cannot open shared object file: No such file or directory"
    return tuple(explain(name, said.format(name)) for name in names)


@pytest.fixture
def machine(monkeypatch):
    """A machine where every trial succeeds, unless a test changes the answer."""

    class Machine:
        answer = Outcome()
        tried = ()

    def ask(_, name):
        machine.tried += (name,)
        return machine.answer

    machine = Machine()
    monkeypatch.setattr(examine_module, "has_openvino", lambda: True)
    monkeypatch.setattr(packages, "find_copies", lambda _: ())
    monkeypatch.setattr(packages, "gpu_wheel_exists", lambda: True)
    monkeypatch.setattr(packages, "owners", lambda _: {"onnxruntime": "1.31.1"})
    monkeypatch.setattr(process, "ask", ask)
    return machine


def examine(wanted=None, *, providers=(TENSORRT, CUDA, CPU), cuda=(), tensorrt=(), **faults):
    """Devices by name; the libraries that CUDA and TensorRT lack can be given."""
    failures = {CUDA: cuda, TENSORRT: tensorrt}
    runtime = RuntimeFacts("1.31.1", "13.0", providers, failures, CUDA_EXTRA)
    broken, gpu = faults.get("broken", ()), faults.get("gpu", ())
    found = examine_devices(wanted, broken, gpu, runtime)
    return {device.name: device for device in found}


def test_a_complete_machine_has_its_gpus_tried(machine):
    found = examine()
    assert list(found) == ["cpu", "cuda", "tensorrt", "openvino"]
    assert [found[name].provider for name in ("cpu", "openvino")] == [CPU, None]
    assert all(device.usable and not device.problems for device in found.values())
    assert machine.tried == ("cuda", "tensorrt", "openvino")  # `examine` has tried the CPU before


def test_the_requested_ordinal_is_the_one_tried(machine):
    assert list(examine("cuda:1")) == ["cpu", "cuda:1", "tensorrt", "openvino"]
    assert machine.tried == ("cuda:1", "tensorrt", "openvino")
    assert list(examine("openvino:GPU"))[-2:] == ["tensorrt", "openvino:GPU"]
    assert machine.tried[-1] == "openvino:GPU"


def test_openvino_that_is_not_installed(machine, monkeypatch):
    monkeypatch.setattr(examine_module, "has_openvino", lambda: False)
    (problem,) = examine()["openvino"].problems
    assert problem == DoctorProblem("OpenVINO is not installed", "pip install 'detcli[openvino]'")
    assert "openvino" not in machine.tried


def test_openvino_that_does_not_run(machine):
    hint = "pip install 'detcli[openvino]'; or use --device cpu"
    machine.answer = Outcome({"reason": "OpenVINO does not load: no libtbb", "hint": hint})
    (problem,) = examine()["openvino"].problems
    assert problem.reason == "OpenVINO does not load: no libtbb"
    assert (problem.command, problem.advice) == (
        "pip install 'detcli[openvino]'",
        "or use --device cpu",
    )


def test_a_broken_requirement_stops_every_device(machine):
    broken = DoctorProblem("numpy does not load", "pip install --force-reinstall numpy")
    for device in examine(broken=(broken,)).values():
        assert (device.usable, device.problems) == (False, (broken,))
    assert machine.tried == ()


def test_a_driver_that_cannot_be_asked_is_the_only_problem(machine):
    driver = DoctorProblem("the NVIDIA driver cannot be tested: crashed with SIGSEGV", None)
    cpu, cuda, tensorrt, openvino = examine_devices(None, (), (driver,), None)
    assert openvino.usable
    assert cpu.usable
    assert cuda.problems == tensorrt.problems == (driver,)
    assert machine.tried == ("openvino",)


def test_the_driver_comes_before_libraries(machine):
    driver = DoctorProblem("no driver", "sudo install")
    found = examine(gpu=(driver,), cuda=missing("libcuda.so.1", "libcudnn.so.9"))
    assert found["cpu"].usable
    first, second = found["cuda"].problems
    assert first is driver
    assert second == DoctorProblem("missing: libcudnn.so.9 (cuDNN)", CUDA_EXTRA)
    assert machine.tried == ("openvino",)


@pytest.mark.usefixtures("machine")
def test_tensorrt_needs_cudas_libraries_and_its_own():
    found = examine(cuda=missing(WANTED), tensorrt=missing("libnvinfer.so.10", "libcublas.so.13"))
    shared, tensorrt = found["tensorrt"].problems
    assert (shared,) == found["cuda"].problems  # one command installs both
    assert tensorrt.reason == "missing: libnvinfer.so.10 (TensorRT)"
    assert tensorrt.command.startswith("pip install 'tensorrt-cu13-libs")


@pytest.mark.usefixtures("machine")
def test_each_command_is_given_once():
    found = examine(cuda=missing("libcudnn.so.9", "libstdc++.so.6", WANTED))
    first, second = found["cuda"].problems
    assert first.command == CUDA_EXTRA
    assert "libcudnn.so.9" in first.reason
    assert WANTED in first.reason
    assert "libstdc++.so.6" in second.reason


@pytest.mark.usefixtures("machine")
def test_a_library_that_no_package_installs():
    old = "/x/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by /y/provider.so)"
    (problem,) = examine(cuda=(explain("provider.so", old),))["cuda"].problems
    assert "libstdc++.so.6" in problem.reason
    assert "lacks GLIBCXX_3.4.32, which provider.so needs" in problem.reason
    assert problem.command is None
    assert "libstdc++6" in problem.advice


@pytest.mark.usefixtures("machine")
def test_copies_of_a_missing_library_are_mentioned_once(monkeypatch):
    monkeypatch.setattr(packages, "find_copies", lambda _: ("another release",))
    (problem,) = examine(cuda=missing(WANTED, "libcublas.so.13"))["cuda"].problems
    assert (problem.command, problem.advice) == (CUDA_EXTRA, "another release")


@pytest.mark.usefixtures("machine")
def test_an_onnx_runtime_built_for_the_cpu_only():
    (problem,) = examine(providers=[CPU])["cuda"].problems
    assert problem.reason == f"the installed onnxruntime 1.31.1 was built without {CUDA}"
    assert problem.command == f"pip uninstall -y onnxruntime && {CUDA_EXTRA}"


@pytest.mark.usefixtures("machine")
def test_two_wheels_over_each_other_are_the_reason(monkeypatch):
    mixture = DoctorProblem("installed over each other", "pip uninstall both")
    monkeypatch.setattr(packages, "find_mixture", lambda: mixture)
    assert examine(providers=[CPU])["cuda"].problems == (mixture,)


@pytest.mark.usefixtures("machine")
def test_a_machine_without_a_gpu_wheel(monkeypatch):
    monkeypatch.setattr(packages, "gpu_wheel_exists", lambda: False)
    (problem,) = examine(providers=[CPU])["cuda"].problems
    assert problem.reason.startswith("PyPI has no ONNX Runtime with CUDA for ")
    assert problem.command is None


def test_a_device_is_usable_only_if_the_trial_succeeds(machine):
    machine.answer = Outcome({"reason": "no memory", "hint": "wait"})
    device = examine()["cuda"]
    assert (device.usable, device.problems) == (False, (DoctorProblem("no memory", None, "wait"),))


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (Outcome({"reason": "r", "hint": "pip install x; or use --device cpu"}),
         DoctorProblem("r", "pip install x", "or use --device cpu")),
        (Outcome({"reason": "r", "hint": ""}), DoctorProblem("r", None, "")),
        (Outcome(error="crashed with SIGSEGV"),
         DoctorProblem("the test detector could not run: crashed with SIGSEGV", None)),
    ],
)  # fmt: skip
def test_the_outcome_of_a_trial_becomes_a_problem(outcome, problem):
    assert trial_problems(outcome) == (problem,)


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Put an empty file under a root, whose folder `site` is on sys.path."""
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "site")])

    def make(name):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return path

    return make


def test_no_copies(put, tmp_path):
    put("usr/local/cuda-13.0/lib64/libcublas.so.13")  # another library
    assert list(find_copies(WANTED, tmp_path)) == []


@pytest.mark.parametrize(
    "folder",
    ["usr/local/cuda-13.0/lib64", "usr/local/cuda/targets/x86_64-linux/lib", "opt/cuda/lib64"],
)
def test_a_copy_where_the_loader_does_not_look(put, tmp_path, folder):
    path = put(f"{folder}/{WANTED}")
    (said,) = find_copies(WANTED, tmp_path)
    assert said.startswith(f"{WANTED} is in {path.parent}, which the loader does not search")


@pytest.mark.parametrize(
    "path",
    [
        "usr/local/cuda-12.8/lib64/libcublasLt.so.12.8.4.1",
        "usr/lib/x86_64-linux-gnu/libcublasLt.so.12",
        "site/nvidia/cublas/lib/libcublasLt.so.12",
    ],
)
def test_another_release_is_named_by_its_first_number(put, tmp_path, path):
    put(path)
    assert list(find_copies(WANTED, tmp_path)) == [
        "libcublasLt.so.12 is installed, but of another release"
    ]


def test_the_same_release_is_not_reported(put, tmp_path):
    put(f"site/nvidia/cublas/lib/{WANTED}")
    assert list(find_copies(WANTED, tmp_path)) == []


def test_folders_of_ld_library_path(put, tmp_path, monkeypatch):
    folder = put("mine/libcublasLt.so.12").parent
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere::{folder}")
    assert list(find_copies(WANTED, tmp_path)) == [
        "libcublasLt.so.12 is installed, but of another release"
    ]


def test_windows_file_names_have_no_release(put, tmp_path):
    put("usr/lib64/cudnn64_9.dll")
    assert list(find_copies("cudnn64_9.dll", tmp_path)) == []
