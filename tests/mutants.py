"""Would the tests notice? Change the code of some modules in one place, and run their tests.

    python tests/mutants.py [--seed N] [--sample N] [MODULE ...]

A sample is drawn of all mutants, which depends on the seed alone. Those that no test kills are
printed, and the score last. Slow tests are left out, but for heads. Kept tools do not serve: mutmut
changes nothing outside functions, where the constants are, and cosmic-ray drops no statement.
"""

import argparse
import ast
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULES = """
backend/postprocess core/files core/geometry core/tiling core/topk model/heads/decode
model/heads/tensors run/counts run/shards/manifest run/shards/parts run/shards/schedule
run/shards/work sink/image sink/journal
""".split()  # where a defect loses results or shows what is hidden
HEADS = """
heads test_adapt.py test_recognise.py test_recognise_heads.py test_recognise_refusals.py
""".split()
MORE = {
    "heads": [f"tests/model/{name}" for name in HEADS],
    "parts": ["tests/commands/test_records_merge.py"],
}  # tests of modules beside those of their names

MEMORY = 8 << 30  # bytes: some mutants never stop allocating
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["cv2", "numpy", "onnx", "onnxruntime"])  # once for all runs

PAIRS = [
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot)),
    *((ast.In, ast.NotIn), (ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div)),
    *((ast.FloorDiv, ast.Mod), (ast.BitAnd, ast.BitOr), (ast.LShift, ast.RShift)),
    *(("min", "max"), ("floor", "ceil"), ("any", "all"), ("minimum", "maximum")),
]
OTHER = {one: other for pair in PAIRS for one, other in (pair, pair[::-1])}
UNSEEN = {"annotation", "returns", "decorator_list"}  # what checkers see, such as frozen=True
STATEMENTS = ast.AugAssign | ast.Break | ast.Continue | ast.Delete | ast.Raise


def variants(node, parent):
    """What may be in place of a node: other nodes, or None for nothing."""

    def but(**changed):
        return type(node)(**{**vars(node), **changed})

    match node:
        case ast.Compare(ops=ops):
            for at, op in enumerate(ops):
                yield but(ops=[*ops[:at], OTHER[type(op)](), *ops[at + 1 :]])  # type: ignore[operator]
        case ast.BoolOp(op=op) | ast.BinOp(op=op) if type(op) in OTHER:
            yield but(op=OTHER[type(op)]())  # type: ignore[operator]
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.Constant(value=bool(value)):
            yield but(value=not value)
        case ast.Constant(value=int(value)):
            yield from (but(value=value + 1), but(value=value - 1))
        case ast.Constant(value=float(value)):
            yield from (but(value=value * 1.1 or 1.0), but(value=value * 0.9 or -1.0))
        case ast.Name(id=name, ctx=ast.Load()) if name in OTHER:
            yield but(id=OTHER[name])
        case ast.Attribute(attr=name, ctx=ast.Load()) if name in OTHER:
            yield but(attr=OTHER[name])
        case ast.Expr(value=ast.Call()) | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield None
        case ast.Return() if not isinstance(parent, ast.FunctionDef):  # one that comes early
            yield None
        case _ if isinstance(node, STATEMENTS):
            yield None
    if node is getattr(parent, "test", None) and not isinstance(node, ast.Compare | ast.UnaryOp):
        yield ast.UnaryOp(ast.Not(), node)


def mutants(module):
    """The source of a module, and its mutants: the module, two places in bytes, another text."""
    source = (ROOT / "detcli" / f"{module}.py").read_bytes()
    lines = source.splitlines(keepends=True)

    def visit(node, parent):
        if isinstance(node, ast.JoinedStr):  # whose parts have no places in Python 3.11
            return
        for other in variants(node, parent):
            start = len(b"".join(lines[: node.lineno - 1])) + node.col_offset
            end = len(b"".join(lines[: node.end_lineno - 1])) + node.end_col_offset
            yield module, start, end, f"({ast.unparse(other)})" if other else "pass"
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and name not in UNSEEN:
                    yield from visit(child, node)

    return source, [*visit(ast.parse(source), None)]


def run_tests(room, module):
    """In a process of its own: end as pytest does."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.chdir(room)
    sys.path.insert(0, str(room))
    os.environ |= {"PYTHONPATH": str(room), "CI": "1"}  # which tries the same examples each time
    sys.dont_write_bytecode = True
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    import pytest

    name, folder = Path(module).name, Path("tests", module).parent
    tests = [*folder.glob(f"test_{name}.py"), *folder.glob(f"test_{name}_*.py")]
    tests += (test for part, more in MORE.items() if part in module for test in more)
    options = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    options += ["-m", "not slow"] * ("heads" not in module)
    os._exit(pytest.main([*options, *map(str, tests)]))


def passes(room, module, limit_s):
    """Whether a module's tests pass within a time."""
    process = CONTEXT.Process(target=run_tests, args=(room, module))
    process.start()
    process.join(limit_s)
    if process.exitcode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return process.exitcode == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("modules", nargs="*", metavar="MODULE", default=MODULES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, default=200)
    asked = parser.parse_args()
    found = {module: mutants(module) for module in asked.modules}
    every = [mutant for _, some in found.values() for mutant in some]
    sample = random.Random(asked.seed).sample(every, min(asked.sample, len(every)))  # noqa: S311
    limits, killed, tried = {}, Counter(), Counter(module for module, *_ in sample)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        room = Path(folder, "copy")
        shutil.copytree(ROOT, room, ignore=shutil.ignore_patterns(".*", "build", "dist"))
        Path(folder, "shared").symlink_to(ROOT.parent / "shared")
        for module, start, end, text in sorted(sample):
            if module not in limits:
                began = time.monotonic()
                if not passes(room, module, 600):
                    sys.exit(f"the tests of {module} fail as it is")
                limits[module] = 20 + 5 * (time.monotonic() - began)
            source, file = found[module][0], room / "detcli" / f"{module}.py"
            file.write_bytes(source[:start] + text.encode() + source[end:])
            if passes(room, module, limits[module]):
                line, old = source[:start].count(b"\n") + 1, source[start:end].decode()
                print(f"detcli/{module}.py:{line}: {' '.join(old.split())} -> {text}", flush=True)
            else:
                killed[module] += 1
            file.write_bytes(source)
    for module, number in sorted(tried.items()):
        print(f"{module}: {killed[module]} of {number}")
    print(f"killed: {killed.total()} of {len(sample)} (of {len(every)} mutants, seed {asked.seed})")


if __name__ == "__main__":
    main()
