"""Why a provider does not load, and what it would take of a graph, with doubles and without."""

import ctypes
import importlib.metadata
import subprocess
import sys

import colour_model
import onnxruntime
import pytest
from backend.test_session import CPU_NAME, node, session_of
from commands.doctor.fakes import compile_library

from detcli.backend import libraries
from detcli.backend.libraries import (
    CUDA,
    TENSORRT,
    LeftNode,
    Placement,
    explain,
    faster_with_tensorrt,
    require_code,
    require_one_cuda,
    require_provider,
    survey,
)
from detcli.backend.nvidia import DriverFacts, GpuFacts
from detcli.backend.session import refusal
from detcli.core.errors import DeviceError, ModelError

NEED_CUBLAS = ("providers_cuda.so", "providers_tensorrt.so")


class Loader:
    """A double of ctypes.CDLL that loads neither what is `missing` nor what depends on it."""

    def __init__(self):
        self.missing = []
        self.loaded = []

    def __call__(self, name, mode=0):  # noqa: ARG002 - ctypes' signature
        if name is None or "vcruntime" in name:
            return ctypes.PyDLL(None)
        for library in self.missing:
            needs_it = library.startswith("libcublas") and name.endswith(NEED_CUBLAS)
            if library in name or needs_it:
                raise OSError(f"{library}: cannot open shared object file: No such file")
        self.loaded.append(name)
        return None


@pytest.fixture
def loader(monkeypatch):
    """An ONNX Runtime with all providers, and the loader."""
    loader = Loader()
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [TENSORRT, CUDA])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: sys.stdout.write("noise"))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)  # it would load through the double
    monkeypatch.setattr(ctypes, "CDLL", loader)
    monkeypatch.setattr(onnxruntime, "cuda_version", "13.0", raising=False)
    monkeypatch.setattr(libraries, "has_gpu", lambda: None)  # whatever is here
    return loader


def test_a_machine_without_a_gpu_lacks_nothing_else(loader, monkeypatch):
    monkeypatch.setattr(libraries, "has_gpu", lambda: False)
    monkeypatch.setattr(onnxruntime, "get_available_providers", list)
    loader.missing += ["libcuda.so.1", "libcudnn.so.9"]
    with pytest.raises(DeviceError, match=r"^this machine has no NVIDIA GPU$") as caught:
        require_provider(CUDA)
    assert caught.value.hint == "use --device cpu"
    gpus = (GpuFacts("NVIDIA H200", "9.0", 1),)
    monkeypatch.setattr(libraries, "ask_driver", lambda: DriverFacts(status=0, gpus=gpus))
    with pytest.raises(DeviceError, match="built without"):  # the driver knows better
        require_provider(CUDA)


@pytest.mark.parametrize(
    ("provider", "library", "owner", "hint"),
    [
        (CUDA, "libcuda.so.1", "NVIDIA's driver", "install the NVIDIA driver"),
        (CUDA, "libcublasLt.so.13", "the CUDA runtime", 'pip install "detcli[cuda]"'),
        (CUDA, "libcudnn.so.9", "cuDNN", 'pip install "detcli[cuda]"'),
        (TENSORRT, "libnvinfer.so.10", "TensorRT", "tensorrt-cu13-libs>=10.13,<11"),
        (TENSORRT, "libnvonnxparser.so.10", "TensorRT", "tensorrt-cu13-libs>=10.13,<11"),
    ],
)
def test_a_missing_library_is_named_with_its_package(provider, library, owner, hint, loader):
    loader.missing.append(library)
    with pytest.raises(DeviceError) as caught:
        require_provider(provider)
    assert f"missing: {library} ({owner})" in str(caught.value)
    assert hint in caught.value.hint
    assert ("pip" in caught.value.hint) == (library != "libcuda.so.1")
    if provider == TENSORRT:
        require_provider(CUDA)


@pytest.mark.parametrize(
    ("cuda", "capability", "hint"),
    [
        ("12.9", "9.0", "tensorrt-cu12-libs"),
        ("13.0", "9.0", "tensorrt-cu13-libs"),
        ("12.9", "7.0", "TensorRT has no code for Tesla V100: use --device cuda"),
    ],
)
def test_tensorrts_package_is_that_of_the_cuda_and_for_the_gpu(
    cuda, capability, hint, loader, monkeypatch
):
    facts = DriverFacts(status=0, gpus=(GpuFacts("Tesla V100", capability, 1),))
    monkeypatch.setattr(libraries, "ask_driver", lambda: facts)
    monkeypatch.setattr(onnxruntime, "cuda_version", cuda, raising=False)
    loader.missing.append("libnvinfer.so.10")
    with pytest.raises(DeviceError) as caught:
        require_provider(TENSORRT)
    assert hint in caught.value.hint


def test_missing_libraries_are_named_once_and_before_faulty_ones(loader, monkeypatch):
    def load(name, mode=0):
        if "libcudnn" in (name or ""):
            raise OSError("/x/libcudnn.so.9: file too short")
        return loader(name, mode)

    monkeypatch.setattr(ctypes, "CDLL", load)
    loader.missing.extend(["libcuda.so.1", "libcublas.so.13"])
    with pytest.raises(DeviceError) as caught:
        require_provider(TENSORRT)
    assert str(caught.value) == (
        "TensorrtExecutionProvider cannot be loaded, "
        "missing: libcuda.so.1 (NVIDIA's driver), libcublas.so.13 (the CUDA runtime); "
        "faulty: libcudnn.so.9 (cuDNN: file too short)"
    )


def test_nothing_missing_passes_and_nothing_is_printed(loader, capfd):
    require_provider(CUDA)
    assert capfd.readouterr() == ("", "")
    for name in loader.loaded:
        assert "nvinfer" not in name  # half a gigabyte


def test_pips_tensorrt_is_loaded_before_its_provider(loader, tmp_path, monkeypatch):
    folder = tmp_path / "tensorrt_libs"
    folder.mkdir()
    for name in ("__init__.py", "libnvinfer.so.10", "libnvonnxparser.so.10"):
        (folder / name).write_text("raise ImportError('only looked for, never imported')")
    monkeypatch.syspath_prepend(tmp_path)
    require_provider(TENSORRT)
    assert loader.loaded[-3:-1] == [
        str(folder / "libnvinfer.so.10"),
        str(folder / "libnvonnxparser.so.10"),
    ]
    assert "providers_tensorrt" in loader.loaded[-1]


LOAD_PACKAGED = """
import site
import sys
from pathlib import Path

kind, folder = sys.argv[1:]
site.ENABLE_USER_SITE = kind == "user"
site.getsitepackages = lambda: [folder] if kind == "system" else []
site.getusersitepackages = lambda: folder

import onnxruntime

if kind == "target":
    onnxruntime.__file__ = folder + "/onnxruntime/__init__.py"
onnxruntime.cuda_version = "13.0"

from detcli.backend.libraries import _load_packaged_libraries

_load_packaged_libraries()
print(Path("/proc/self/maps").read_text())
"""
"""Prints the files that a process has loaded, with NVIDIA's libraries in one kind of folder."""


@pytest.mark.slow
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the files of a process are listed by Linux only"
)
@pytest.mark.parametrize("kind", ["user", "system", "target"])
def test_nvidias_libraries_are_loaded_wherever_pip_put_them(kind, tmp_path):
    """In the user's or the system's site-packages, or beside ONNX Runtime in another folder."""
    if kind != "target":
        pytest.importorskip("cuda.pathfinder", reason="comes with cuda-core, of the extra dev-all")
    (tmp_path / "onnxruntime").mkdir()
    files = []
    for name in ("libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13", "libcufft.so.12"):
        files.append(compile_library(tmp_path / "nvidia/cu13/lib" / name, "int f() { return 1; }"))
    files.append(
        compile_library(tmp_path / "nvidia/cudnn/lib/libcudnn.so.9", "int g() { return 1; }")
    )
    command = [sys.executable, "-c", LOAD_PACKAGED, kind, str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    for file in files:
        assert str(file) in process.stdout
    assert "Failed" not in process.stdout


def test_without_nvidias_search_onnx_runtime_still_looks(monkeypatch):
    calls = []
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: calls.append("preload_dlls"))
    libraries._load_packaged_libraries()  # noqa: SLF001 - what is tested
    assert calls == ["preload_dlls"]


def test_the_extra_that_is_there_is_named_if_the_driver_runs_it(set_driver):
    missing = "libcufft.so.11: cannot open shared object file: No such file or directory"
    set_driver(driver="13.0", runtime="12.8")
    assert explain("libcufft.so.11", missing).remedy == 'pip install "detcli[cuda12]"'
    set_driver(driver="12.4", runtime="13.0")
    assert explain("libcufft.so.12", missing).remedy == 'pip install "detcli[cuda12]"'
    set_driver(driver="13.0", runtime=None)
    assert explain("libcufft.so.12", missing).remedy == 'pip install "detcli[cuda]"'


@pytest.fixture
def tensorrt_of_pip(loader, tmp_path, monkeypatch):
    """TensorRT as pip installs it, and one GPU, whose compute capability a test sets."""
    (tmp_path / "tensorrt_libs").mkdir()
    for name in ("__init__.py", "libnvinfer.so.10"):
        (tmp_path / "tensorrt_libs" / name).touch()
    monkeypatch.syspath_prepend(tmp_path)

    def have_gpu(capability):
        facts = DriverFacts(status=0, gpus=(GpuFacts("NVIDIA L4", capability, 1),))
        monkeypatch.setattr(libraries, "ask_driver", lambda: facts)

    have_gpu("8.9")
    yield have_gpu
    assert loader.loaded == []  # half a gigabyte


def test_tensorrt_is_named_where_it_could_be_faster(tensorrt_of_pip, monkeypatch):
    advice = faster_with_tensorrt(0)
    assert "float16 may be three to four times as fast on NVIDIA L4" in advice
    assert "detcli tune MODEL" in advice
    assert faster_with_tensorrt(1) == ""  # there is no second GPU
    tensorrt_of_pip("7.0")
    assert faster_with_tensorrt(0) == ""
    tensorrt_of_pip("7.5")
    assert faster_with_tensorrt(0)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA])
    assert faster_with_tensorrt(0) == ""


@pytest.mark.usefixtures("tensorrt_of_pip")
def test_tensorrt_of_the_system_is_named_and_a_missing_one_is_not(tmp_path, monkeypatch):
    (tmp_path / "tensorrt_libs/libnvinfer.so.10").unlink()
    libraries_of_system = {"nvinfer": "libnvinfer.so.10"}
    monkeypatch.setattr("ctypes.util.find_library", libraries_of_system.get)
    assert faster_with_tensorrt(0)
    libraries_of_system.clear()
    assert faster_with_tensorrt(0) == ""


def test_a_build_without_the_provider_is_named(monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(libraries, "has_gpu", lambda: None)
    with pytest.raises(DeviceError, match="built without CUDAExecutionProvider"):
        require_provider(CUDA)


@pytest.mark.parametrize(
    ("message", "library", "reason"),
    [
        ("libcudnn.so.9: cannot open shared object file: No such file or directory",
         "libcudnn.so.9", ""),
        ("/usr/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by /a/b/p.so)",
         "libstdc++.so.6", "too old: it lacks GLIBCXX_3.4.32, which p.so needs"),
        ("/a/p.so: undefined symbol: cublasLtCreate, version libcublasLt.so.13",
         "libcublasLt.so.13", "another version: it lacks cublasLtCreate, which p.so needs"),
        ("/a/p.so: undefined symbol: f, version V2", "p.so", "undefined symbol: f, version V2"),
        ("/a/p.so: undefined symbol: f", "p.so", "undefined symbol: f"),
        ("/a/libcudnn.so.9: file too short", "libcudnn.so.9", "file too short"),
        ("/a/libcudnn.so.9: cannot open shared object file: Permission denied", "libcudnn.so.9",
         "cannot open shared object file: Permission denied"),
        ("Could not find module 'C:\\x\\p.dll' (or one of its dependencies).", "p.dll", ""),
    ],
)  # fmt: skip
def test_messages_of_the_loader(message, library, reason):
    unloadable = explain(library if library.endswith("dll") else "p.so", message)
    assert unloadable.library == library
    assert unloadable.reason == reason


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="tests the messages of Linux's loader"
)
def test_messages_of_the_real_loader(tmp_path):
    """A library that lost a version of its symbols, one that lost a symbol, one that is empty."""
    dependency = tmp_path / "libdependency.so.1"
    versions = tmp_path / "versions"
    versions.write_text("V1 { global: f; };\nV2 { global: g; };\n")
    script = f"-Wl,--version-script={versions}"
    compile_library(dependency, "int f() { return 1; } int g() { return 2; }", script)
    user = compile_library(
        tmp_path / "libuser.so",
        "int g(); int h() { return g(); }",
        str(dependency),
        f"-Wl,-rpath,{tmp_path}",
    )
    versions.write_text("V1 { global: f; };\n")
    compile_library(dependency, "int f() { return 1; }", script)
    assert failure_of(user) == (dependency.name, "too old: it lacks V2, which libuser.so needs")
    dependency.unlink()
    assert failure_of(user) == (dependency.name, "")
    dependency.touch()
    assert failure_of(user) == (dependency.name, "file too short")
    orphan = compile_library(
        tmp_path / "liborphan.so", "int nowhere(); int h() { return nowhere(); }"
    )
    assert failure_of(orphan) == (orphan.name, "undefined symbol: nowhere")


def failure_of(path):
    with pytest.raises(OSError, match="lib") as caught:
        ctypes.CDLL(str(path))
    unloadable = explain(path.name, str(caught.value))
    return unloadable.library, unloadable.reason


@pytest.fixture
def set_driver(monkeypatch):
    """A B200 beside an H200, and a runtime for CUDA 13; a test changes what the driver says."""
    gpus = (GpuFacts("NVIDIA B200", "10.0", 0), GpuFacts("NVIDIA H200", "9.0", 0))

    def have(driver="13.0", runtime="13.0", bindings="13.5.0"):
        monkeypatch.setattr(libraries, "ask_driver", lambda: DriverFacts(None, 0, driver, gpus))
        monkeypatch.setattr("detcli.backend.nvidia.ask_driver", libraries.ask_driver)
        monkeypatch.setattr(onnxruntime, "cuda_version", runtime, raising=False)
        monkeypatch.setattr(onnxruntime, "__version__", "1.31.1")
        monkeypatch.setattr(importlib.metadata, "version", lambda _: bindings)

    return have


def test_a_gpu_without_code_is_refused_with_what_to_install(set_driver):
    set_driver()
    require_code(1)
    require_one_cuda()
    with pytest.raises(DeviceError, match="no code for NVIDIA B200") as caught:
        require_code(0)
    assert caught.value.hint == 'pip install "detcli[cuda12]"; or use --device cpu'
    set_driver(driver="11.8")
    with pytest.raises(DeviceError) as caught:
        require_code(0)
    assert caught.value.hint == "use --device cpu"


def test_a_runtime_that_is_newer_than_what_was_looked_into_refuses_nothing(set_driver, monkeypatch):
    set_driver()
    require_code(7)  # which is refused elsewhere
    monkeypatch.setattr(onnxruntime, "__version__", "9.0.0")
    require_code(0)


@pytest.mark.parametrize(
    ("runtime", "bindings", "driver", "extra"),
    [("12.8", "13.5.0", "13.0", "cuda"), ("13.0", "12.9.10", "12.4", "cuda12")],
)
def test_both_extras_at_once_are_refused(set_driver, runtime, bindings, driver, extra):
    set_driver(driver, runtime, bindings)
    with pytest.raises(DeviceError, match="the extras cuda and cuda12 are mixed: ") as caught:
        require_one_cuda()
    assert f"CUDA {runtime}, cuda-bindings is {bindings}" in str(caught.value)
    assert caught.value.hint == f'pip install "detcli[{extra}]"; or use --device cpu'


# ---------------------------------------------------------------- what a provider takes of a graph


@pytest.fixture
def runtime(monkeypatch):
    """A runtime with these providers and the nodes they run; None fails to load."""

    def fake(**parts):
        opened = []
        placed = {f"{name}ExecutionProvider": nodes for name, nodes in parts.items()}
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: list(placed))

        def require(name):
            if placed[name] is None:
                raise DeviceError(f"{name} is missing", "install it")

        def open_session(_graph, providers, title):
            opened.append((providers, title))
            reported = placed[providers[0][0]]
            return object() if reported == "nothing" else session_of(reported)

        monkeypatch.setattr(libraries, "require_provider", require)
        monkeypatch.setattr(libraries, "open_session", open_session)
        return opened

    return fake


def test_nodes_taken_are_counted_and_nodes_left_are_named(runtime):
    placed = [(CUDA, [node("Conv")] * 3 + [node("Mul")]), (CPU_NAME, [node("Odd", "/odd", "my")])]
    runtime(CUDA=placed + [(CUDA, [node("Mul")])], CPU="nothing")
    left = (LeftNode("/odd", "my.Odd", CPU_NAME),)
    assert survey(b"", "model") == (
        Placement(CUDA, usable=True, taken={"Conv": 3, "Mul": 2}, left=left),
        Placement(CPU_NAME, usable=True),  # an older ONNX Runtime, which reports no nodes
    )


def test_a_provider_that_does_not_load_is_reported_and_not_opened(runtime):
    opened = runtime(Tensorrt=None, CUDA=None, CPU=[(CPU_NAME, [node("Conv")])])
    tensorrt, cuda, cpu = survey(b"", "model")
    assert tensorrt == Placement(
        TENSORRT,
        usable=False,
        reason="TensorrtExecutionProvider is missing",
        hint="install it",
    )
    assert cuda == Placement(
        CUDA, usable=False, reason="CUDAExecutionProvider is missing", hint="install it"
    )
    assert cpu == Placement(CPU_NAME, usable=True, taken={"Conv": 1}, left=())
    assert opened == [([(CPU_NAME, {})], "model")]


def test_tensorrt_falls_back_to_cuda_and_builds_with_the_least_effort(runtime):
    opened = runtime(Tensorrt=[(TENSORRT, [node("Conv")]), (CUDA, [node("Mod")])])
    (placement,) = survey(b"", "model")
    assert placement.left == (LeftNode("", "Mod", CUDA),)
    assert opened == [([(TENSORRT, libraries.QUICK_BUILD), (CUDA, {})], "model")]


def test_a_real_runtime():
    model = colour_model.build("authors")
    placements = survey(model.SerializeToString(), "colours")
    assert [placement.provider for placement in placements] == onnxruntime.get_available_providers()
    for placement in placements:
        assert placement.usable == (not placement.reason) == (not placement.hint)
    cpu = placements[-1]
    assert cpu.provider == CPU_NAME
    assert cpu.usable is True
    if hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):
        assert cpu.left == ()
        assert cpu.taken["TopK"] == 2
    model.graph.node[0].op_type = "NoSuchOperator"
    error = refusal(model.SerializeToString(), "colours")
    assert isinstance(error, ModelError)
    assert survey(model.SerializeToString(), "colours")[-1] == Placement(
        CPU_NAME, usable=False, reason=str(error), hint=error.hint
    )
