"""Every command of docs/troubleshooting.md is run and prints what the page promises."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import hub_server
import numpy as np
import pytest
from colour_model import build, image
from commands.doctor.fakes import fake_driver
from documentation.shells import skip_without_jq
from graph_edits import insert_nodes, position_of_producer
from installed import install_metadata
from onnx import helper, numpy_helper
from thinning import thin

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[1] / "docs/troubleshooting.md"
NAMES = {0: "person", 1: "bus", 2: "car"}
MARK = "=-=-= end of a command"

OLD_DRIVER = "CUDA driver version is insufficient for CUDA runtime version"
NO_CODE = "no kernel image is available for execution on the device"
NO_DESKTOP = "libxcb.so.1: cannot open shared object file"
OLD_CODE = "__version__ = '4.10.0'\nimdecode = None\n"
OLD_OPENCV = "An older OpenCV is installed over ours"
TWO_WHEELS = "CUDAExecutionProvider is not in the list of available providers"


def blocks():
    """Title of the section and text of each block of commands."""
    text = PAGE.read_text(encoding="utf-8")
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        for block in re.findall(r"^```console\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
            yield title, block


def commands(block):
    """Each command with the lines that must be in what it prints, in that order."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        command = lines[0].replace("--seconds 1 ", "--seconds 0.1 ")
        yield command, lines[1:]


BLOCKS = list(blocks())
TRIED = thin("complaints of docs/troubleshooting.md", BLOCKS, count=3)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The models that the page names, small ones whose answers are known."""
    folder = tmp_path_factory.mktemp("models")
    metadata = {"names": str(NAMES), "stride": "8"}
    content_of = {
        "yolov10n.onnx": boosted(build("ultralytics", size=640, keep=300, metadata=metadata)),
        "half.onnx": boosted(build(size=640, dtype=np.float16, metadata=metadata)),
        "unnamed.onnx": build(size=640),
        "transposed.onnx": build("transposed", size=640, metadata=metadata),
        "yolov8n.onnx": build("one-to-many", size=640, metadata=metadata),
    }
    for name, model in content_of.items():
        (folder / name).write_bytes(model.SerializeToString())
    return folder


def boosted(model):
    """Multiply the scores by 1e6, in two steps that float16 can write down, and divide again."""
    graph = model.graph
    dtype = helper.tensor_dtype_to_np_dtype(graph.input[0].type.tensor_type.elem_type)
    graph.initializer.append(numpy_helper.from_array(np.array(1000, dtype), "thousand"))
    chain = ["raw_scores", "boosted", "boosted_again", "lowered", "scores"]
    position = position_of_producer(graph, "scores")
    graph.node[position].output[:] = ["raw_scores"]
    nodes = []
    for step, operator in enumerate(("Mul", "Mul", "Div", "Div")):
        node = helper.make_node(operator, [chain[step], "thousand"], [chain[step + 1]])
        node.name = chain[step + 1]
        nodes.append(node)
    insert_nodes(graph, position + 1, nodes)
    return model


@pytest.fixture(scope="module")
def fetched_folder(models, tmp_path_factory):
    """The folder of a library that has fetched one of the models."""
    folder = tmp_path_factory.mktemp("fetched")
    hub_server.fetch("yolov10n", (models / "yolov10n.onnx").read_bytes(), folder)
    return folder


@pytest.fixture
def troubled_workplace(tmp_path, models, fetched_folder, monkeypatch):
    """A folder with everything that the page names, and the model that was fetched by name."""
    for path in models.iterdir():
        shutil.copy(path, tmp_path)
    (tmp_path / "yolov10n.onnx").unlink()
    monkeypatch.setenv("HF_HOME", str(fetched_folder))
    (tmp_path / "names.txt").write_text("person\nbus\ncar\n")
    (tmp_path / "pics").mkdir()
    pixels = image(("red", 2, 3), ("green", 30, 10), size=(384, 640))
    cv2.imwrite(str(tmp_path / "pics/street.png"), pixels)
    shutil.copy(tmp_path / "pics/street.png", tmp_path / "street.jpg")  # its name does not matter
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def environment_without_gpu(troubled_workplace, warm_detcli, title, block):
    """A machine without a display, and for what is about GPUs, with one whose libraries lack."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the page shows Linux")
    path = [warm_detcli, Path(sys.executable).parent, os.environ["PATH"]]
    environment = {**os.environ, "PATH": os.pathsep.join(map(str, path)), "COLUMNS": "160"}
    if re.search("GPU|cuda", title + block):
        libraries = troubled_workplace / "driver"
        fake_driver(
            libraries,
            version=12040 if title == OLD_DRIVER else 13000,
            capability=(10, 0) if title == NO_CODE else (9, 0),
        )
        environment["LD_LIBRARY_PATH"] = str(libraries)
        without = "import sys; sys.modules['openvino'] = None"  # as plain installations are
        (libraries / "sitecustomize.py").write_text(without)
        environment["PYTHONPATH"] = str(libraries)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM", "CUDA_VISIBLE_DEVICES",
                 "DETCLI_DEVICE"):  # fmt: skip
        environment.pop(name, None)
    if "bucket" in title:
        environment["AWS_EC2_METADATA_DISABLED"] = "true"
        environment["HOME"] = str(troubled_workplace)  # whoever works here may have signed in
    if title == TWO_WHEELS:
        environment["PYTHONPATH"] = str(install_two_wheels(troubled_workplace / "wheels"))
    if title == NO_DESKTOP:
        code = f"raise ImportError({NO_DESKTOP!r})"
        environment["PYTHONPATH"] = str(install_opencv(troubled_workplace / "wheels", code))
    if title == OLD_OPENCV:
        environment["PYTHONPATH"] = str(install_opencv(troubled_workplace / "wheels", OLD_CODE))
        install_metadata(troubled_workplace / "wheels", "opencv-contrib-python", "4.10.0.84", "cv2")
    return environment


def install_two_wheels(folder):
    """Put the metadata of both wheels on a path."""
    for name in ("onnxruntime", "onnxruntime-gpu"):
        install_metadata(folder, name, "1.28.0", "onnxruntime")
    return folder


def install_opencv(folder, code):
    """Put an opencv-python on a path whose module is this code."""
    install_metadata(folder, "opencv-python", "5.0.0.93", "cv2")
    (folder / "cv2.py").write_text(code)
    return folder


def run(block, environment):
    """What each command of a block prints, stderr included, and its exit code; all in one shell."""
    script = ""
    for command, _ in commands(block):
        script += f"{{ {command}\n}} 2>&1\n"
        script += f"code=$?; printf '\\n%s {MARK}\\n' $code; (exit $code)\n"
    process = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script],  # noqa: S607 - bash is wherever it is
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    results = []
    for part in process.stdout.split(MARK)[:-1]:
        printed, _, code = part.rstrip().rpartition("\n")
        results.append((printed, int(code)))
    return results


def skip_without_what_the_page_assumes(block):
    import onnxruntime

    skip_without_jq(block)
    if "CUDA 13.0" in block and getattr(onnxruntime, "cuda_version", None) != "13.0":
        pytest.skip("this ONNX Runtime was built for another CUDA")
    if "libcublasLt.so.13" in block and not lacks_cuda():
        pytest.skip("this machine has CUDA's libraries")
    if "DISPLAY is not set" in block and not cv2.currentUIFramework():
        pytest.skip("this OpenCV is built without windows")


def lacks_cuda():
    from detcli.backend.libraries import CUDA, unloadable_libraries
    from detcli.backend.session import onnxruntime

    if CUDA not in onnxruntime.get_available_providers():
        return False
    missing = {failure.library for failure in unloadable_libraries(CUDA) if not failure.reason}
    return {"libcudnn.so.9", "libcublasLt.so.13"} <= missing


SHORT_TITLES = [title[:30] for title, _ in TRIED]


@pytest.mark.parametrize(("title", "block"), TRIED, ids=SHORT_TITLES)
def test_a_complaint_is_answered(title, block, environment_without_gpu):
    assert title
    skip_without_what_the_page_assumes(block)
    results = run(block, environment_without_gpu)
    for (command, lines), (printed, code) in zip(commands(block), results, strict=True):
        assert "Traceback" not in printed
        assert "Error: No such" not in printed, printed
        assert lines or code == 0, f"$ {command}\nends with {code}:\n{printed}"
        rest = " ".join(printed.split())
        for line in lines:
            before, found, rest = rest.partition(" ".join(line.split()))
            assert found, f"$ {command}\nprints no '{line}', but\n{printed}\n(looked in {before})"


def test_every_section_has_a_command_with_something_to_see():
    sections = re.findall(r"^## (.+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(sections) == {title for title, _ in BLOCKS}
    for word in ("GPU is not used", "libcublasLt.so.13", "shifted", "296 classes", "class_0",
                 "stdout"):  # fmt: skip
        assert word in "\n".join(sections)
    for title, block in BLOCKS:
        all_lines = []
        for _, lines in commands(block):
            all_lines += lines
        assert all_lines, title
