"""The command that tests of pages start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_its_server_ends_with_the_process_that_started_it(tmp_path):
    """However that ends; the output is read until nobody holds it any more."""
    code = "import os, pathlib, warm; warm.start(pathlib.Path.cwd()); os._exit(0)"
    path = str(Path(__file__).parent)
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, check=True, capture_output=True,
        timeout=60,
    )  # fmt: skip
