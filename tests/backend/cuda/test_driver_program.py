"""Every kernel compiled by NVRTC, which needs no GPU; and the cache of compiled kernels."""

import importlib.metadata
import logging
import re
import subprocess
from types import SimpleNamespace

import optional
import pytest
import thinning

optional.require("cuda.core")

from detcli.backend.cuda import driver as program
from detcli.backend.cuda.driver import KERNELS, compile_file, entry_points
from detcli.core.errors import DependencyError, DeviceError

pytestmark = pytest.mark.slow

ARCHITECTURES = ["sm_75", "sm_120"]  # the oldest and the newest; the tests below take one between
ARCHITECTURES_BETWEEN = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100"]
FILES = sorted(KERNELS.glob("*.cu"))
CLASS_MAX = KERNELS / "class_max.cu"
READS = {"class_max": 8, "top_k": 4}
"""How many reads each thread of these kernels has to wait for at once, at least."""

SOURCE = """#include "value.cuh"
extern "C" __global__ void
    answer(int* out) {
  *out = VALUE;
}
"""


@pytest.fixture
def source(tmp_path):
    """A folder with one small kernel and its header."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "value.cuh").write_text("#define VALUE 42\n")
    path = folder / "answer.cu"
    path.write_text(SOURCE)
    return path


@pytest.fixture
def compilations(monkeypatch):
    """The sources that NVRTC is given."""
    requests = []

    class Counted(program.Program):
        def __init__(self, source, language, options):
            requests.append(source)
            super().__init__(source, language, options)

    monkeypatch.setattr(program, "Program", Counted)
    return requests


@pytest.mark.parametrize("architecture", thinning.thin("GPU architectures", ARCHITECTURES, 1))
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_kernel_compiles_without_a_warning(path, architecture, caplog, tmp_path):
    cubin = compile_file(path, architecture).code
    assert cubin.startswith(b"\x7fELF")
    for record in caplog.records:
        assert record.levelno < logging.WARNING, record.message
    functions = set(re.findall(rb"\.text\.(\w+)\0", cubin))
    kernels = set()
    for name, file in entry_points().items():
        if file == path:
            kernels.add(name.encode())
    assert functions == kernels
    if path.stem in READS:
        assert_many_reads(path.stem, cubin, tmp_path)


@pytest.mark.parametrize(
    "architecture", thinning.thin("GPU architectures between", ARCHITECTURES_BETWEEN, 1)
)
def test_a_thread_waits_for_many_reads_at_once(architecture, tmp_path):
    """On the architectures that the test above leaves out."""
    assert_many_reads("class_max", compile_file(CLASS_MAX, architecture).code, tmp_path)


def assert_many_reads(name, cubin, folder):
    """Threads wait for as many reads at once as READS says.

    If they wait for one after the other, they reach a third of the bandwidth, or less.
    """
    for kernel, code in machine_code(cubin, folder).items():
        assert reads_in_flight(code) >= READS[name], kernel
        assert not re.search(r"\b(LDL|STL)\b", code), f"{kernel} keeps registers in memory"


def machine_code(cubin, folder):
    """NVIDIA's listing of each kernel in a compiled file."""
    try:
        files = importlib.metadata.files("nvidia-cuda-nvdisasm")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("nvdisasm is not installed")
    disassemblers = [file.locate() for file in files if file.stem == "nvdisasm"]
    (folder / "cubin").write_bytes(cubin)
    command = [disassemblers[0], "-c", folder / "cubin"]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    sections = re.split(r"^\s*\.section\s+\.text\.", listing, flags=re.MULTILINE)
    return {section.partition(",")[0]: section for section in sections[1:]}


INSTRUCTION = re.compile(r"\*/ +(?:@!?U?P\w+ +)?(?P<name>[A-Z]\w*)\S* *(?P<operands>[^;]*);|^\.L_")
JUMPS = {"BRA", "BAR", "CALL", "EXIT", "RET"}


def reads_in_flight(code):
    """The most reads of global memory in a row, none of them needed before the last is asked for.

    Between them lies no jump, and nothing that takes a register which one of them fills.
    """
    max_in_flight = 0
    filled = []
    for line in code.splitlines():
        instruction = INSTRUCTION.search(line)
        if instruction is None:
            continue
        used = set(re.findall(r"\bR\d+", instruction["operands"] or ""))
        if instruction["name"] == "LDG":
            target = re.match(r"R\w+", instruction["operands"])[0]
            used -= {target} if instruction["operands"].count(target) == 1 else set()
        if instruction["name"] is None or instruction["name"] in JUMPS or used & set(filled):
            filled = []
        if instruction["name"] == "LDG":
            filled.append(target)
            max_in_flight = max(max_in_flight, len(filled))
    return max_in_flight


def test_every_entry_point_is_listed():
    """Even if its declaration is written in another way than ENTRY_POINT expects."""
    count = 0
    for path in FILES:
        code_without_comments = re.sub(r"//.*", "", path.read_text())
        count += code_without_comments.count("__global__")
    assert count == len(entry_points()) > 0
    assert "letterbox_float16" in entry_points()


def test_a_cached_kernel_is_not_compiled_again(cache, source, compilations):
    first = compile_file(source, "sm_90").code
    assert compile_file(source, "sm_90").code == first
    assert len(compilations) == 1
    assert first.startswith(b"\x7fELF")
    assert list(cache.iterdir()) == [cache / "kernels"]


def test_what_a_kernel_is_compiled_again_for(cache, source, compilations):  # noqa: ARG001
    """Another architecture, a changed file or header, a new one."""
    codes = [compile_file(source, "sm_80").code, compile_file(source, "sm_90").code]
    for path, old, new in [
        (source, "VALUE;", "VALUE+5;"),
        (source.with_name("value.cuh"), "VALUE 42", "VALUE 43"),
    ]:
        path.write_text(path.read_text().replace(old, new))
        codes.append(compile_file(source, "sm_90").code)
    assert len(set(codes)) == len(compilations) == 4
    source.with_name("other.cuh").write_text("")
    compile_file(source, "sm_90")
    assert len(compilations) == 5


@pytest.mark.parametrize(
    ("name", "old", "new", "line", "reason"),
    [
        ("answer.cu", "= VALUE", "= nonsense", 4, 'identifier "nonsense" is undefined'),
        (
            "value.cuh",
            "#define",
            "\n__device__ int value = ;\n#define",
            2,
            "expected an expression",
        ),
        ("answer.cu", "value.cuh", "gone.cuh", 1, 'cannot open source file "gone.cuh"'),
    ],
)
def test_an_error_names_file_and_line(name, old, new, line, reason, source):
    path = source.with_name(name)
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DeviceError) as caught:
        compile_file(source, "sm_90")
    assert str(caught.value) == f"{path}:{line}: does not compile for sm_90: {reason}"
    assert "--device cpu" in caught.value.hint


def test_an_error_without_a_line(source):
    source.write_text(
        'extern "C" __global__ void k(int* a) { __shared__ int b[99999]; *a = b[*a]; }'
    )
    with pytest.raises(DeviceError, match=r"answer\.cu: .* uses too much shared data \(0x"):
        compile_file(source, "sm_90")


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("sm_20", r"for sm_20: invalid value for --gpu-architecture"),
        ("compute_90", "no machine code for compute_90"),  # empty, and without an error
    ],
)
def test_an_architecture_without_machine_code_is_refused(
    architecture, message, source, compilations
):
    for _ in range(2):
        with pytest.raises(DeviceError, match=message):
            compile_file(source, architecture)
    assert len(compilations) == 2


def test_warnings_are_shown(source, caplog):
    source.write_text('extern "C" __global__ void k(int* a) { int idle; *a = 1; }')
    compile_file(source, "sm_90")
    assert 'variable "idle" was declared but never referenced' in caplog.text


def test_that_old_gpus_are_deprecated_is_not_shown(source, monkeypatch, caplog):
    """NVRTC 12 says so for each file on a P100 or V100, whose owner can do nothing about it."""

    class Program:
        def __init__(self, *_):
            pass

        def compile(self, _, logs):
            logs.write("nvrtc: warning: Architectures prior to '<compute/sm>_75' are deprecated")
            logs.write(" and may be removed in a future release\n\0")
            return SimpleNamespace(code=b"\x7fELF")

    monkeypatch.setattr(program, "Program", Program)
    assert compile_file(source, "sm_60").code == b"\x7fELF"
    assert not caplog.text


def test_without_nvrtc(source, monkeypatch):
    from cuda.pathfinder import DynamicLibNotFoundError

    def missing(*_):
        raise DynamicLibNotFoundError("no nvrtc")

    monkeypatch.setattr(program, "Program", missing)
    with pytest.raises(DependencyError, match="NVRTC") as caught:
        compile_file(source, "sm_90")
    assert "detcli[cuda]" in caught.value.hint
