"""Runs in shards on Ray: a cluster of this machine, some of whose actors are killed."""

import contextlib
import fcntl
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import cv2
import forked
import optional
import poison
import psutil
import pytest
import thinning
from colour_model import image
from folders import names_in
from json_lines import lines
from shard_runs import errors_of, kill_and_go_on, merged

from detcli import __version__
from detcli.model.file import ModelFile
from detcli.run.shards.ray import _actor, _unpacked
from detcli.run.shards.schedule import STARTS
from detcli.storage.folder import Folder

# Not imported here: that takes a second, and every worker of the suite reads this file.
pytestmark = [
    pytest.mark.slow,
    optional.needs("ray"),
]

OWN = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # else it writes into the home
    "GRPC_ENABLE_FORK_SUPPORT": "0",  # which ended a client's server by SIGSEGV on Debian 12
}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """A head with two cores, as `ray start` starts it, whose workers poison kills."""
    folder = tmp_path_factory.mktemp("ray")
    port = free_port()
    client = free_port()
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head"]
    command += ["--block", f"--port={port}", "--num-cpus=2", "--include-dashboard=false"]
    command += [f"--ray-client-server-port={client}", "--object-store-memory=100000000"]
    # One at a time on this machine: not all of their ports can be chosen.
    with (folder.parents[1] / "ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        environment = poison.environment(folder / "site", "SIGKILL") | OWN
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            _wait_for(port, process)
            yield process, f"127.0.0.1:{port}", f"ray://127.0.0.1:{client}"
        finally:
            _end(process)


@contextlib.contextmanager
def joined(address, cores, environment):
    """A node more, with so many cores."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={address}"]
    command += ["--block", f"--num-cpus={cores}", "--object-store-memory=100000000"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        _end(process)


def _end(process):
    for member in [process] + list(psutil.Process(process.pid).children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()


def _wait_for(port, process):
    for _ in range(1200):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        assert process.poll() is None
        time.sleep(0.1)
    raise AssertionError("Ray does not start")


@pytest.fixture
def cluster(head, monkeypatch):
    """The process of the head, which the command finds."""
    process, address, _ = head
    for name, value in (OWN | {"RAY_ADDRESS": address}).items():
        monkeypatch.setenv(name, value)
    return process


def actors_of(cluster):
    children = psutil.Process(cluster.pid).children(recursive=True)
    return [child for child in children if "ray::Detcli" in " ".join(_command(child))]


def _command(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@thinning.only_whole
def test_chaos(cluster, make_shard_images, one_run, tmp_path):
    """Actors and the driver are killed again and again; every image has its record once."""
    command, expected = one_run(make_shard_images(160))
    boxes = tmp_path / "boxes"
    command += ["-o", f"{boxes}/", "--on", "ray", "--shard-size", 8]
    killed = kill_and_go_on(command, boxes, lambda _: actors_of(cluster), (7,))
    assert killed >= 3
    assert merged(boxes) == expected
    Folder(boxes).close()  # removes what the dead have left, as the next run does
    assert not list(boxes.glob(".*"))


@thinning.only_whole
@pytest.mark.usefixtures("cluster")
def test_an_image_that_kills_its_actor_is_an_error_record(make_shard_images, one_run, tmp_path):
    command, expected = one_run(make_shard_images(6, poisoned={3}))
    completed = forked.run(
        command + ["-o", f"{tmp_path / 'boxes'}/", "--on", "ray", "--shard-size", 4],
        timeout=300,
    )
    assert completed.returncode == 3
    assert completed.stdout == ""
    assert "poison.png: the process that handled it died 3 times" in completed.stderr
    ((source, error),) = errors_of(merged(tmp_path / "boxes", 3), expected).items()
    assert "poison" in source
    assert "the process that handled it died 3 times" in error["message"]


@thinning.only_whole
@pytest.mark.usefixtures("cluster")
def test_a_node_whose_actors_always_die_is_left_for_another(
    head, make_shard_images, one_run, tmp_path
):
    """Nothing can be processed on the first that has room; the run waits for the next."""
    command, expected = one_run(make_shard_images(6))
    site = tmp_path / "site"
    boxes = tmp_path / "boxes"
    site.mkdir()
    died = site / "died"
    kill = f"import os; open({str(died)!r}, 'a').write('x'); os.abort()"
    (site / "onnxruntime.py").write_text(kill)
    command += ["-o", f"{boxes}/", "--on", "ray", "--workers", 3]
    with joined(head[1], 3, os.environ | OWN | {"PYTHONPATH": str(site)}):
        process = forked.start(command)
        while not died.exists() or len(died.read_text()) < STARTS:
            if not process.is_alive():
                assert process.exitcode == 5  # the node has not joined yet
                assert not died.exists()
                process = forked.start(command)
            time.sleep(0.1)
        with joined(head[1], 3, os.environ | OWN):
            process.join(240)
    assert process.exitcode == 0
    assert len(died.read_text()) == STARTS
    assert merged(boxes) == expected


@thinning.only_whole
@pytest.mark.usefixtures("cluster")
def test_the_commands_of_the_page(head, make_shard_images, one_run, monkeypatch):
    """All of docs/scale-out.md, on one machine, without a bucket and a GPU."""
    _, address, client = head
    folder = make_shard_images(20)
    command, expected = one_run(folder)
    monkeypatch.setenv("DETCLI_MODEL", str(command[command.index("-m") + 1]))
    page = (Path(__file__).parents[3] / "docs/scale-out.md").read_text(encoding="utf-8")
    printed = re.findall(
        r"(?m)((?:RAY_ADDRESS=\S+ )?detcli predict .*?--on ray.*?)(?: +#.*)?$", page
    )
    assert len(printed) == 4
    for command in printed:
        local_command = command.replace("head:6379", address).replace("ray://head:10001", client)
        local_command = local_command.replace("s3://bucket/", "").replace(
            "--device cuda", "-r --device cpu"
        )
        variable, _, rest = local_command.rpartition("detcli ")
        assert variable in {"", f"RAY_ADDRESS={address} "}
        completed = forked.run(
            shlex.split(rest) + ["--conf", "0.5", "-q"], cwd=folder.parent, timeout=300
        )
        assert completed.returncode == 0, f"{command}\n{completed.stderr}"
        records = merged(folder.parent / "boxes")
        assert records == expected.replace(f"{folder}/", "pics/")
        shutil.rmtree(folder.parent / "boxes")


@thinning.only_whole
def test_the_pipeline_of_the_page(make_shard_images, make_model, tmp_path):
    """Ray Data with a Detector finds what a run finds, also of an image that is torn."""
    folder = make_shard_images(6)
    shutil.rmtree(folder / "more")
    (folder / "0003.png").write_bytes(b"torn")
    page = (Path(__file__).parents[3] / "docs/scale-out.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    model = str(make_model())
    program = program.replace('"yolov10n"', repr(model)).replace("blocks=16", "blocks=2")
    environment = os.environ | OWN | {"RAY_ADDRESS": "local"}
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, env=environment)
    from pyarrow import parquet

    rows = {}
    for row in parquet.read_table(tmp_path / "boxes").to_pylist():
        rows[row["path"]] = row
    plain = forked.run(["predict", folder, "-m", model, "-q", "--format", "jsonl"])
    for record in lines(plain.stdout):
        row = rows.pop(record["source"])
        if "error" in record:
            assert record["error"]["message"] in row["error"]
        else:
            assert json.loads(row["boxes"]) == record["detections"]
    assert not rows


@thinning.only_whole
def test_images_in_a_bucket(s3, make_model, tmp_path, monkeypatch):
    """On a cluster of its own, whose workers have the variables of this process."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for number in range(3):
        s3.put(f"pics/{number}.png", cv2.imencode(".png", image(("red", 1, number)))[1].tobytes())
    command = ["predict", "s3://photos/pics/", "-m", make_model(), "--conf", "0.5", "-q"]
    plain = forked.run(command + ["--format", "jsonl"])
    command += ["-o", f"{tmp_path / 'boxes'}/", "--on", "ray"]
    subprocess.run(
        [sys.executable, "-m", "detcli"] + forked.words_of(command),
        check=True,
        env={**os.environ, **OWN},
    )
    assert merged(tmp_path / "boxes") == plain.stdout
    assert plain.stdout.count('"class_name": "red"') == 3


@thinning.only_whole
def test_a_ray_of_its_own(make_shard_images, one_run, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    command, expected = one_run(make_shard_images(20))
    command += ["-o", f"{tmp_path / 'boxes'}/", "--on", "ray"]
    completed = subprocess.run(
        [sys.executable, "-m", "detcli"] + forked.words_of(command),
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **OWN},
    )
    assert completed.stdout == ""  # Ray's own lines do not get there
    assert merged(tmp_path / "boxes") == expected


@thinning.only_whole
@pytest.mark.usefixtures("cluster")
def test_a_cluster_without_room(make_model, make_image, tmp_path):
    command = ["predict", make_image("a.png"), "-m", make_model(), "-o", f"{tmp_path / 'boxes'}/"]
    for options, says in (
        (["--workers", "16"], "no room for an actor, which needs 16 CPU: "),
        (["--device", "cuda"], "no room for an actor, which needs 1 GPU: "),
    ):
        completed = forked.run(command + ["--on", "ray"] + options, timeout=300)
        assert completed.returncode == 5
        assert says in completed.stderr
        assert " has 2 CPU and 0 GPU" in completed.stderr


def test_a_node_with_another_version_of_detcli(monkeypatch):
    start_work = _actor()().start_work
    assert f" has detcli {__version__}, this machine 0.0.1" in start_work("0.0.1", "/", {})
    monkeypatch.setitem(sys.modules, "detcli", None)
    assert re.match("node .+ has no detcli: ", start_work(__version__, "/", {}))


def test_a_model_is_sent_with_what_lies_beside_it(make_model, cache, tmp_path):
    model = make_model()
    (tmp_path / "config.json").write_text('{"model_type": "x", "id2label": {"0": "a"}}')
    files = ModelFile.read(model).files()
    folder = _unpacked(files)
    assert folder.parent == cache / "sent"
    assert files.keys() == {model.name, "config.json"}
    assert names_in(folder) == sorted(files)
    for name, content in files.items():
        assert (folder / name).read_bytes() == content
    (folder / model.name).write_bytes(b"of somebody else")
    assert _unpacked(files) == folder
    assert (folder / model.name).read_bytes() == files[model.name]


def test_a_cluster_that_does_not_answer(make_model, make_image, tmp_path):
    command = ["predict", make_image("a.png"), "-m", make_model(), "-o", f"{tmp_path / 'boxes'}/"]
    completed = forked.run(command + ["--on", f"ray://127.0.0.1:{free_port()}"])
    assert completed.returncode == 5
    assert "cannot use the Ray cluster at ray://127.0.0.1:" in completed.stderr
