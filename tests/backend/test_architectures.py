"""The architectures in a library: of NVIDIA's own fat binaries, and of the real provider."""

import re
import struct
from pathlib import Path

import pytest

from detcli.backend.architectures import (
    BEGINNING,
    ENTRY,
    HEADER,
    embedded_architectures,
    lacking,
    supports,
)
from detcli.backend.nvidia import CUDA_EXTRAS

ROOT = Path(__file__).parents[2]
CODE = b'extern "C" __global__ void kernel(int* out) { *out = 1; }'
READ_FROM = {
    "1.31.1": "cuda",
    **dict.fromkeys(("1.23.2", "1.24.4", "1.25.1", "1.26.0"), "cuda12"),
}
"""Wheels of onnxruntime-gpu whose architectures CUDA_EXTRAS lists."""


def fat_binary(names):
    """Code for these architectures, compiled and put together by NVIDIA's libraries."""
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    from cuda.bindings import nvfatbin, nvrtc

    handle = nvfatbin.create([], 0)
    for name in names:
        _, program = nvrtc.nvrtcCreateProgram(CODE, b"kernel.cu", 0, [], [])
        assert nvrtc.nvrtcCompileProgram(program, 1, [f"-arch={name}".encode()])[0] == 0
        if name.startswith("sm_"):
            _, size = nvrtc.nvrtcGetCUBINSize(program)
            nvrtc.nvrtcGetCUBIN(program, code := bytearray(size))
            nvfatbin.add_cubin(handle, bytes(code), size, name[3:], "kernel")
        else:
            _, size = nvrtc.nvrtcGetPTXSize(program)
            nvrtc.nvrtcGetPTX(program, code := bytearray(size))
            nvfatbin.add_ptx(handle, bytes(code), size, name[8:], "kernel", "")
    nvfatbin.get(handle, whole := bytearray(nvfatbin.size(handle)))
    return bytes(whole)


def test_nvidias_fat_binaries_are_read(tmp_path):
    first, second = ["sm_75", "sm_90a", "compute_90"], ["sm_80", "sm_90", "sm_120a", "sm_75"]
    file = tmp_path / "library.so"
    between = BEGINNING[:4] + bytes(40)  # the magic number alone, as in the code that checks it
    file.write_bytes(between + fat_binary(first) + between + fat_binary(second) + b"end")
    assert embedded_architectures(file) == (
        *("sm_75", "sm_80", "compute_90", "sm_90", "sm_90a", "sm_120a"),
    )


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 64) - 1])
@pytest.mark.parametrize("entry", [b"", bytes(ENTRY.size), b"\xff" * ENTRY.size, b"\1" * 20])
def test_damaged_files_are_read_to_their_end(size, entry, tmp_path):
    file = tmp_path / "library.so"
    file.write_bytes(BEGINNING + struct.pack("<Q", size) + entry)
    assert len(embedded_architectures(file)) <= 1
    file.write_bytes(BEGINNING)
    assert embedded_architectures(file) == ()
    file.write_bytes(b"")
    assert embedded_architectures(file) == ()
    assert HEADER.size == 16


@pytest.mark.parametrize(
    ("architectures", "capabilities", "others"),
    [
        (["sm_80"], ["8.0", "8.6", "8.9"], ["7.5", "9.0", "12.0"]),
        (["sm_86"], ["8.6", "8.9"], ["8.0", "9.0"]),
        (["sm_90a"], ["9.0"], ["8.9", "9.1", "10.0"]),
        (["compute_90"], ["9.0", "10.0", "10.3", "12.1"], ["8.9"]),
        (["compute_90a"], ["9.0"], ["10.0"]),
        (["sm_120a", "nonsense"], ["12.0"], ["12.1", "10.0"]),
        ([], [], ["9.0"]),
    ],
)
def test_what_code_runs_on(architectures, capabilities, others):
    assert [one for one in capabilities if not supports(architectures, one)] == []
    assert [one for one in others if supports(architectures, one)] == []


def test_the_sentence_about_a_gpu_without_code():
    assert lacking("NVIDIA B200", "10.0", ["compute_90", "sm_75", "sm_90a", "sm_120a"]) == (
        "this ONNX Runtime has no code for NVIDIA B200, of compute capability 10.0: "
        "it was compiled for 7.5, 9.0, 12.0"
    )


def test_the_installed_provider_has_code_for_what_its_extra_names():
    """In the real file. The first sentence that a GPU's owner reads depends on it."""
    from detcli.backend.runtime import onnxruntime
    from detcli.backend.runtime.libraries import provider_architectures

    extra = next(
        (one for one in CUDA_EXTRAS if one.name == READ_FROM.get(onnxruntime.__version__)), None
    )
    if extra is None or not (found := provider_architectures()):
        pytest.skip("another ONNX Runtime than those that were read, or one without CUDA")
    assert set(found) == set(extra.architectures)


def test_the_readme_names_drivers_and_gpus_of_each_extra():
    """Each GPU with its compute capability; those in brackets are the ones it leaves out."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for extra in CUDA_EXTRAS:
        (row,) = re.findall(rf"^\| `{extra.name}` \|(.*)\|$", text, re.MULTILINE)
        driver, runs, other = row.split("|")
        assert driver.strip() == f"{extra.driver} or later"
        for capabilities, expected in ((runs, True), (other, False)):
            named = re.findall(r"\((\d+\.\d)\)", capabilities)
            assert named
            assert [one for one in named if supports(extra.architectures, one) != expected] == []
