"""What runs in part at home and whole in CI, so that `make test` takes minutes.

A test that tries many cases of one kind takes its cases through `thin`; the end of the output says
what was left out. `CI=1 make test` leaves out nothing but reviews of `promise`, which run whole at
night; `make gpu-check` does the same.
"""

import os
from collections.abc import Iterable
from typing import TypeVar

import pytest

Case = TypeVar("Case")

IN_CI = bool(os.environ.get("CI"))
RUNS_WHOLE = any(os.environ.get(name) for name in ("CI", "FRESH_EXAMPLES", "WHOLE_SUITE"))
RUNS_AT_NIGHT = bool(os.environ.get("FRESH_EXAMPLES"))
"""Whether minutes may be spent on a single test, as in the nightly workflow."""

only_whole = pytest.mark.skipif(not RUNS_WHOLE, reason="left out at home; CI=1 runs it, as .ci/run")
"""Marks a test that takes seconds and has a cheaper one beside it."""

left_out: dict[tuple[str, str], tuple[int, int]] = {}
"""How many cases of a kind ran in a test, and of how many; without a test, where it is imported."""


def thin(kind: str, cases: Iterable[Case], count: int) -> list[Case]:
    """Of the cases of a kind, all in CI, else as many as `count`, spread evenly over them.

    Args:
        kind: As the end of the output names it.
        cases: In an order in which neighbours are alike.
        count: How many run at home; at least 1.
    """
    cases = list(cases)
    if RUNS_WHOLE or len(cases) <= count:
        return cases
    note(kind, count, len(cases))
    return [cases[number * len(cases) // count] for number in range(count)]


def note(kind: str, ran: int, total: int) -> None:
    """Have the end of the output say how many cases of a kind ran."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
    left_out[kind, test] = (ran, total)


def to_report() -> list[tuple[str, str, int, int]]:
    """What a worker tells the process that prints the summary."""
    report = []
    for (kind, test), (ran, total) in left_out.items():
        report.append((kind, test, ran, total))
    return report


def add_report(report: list[tuple[str, str, int, int]]) -> None:
    """Add what another worker told; what all of them import counts once."""
    for kind, test, ran, total in report:
        left_out[kind, test] = (ran, total)


def summary() -> list[str]:
    """A line for each kind that was thinned."""
    totals: dict[str, tuple[int, int]] = {}
    for (kind, _), (ran, total) in left_out.items():
        earlier_ran, earlier_total = totals.get(kind, (0, 0))
        totals[kind] = (earlier_ran + ran, earlier_total + total)
    lines = []
    for kind, (ran, total) in sorted(totals.items()):
        lines.append(f"THINNED {kind}: {ran} of {total}")
    return lines
