"""The garbage collector is quiet while a command starts, and as usual afterwards."""

import gc
import subprocess
import sys

SCRIPT = """
import gc
from detcli.core.collection import SELDOM, collect_as_usual, collect_seldom
usual = gc.get_threshold()
collect_as_usual()
assert gc.get_freeze_count() == 0  # nothing was changed before
collect_seldom()
assert gc.get_threshold()[0] == SELDOM
collect_as_usual()
assert gc.get_threshold() == usual
assert gc.get_freeze_count() > 0
collect_as_usual()
assert gc.get_threshold() == usual
"""


def test_thresholds_are_as_before():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)


def test_a_program_that_uses_the_library_keeps_its_thresholds():
    from detcli.run import set_up_process

    before = gc.get_threshold()
    set_up_process()
    assert gc.get_threshold() == before
