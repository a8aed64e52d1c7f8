"""The benchmarks that the documentation names can be imported and print their usage."""

import re
import subprocess
import sys

import pytest
from documentation.shells import ROOT
from thinning import only_whole

pytestmark = [pytest.mark.slow, only_whole]

PEERS = ("nncf", "sahi")
"""Libraries that some benchmarks compare detcli with; no test installs them."""


def named_benchmarks():
    """The paths of all benchmarks that the documentation's commands name."""
    paths = set()
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        paths.update(re.findall(r"python (?:-P )?(tests/benchmarks/\w+\.py)", text))
    return sorted(paths)


def test_benchmarks_are_named():
    assert len(named_benchmarks()) > 5


@pytest.mark.parametrize("path", named_benchmarks())
def test_a_benchmark_says_how_it_is_used(path):
    completed = subprocess.run(
        [sys.executable, path, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    for peer in PEERS:
        if f"No module named '{peer}'" in completed.stderr:
            pytest.skip(f"{peer} is not installed")
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.startswith("usage: ")
