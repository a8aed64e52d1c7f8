"""The structure that the documentation promises, read from the code."""

import ast
from pathlib import Path

import pytest

import detcli

PACKAGE = Path(detcli.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
MODEL_FILES = sorted((PACKAGE.parent / "models").rglob("*.py"))  # what trains the bundled model

# Imports point from a lower number to the same or a higher one, never back.
LAYERS = [
    {"cli", "__main__"},
    {"inspection", "conversion", "verify", "doctor", "bench", "evaluation"},
    {"stream", "detector"},
    {"backend", "model", "sink", "settings", "draw"},
    {
        "geometry",
        "classes",
        "timing",
        "detections",
        "topk",
        "record",
        "files",
        "opencv",
        "printable",
        "processor",
        "errors",
        "__init__",
    },
]
LAYER = {part: number for number, parts in enumerate(LAYERS) for part in parts}


def part_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    """Modules of detcli that a file imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("detcli"):
            if node.module == "detcli":
                yield from (f"detcli.{alias.name}" for alias in node.names)
            else:
                yield node.module
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("detcli"))


def test_every_part_has_a_layer():
    assert {part_of(path) for path in FILES} <= set(LAYER)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    if part_of(path) == "__init__":
        return  # the public names come from anywhere, when they are used
    for module in imports(path):
        part = module.split(".")[1]
        if part == "__version__":
            continue
        assert LAYER[part] >= LAYER[part_of(path)], f"{path} imports {module}"


def test_only_open_backend_knows_the_backends():
    importers = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        for module in imports(path)
        if module.startswith(("detcli.backend.cpu", "detcli.backend.cuda"))
        and part_of(path) != "backend"
    } | {
        str(path.relative_to(PACKAGE))
        for path in (PACKAGE / "backend").glob("*.py")
        for module in imports(path)
        if module.startswith(("detcli.backend.cpu", "detcli.backend.cuda"))
    }
    assert importers == {"backend/__init__.py"}


def test_only_the_driver_and_the_compiler_talk_to_cuda():
    importers = {
        path.name
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "cuda"
    }
    assert importers == {"driver.py", "program.py"}


def test_only_the_command_line_prints():
    printing = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    }
    assert printing == {"cli/messages.py"}


def test_the_product_does_not_import_what_trains_its_model():
    imported = {
        name.split(".")[0]
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names] if isinstance(node, ast.Import)
            else []
        )
    }  # fmt: skip
    assert MODEL_FILES
    assert not imported & {"codes", "models", "torch", "segno", "zxingcpp", "skimage", "sklearn"}


def test_files_stay_short():
    assert {
        path.name: len(path.read_text().splitlines())
        for path in [*FILES, *MODEL_FILES]
        if _long(path)
    } == {}


def _long(path):
    return len(path.read_text().splitlines()) > 300


def test_tests_mirror_the_package():
    """Each test file tests the module that its name begins with, or one of these wider things."""
    wider = {
        "test_architecture",
        "test_packaging",
        "test_docs",
        "test_troubleshooting",
        "test_real_models",
        "test_backends",
        "test_barriers",
        "test_shim",
        "test_devices",
        "test_gpu_benchmark",
        "test_gpu_check",
        "test_shipped",
    }
    modules = tuple(str(path.relative_to(PACKAGE).with_suffix("")) for path in FILES) + tuple(
        str(path.relative_to(PACKAGE.parent).with_suffix("")) for path in MODEL_FILES
    )
    tests = Path(__file__).parent
    for path in tests.rglob("test_*.py"):
        if path.stem not in wider:
            tested = path.relative_to(tests).with_name(path.stem.removeprefix("test_"))
            assert str(tested).startswith(modules)
