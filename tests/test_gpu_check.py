"""`make gpu-check`: its parts, its report and its exit codes, all without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.gpu import DONE, bench, letterbox, report, selection
from benchmarks.gpu import __main__ as check

ROOT = Path(__file__).parents[1]


@pytest.fixture
def run(tmp_path):
    """Run one of the check's programs in a process of its own, as `make` does."""

    def start(module, *arguments, **environment):
        path = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
        return subprocess.run(
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path} | environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return start


def test_no_gpu_is_exit_code_5_with_the_reason(run, tmp_path):
    done = run("benchmarks.gpu", "--out", tmp_path / "report", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 5
    assert "gpu-check needs an NVIDIA GPU: there is no GPU number 0" in done.stderr
    assert not (tmp_path / "report").exists()


def test_the_network_is_not_measured_without_a_model(run, tmp_path):
    done = run("benchmarks.gpu.bench", "network", "--out", tmp_path / "network.json")
    assert done.returncode == 0, done.stderr
    [case] = json.loads((tmp_path / "network.json").read_text())["cases"]
    assert "MODEL=" in case["ways"][0]["missing"]


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
CRASHING = """
import os
import signal
import pytest

@pytest.mark.gpu
def test_right(): pass

@pytest.mark.gpu
def test_crashing(): os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def runner(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, ROOT / "tests"))))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take a second
    return check.Runner(tmp_path, 100)


def test_the_tests_are_counted_with_their_reasons(runner, tmp_path):
    (tmp_path / "test_some.py").write_text(SUITE)
    part = check.run_tests(runner, 60, [str(tmp_path / "test_some.py")])
    assert (part.outcome, part.reason) == ("failed", "1 failed")
    assert part.more["counts"] == {"passed": 1, "failed": 1, "skipped": 1}
    assert part.more["skipped"] == {"no network on a GPU": 1}
    [failed] = part.more["failed"]
    assert "test_wrong: assert 1 == 2" in failed
    assert "test_wrong" in (tmp_path / "gpu-check.log").read_text()


def test_no_test_at_all_is_a_failure_and_what_passed_before_a_crash_is_kept(runner, tmp_path):
    tests = tmp_path / "test_some.py"
    tests.write_text("import nothing_of_that_name\n")
    part = check.run_tests(runner, 60, [str(tests)])
    assert part.outcome == "failed"
    assert "nothing_of_that_name" in part.more["failed"][0]
    tests.write_text(CRASHING)
    part = check.run_tests(runner, 60, [str(tests)])
    assert (part.outcome, part.more["counts"]["passed"]) == ("failed", 1)
    assert "status -9" in part.reason


def test_a_part_is_ended_when_its_time_is_up(runner, tmp_path):
    status, output, _ = runner.run(["sh", "-c", "echo asleep; sleep 1000"], 2)
    assert (status, output) == (None, "asleep\n")
    assert "status None" in (tmp_path / "gpu-check.log").read_text()
    part = check.in_time(check.Runner(tmp_path, 1), "nms", pytest.fail, 10)
    assert (part.outcome, part.reason) == ("not run", "no time was left")


MEMCHECK = "========= COMPUTE-SANITIZER\n{}\n========= ERROR SUMMARY: {} errors\n"
RACECHECK = (
    f"{DONE}\n========= RACECHECK SUMMARY: {{}} hazards displayed ({{}} errors, {{}} warnings)\n"
)


@pytest.mark.parametrize(
    ("tool", "status", "output", "outcome", "reason"),
    [
        ("memcheck", 0, MEMCHECK.format(DONE, 0), "passed", ""),
        ("memcheck", 0, MEMCHECK.format(DONE, 3), "failed", "3 findings"),
        ("initcheck", 0, MEMCHECK.format(DONE, 3), "passed", "3 findings"),
        ("racecheck", 0, RACECHECK.format(2, 1, 1), "failed", "2 findings"),
        ("racecheck", 0, RACECHECK.format(1, 0, 1), "passed", "1 findings"),
        ("racecheck", 0, RACECHECK.format(0, 0, 0), "passed", ""),
        ("memcheck", 1, MEMCHECK.format("CUDA failed", 5), "failed", "status 1"),
        ("memcheck", 1, "========= Error: Device not supported\n", "not run", "not supported"),
        ("memcheck", 1, "ImportError: no cv2\n", "failed", "status 1: ImportError: no cv2"),
    ],
)
def test_what_a_sanitizer_says(tool, status, output, outcome, reason):
    part = check.judge_sanitizer(tool, status, output, 1.0)
    assert part.outcome == outcome
    assert reason in part.reason


def test_everything_is_reported_where_the_gpu_fails(tmp_path, monkeypatch, capsys):
    """Here it fails because there is none; all parts are tried, and the report is there."""
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
    assert set(outcomes) == {"tests", *check.SANITIZERS, *check.BENCHMARKS}
    assert {outcomes[name] for name in bench.KERNELS} == {"failed"}
    assert outcomes["network"] == "passed"  # for want of a model
    table = (tmp_path / "new/out/gpu-check.md").read_text()
    assert "| name | Some GPU |" in table
    assert "no GPU number 0" in table
    assert table in capsys.readouterr().out


def figures(**seconds):
    return {
        name: {"p50_s": value, "mean_s": value, "samples": 5} for name, value in seconds.items()
    }


def test_the_report_shows_figures_and_aims():
    ours = {"way": "detcli", **figures(cold=7e-6, warm=6e-6, call=12e-6, host=40e-6)}
    eager = {"way": "PyTorch", **figures(cold=70e-6, warm=69e-6, call=108e-6, host=200e-6)}
    graph = {"way": "PyTorch, CUDA graph", "missing": "PyTorch is not installed"}
    host = {"way": "NumPy on the host", **figures(host=1.2e-3)}
    case = {"case": report.SELECTION, "floor": 0.66e-6, "ways": [ours, eager, graph, host]}
    many = {
        "case": report.BATCH,
        "floor": 42e-6,
        "ways": [{"way": "detcli", **figures(cold=130e-6)}],
    }
    section = {"bandwidth": 4.3e12, "empty": 1.5e-6, "empty_kernel": 3e-6, "cases": [case, many]}
    done = [
        report.Part("tests", "passed", "", 20.0, {"counts": {"passed": 7}, "skipped": {"why": 2}}),
        report.Part("selection", "passed", "", 30.0, section),
    ]
    content = report.build({"name": "Some GPU", "packages": {"numpy": "2"}}, done)
    assert [aim["reached"] for aim in content["aims"]] == [True, False, None, None, False, None]
    lines = report.markdown(content).splitlines()
    for line in (
        "| selection [1,84,8400], GPU | at most 15 us | 7.0 us | reached |",
        "| ... beside PyTorch, eager, call | at least 10 times faster | 9.0 times | missed |",
        "| selection [64,84,8400], GPU | at most 3 times the floor | 3.1 times | missed |",
        f"| {report.SELECTION} | 0.66 us | detcli | 7.00 us | 6.00 us | 12.0 us | 40.0 us |",
        "|  |  | PyTorch | 70.0 us, 10.0x | 69.0 us, 11.5x | 108 us, 9.0x | 200 us, 5.0x |",
        "|  |  | PyTorch, CUDA graph | not measured: PyTorch is not installed |  |  |  |",
        "|  |  | NumPy on the host |  |  |  | 1.20 ms, 30.0x |",
        "| tests | passed | 7 passed | 20 s |",
        "- 2 skipped: why",
    ):
        assert line in lines
    json.dumps(content)
    assert {report.SELECTION, report.BATCH} <= set(map(str, selection.ALL))
    assert str(selection.QUICK[0]) == report.SELECTION
    assert (1, "float32", (1080, 1920), (640, 640)) in letterbox.QUICK
    assert report.LETTERBOX == "1 of 1920x1080 to 640x640 float32"
