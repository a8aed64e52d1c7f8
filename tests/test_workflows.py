"""The workflows of GitHub and `.ci/run` run the same targets, and nothing is published untested."""

import re
from pathlib import Path

import pytest
import yaml
from folders import names_in

ROOT = Path(__file__).parents[1]
WORKFLOWS = ROOT / ".github/workflows"

TARGETS = {
    ".ci/run": {"check", "readers", "test"},
    "tests.yml": {"quick"},
    "nightly.yml": {"readers", "test", "mutants", "test-lowest", "test-train"},
    "release.yml": {"release"},
}
"""What each file asks make for; tests.yml calls `.ci/run` for the rest."""


def read_workflow(name):
    return yaml.safe_load((WORKFLOWS / name).read_text(encoding="utf-8"))


def commands_of(name):
    """The command lines of a workflow, or of `.ci/run`, with a matrix's targets put in."""
    if name == ".ci/run":
        return (ROOT / name).read_text(encoding="utf-8").splitlines()
    commands = []
    for job in read_workflow(name)["jobs"].values():
        targets = job.get("strategy", {}).get("matrix", {}).get("target", [])
        for step in job.get("steps", []):
            command = step.get("run", "")
            quoted = re.findall(r"'([a-z -]+)'", command)
            commands.append(re.sub(r"\${{.*?}}", " ".join(list(targets) + quoted), command))
    return commands


def targets_of(name):
    """The targets that its calls of make name."""
    targets = set()
    for command in commands_of(name):
        if command.startswith("make "):
            for word in command.split()[1:]:
                if re.fullmatch("[a-z-]+", word):
                    targets.add(word)
    return targets


def makefile_targets():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):", text, re.MULTILINE)) | {"quick", "test"}


@pytest.mark.parametrize("name", TARGETS)
def test_each_file_runs_its_targets(name):
    assert targets_of(name) == TARGETS[name]
    assert targets_of(name) <= makefile_targets()


def test_every_workflow_is_listed():
    names = set(names_in(WORKFLOWS))
    assert names == TARGETS.keys() - {".ci/run"}


def test_what_is_pushed_passes_the_projects_own_run():
    job = read_workflow("tests.yml")["jobs"]["all"]
    assert ".ci/run" in [step.get("run") for step in job["steps"]]
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]


def test_the_projects_own_run_thins_nothing_and_requires_a_browser():
    assert "export CI=1 REQUIRE_BROWSER=1" in commands_of(".ci/run")


def test_nothing_is_published_that_was_not_tested():
    jobs = read_workflow("release.yml")["jobs"]
    assert jobs["publish"]["needs"] == "build"
    assert jobs["build"]["needs"] == "tests"
    assert jobs["tests"]["uses"] == "./.github/workflows/tests.yml"
    assert "workflow_call" in read_workflow("tests.yml")[True]  # YAML reads the key `on` as true


@pytest.mark.parametrize("name", sorted(TARGETS.keys() - {".ci/run"}))
def test_no_job_runs_without_a_limit(name):
    for job in read_workflow(name)["jobs"].values():
        assert "timeout-minutes" in job or "uses" in job


def test_no_library_is_missing_at_night():
    (job,) = read_workflow("nightly.yml")["jobs"].values()
    assert job["steps"][-1]["env"]["CI"] == "1"


def test_examples_are_fresh_at_night_alone():
    (job,) = read_workflow("nightly.yml")["jobs"].values()
    assert job["steps"][-1]["env"]["FRESH_EXAMPLES"] == "1"
    assert "FRESH_EXAMPLES" not in (WORKFLOWS / "tests.yml").read_text(encoding="utf-8")
