"""Runs the tests with the marker `gpu` and writes each result at once.

    PYTHONPATH=.:tests python -m benchmarks.gpu.suite --out tests.jsonl

Warnings are not errors here: they depend on versions, which other tests check. A file that cannot
be collected because a package is missing does not stop the others.
"""

import argparse
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


class Recorder:
    """A pytest plugin that writes one line of JSON per finished test."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_text("", encoding="utf-8")

    def pytest_runtest_logreport(self, report):
        """Write what ended a test: its call, or a setup that failed or skipped."""
        if report.when == "call" or report.outcome != "passed":
            self._write(report.nodeid, report.outcome, _reason(report))

    def pytest_collectreport(self, report):
        """Write what could not be collected."""
        if report.failed:
            self._write(report.nodeid, "failed", f"collecting: {_reason(report)}")

    def _write(self, name, outcome, reason):
        with self._path.open("a", encoding="utf-8") as file:  # survives a crash of the process
            file.write(json.dumps({"test": name, "outcome": outcome, "reason": reason}) + "\n")


def _reason(report) -> str:
    """Why a test failed or was skipped, in one line."""
    if report.outcome == "skipped":
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = [line.strip() for line in str(report.longrepr or "").splitlines() if line.strip()]
    text = crash.message.partition("\n")[0] if crash else lines[-1] if lines else ""
    return text[:300]


def main() -> int:
    """Run the tests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("tests", nargs="*", default=["tests/backend"])
    arguments = parser.parse_args()
    options = ["-m", "gpu", "-q", "-W", "default", "-p", "no:cacheprovider"]
    options += ["--continue-on-collection-errors", "--tb=short", "--no-header", "-o", "addopts="]
    options += ["--import-mode=importlib", "-c", str(ROOT / "pyproject.toml")]
    return int(pytest.main([*options, *arguments.tests], plugins=[Recorder(arguments.out)]))


if __name__ == "__main__":
    sys.exit(main())
