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
SUFFIXES = {
    ".py",
    ".json",
    ".typed",
    ".cu",
    ".cuh",
    ".jpg",
    ".onnx",
    ".html",
    ".css",
    ".js",
    ".svg",
}
"""Of the package's files; some files have no suffix."""


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
    expected = {"detcli/py.typed"}
    for path in (ROOT / "detcli").rglob("*"):
        if path.is_file() and path.suffix in SUFFIXES | {""}:
            expected.add(str(path.relative_to(ROOT)))
    for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"):
        expected.add(f"detcli-{detcli.__version__}.dist-info/{name}")
    assert set(wheel.namelist()) == expected


def lines_with(text, lines):
    return [line for line in lines if text in line]


def test_metadata(wheel):
    metadata = wheel.read(f"detcli-{detcli.__version__}.dist-info/METADATA").decode()
    requirements = []
    for line in metadata.splitlines():
        if line.startswith("Requires-Dist"):
            requirements.append(line)
    gpu = lines_with(" onnxruntime-gpu>", requirements)[0]
    cpu = lines_with(" onnxruntime>", requirements)[0]
    assert "License-Expression: Apache-2.0" in metadata
    assert "Classifier: Private :: Do Not Upload" in metadata  # nobody said where the sources are
    assert "Requires-Python: >=3.11" in metadata
    assert "\nRequires-Dist: zxing-cpp>=" in metadata  # of no extra
    assert "platform_machine" in gpu
    assert "platform_machine" in cpu
    cuda_13 = lines_with("extra == 'cuda'", requirements)
    for name in ("onnxruntime-gpu[cuda,cudnn]", "cuda-core[cu13]", "nvidia-cuda-nvrtc"):
        assert lines_with(f" {name}", cuda_13) != [], name
    assert lines_with("platform_machine", cuda_13) == cuda_13
    cuda_12 = lines_with("extra == 'cuda12'", requirements)
    assert len(cuda_12) == 5
    assert lines_with("platform_machine", cuda_12) == cuda_12
    assert b"detcli = detcli.__main__:main" in wheel.read(
        f"detcli-{detcli.__version__}.dist-info/entry_points.txt"
    )


def requirements_of_extra(extra):
    """What an extra of pyproject.toml requires, in its order."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = []
    for line in project["optional-dependencies"][extra]:
        requirements.append(Requirement(line))
    return requirements


def by_name(requirements):
    return {requirement.name: requirement for requirement in requirements}


def test_what_tests_ask_for_is_in_the_extra_for_ci_alone():
    dev = requirements_of_extra("dev")
    dev_all = requirements_of_extra("dev-all")
    assert dev_all[0].name == "detcli"
    assert dev_all[0].extras == {"dev"}
    assert by_name(dev).keys() & by_name(dev_all).keys() == set()
    assert by_name(dev_all).keys() >= set(optional.PACKAGES.values())


def test_the_extras_for_cuda_12_and_13_refuse_each_other():
    """pip finds no ONNX Runtime that both allow, and no cuda-bindings."""
    cuda_13 = by_name(requirements_of_extra("cuda"))
    cuda_12 = by_name(requirements_of_extra("cuda12"))
    assert cuda_13["onnxruntime-gpu"].extras == {"cuda", "cudnn"}
    assert cuda_12["onnxruntime-gpu"].extras == {"cuda", "cudnn"}
    assert "2.0" not in cuda_13["cuda-core"].specifier  # its API
    assert "2.0" not in cuda_12["cuda-core"].specifier
    assert cuda_13["cuda-core"].extras == {"cu13"}
    assert cuda_12["cuda-core"].extras == {"cu12"}
    for version in ("1.23.2", "1.26.0", "1.26.9", "1.27.0", "1.28.0", "1.31.1", "2.0"):
        is_allowed_by_13 = version in cuda_13["onnxruntime-gpu"].specifier
        is_allowed_by_12 = version in cuda_12["onnxruntime-gpu"].specifier
        assert not (is_allowed_by_13 and is_allowed_by_12), version


def test_a_release_says_where_its_sources_are(tmp_path):
    """Every relative link of README leads to a file of the release's tag."""
    repository = "https://host.invalid/owner/detcli"
    folder = f"detcli-{detcli.__version__}"
    with tarfile.open(build(tmp_path, "--sdist", DETCLI_REPOSITORY=f"{repository}/")) as archive:
        names = archive.getnames()
        text = archive.extractfile(f"{folder}/PKG-INFO").read().decode()
    assert f"{folder}/CONTRIBUTING.md" in names
    assert f"{folder}/SECURITY.md" in names
    head, _, page = text.partition("\n\n")
    assert f"Project-URL: Source, {repository}\n" in head
    assert "Private" not in head

    count = 0
    for exclamation_mark, link in re.findall(r"(!?)\[[^\]]*\]\(([^)#]+)", page):
        assert link.startswith("https://")
        if link.startswith(repository):
            view = "raw" if exclamation_mark else "blob"
            start = f"{repository}/{view}/v{detcli.__version__}/"
            assert link.startswith(start)
            assert (ROOT / link.removeprefix(start)).is_file()
            count += 1
    assert count > 30


def test_the_classifiers_are_the_pythons_that_the_requirements_name():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    classifiers = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["classifiers"]
    minor_versions = []
    for classifier in classifiers:
        if re.search(r"3\.\d+$", classifier):
            minor_versions.append(int(classifier.rpartition(".")[2]))
    first = minor_versions[0]
    last = minor_versions[-1]
    assert f">=3.{first}" == project["project"]["requires-python"]
    assert minor_versions == list(range(first, last + 1))
