"""The reason why a provider does not load, from a loader that misses what a test names."""

import ctypes
import sys

import onnxruntime
import pytest

from detcli.backend.runtime.libraries import CUDA, TENSORRT, require_provider
from detcli.errors import DeviceError

NEED_CUBLAS = ("providers_cuda.so", "providers_tensorrt.so")


class Loader:
    """Stands in for ctypes.CDLL; a provider's library misses what is missing."""

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
    monkeypatch.setattr(ctypes, "CDLL", loader)
    return loader


def test_a_missing_driver_is_named(loader):
    loader.missing.append("libcuda.so.1")
    with pytest.raises(DeviceError, match=r"libcuda\.so\.1 \(NVIDIA's driver\)") as caught:
        require_provider(CUDA)
    assert "install the NVIDIA driver" in caught.value.hint
    assert "pip" not in caught.value.hint


@pytest.mark.parametrize(
    ("library", "owner"),
    [("libcublasLt.so.13", "the CUDA runtime"), ("libcudnn.so.9", "cuDNN")],
)
def test_a_missing_cuda_library_is_named_with_what_brings_it(library, owner, loader):
    loader.missing.append(library)
    with pytest.raises(DeviceError) as caught:
        require_provider(CUDA)
    assert f"missing: {library} ({owner})" in str(caught.value)
    assert "pip install 'detcli[cuda]'" in caught.value.hint


def test_all_that_is_missing_is_named_once(loader):
    loader.missing.extend(["libcuda.so.1", "libcublas.so.13"])
    with pytest.raises(DeviceError) as caught:
        require_provider(TENSORRT)
    assert str(caught.value).count("libcuda.so.1") == 1
    assert str(caught.value).count("libcublas.so.13") == 1


def test_nothing_missing_passes_and_nothing_is_printed(loader, capfd):
    require_provider(CUDA)
    assert capfd.readouterr() == ("", "")
    assert not any("nvinfer" in name for name in loader.loaded)  # half a gigabyte


@pytest.mark.parametrize("library", ["libnvinfer.so.10", "libnvonnxparser.so.10"])
def test_a_missing_tensorrt_is_named_with_its_package(library, loader):
    loader.missing.append(library)
    with pytest.raises(DeviceError) as caught:
        require_provider(TENSORRT)
    assert f"missing: {library} (TensorRT)" in str(caught.value)
    assert "tensorrt-cu13-libs>=10.13,<11" in caught.value.hint
    require_provider(CUDA)


def test_tensorrt_is_loaded_from_where_pip_puts_it_before_its_provider(
    loader, tmp_path, monkeypatch
):
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


def test_a_build_without_the_provider_is_named(monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(DeviceError, match="built without CUDAExecutionProvider"):
        require_provider(CUDA)
