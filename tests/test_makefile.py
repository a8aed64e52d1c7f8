"""What the Makefile installs, on pretended machines: `pip` notes what it is asked for."""

import os
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from documentation.shells import README, blocks

MAKEFILE = Path(__file__).parents[1] / "Makefile"
HEADLESS = "--force-reinstall --no-deps opencv-python-headless==5.0.0.93"

PIP = """#!/bin/sh
echo "pip $*" >> asked
case "$*" in
freeze) echo numpy==2.4.6; cat opencv ;;
*opencv-python-headless*) rm broken || true ;;
esac
"""
PYTHON = """#!/bin/sh
[ ! -e broken ] || { echo "ImportError: libxcb.so.1: cannot open shared object file"; exit 1; } >&2
"""

if shutil.which("make") is None:
    pytest.skip("make is not installed", allow_module_level=True)


@pytest.fixture
def run_make(tmp_path):
    """Run make beside a pyproject.toml; returns what pip was asked for, and what was printed."""
    folder = tmp_path / ".venv/bin"
    folder.mkdir(parents=True)
    for name, script in {"pip": PIP, "python": PYTHON, "detcli": "#!/bin/sh\n"}.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "opencv").write_text("opencv-python==5.0.0.93\n")
    inherited = {
        name: value for name, value in os.environ.items() if "MAKE" not in name and name != "CI"
    }

    def run(target, *, code=0, **variables):
        (tmp_path / "asked").write_text("")
        process = subprocess.run(
            ["make", "-f", MAKEFILE, target, "PYTHON=true"],  # noqa: S607 - make is wherever it is
            cwd=tmp_path, env=inherited | variables, check=False, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert process.returncode == code, process.stdout
        quiet = "pip install --quiet --disable-pip-version-check "
        requests = []
        for line in (tmp_path / "asked").read_text().splitlines():
            if line != "pip freeze":
                requests.append(line.removeprefix(quiet))
        return requests, process.stdout

    return run


@pytest.mark.parametrize(("target", "package"), [("setup", ".[dev]"), ("demo", ".")])
def test_nothing_more_is_installed_where_opencv_loads(run_make, target, package):
    assert run_make(target)[0] == [f"--editable {package}"]
    assert run_make(target)[0] == []


@pytest.mark.parametrize(("target", "package"), [("setup", ".[dev]"), ("demo", ".")])
def test_a_machine_without_the_libraries_of_a_desktop(run_make, tmp_path, target, package):
    (tmp_path / "broken").touch()
    requests, printed = run_make(target)
    assert requests == [f"--editable {package}", HEADLESS]
    assert "does not load: libxcb.so.1: cannot open shared object file" in printed
    assert "Installing opencv-python-headless==5.0.0.93 over it in .venv\n" in printed


@pytest.mark.parametrize("target", ["setup", "demo"])
@pytest.mark.parametrize(
    "packages",
    ["opencv-python==5.0.0.93\nopencv-python-headless==5.0.0.93\n",
     "opencv-python-headless==5.0.0.93\n"],
)  # fmt: skip
def test_it_is_mended_when_pip_has_overwritten_it_since(run_make, tmp_path, target, packages):
    run_make(target)
    (tmp_path / "broken").touch()
    (tmp_path / "opencv").write_text(packages)
    assert run_make(target)[0] == [HEADLESS]


def test_opencv_removed_altogether(run_make, tmp_path):
    run_make("demo")
    (tmp_path / "broken").touch()
    (tmp_path / "opencv").write_text("")
    assert run_make("demo")[0] == ["--force-reinstall --no-deps opencv-python-headless"]


def test_if_that_does_not_help_make_ends_with_the_reason(run_make, tmp_path):
    (tmp_path / "broken").mkdir()  # which the pretended pip does not remove
    requests, printed = run_make("demo", code=2)
    assert requests[-1] == HEADLESS
    assert printed.count("libxcb.so.1: cannot open shared object file") == 2


def test_the_demonstration_is_the_readmes_and_says_what_comes_next(run_make):
    printed, _, following = run_make("demo")[1].partition("Next:")
    (command_line,) = re.findall(r"^\.venv/bin/detcli .*", printed, re.MULTILINE)
    first = blocks(README, "console")[0].splitlines()[0].removeprefix("$ ")
    command = command_line.removeprefix(".venv/bin/").replace(" --format table", "")
    assert shlex.split(command) == shlex.split(first)
    next_commands = []
    for line in following.splitlines():
        if line:
            next_commands.append(shlex.split(line, comments=True))
    assert len(next_commands) >= 3
    assert next_commands[0] == [".", ".venv/bin/activate"]
    assert next_commands[1][:3] == ["detcli", "predict", "YOUR.jpg"]
    assert next_commands[-1][-2:] == ["--report", "page"]


def test_the_demonstration_uses_the_development_tools_environment(run_make):
    run_make("setup")
    assert run_make("demo")[0] == []
    assert run_make("setup")[0] == []


def test_the_development_tools_are_added_to_the_demonstration(run_make):
    run_make("demo")
    assert run_make("setup")[0] == ["--editable .[dev]"]


@pytest.fixture
def settings_change(tmp_path):
    """Make pyproject.toml newer than whatever was installed by it."""

    def touch():
        later = time.time() + 1
        for stamp in (tmp_path / ".venv").glob("installed*"):
            os.utime(stamp, (later - 10, later - 10))
        os.utime(tmp_path / "pyproject.toml", (later - 5, later - 5))

    return touch


def test_ci_has_all_libraries(run_make):
    assert run_make("setup", CI="1")[0] == ["--editable .[dev-all]"]
    assert run_make("setup", CI="true")[0] == []


def test_what_ci_installed_is_enough_at_home(run_make):
    run_make("setup", CI="1")
    assert run_make("setup")[0] == []
    assert run_make("demo")[0] == []


def test_ci_adds_to_what_was_installed_at_home(run_make):
    run_make("setup")
    assert run_make("setup", CI="1")[0] == ["--editable .[dev-all]"]
    assert run_make("setup", CI="1")[0] == []


@pytest.mark.parametrize("variables", [{}, {"CI": ""}])
def test_an_empty_ci_is_none(run_make, variables):
    assert run_make("setup", **variables)[0] == ["--editable .[dev]"]


def test_either_extra_is_installed_anew_for_other_requirements(run_make, settings_change):
    run_make("setup", CI="1")
    settings_change()
    assert run_make("setup")[0] == ["--editable .[dev]"]
    assert run_make("setup")[0] == []
    assert run_make("setup", CI="1")[0] == ["--editable .[dev-all]"]
    assert run_make("setup", CI="1")[0] == []


def test_training_is_added_to_either_extra_once(run_make):
    for target, variables in (("setup", {}), ("setup", {"CI": "1"})):
        run_make(target, **variables)
        assert run_make(".venv/installed-train", **variables)[0] == ["--editable .[train]"]
        assert run_make(".venv/installed-train", **variables)[0] == []


def test_the_lowest_versions_are_of_all_libraries():
    command = ["make", "-n", "-f", MAKEFILE, "test-lowest"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # type: ignore[arg-type]
    (install,) = re.findall(".*lowest-direct.*", printed)
    assert install.endswith('--editable ".[dev-all]"')


def test_a_release_without_a_place_for_its_sources_is_refused(run_make):
    assert "REPOSITORY=https://HOST/OWNER/detcli" in run_make("release", code=2)[1]
