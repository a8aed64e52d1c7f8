"""Checks the types of the documentation's examples and of the tests' programs, by mypy and pyright.

    python docs/check_examples.py

mypy is as strict as on the package, pyright has no settings, as with a reader who copies one.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PROGRAMS = ROOT / "tests/documentation/programs"
TYPED = ROOT / "tests/documentation/typed"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
ONE_LINER = re.compile(r"python3? -c '([^']+)'")
MIN_EXAMPLES = 9


def examples() -> Iterator[str]:
    """The source of each example of README and of the pages."""
    for page in [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        yield from BLOCK.findall(text)
        yield from ONE_LINER.findall(text)


def why_pyright_cannot_run() -> str:
    """What pyright lacks; empty where it can run."""
    if find_spec("pyright") is None:
        return "pyright is not installed, which the extra `dev-all` has"
    command = [sys.executable, "-m", "pyright", "--version"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    except subprocess.SubprocessError:
        return "pyright cannot fetch its program, as it does when it is first used"
    return ""


def main() -> int:
    """Write the examples into a folder, and check them; returns an exit code."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        count = 0
        for source in examples():
            count += 1
            (folder / f"example_{count}.py").write_text(source, encoding="utf-8")
        if count < MIN_EXAMPLES:
            sys.exit(f"{count} examples in the documentation: at least {MIN_EXAMPLES} were there")
        for script in [*DOCS.rglob("*.py"), *PROGRAMS.glob("*.py"), *TYPED.glob("*.py")]:
            shutil.copy(script, folder)
        mypy = [sys.executable, "-m", "mypy", *map(str, folder.glob("*.py"))]
        code = subprocess.run(mypy, check=False, cwd=ROOT).returncode  # for its settings
        lacking = why_pyright_cannot_run()
        if lacking:
            print(f"{lacking}: the examples were checked by mypy alone")
            return code
        pyright = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, name]
        return subprocess.run(pyright, check=False, cwd=folder).returncode or code


if __name__ == "__main__":
    sys.exit(main())
