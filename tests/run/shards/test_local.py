"""Runs in shards on processes of this machine, some of which are killed."""

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import forked
import poison
import psutil
import pytest
import thinning
from shard_runs import errors_of, kill_and_go_on, merged, parts_in

from detcli.run.shards.local import _cause, _Process

pytestmark = pytest.mark.slow


def children_of(process):
    try:
        return psutil.Process(process.pid).children()
    except psutil.NoSuchProcess:
        return []


@pytest.mark.parametrize(
    "on", thinning.thin("numbers of workers on this machine", ["local:3", "local:1"], count=1)
)
def test_the_parts_are_what_one_run_prints(make_shard_images, one_run, tmp_path, on):
    command, expected = one_run(make_shard_images(50))
    completed = forked.run(
        command + ["-o", f"{tmp_path / 'boxes'}/", "--on", on, "--shard-size", 7]
    )
    assert completed.returncode == 0
    assert completed.stdout == ""
    assert completed.stderr == ""
    assert parts_in(tmp_path / "boxes") == 8
    assert merged(tmp_path / "boxes") == expected


CHAOS = [(112, 4, (9, 18)), (400, 8, (15, 32))]
"""Images, how many a part has, and after which parts the driver is killed."""


@pytest.mark.parametrize(
    ("count", "shard_size", "drivers_end"),
    thinning.thin("runs whose workers and driver are killed", CHAOS, count=1),
)
def test_chaos(make_shard_images, one_run, tmp_path, count, shard_size, drivers_end):
    """Workers and the driver are killed again and again; every image has its record once."""
    command, expected = one_run(make_shard_images(count))
    boxes = tmp_path / "boxes"
    command += ["-o", f"{boxes}/", "--on", "local:2", "--shard-size", shard_size]
    killed = kill_and_go_on(command, boxes, children_of, drivers_end)
    assert killed >= 3
    assert merged(boxes) == expected


def test_another_model_in_a_worker_that_takes_anothers_place(
    make_shard_images, one_run, make_model, tmp_path
):
    """It is refused, and a part that it made would be."""
    command, expected = one_run(make_shard_images(200))
    boxes = tmp_path / "boxes"
    messages = tmp_path / "stderr"
    messages.touch()
    model = Path(command[command.index("-m") + 1])
    begun = model.read_bytes()
    command += ["-o", f"{boxes}/", "--on", "local:2", "--shard-size", 1]
    process = forked.start(command, stderr=messages)
    while not (workers := children_of(process)) or parts_in(boxes) < 4:
        time.sleep(0.002)
    make_model(model.name, tail="authors")
    workers[0].kill()
    process.join()
    assert process.exitcode == 2
    assert "boxes was begun with another file of the model" in messages.read_text()
    parts = parts_in(boxes)
    assert 0 < parts < 200
    assert forked.run(command).returncode == 2
    model.write_bytes(begun)
    assert forked.run(command).returncode == 0
    assert merged(boxes) == expected
    part = boxes / "part-00007.jsonl"
    ours = hashlib.sha256(begun).hexdigest()
    assert f", model {ours}, settings " in part.read_text()
    part.write_text(part.read_text().replace(ours, "0" * 64))
    assert "part-00007.jsonl: it was made by another model" in forked.run(["merge", boxes]).stderr


def test_a_worker_that_is_stopped_and_killed_is_replaced(make_shard_images, one_run, tmp_path):
    command, expected = one_run(make_shard_images(200))
    boxes = tmp_path / "boxes"
    command += ["-o", f"{boxes}/", "--on", "local:2", "--shard-size", 8]
    process = forked.start(command)
    while not (workers := children_of(process)) or parts_in(boxes) < 4:
        time.sleep(0.002)
    workers[0].suspend()
    workers[0].kill()
    process.join(60)
    assert process.exitcode == 0
    assert not workers[0].is_running()
    assert merged(boxes) == expected


def test_workers_end_with_the_process_that_started_them(make_shard_images, one_run, tmp_path):
    command, _ = one_run(make_shard_images(200))
    process = forked.start(command + ["-o", f"{tmp_path / 'boxes'}/", "--shard-size", 1])
    while not (workers := children_of(process)) or not parts_in(tmp_path / "boxes"):
        assert process.is_alive()
        time.sleep(0.005)
    process.kill()
    process.join()
    assert psutil.wait_procs(workers, timeout=20)[1] == []


ENDS = ("os.kill(os.getpid(), signal.SIGSEGV)", "os._exit(0)")
"""How a worker ends: by a signal, or without a failure, as with a library that calls exit(0)."""


@pytest.mark.parametrize(
    ("end", "cause"),
    thinning.thin(
        "ways in which a worker ends", [(ENDS[0], "SIGSEGV"), (ENDS[1], "exit code 0")], count=1
    ),
)
def test_an_image_that_kills_its_worker_is_an_error_record(
    make_shard_images, one_run, detcli, tmp_path, end, cause
):
    command, expected = one_run(make_shard_images(12, poisoned={7}))
    environment = poison.environment(tmp_path / "site")
    site = tmp_path / "site" / "sitecustomize.py"
    site.write_text(site.read_text().replace(ENDS[0], end))
    command += ["-o", f"{tmp_path / 'boxes'}/", "--on", "local:2", "--shard-size", 4]
    completed = detcli(command, env=environment, timeout=240)
    assert completed.returncode == 3
    assert f"0007-poison.png: the process that handled it died 3 times: {cause}" in completed.stderr
    ((source, error),) = errors_of(merged(tmp_path / "boxes", 3), expected).items()
    assert "poison" in source
    assert error["type"] == "InferenceError"
    assert error["message"] == f"the process that handled it died 3 times: {cause}"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--on", "local:100000"], "--on local:100000"),
        (["--on", f"local:{'9' * 5000}"], f"--on local:{'9' * 5000}"),
        (["--classes", "zebra"], "the model has no class 'zebra'"),
    ],
)
def test_runs_that_cannot_be_end_at_once(make_shard_images, one_run, tmp_path, options, says):
    command, _ = one_run(make_shard_images(1))
    completed = forked.run(command + ["-o", f"{tmp_path / 'boxes'}/"] + options)
    assert completed.returncode == 2
    assert says in completed.stderr
    assert not (tmp_path / "boxes").exists()


def test_workers_that_cannot_start_end_the_run(make_shard_images, make_model, detcli, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "onnxruntime.py").write_text("import os; os.abort()")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    completed = detcli(
        "predict",
        make_shard_images(3),
        "-o",
        f"{tmp_path / 'boxes'}/",
        "-m",
        make_model(),
        env=environment,
        timeout=240,
    )
    assert completed.returncode == 1
    assert "workers keep dying: SIGABRT; none has started" in completed.stderr


MANIFEST, PART = "_manifest.jsonl", "part-00000.jsonl"

LIMITED = """
import resource, runpy, sys
limit = int(sys.argv[1])
del sys.argv[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
runpy.run_module("detcli", run_name="__main__")
"""


def test_a_full_disk_ends_the_run(make_shard_images, one_run, tmp_path):
    """The disk is full when the first part is written, and when the manifest is."""
    command, expected = one_run(make_shard_images(30))
    command += ["--shard-size", 30, "-o"]
    whole = tmp_path / "whole"
    assert forked.run(command + [f"{whole}/"]).returncode == 0
    assert (whole / MANIFEST).stat().st_size < (whole / PART).stat().st_size
    for name in thinning.thin("files that fill the disk of a run", [PART, MANIFEST], count=1):
        boxes = tmp_path / f"boxes-{name}"
        limit = (whole / name).stat().st_size - 1
        limited = [sys.executable, "-c", LIMITED, limit] + command + [f"{boxes}/"]
        completed = subprocess.run(
            forked.words_of(limited),
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert completed.returncode == 1
        assert f"{boxes.name}/{name}: File too large" in completed.stderr
        assert not (boxes / name).exists()
        assert forked.run(command + [f"{boxes}/"]).returncode == 0
        assert merged(boxes) == expected


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-9, "SIGKILL (perhaps out of memory)"),
        (-11, "SIGSEGV"),
        (-200, "signal 200"),
    ],
)
def test_an_exit_code_tells_the_cause(code, cause):
    assert _cause(code) == cause


def test_a_worker_gets_no_ctrl_c_on_windows(monkeypatch):
    """It has no signals that can be blocked, but groups of processes."""

    def start(*_, creationflags, **__):
        raise OSError(creationflags, "it is started")

    monkeypatch.setattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 512, raising=False)
    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(OSError, match="it is started") as caught:
        _Process(None, None)
    assert caught.value.errno == 512
