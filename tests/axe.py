"""axe-core, which looks for what keeps people out of a page."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

VIOLATIONS = """
axe.run({ preload: false }).then(({ violations }) => arguments[0](JSON.stringify(
    violations.map(({ id, nodes }) => [id, nodes.slice(0, 3).map((node) => node.html)]))))
"""


def script():
    """The script of axe-core, if npm has installed it."""
    root = ""
    npm = shutil.which("npm")
    if npm:
        command = [npm, "root", "-g"]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        root = process.stdout.strip()
    path = Path(root, "axe-core/axe.min.js")
    if not path.is_file():
        pytest.skip("axe-core is not installed: npm install --global axe-core")
    return path.read_text("utf-8")


def violations(browser, view):
    """What axe has to say of what is shown now, with the name of the view."""
    result = browser.driver.execute_async_script(VIOLATIONS)
    of_view = []
    for rule, elements in json.loads(result):
        of_view.append((view, rule, elements))
    return of_view
