"""Completion in bash, zsh and fish: the candidates, and the real shells if installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def environment(tmp_path):
    """An environment with this `detcli` and a temporary home."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path)}


@pytest.fixture
def shell(environment):
    """Run a script in a shell; skips if the shell is not installed."""

    def run(name, script):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
        done = subprocess.run(
            [name, "-c", script],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return run


def asked(shell, line):
    """Variables with which a shell asks for completions of a line."""
    words = line.split(" ")
    if shell == "bash":
        return {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    action = {"_TYPER_COMPLETE_FISH_ACTION": "get-args"} if shell == "fish" else {}
    return {"_TYPER_COMPLETE_ARGS": line, **action}


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("detcli pre", "predict"),
        ("detcli doctor --clear", "--clear-cache"),
        ("detcli predict --format ", "jsonl"),
        ("detcli doctor --format ", "table"),
    ],
)
def test_candidates(detcli, name, line, found):
    variables = {"_DETCLI_COMPLETE": f"complete_{name}", **asked(name, line)}
    done = detcli(env={**os.environ, **variables})
    assert found in done.stdout
    assert "Usage" not in done.stdout + done.stderr


def test_bash_completes(shell):
    script = """
    eval "$(_DETCLI_COMPLETE=source_bash detcli)"
    COMP_WORDS=(detcli do) COMP_CWORD=1
    _detcli_completion detcli
    echo "${COMPREPLY[@]}"
    """
    assert shell("bash", script) == ["doctor"]


def test_fish_completes(shell):
    script = "_DETCLI_COMPLETE=source_fish detcli | source; complete -C 'detcli doct'"
    assert shell("fish", script)[0] == "doctor"


def test_zsh_takes_the_script(shell):
    script = """
    autoload -Uz compinit; compinit -u -D  # -D: no file of what it found
    eval "$(_DETCLI_COMPLETE=source_zsh detcli)"
    echo $_comps[detcli]
    """
    assert shell("zsh", script) == ["_detcli_completion"]
