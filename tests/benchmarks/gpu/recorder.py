"""A pytest plugin that writes each result to the file $RESULTS at once, as a line of JSON."""

import json
import os
from pathlib import Path


def pytest_runtest_logreport(report):
    """Write what ended a test: its call, or a setup that failed or skipped."""
    if report.when == "call" or report.outcome != "passed":
        _write(report.nodeid, report.outcome, _reason(report))


def pytest_collectreport(report):
    """Write what could not be collected."""
    if report.failed:
        _write(report.nodeid, "failed", f"collecting: {_reason(report)}")


def _write(name, outcome, reason):
    with Path(os.environ["RESULTS"]).open("a", encoding="utf-8") as file:  # survives a crash
        file.write(json.dumps({"test": name, "outcome": outcome, "reason": reason}) + "\n")


def _reason(report) -> str:
    """Why a test failed or was skipped, in one line."""
    if report.outcome == "skipped":
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = [line.strip() for line in str(report.longrepr or "").splitlines() if line.strip()]
    text = crash.message.partition("\n")[0] if crash else lines[-1] if lines else ""
    return text[:300]
