"""What a run in shards has left."""

import random as rng
import signal
import time

import forked
from json_lines import lines


def parts_in(folder):
    return len([*folder.glob("part-*")])


def merged(folder, code=0):
    done = forked.run(["merge", folder, "-q"])
    assert done.returncode == code, done.stderr
    return done.stdout


def kill_and_go_on(command, folder, workers_of, drivers_end):
    """Run a command until it completes, killing workers, and it when so many parts are there.

    Returns how many workers were killed.
    """
    random = rng.Random(0)  # noqa: S311 - no secret
    killed = 0
    for end in (*drivers_end, None):
        process = forked.start(command)
        before = parts_in(folder)
        while process.is_alive():
            now = parts_in(folder)
            if end is not None and now >= end:
                process.kill()
            elif now >= before + 4 and (workers := workers_of(process)):
                before = now
                random.choice(workers).kill()
                killed += 1
            time.sleep(0.002)
        process.join()
        assert process.exitcode == (0 if end is None else -signal.SIGKILL)
    return killed


def errors_of(found, expected):
    """Errors by source, in records that are else those of one run, which failed nowhere."""
    errors = {}
    for record, wanted in zip(lines(found), lines(expected), strict=True):
        if "error" in record:
            errors[wanted["source"]] = record.pop("error")
            assert wanted.items() >= record.items()
        else:
            assert record == wanted
    return errors
