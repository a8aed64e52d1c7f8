"""The structure that the documentation promises, read from the code."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import optional
import plain_code
import pytest
import structure
from structure import PACKAGE, cycles, import_graph, imports, nodes, room_graph

import detcli

FILES = structure.files()
MODEL_FILES = sorted((PACKAGE.parent / "models").rglob("*.py"))  # what trains the bundled model

LAYERS = [
    {"__main__"},
    {"commands"},
    {"cli", "compare"},
    {"run"},
    {"page"},
    {"source", "sink", "analytics"},
    {"backend"},
    {"model"},
    {"config"},
    {"data", "storage"},
    {"core"},
]
"""Rooms from the top down: each imports its own layer and those below, see docs/design.md."""


def layer(room):
    """The number of a room's layer; each command is a room of the second."""
    if room.startswith("commands/"):
        room = "commands"
    for number, rooms in enumerate(LAYERS):
        if room in rooms:
            return number
    raise KeyError(room)


def test_imports_point_one_way():
    for room, imported in room_graph().items():
        for other in imported:
            assert layer(room) <= layer(other), f"{room} imports {other}"


def test_no_command_imports_another():
    rooms = room_graph()
    commands = {room for room in rooms if room.startswith("commands/")}
    assert len(commands) > 8
    for room in commands:
        assert not rooms[room] & commands, room


def test_no_modules_import_each_other():
    assert cycles(import_graph()) == []
    assert cycles(room_graph()) == []


def shared_definitions():
    """Functions and classes that another room imports, and those of the package with methods."""
    definitions = {}
    for path in FILES:
        for node in nodes(path)[0].body:  # type: ignore[attr-defined]
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                definitions[structure.module_name(path), node.name] = node
    for path in FILES:
        importer = structure.module_name(path)
        importing_room = None if importer == "detcli" else structure.room(importer)
        for module, name in imported_names(path):
            definition = definitions.get((module, name))
            if definition is None or importing_room == structure.room(module):
                continue
            yield name, definition
            if importer == "detcli" and isinstance(definition, ast.ClassDef):
                for method in definition.body:
                    if isinstance(method, ast.FunctionDef):
                        yield f"{name}.{method.name}", method


def imported_names(path):
    """Module and name of whatever a file imports with `from`."""
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.module, alias.name


def test_what_other_rooms_use_is_described():
    definitions = dict(shared_definitions())
    assert set(detcli.__all__) - {"__version__"} <= definitions.keys()
    undescribed = []
    for name, definition in definitions.items():
        is_private = name.rpartition(".")[2].startswith("_")
        if ast.get_docstring(definition) is None and not is_private:
            undescribed.append(name)
    assert undescribed == []


def meanings(files):
    """The meanings of each class and each alias of a type, by name; a class means itself."""
    meanings_by_name = defaultdict(set)
    for path in files:
        for node in nodes(path)[0].body:  # type: ignore[attr-defined]
            match node:
                case ast.ClassDef(name=name):
                    meanings_by_name[name].add(f"the class of {path}")
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ) if re.match("[A-Z].*[a-z]", name):
                    meanings_by_name[name].add(ast.unparse(value))
    return meanings_by_name


def test_a_class_has_one_meaning():
    """No class of the package shares its name; aliases of one name are the same type."""
    meanings_by_name = meanings(FILES)
    assert {"Detections", "Floats", "Target"} <= meanings_by_name.keys()
    for name, meanings_of_name in meanings_by_name.items():
        assert len(meanings_of_name) == 1, (name, meanings_of_name)


BACKENDS = ("detcli.backend.cpu", "detcli.backend.cuda", "detcli.backend.openvino")


def test_only_open_backend_knows_the_backends():
    importers = set()
    for path in FILES:
        name = str(path.relative_to(PACKAGE))
        is_of_a_backend = name.startswith(("backend/cuda/", "backend/openvino/"))
        for module in imports(path):
            if module.startswith(BACKENDS) and not is_of_a_backend:
                importers.add(name)
    assert importers == {"backend/__init__.py"}


DEVICE_NAMES = {"auto", "cpu", "cuda", "tensorrt", "openvino"}


def takes_a_device_name_apart(node):
    """Whether a node inspects a device's name by comparing, cutting or matching it."""
    operands = []
    match node:
        case ast.Call(func=ast.Attribute(attr=method, value=receiver), args=[argument, *_]):
            if method in {"startswith", "endswith", "removeprefix"}:
                operands = ast.walk(argument)
            elif method in {"partition", "rpartition", "split"} and "device" in ast.unparse(
                receiver
            ):
                return True
            elif method in {"match", "fullmatch", "search", "compile"}:
                patterns = constants(ast.walk(argument))
                # "tensorrt/" is a folder of the cache.
                return any(re.search(r"tensorrt(?!/)", str(pattern)) for pattern in patterns)
        case ast.Compare():
            operands = ast.walk(node)
        case ast.MatchValue(value=value):
            operands = [value]
        case ast.Dict(keys=keys):
            return len(DEVICE_NAMES & set(constants(keys))) > 1
    return any(str(value).rstrip(":") in DEVICE_NAMES for value in constants(operands))


def constants(nodes):
    return [node.value for node in nodes if isinstance(node, ast.Constant)]


def test_only_device_takes_a_device_name_apart():
    inspecting_lines = []
    inspecting_files = set()
    for path in FILES:
        name = str(path.relative_to(PACKAGE))
        for node in nodes(path):
            if takes_a_device_name_apart(node):
                inspecting_lines.append(f"{name}:{node.lineno}")  # type: ignore[attr-defined]
                inspecting_files.add(name)
    assert inspecting_files == {"config/device.py"}, inspecting_lines


def test_there_is_one_branch_on_the_kind_of_a_device():
    naming_files = set()
    for path in FILES:
        for node in nodes(path):
            if is_a_kind_of_device(node):
                naming_files.add(str(path.relative_to(PACKAGE)))
    assert naming_files - {"config/device.py", "cli/completion.py"} == {"backend/__init__.py"}

    branches = []
    for node in nodes(PACKAGE / "backend/__init__.py"):
        if isinstance(node, ast.Match):
            branches.append(node)
    assert len(branches) == 1
    assert branches[0].end_lineno - branches[0].lineno < 24  # a screen


def is_a_kind_of_device(node):
    """Whether a node is a member of `DeviceKind`."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "DeviceKind"
    )


def test_only_the_driver_talks_to_cuda():
    """Beside it, one file lets NVIDIA's package look for libraries, which calls nothing of CUDA."""
    importers = set()
    searchers = set()
    for path in FILES:
        for node in nodes(path):
            if not isinstance(node, ast.ImportFrom):
                continue
            if node.module == "cuda.pathfinder":
                searchers.add(path.name)
            elif (node.module or "").split(".")[0] == "cuda":
                importers.add(path.name)
    assert importers == {"driver.py"}
    assert searchers == {"libraries.py"}


def test_only_the_command_line_prints():
    printing_files = set()
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "print":
                printing_files.add(str(path.relative_to(PACKAGE)))
    assert printing_files == {"cli/console.py"}


def test_the_product_does_not_import_what_trains_its_model():
    imported = set()
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
            elif isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
    assert MODEL_FILES
    assert not imported & {"codes", "models", "torch", "segno", "skimage", "sklearn"}


def inits_of_large_folders():
    paths = []
    for path in FILES:
        if path.name != "__init__.py" or path.parent in {PACKAGE, PACKAGE / "commands"}:
            continue
        if len(list(path.parent.rglob("*.py"))) > 9:
            paths.append(path)
    return paths


@pytest.mark.parametrize("path", inits_of_large_folders(), ids=structure.module_name)
def test_the_docstring_of_a_large_folder_lists_what_is_in_it(path):
    text = ast.get_docstring(nodes(path)[0])  # type: ignore[arg-type]
    modules = {other.name for other in path.parent.glob("*.py")} - {"__init__.py"}
    folders = {f"{other.parent.name}/" for other in path.parent.glob("*/__init__.py")}
    assert set(re.findall(r"\b\w+(?:\.py\b|/(?!\w))", text)) == modules | folders


TESTS = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("folder", [PACKAGE, TESTS], ids=lambda folder: folder.name)
def test_code_is_as_plain_as_was_agreed(folder):
    """CONTRIBUTING.md has the rules, `python -m tests.structure --plain` the figures."""
    assert plain_code.complaints(folder) == []


def test_what_is_counted_is_what_readers_stumble_over():
    source = "one = [*map(str, [n for n in range(3)])] if found else 0\n_ = detection = 1\n"
    counts = plain_code.counted(source)
    assert counts["names"] == 3
    assert counts["vague names"] == 1
    assert counts["conditional expressions"] == 1
    assert counts["comprehensions"] == 1
    assert counts["stars"] == 1
    assert counts["functional calls"] == 1


ASKED_FOR_BEFORE = TESTS / "s3_server.py"  # what it imports, by the fixture that imports it


def imported_at_the_top(path):
    """The libraries that importing a file imports."""
    libraries = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            libraries |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            libraries.add(node.module.partition(".")[0])
    return libraries


@pytest.mark.slow
def test_no_test_file_imports_a_library_of_dev_all_unasked():
    """At home, where the extra `dev` is installed, collection would end with an error."""
    names_a_library = re.compile(
        rf"^(import|from)\b.*\b({'|'.join(optional.PACKAGES)})\b", re.MULTILINE
    )
    assert names_a_library.search("import ray\n")
    unasked = {}
    for path in TESTS.rglob("*.py"):
        if "benchmarks" in path.parts or path == ASKED_FOR_BEFORE:
            continue
        if names_a_library.search(path.read_text(encoding="utf-8")):  # to parse all takes a second
            unasked[path.name] = imported_at_the_top(path) & optional.PACKAGES.keys()
    for name, libraries in unasked.items():
        assert not libraries, name


def test_tests_mirror_the_package():
    """Each test file tests the module that its name begins with, or one of these wider things."""
    wider = {
        "test_architecture",
        "test_packaging",
        "test_generated",
        "test_pages",
        "test_readme",
        "test_recipes",
        "test_doctests",
        "test_kills",
        "test_makefile",
        "test_troubleshooting",
        "test_real_detectors",
        "test_real_families",
        "test_real_models",
        "test_shared_cases",
        "test_conformance",
        "test_frozen_names",
        "test_programs",
        "test_barriers",
        "test_benchmarks",
        "test_shim",
        "test_devices",
        "test_gpu_benchmark",
        "test_gpu_check",
        "test_shipped",
        "test_warm",
        "test_workflows",
    }
    modules = []
    for path in FILES:
        modules.append(str(path.relative_to(PACKAGE).with_suffix("")))
    for path in MODEL_FILES:
        modules.append(str(path.relative_to(PACKAGE.parent).with_suffix("")))
    for path in TESTS.rglob("test_*.py"):
        if path.stem not in wider and not path.stem.startswith("test_command"):
            tested = path.relative_to(TESTS).with_name(path.stem.removeprefix("test_"))
            assert str(tested).startswith(tuple(modules))
