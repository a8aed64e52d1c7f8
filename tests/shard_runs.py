"""What a run in shards has left."""

import random as rng
import signal
import time

import forked
from json_lines import lines


def parts_in(folder):
    return len(list(folder.glob("part-*")))


def merged(folder, code=0):
    result = forked.run(["merge", folder, "-q"])
    assert result.returncode == code, result.stderr
    return result.stdout


def kill_and_go_on(command, folder, workers_of, drivers_end):
    """Run a command until it completes, while its workers and it are killed again and again.

    Args:
        workers_of: Returns the workers of the command's process; one is killed after every four
            parts.
        drivers_end: Numbers of parts; the command is killed at each, and run again.

    Returns how many workers were killed.
    """
    random = rng.Random(0)  # noqa: S311 - no secret
    killed = 0
    for end in drivers_end:
        process = forked.start(command)
        killed += _kill_workers(process, folder, workers_of, random, end)
        assert process.exitcode == -signal.SIGKILL
    process = forked.start(command)
    killed += _kill_workers(process, folder, workers_of, random, end=None)
    assert process.exitcode == 0
    return killed


def _kill_workers(process, folder, workers_of, random, end):
    """Kill workers of a process until it ends, and the process at `end` parts; None: never."""
    killed = 0
    parts_before = parts_in(folder)
    while process.is_alive():
        parts = parts_in(folder)
        if end is not None and parts >= end:
            process.kill()
        elif parts >= parts_before + 4:
            workers = workers_of(process)
            if workers:
                parts_before = parts
                random.choice(workers).kill()
                killed += 1
        time.sleep(0.002)
    process.join()
    return killed


def errors_of(output, expected_output):
    """Errors by source, in records that are else those of one run, which failed nowhere."""
    errors = {}
    for record, expected in zip(lines(output), lines(expected_output), strict=True):
        if "error" in record:
            errors[expected["source"]] = record.pop("error")
            assert expected.items() >= record.items()
        else:
            assert record == expected
    return errors
