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
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def module_name(path: Path) -> str:
    """The dotted name of a file, such as "detcli.sink.text"."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> frozenset[str]:
    """The dotted names of all files."""
    return frozenset(map(module_name, files()))


def imports(path: Path) -> Iterator[str]:
    """Modules of detcli that a file imports, at its top or inside functions."""
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "detcli":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in modules() else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "detcli")


@cache
def import_graph() -> dict[str, set[str]]:
    """The modules that each module imports.

    The package itself is left out: it imports its public names only when they are asked for.
    """
    return {
        name: {other for other in imports(path) if other not in {name, "detcli"}}
        for path in files()
        if (name := module_name(path)) != "detcli"
    }


def room(module: str) -> str:
    """The room of a module: a folder of the package, a command, or a root module."""
    parts = module.split(".")[1:]
    return "/".join(parts[:2]) if parts[0] == "commands" else parts[0]


def room_graph() -> dict[str, set[str]]:
    """The rooms that each room imports."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, imported in import_graph().items():
        found[room(module)] |= {room(other) for other in imported} - {room(module)}
    return dict(found)


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other."""
    reached = {node: _reachable(graph, node) for node in graph}
    groups = {
        frozenset({node} | {other for other in reached[node] if node in reached.get(other, ())})
        for node in graph
        if node in reached[node]
    }
    return sorted(sorted(group) for group in groups)


def layers(graph: dict[str, set[str]]) -> list[list[str]]:
    """Nodes by layer, the ground first: each stands above everything that it imports.

    Raises:
        ValueError: Some nodes import each other.
    """
    if found := cycles(graph):
        raise ValueError(f"import cycles: {found}")
    heights: dict[str, int] = {}

    def height(node: str) -> int:
        if node not in heights:
            heights[node] = 1 + max(map(height, graph.get(node, ())), default=-1)
        return heights[node]

    for node in graph:
        height(node)
    ordered: list[list[str]] = [[] for _ in range(max(heights.values()) + 1)]
    for node, at in sorted(heights.items()):
        ordered[at].append(node)
    return ordered


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [*graph.get(start, ())]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += graph.get(node, ())
    return seen


LAYOUT = {
    *(tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.COMMENT, tokenize.ENDMARKER),
}
"""Tokens that are neither code nor text of a docstring."""

BRANCHES = (
    *(ast.If, ast.For, ast.While, ast.AsyncFor, ast.ExceptHandler, ast.IfExp, ast.Assert),
    *(ast.comprehension, ast.match_case),
)


def branches(function: ast.AST) -> int:
    """The number of ways through a function, about: 1, and 1 for each decision."""
    return 1 + sum(
        len(node.values) - 1 if isinstance(node, ast.BoolOp) else isinstance(node, BRANCHES)
        for node in ast.walk(function)
    )


@cache
def weight() -> dict[str, float]:
    """How much there is to read; tokens count neither layout, comments nor docstrings."""
    found: dict[str, float] = defaultdict(float, files=len(files()))
    for path in files():
        source = path.read_text(encoding="utf-8")
        docstrings, code = set[int](), set[int]()
        for node in nodes(path):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                docstrings |= {*range(node.lineno, (node.end_lineno or 0) + 1)}
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                taken = node.args
                count = len(taken.args) + len(taken.kwonlyargs) + len(taken.posonlyargs)
                found["functions above 10 parameters"] += count > 10
                found["functions above 15 branches"] += branches(node) > 15
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            text = token.type == tokenize.STRING and token.start[0] in docstrings
            if token.type not in LAYOUT and not text:
                found["tokens"] += 1
                code |= {*range(token.start[0], token.end[0] + 1)}
        found["lines"] += len(source.splitlines())
        found["code lines"] += len(code - docstrings)
    found["tokens a code line"] = found["tokens"] / found["code lines"]
    found["lines of JSON"] = sum(
        len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.json")
    )
    return dict(found)


def print_plainness() -> None:
    """Print how plainly the package and its tests are written."""
    sys.path.insert(0, str(Path(__file__).parent))  # as pytest does
    import plain_code

    for folder in (PACKAGE, PACKAGE.parent / "tests"):
        print("\n".join(plain_code.report(folder, files=5)))


def main() -> None:
    """Print the structure."""
    for name, value in weight().items():
        print(f"{value:12,.5g}  {name}" if value % 1 else f"{value:12,.0f}  {name}")
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files()}
    of_room: dict[str, list[int]] = defaultdict(list)
    for path, size in sizes.items():
        if (name := module_name(path)) != "detcli":
            of_room[room(name)].append(size)
    graph = room_graph()
    arrows = sum(map(len, graph.values()))
    print(f"{len(sizes)} files, {sum(sizes.values())} lines, {len(graph)} rooms, {arrows} arrows")
    print(f"cycles of modules: {cycles(import_graph()) or 'none'}")
    for number, layer in reversed(list(enumerate(layers(graph)))):
        print(f"\nlayer {number}")
        for name in layer:
            size = f"{len(of_room[name])} files, {sum(of_room[name])} lines"
            print(f"  {name:18} {size:22} imports {' '.join(sorted(graph[name])) or 'nothing'}")


if __name__ == "__main__":
    if "--plain" in sys.argv:
        print_plainness()
    else:
        main()
