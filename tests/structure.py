"""The package's structure as its imports show it.

    python -m tests.structure
    python -m tests.structure --plain

The first prints how much there is to read, and the rooms (folders and root modules) by layer; the
second how plainly it is written, and which files are the worst.
"""

import ast
import io
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "detcli"


@cache
def files() -> list[Path]:
    """Every Python file of the package."""
    return sorted(PACKAGE.rglob("*.py"))


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All nodes of a file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def module_name(path: Path) -> str:
    """The dotted name of a file, such as "detcli.sink.text"."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts)


@cache
def modules() -> frozenset[str]:
    """The dotted names of all files."""
    return frozenset(module_name(path) for path in files())


def imports(path: Path) -> Iterator[str]:
    """Modules of detcli that a file imports, at its top or inside functions."""
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "detcli":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name in modules():
                    yield name
                else:
                    yield str(node.module)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "detcli":
                    yield alias.name


@cache
def import_graph() -> dict[str, set[str]]:
    """The modules that each module imports.

    The package itself is left out: it imports its public names only when they are asked for.
    """
    graph = {}
    for path in files():
        name = module_name(path)
        if name != "detcli":
            graph[name] = set(imports(path)) - {name, "detcli"}
    return graph


def room(module: str) -> str:
    """The room of a module: a folder of the package, a command, or a root module."""
    parts = module.split(".")[1:]
    if parts[0] == "commands":
        return "/".join(parts[:2])
    return parts[0]


def room_graph() -> dict[str, set[str]]:
    """The rooms that each room imports."""
    graph: dict[str, set[str]] = defaultdict(set)
    for module, imported_modules in import_graph().items():
        rooms = graph[room(module)]
        for imported in imported_modules:
            if room(imported) != room(module):
                rooms.add(room(imported))
    return dict(graph)


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other."""
    reachable = {node: _reachable(graph, node) for node in graph}
    groups = set()
    for node in graph:
        if node in reachable[node]:
            group = {node}
            for neighbour in reachable[node]:
                if node in reachable.get(neighbour, ()):
                    group.add(neighbour)
            groups.add(frozenset(group))
    return sorted(sorted(group) for group in groups)


def layers(graph: dict[str, set[str]]) -> list[list[str]]:
    """Nodes by layer, the ground first: each stands above everything that it imports.

    Raises:
        ValueError: Some nodes import each other.
    """
    import_cycles = cycles(graph)
    if import_cycles:
        raise ValueError(f"import cycles: {import_cycles}")
    heights: dict[str, int] = {}
    for node in graph:
        _set_height(node, graph, heights)

    nodes_by_height: dict[int, list[str]] = defaultdict(list)
    for node, height in sorted(heights.items()):
        nodes_by_height[height].append(node)
    return [nodes_by_height[height] for height in sorted(nodes_by_height)]


def _set_height(node: str, graph: dict[str, set[str]], heights: dict[str, int]) -> None:
    """Put the height of a node, and of all that it imports, into `heights`; the ground is 0."""
    if node in heights:
        return
    height = 0
    for imported in graph.get(node, ()):
        _set_height(imported, graph, heights)
        height = max(height, heights[imported] + 1)
    heights[node] = height


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    reachable: set[str] = set()
    waiting = list(graph.get(start, ()))
    while waiting:
        node = waiting.pop()
        if node not in reachable:
            reachable.add(node)
            waiting += graph.get(node, ())
    return reachable


LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.COMMENT,
    tokenize.ENDMARKER,
}
"""Tokens that are neither code nor text of a docstring."""

BRANCHES = (
    ast.If,
    ast.For,
    ast.While,
    ast.AsyncFor,
    ast.ExceptHandler,
    ast.IfExp,
    ast.Assert,
    ast.comprehension,
    ast.match_case,
)


def branches(function: ast.AST) -> int:
    """The number of ways through a function, about: 1, and 1 for each decision."""
    count = 1
    for node in ast.walk(function):
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, BRANCHES):
            count += 1
    return count


@cache
def weight() -> dict[str, float]:
    """How much there is to read; tokens count neither layout, comments nor docstrings."""
    figures: dict[str, float] = defaultdict(float, files=len(files()))
    for path in files():
        _weigh_functions(path, figures)
        _weigh_tokens(path, figures)
    figures["tokens a code line"] = figures["tokens"] / figures["code lines"]
    for path in PACKAGE.rglob("*.json"):
        figures["lines of JSON"] += _line_count(path)
    return dict(figures)


def _weigh_functions(path: Path, figures: dict[str, float]) -> None:
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parameters = node.args.args + node.args.kwonlyargs + node.args.posonlyargs
            figures["functions above 10 parameters"] += len(parameters) > 10
            figures["functions above 15 branches"] += branches(node) > 15


def _weigh_tokens(path: Path, figures: dict[str, float]) -> None:
    docstring_lines: set[int] = set()
    for node in nodes(path):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstring_lines.update(range(node.lineno, (node.end_lineno or 0) + 1))

    code_lines: set[int] = set()
    source = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_docstring = token.type == tokenize.STRING and token.start[0] in docstring_lines
        if token.type not in LAYOUT and not is_docstring:
            figures["tokens"] += 1
            code_lines.update(range(token.start[0], token.end[0] + 1))
    figures["lines"] += len(source.splitlines())
    figures["code lines"] += len(code_lines - docstring_lines)


def _line_count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def print_plainness() -> None:
    """Print how plainly the package and its tests are written."""
    sys.path.insert(0, str(Path(__file__).parent))  # as pytest does
    import plain_code

    for folder in (PACKAGE, PACKAGE.parent / "tests"):
        print("\n".join(plain_code.report(folder, files=5)))


def main() -> None:
    """Print the structure."""
    for name, value in weight().items():
        if value % 1:
            print(f"{value:12,.5g}  {name}")
        else:
            print(f"{value:12,.0f}  {name}")

    line_counts = {path: _line_count(path) for path in files()}
    line_counts_by_room: dict[str, list[int]] = defaultdict(list)
    for path, line_count in line_counts.items():
        name = module_name(path)
        if name != "detcli":
            line_counts_by_room[room(name)].append(line_count)

    graph = room_graph()
    arrows = 0
    for imported_rooms in graph.values():
        arrows += len(imported_rooms)
    lines = sum(line_counts.values())
    print(f"{len(line_counts)} files, {lines} lines, {len(graph)} rooms, {arrows} arrows")
    print(f"cycles of modules: {cycles(import_graph()) or 'none'}")
    for number, layer in reversed(list(enumerate(layers(graph)))):
        print(f"\nlayer {number}")
        for name in layer:
            size = f"{len(line_counts_by_room[name])} files, {sum(line_counts_by_room[name])} lines"
            print(f"  {name:18} {size:22} imports {' '.join(sorted(graph[name])) or 'nothing'}")


if __name__ == "__main__":
    if "--plain" in sys.argv:
        print_plainness()
    else:
        main()
