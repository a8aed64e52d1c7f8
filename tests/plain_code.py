"""How plainly the code is written, counted, and how much of each is allowed.

    python -m tests.structure --plain

A count does not make code readable; but what is counted here is what readers stumbled over: names
that say nothing of what they hold, and expressions that do several things at once.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

VAGUE_NAMES = frozenset(
    """
    about again asked chosen come done enough far fit fits found gave given gone got held here it
    kept known least less made meant more most named now one ones other others over own place places
    put real said same seen shown such taken that then there they thing things this told under
    wanted way ways what which whole whose
    """.split()
)
"""Words that do not tell what a variable holds; words of a domain, such as left, are not here."""

FUNCTIONAL_CALLS = frozenset({"chain", "filter", "map", "partial", "reduce", "starmap"})

ADVICE = {
    "vague names": "name the variable after what it holds: detection, option, shard, confidence",
    "conditional expressions": "write an if with two assignments, unless both sides are names",
    "comprehensions": "write a nested or long one as a loop that appends",
    "stars": "write the list out, or join the parts with +",
    "functional calls": "write a loop or a comprehension in place of map, filter, partial, chain",
}
"""What is counted, and what to write instead."""

MIN_LINES = 60
"""Files below this are counted in the total only."""

LIMITS = {
    "detcli": {
        "vague names": 0.6,
        "conditional expressions": 3.3,
        "comprehensions": 12.5,
        "stars": 3.6,
        "functional calls": 0.7,
    },
    "tests": {
        "vague names": 0.6,
        "conditional expressions": 4.8,
        "comprehensions": 12.0,
        "stars": 3.0,
        "functional calls": 1.6,
    },
}
"""How much of each there may be: percent of the names, and otherwise in 1,000 lines."""

MAX_VAGUE_NAMES_OF_FILE = {"detcli": 4.0, "tests": 4.0}
"""Percent of the names of any one file."""


def assigned_name(node: ast.AST) -> str:
    """The name of the variable or parameter that a node assigns to; empty if it is none."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.arg) and node.arg not in {"self", "cls"}:
        return node.arg
    return ""


def counted(source: str) -> Counter[str]:
    """How often each thing is in a source, with its lines and names."""
    counts = Counter[str]()
    counts["lines"] = len(source.splitlines())
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name | ast.arg):
            bare_name = assigned_name(node).strip("_")
            counts["names"] += bool(bare_name)
            counts["vague names"] += bare_name in VAGUE_NAMES
        elif isinstance(node, ast.IfExp):
            counts["conditional expressions"] += 1
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            counts["comprehensions"] += 1
        elif isinstance(node, ast.Starred):
            counts["stars"] += 1
        elif isinstance(node, ast.Call):
            function_name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            counts["functional calls"] += function_name in FUNCTIONAL_CALLS
    return counts


def rates(counts: Counter[str]) -> dict[str, float]:
    """Counts as percent of the names, or in 1,000 lines."""
    per_thousand_lines = 1000 / max(counts["lines"], 1)
    rate_of = {subject: counts[subject] * per_thousand_lines for subject in ADVICE}
    rate_of["vague names"] = 100 * counts["vague names"] / max(counts["names"], 1)
    return rate_of


def counts_of_files(folder: Path) -> dict[Path, Counter[str]]:
    """The counts of each Python file below a folder."""
    return {
        path: counted(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))
    }


def total(counts: Iterable[Counter[str]]) -> Counter[str]:
    """The sum of the counts of several files."""
    summed = Counter[str]()
    for counts_of_file in counts:
        summed.update(counts_of_file)
    return summed


def complaints(folder: Path) -> list[str]:
    """What a folder has more of than is allowed, with the files that have most of it."""
    counts_by_file = counts_of_files(folder)
    messages = []
    for subject, rate in rates(total(counts_by_file.values())).items():
        limit = LIMITS[folder.name][subject]
        if rate > limit:
            files = ", ".join(worst_files(counts_by_file, subject, count=3))
            messages.append(
                f"{folder.name}/: {rate:.1f} {subject}, of {limit} allowed, most of them in "
                f"{files}; {ADVICE[subject]}"
            )
    limit = MAX_VAGUE_NAMES_OF_FILE[folder.name]
    for path, counts in counts_by_file.items():
        rate = rates(counts)["vague names"]
        if counts["lines"] >= MIN_LINES and rate > limit:
            messages.append(
                f"{path.relative_to(folder.parent)}: {rate:.1f}% vague names, of {limit}% allowed; "
                f"{ADVICE['vague names']}"
            )
    return messages


def worst_files(counts_by_file: dict[Path, Counter[str]], subject: str, count: int) -> list[str]:
    """The files that have most of something for their size, the worst first."""
    rate_by_name = {}
    for path, counts in counts_by_file.items():
        if counts["lines"] >= MIN_LINES:
            rate_by_name[f"{path.parent.name}/{path.name}"] = rates(counts)[subject]
    return sorted(rate_by_name, key=lambda name: -rate_by_name[name])[:count]


def report(folder: Path, *, files: int) -> Iterator[str]:
    """Lines that say how plainly a folder is written, in all and in its worst files."""
    counts_by_file = counts_of_files(folder)
    counts = total(counts_by_file.values())
    yield f"{folder.name}/, {counts['lines']} lines; percent of names, else in 1,000 lines"
    for subject, rate in rates(counts).items():
        worst = ", ".join(worst_files(counts_by_file, subject, files))
        yield f"  {rate:5.1f} of {LIMITS[folder.name][subject]:5.1f}  {subject:24} {worst}"
