"""The wheel holds the package and nothing else; a release says where its sources are."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import optional
import pytest
from packaging.requirements import Requirement

import detcli

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


def build(folder, kind, **variables):
    command = [sys.executable, "-m", "build", kind, "--no-isolation", "--outdir", folder, ROOT]
    finished = subprocess.run(
        command, check=False, capture_output=True, text=True, env=os.environ | variables
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    with zipfile.ZipFile(build(tmp_path_factory.mktemp("wheel"), "--wheel")) as archive:
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
    assert "Classifier: Private :: Do Not Upload" in metadata  # nobody said where the sources are
    assert "Requires-Python: >=3.11" in metadata
    assert any(need.startswith("Requires-Dist: zxing-cpp>=") for need in needs)  # of no extra
    assert "platform_machine" in gpu
    assert "platform_machine" in cpu
    extra = [need for need in needs if "extra == 'cuda'" in need]
    assert [name for name in ("onnxruntime-gpu[cuda,cudnn]", "cuda-core[cu13]", "nvidia-cuda-nvrtc")
            if not any(f" {name}" in need for need in extra)] == []  # fmt: skip
    assert all("platform_machine" in need for need in extra)
    older = [need for need in needs if "extra == 'cuda12'" in need]
    assert len(older) == 5
    assert all("platform_machine" in need for need in older)
    assert b"detcli = detcli.__main__:main" in wheel.read(
        f"detcli-{detcli.__version__}.dist-info/entry_points.txt"
    )


def test_what_tests_ask_for_is_in_the_extra_for_ci_alone():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = {name: [] for name in ("dev", "dev-all")}
    for name, requirements in needs.items():
        for line in project["optional-dependencies"][name]:
            requirements.append(Requirement(line))
    extends = needs["dev-all"][0]
    assert extends.name == "detcli"
    assert extends.extras == {"dev"}
    names = {name: {need.name for need in requirements} for name, requirements in needs.items()}
    assert names["dev"] & names["dev-all"] == set()
    assert names["dev-all"] >= set(optional.PACKAGES.values())


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
    assert all("2.0" not in one["cuda-core"].specifier for one in (thirteen, twelve))  # its API
    assert thirteen["cuda-core"].extras == {"cu13"}
    assert twelve["cuda-core"].extras == {"cu12"}
    for version in ("1.23.2", "1.26.0", "1.26.9", "1.27.0", "1.28.0", "1.31.1", "2.0"):
        allowed = [version in one["onnxruntime-gpu"].specifier for one in (thirteen, twelve)]
        assert allowed != [True, True]


def test_a_release_says_where_its_sources_are(tmp_path):
    """Every link of README that is not one leads to a file of the release's tag."""
    place = "https://host.invalid/owner/detcli"
    folder, tag = f"detcli-{detcli.__version__}", f"v{detcli.__version__}"
    with tarfile.open(build(tmp_path, "--sdist", DETCLI_REPOSITORY=f"{place}/")) as archive:
        assert {f"{folder}/{name}.md" for name in ("CONTRIBUTING", "SECURITY")} < {
            *archive.getnames()
        }
        text = archive.extractfile(f"{folder}/PKG-INFO").read().decode()
    head, _, page = text.partition("\n\n")
    assert f"Project-URL: Source, {place}\n" in head
    assert "Private" not in head
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)#]+)", page)
    assert [link for _, link in links if not link.startswith("https://")] == []
    ours = [(image, link) for image, link in links if link.startswith(place)]
    assert len(ours) > 30
    for image, link in ours:
        start = f"{place}/{'raw' if image else 'blob'}/{tag}/"
        assert link.startswith(start)
        assert (ROOT / link.removeprefix(start)).is_file()


def test_the_classifiers_are_the_pythons_that_the_requirements_name():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["classifiers"]
    minor = [int(one.rpartition(".")[2]) for one in listed if re.search(r"3\.\d+$", one)]
    assert f">=3.{minor[0]}" == project["project"]["requires-python"]
    assert minor == [*range(minor[0], minor[-1] + 1)]
