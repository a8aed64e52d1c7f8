"""Would the tests notice? Change the code of some modules in one place, and run their tests.

    python tests/mutants.py [--seed N] [--sample N] [MODULE ...]

A sample is drawn of all mutants, which depends on the seed alone. Those that no test kills are
printed, and the score last. Slow tests are left out, but for heads. Existing tools do not serve:
mutmut changes nothing outside functions, where the constants are, and cosmic-ray drops no
statement.
"""

import argparse
import ast
import queue
import random
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import mutant_runs

ROOT = Path(__file__).resolve().parents[1]
MODULES = [
    "backend/logits",
    "backend/postprocess",
    "storage/files",
    "data/geometry",
    "data/tiling",
    "data/topk",
    "model/heads/decode",
    "model/heads/end_to_end",
    "model/heads/joined",
    "model/heads/joined_classes",
    "run/counts",
    "run/shards/manifest",
    "run/shards/parts",
    "run/shards/schedule",
    "run/shards/work",
    "sink/image",
    "sink/inputs_to_repeat",
    "sink/journal",
]
"""Modules where a defect loses results or shows what is hidden."""

PROCESSES = 2
"""How many modules are tested at a time."""

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.Gt: ast.GtE,
    ast.Eq: ast.NotEq,
    ast.Is: ast.IsNot,
    ast.In: ast.NotIn,
    ast.And: ast.Or,
    ast.Add: ast.Sub,
    ast.Mult: ast.Div,
    ast.FloorDiv: ast.Mod,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
}
OPERATORS |= {second: first for first, second in OPERATORS.items()}
"""The operator that replaces another."""

FUNCTIONS = {"min": "max", "floor": "ceil", "any": "all", "minimum": "maximum"}
FUNCTIONS |= {second: first for first, second in FUNCTIONS.items()}
"""The function that replaces another, by its last name."""

UNSEEN_FIELDS = {"annotation", "returns", "decorator_list"}
"""Parts of the syntax that are left alone: type checkers see them, or they are as frozen=True."""

REMOVABLE = ast.AugAssign | ast.Break | ast.Continue | ast.Delete | ast.Raise
"""Statements that are dropped."""


@dataclass(frozen=True, order=True)
class Mutant:
    """A module in which the bytes from `start` to `end` are replaced by a text."""

    module: str
    start: int
    end: int
    text: str


def replacements(node: ast.AST, parent: ast.AST | None) -> Iterator[ast.AST | None]:
    """What may be in place of a node: other nodes, or None for nothing."""
    match node:
        case ast.Compare():
            for position, operator in enumerate(node.ops):
                operators = list(node.ops)
                operators[position] = OPERATORS[type(operator)]()  # type: ignore[call-overload]
                yield ast.Compare(node.left, operators, node.comparators)
        case ast.BoolOp():
            yield ast.BoolOp(OPERATORS[type(node.op)](), node.values)  # type: ignore[arg-type]
        case ast.BinOp() if type(node.op) in OPERATORS:
            yield ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)  # type: ignore[arg-type]
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.Constant():
            for value in neighbours(node.value):
                yield ast.Constant(value)
        case ast.Name(ctx=ast.Load()) if node.id in FUNCTIONS:
            yield ast.Name(FUNCTIONS[node.id], node.ctx)
        case ast.Attribute(ctx=ast.Load()) if node.attr in FUNCTIONS:
            yield ast.Attribute(node.value, FUNCTIONS[node.attr], node.ctx)
        case _ if is_removable(node, parent):
            yield None
    is_test = node is getattr(parent, "test", None)
    if is_test and not isinstance(node, ast.Compare | ast.UnaryOp):
        yield ast.UnaryOp(ast.Not(), node)  # type: ignore[arg-type]


def neighbours(value: object) -> list[bool | int | float]:
    """The values that replace a constant: those next to a number; none for other types."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1]
    if isinstance(value, float):
        return [value * 1.1 or 1.0, value * 0.9 or -1.0]
    return []


def is_removable(node: ast.AST, parent: ast.AST | None) -> bool:
    """Whether a statement is dropped: calls, assignments to what others see, and early exits."""
    match node:
        case ast.Expr(value=ast.Call()):
            return True
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return True
        case ast.Return():
            return not isinstance(parent, ast.FunctionDef)  # at the end of one it is no early exit
    return isinstance(node, REMOVABLE)


def mutants_of(module: str) -> list[Mutant]:
    """All mutants of a module, in the order of its syntax tree."""
    source = read_source(module)
    line_starts = [0]
    for line in source.splitlines(keepends=True):
        line_starts.append(line_starts[-1] + len(line))
    mutants: list[Mutant] = []

    def visit(node: ast.AST, parent: ast.AST | None) -> None:
        if isinstance(node, ast.JoinedStr):  # whose parts have no positions in Python 3.11
            return
        for replacement in replacements(node, parent):
            start = line_starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
            end = line_starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
            text = "pass" if replacement is None else f"({ast.unparse(replacement)})"
            mutants.append(Mutant(module, start, end, text))
        for field, value in ast.iter_fields(node):
            if field in UNSEEN_FIELDS:
                continue
            children = value if isinstance(value, list) else [value]
            for child in children:
                if isinstance(child, ast.AST):
                    visit(child, node)

    visit(ast.parse(source), None)
    return mutants


def read_source(module: str) -> bytes:
    """The source of a module of the package."""
    return (ROOT / "detcli" / f"{module}.py").read_bytes()


def draw(modules: list[str], *, seed: int, count: int) -> tuple[list[Mutant], int]:
    """A sample of the mutants of some modules, and how many there are of all."""
    mutants: list[Mutant] = []
    for module in modules:
        mutants += mutants_of(module)
    count = min(count, len(mutants))
    return random.Random(seed).sample(mutants, count), len(mutants)  # noqa: S311


def describe(mutant: Mutant) -> str:
    """A line that says where a mutant is, and what it changes."""
    source = read_source(mutant.module)
    line = source[: mutant.start].count(b"\n") + 1
    original = " ".join(source[mutant.start : mutant.end].decode().split())
    return f"detcli/{mutant.module}.py:{line}: {original} -> {mutant.text}"


def test_module(rooms: "queue.Queue[mutant_runs.Room]", module: str, mutants: list[Mutant]) -> int:
    """Run the tests of a module on its mutants, print those that live, and count the others."""
    source = read_source(module)
    room = rooms.get()
    survivors = []
    with mutant_runs.ModuleTests(room, module, source) as tests:
        for mutant in sorted(mutants):
            change = mutant_runs.Change(mutant.start, mutant.end, mutant.text)
            if not tests.kill(change):
                survivors.append(mutant)
    rooms.put(room)
    for mutant in survivors:
        print(describe(mutant), flush=True)
    killed = len(mutants) - len(survivors)
    print(f"{module}: {killed} of {len(mutants)}", flush=True)
    return killed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("modules", nargs="*", metavar="MODULE", default=MODULES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, default=200)
    arguments = parser.parse_args()
    sample, total = draw(arguments.modules, seed=arguments.seed, count=arguments.sample)
    by_module: dict[str, list[Mutant]] = {}
    for mutant in sample:
        by_module.setdefault(mutant.module, []).append(mutant)
    longest_first = sorted(by_module.items(), key=lambda item: -len(item[1]))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        rooms: queue.Queue[mutant_runs.Room] = queue.Queue()
        for number in range(PROCESSES):
            rooms.put(mutant_runs.Room(ROOT, Path(folder).resolve() / str(number)))
        with ThreadPoolExecutor(PROCESSES) as pool:
            pending = []
            for module, mutants in longest_first:
                pending.append(pool.submit(test_module, rooms, module, mutants))
            killed = 0
            for count in pending:
                killed += count.result()
    print(f"killed: {killed} of {len(sample)} (of {total} mutants, seed {arguments.seed})")


if __name__ == "__main__":
    main()
