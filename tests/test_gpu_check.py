"""`make gpu-check` from its command to its report, without a GPU."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import optional
import pytest
import thinning
from benchmarks.gpu import __main__ as check
from benchmarks.gpu import bench, end_to_end, graphs, pack, report
from json_lines import column_of

from detcli import Settings

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


SUITE = """
import pytest

@pytest.mark.gpu
def test_right(): pass

@pytest.mark.gpu
def test_wrong(): assert 1 == 2

@pytest.mark.gpu
def test_missing(): pytest.skip("no network on a GPU")

def test_elsewhere(): raise SystemExit
"""


@thinning.only_whole
def test_everything_is_reported_where_the_gpu_fails(tmp_path, monkeypatch, capsys):
    """Here it fails because there is none; all parts are tried, and the report is there."""
    optional.require("cuda.core")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, ROOT / "tests"))))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(check, "look", lambda: ({"name": "Some GPU"}, ""))
    tests = tmp_path / "test_some.py"
    tests.write_text(SUITE)
    command = ["gpu", "--out", str(tmp_path / "new/out"), "--tests", str(tests), "--quick"]
    monkeypatch.setattr(sys, "argv", command)
    assert check.main() == 1
    written = json.loads((tmp_path / "new/out/gpu-check.json").read_text())
    outcomes = {part["name"]: part["outcome"] for part in written["parts"]}
    parts = {"tests", "counters"}
    parts.update(check.CHECKS, check.SANITIZERS, check.BENCHMARKS)
    assert set(outcomes) == parts
    assert check.CHECKS
    assert bench.KERNELS
    for name in list(check.CHECKS) + list(bench.KERNELS):
        assert outcomes[name] == "failed", name
    assert outcomes["network"] == "passed"  # for want of a model
    assert outcomes["end_to_end"] == "passed"  # likewise
    table = (tmp_path / "new/out/gpu-check.md").read_text()
    assert "| name | Some GPU |" in table
    assert "no GPU number 0" in table
    assert table in capsys.readouterr().out


PARTS = [
    "graphs",
    "launches",
    "memcheck",
    "racecheck",
    "synccheck",
    "tests",
    "selection",
    "letterbox",
    "nms",
    "network",
    "end_to_end",
    "top_k",
    "counters",
    "initcheck",
]


@pytest.fixture
def run_main(tmp_path, monkeypatch):
    """Run the check with options; each part is only noted, with the seconds that it may take."""
    monkeypatch.setattr(check, "look", lambda: ({"name": "Some GPU"}, ""))
    parts = []

    def note(name):
        def run(_runner, limit, *arguments):
            parts.append((arguments[0] if arguments else name, limit))
            return check.Part(parts[-1][0], "passed")

        return run

    for function in ("run_check", "run_sanitizer", "run_section", "run_tests", "run_profiler"):
        monkeypatch.setattr(check, function, note("counters"))

    def run(*options):
        parts.clear()
        command = ["gpu", "--out", str(tmp_path / "out")] + list(options)
        monkeypatch.setattr(sys, "argv", command)
        assert check.main() == 0
        return dict(parts)

    return run


def test_the_order_of_shapes_that_graphs_got_wrong_comes_first(run_main):
    assert list(run_main()) == PARTS


def test_each_part_fits_into_nine_minutes(run_main):
    limits = run_main("--provider-options", "--model", "some.onnx")
    assert list(limits) == PARTS
    assert max(limits.values()) <= 9 * 60


def test_parts_can_be_run_alone(run_main, capsys):
    assert list(run_main("--only", "end_to_end")) == ["end_to_end"]
    assert list(run_main("--only", "tests", "--only", "graphs")) == ["graphs", "tests"]
    with pytest.raises(SystemExit):
        run_main("--only", "trace")
    assert "no part is named trace; they are graphs, launches" in capsys.readouterr().err


def test_folders_of_jpeg_are_timed_from_files_to_records(monkeypatch):
    """With the bundled model, on the CPU."""
    shapes = []
    run = end_to_end._run  # noqa: SLF001 - what is timed

    def run_and_look(command):
        folder = Path(command[command.index("predict") + 1])
        files = sorted(folder.iterdir())
        shapes.append((len(files), cv2.imread(str(files[-1])).shape))
        seconds = run(command)
        records = folder.with_suffix(".jsonl").read_text().splitlines()
        assert len(records) == len(files)
        return seconds

    monkeypatch.setattr(end_to_end, "_run", run_and_look)
    monkeypatch.setattr(end_to_end, "SIZES", {"VGA": (640, 480)})
    monkeypatch.setattr(end_to_end, "interpreter_shares", lambda _: {"MainThread": 0.5})
    models = {"bundled": Path("codes")}
    images = [ROOT / "detcli/pictures"]
    records = list(end_to_end.end_to_end_records("cpu", models, images, (1, 12)))
    assert "error" not in records[0]["ways"][0], records
    assert shapes == [(1, (480, 640, 3))] * 2 + [(12, (480, 640, 3))]
    assert column_of(records, "case") == ["VGA JPEG, bundled"]
    (measurement,) = records[0]["ways"]
    assert "images_a_second" in measurement
    part = {"name": "end_to_end", "more": {"cases": records}}
    assert "MainThread 50%" in report._section(part)[-1]  # noqa: SLF001 - a table


def test_a_run_that_fails_is_the_error_of_its_case(tmp_path):
    models = {"missing": tmp_path / "missing.onnx"}
    images = [ROOT / "detcli/pictures"]
    for record in end_to_end.end_to_end_records("cpu", models, images, (1, 2)):
        (measurement,) = record["ways"]
        assert measurement["error"].startswith("detcli: error: ")
        assert "images_a_second" not in measurement


def test_the_interpreters_share_is_read_by_thread():
    """Lines as py-spy writes them, of a thread before it has a name and of three later."""
    stacks = (
        "thread (10465);_run_module_as_main (<frozen runpy>:198);<module> (a.py:7) 10\n"
        "thread (10465): MainThread;main (a.py:9) 30\n"
        "thread (10465): MainThread 10\n"
        "thread (19658): Thread-4 (_work);load (b.py:1) 7\n"
        "thread (19661): Thread-5 (_work) 3\n"
        "thread (19662): reader;read (c.py:1) 1\n"
        "no stack\n"
    )
    assert end_to_end.shares_of(stacks, 100) == {
        "MainThread": 0.4,
        "starting": 0.1,
        "_work": 0.1,
        "reader": 0.01,
    }


def test_the_sanitizer_of_cuda_12s_wheel_is_made_executable(tmp_path, monkeypatch):
    package = tmp_path / "site/nvidia/cuda_sanitizer_api"
    for part in ("bin/compute-sanitizer", "lib/libsanitizer-public.so"):
        (package / part).parent.mkdir(parents=True)
        (package / part).write_text("#!/bin/sh\nls $(dirname $0)\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    program = check.sanitizer_of_wheel(tmp_path)
    listing = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert listing.split() == ["compute-sanitizer", "libsanitizer-public.so"]
    assert check.sanitizer_of_wheel(tmp_path) == program
    monkeypatch.setattr(sys, "path", [])
    assert check.sanitizer_of_wheel(tmp_path) is None


def test_detectors_are_compared_over_batches(monkeypatch):
    """On the CPU, where both run without graphs; and one that sees something else is told."""
    detector = graphs.BatchDetector
    monkeypatch.setattr(graphs, "BATCHES", (2, 1))
    monkeypatch.setattr(graphs, "ROUNDS", 1)
    for second, differences in (
        (0.25, []),
        (0.001, ["batch 1 of 2 differs", "batch 2 of 1 differs"]),
    ):
        confidences = iter((0.25, second))

        def opened(*arguments, confidences=confidences, **_):
            return detector(*arguments, Settings(conf=next(confidences)))  # type: ignore[call-arg]

        monkeypatch.setattr(graphs, "BatchDetector", opened)
        assert graphs.differences("cpu", "codes", [str(ROOT / "detcli/pictures")]) == differences


def test_a_machine_without_internet_gets_everything_in_pieces(tmp_path):
    """Some of them lie there after each call; the last one starts the check."""
    wheels, out, target = tmp_path / "wheels", tmp_path / "out", tmp_path / "kept"
    wheels.mkdir()
    (wheels / "some-1.0-py3-none-any.whl").write_bytes(os.urandom(3_000_000))
    models = {"model.onnx": ROOT / "README.md"}
    pack.write(out, list(wheels.iterdir()), models, [ROOT / "LICENSE"], piece=1 << 20)
    pieces = sorted(out.glob("gpu-check.tar.*"))
    assert len(pieces) > 3
    for piece in pieces:
        assert piece.stat().st_size <= 1 << 20, piece
    (tmp_path / "python3").write_text('#!/bin/sh\necho "$@" in $PWD\n')
    (tmp_path / "python3").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "KEPT": str(target)}
    for number, piece in enumerate(pieces):
        call = tmp_path / f"call-{number}"
        call.mkdir()
        for part in (piece, out / "pieces.sha256", out / "there.sh"):
            shutil.copy(part, call)
        process = subprocess.run(
            ["/bin/sh", call / "there.sh"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        last = number == len(pieces) - 1
        assert ("more pieces are to come" in process.stdout) != last
    installed, checked = process.stdout.splitlines()
    assert f"{target}/wheels/some-1.0-py3-none-any.whl" in installed
    assert "benchmarks.gpu" in checked
    assert checked.endswith(f"in {target}/detcli")
    assert (target / "detcli/detcli/__main__.py").exists()
    assert (target / "model.onnx").read_bytes() == (ROOT / "README.md").read_bytes()
    assert (target / "pictures/LICENSE").exists()
