"""The wheel holds the package and nothing else."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import detcli

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    finished = subprocess.run(command, check=False, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_the_wheel_holds_the_package_its_licence_and_metadata(wheel):
    package = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "detcli").rglob("*")
        if path.is_file()
        and path.suffix
        in {".py", ".json", ".typed", ".cu", ".cuh", ".jpg", ".onnx"}
        | {".html", ".css", ".js", ".svg"}
        | {""}
    } | {"detcli/py.typed"}
    info = f"detcli-{detcli.__version__}.dist-info"
    extra = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    assert set(wheel.namelist()) == package | {f"{info}/{name}" for name in extra}


def test_metadata(wheel):
    metadata = wheel.read(f"detcli-{detcli.__version__}.dist-info/METADATA").decode()
    needs = [line for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    gpu, cpu = (
        next(n for n in needs if f" {name}>" in n) for name in ("onnxruntime-gpu", "onnxruntime")
    )
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata
    assert any(need.startswith("Requires-Dist: zxing-cpp>=") for need in needs)  # of no extra
    assert "platform_machine" in gpu
    assert "platform_machine" in cpu
    extra = [need for need in needs if "extra == 'cuda'" in need]
    assert [name for name in ("onnxruntime-gpu[cuda,cudnn]", "cuda-core[cu13]", "nvidia-cuda-nvrtc")
            if not any(f" {name}>=" in need for need in extra)] == []  # fmt: skip
    assert all("platform_machine" in need for need in extra)
    older = [need for need in needs if "extra == 'cuda12'" in need]
    assert len(older) == 5
    assert all("platform_machine" in need for need in older)
    assert b"detcli = detcli.__main__:main" in wheel.read(
        f"detcli-{detcli.__version__}.dist-info/entry_points.txt"
    )


def test_the_extras_for_cuda_12_and_13_refuse_each_other():
    """pip finds no ONNX Runtime that both allow, and no cuda-bindings."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    thirteen, twelve = (
        {need.name: need for need in map(Requirement, extras[name])} for name in ("cuda", "cuda12")
    )
    assert (
        {"cuda", "cudnn"} == thirteen["onnxruntime-gpu"].extras == twelve["onnxruntime-gpu"].extras
    )
    assert [thirteen["cuda-core"].extras, twelve["cuda-core"].extras] == [{"cu13"}, {"cu12"}]
    for version in ("1.23.2", "1.26.0", "1.26.9", "1.27.0", "1.28.0", "1.31.1", "2.0"):
        allowed = [version in one["onnxruntime-gpu"].specifier for one in (thirteen, twelve)]
        assert allowed != [True, True]
