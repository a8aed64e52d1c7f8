"""Completion in real shells, where they are installed: keys go in, the line comes out."""

import contextlib
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

DUMP = "\x07"  # Ctrl-G: print the line, and clear it

# `pty.fork` would do it, but not in a process with threads.
TAKE_TERMINAL = (
    "import fcntl, os, sys, termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])\n"
)

START = {
    "bash": r"""
        PS1='READY> '; HISTFILE=; bind 'set bell-style none'; bind 'set enable-bracketed-paste off'
        bind 'set page-completions off'; bind 'set completion-query-items 0'
        dump() { printf '\n<<%s>>\n' "$READLINE_LINE"; READLINE_LINE= READLINE_POINT=0; }
        bind -x '"\C-g": dump'
    """,
    "zsh": r"""
        PS1='READY> '; unsetopt prompt_cr prompt_sp zle_bracketed_paste list_beep; LISTMAX=1000
        dump() { zle -I; print -r -- "<<$BUFFER>>"; BUFFER= }; zle -N dump; bindkey '^G' dump
    """,
    "fish": r"""
        function fish_prompt; echo -n 'READY> '; end; set fish_autosuggestion_enabled 0
        function dump; printf '\n<<%s>>\n' (commandline); commandline -r ''; end; bind \cg dump
    """,
}


@pytest.fixture
def completing_environment(tmp_path, warm_detcli):
    """An environment with this `detcli` and a temporary home."""
    path = os.pathsep.join(map(str, (warm_detcli, Path(sys.executable).parent, os.environ["PATH"])))
    variables = {"PATH": path, "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path), "TERM": "dumb"}
    # Without this folder, fish reads every manual page of the machine first.
    (tmp_path / ".local/share/fish/generated_completions").mkdir(parents=True, exist_ok=True)
    variables |= {"LC_ALL": "C.UTF-8"}
    return {**os.environ, **variables, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}


@pytest.fixture
def folder_of_models(tmp_path):
    """Models with odd names, and files that are none."""
    folder = tmp_path / "place"
    for name in ("my model.onnx", "it's $5.onnx", "run:1.onnx", "notes.txt",
                 "sub dir/deep.onnx", "猫.onnx", "street.jpg"):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (tmp_path / "homely.onnx").touch()
    return folder


class Terminal:
    """A shell in a terminal of its own."""

    def __init__(self, name, environment, folder, *start):
        self._terminal, inside = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, name, "-i"],
            stdin=inside, stdout=inside, stderr=inside,
            cwd=folder, env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(inside)
        self._read = b""
        self._send("stty -echo\n")
        for line in START[name].strip().splitlines() + list(start):
            self._send(line.strip() + "\n")
        self._send("echo st''arted\n")
        self._read_until("started\r?\n(?s:.*)READY> ")

    def complete(self, keys):
        """The line after these keys."""
        self._send(keys + DUMP)
        return self._read_until("<<(.*)>>")[1]

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def _send(self, text):
        os.write(self._terminal, text.encode())

    def _read_until(self, pattern):
        end = time.monotonic() + 60
        while not (match := re.search(pattern, self._read.decode(errors="replace"))):
            assert time.monotonic() < end, self._read
            if select.select([self._terminal], [], [], 1)[0]:
                self._read += os.read(self._terminal, 65536)
        self._read = b""  # the shell waits for keys
        return match


SHOWN = {
    "bash": ['eval "$(detcli --show-completion bash)"'],
    "zsh": ["autoload -Uz compinit; compinit -u -D", 'eval "$(detcli --show-completion zsh)"'],
    "fish": ["detcli --show-completion fish | source"],
}


@pytest.fixture
def terminal(completing_environment, folder_of_models):
    """Open a shell; it is closed at the end."""
    with contextlib.ExitStack() as stack:

        def start(name, *lines):
            if shutil.which(name) is None:
                pytest.skip(f"{name} is not installed")
            opened = Terminal(name, completing_environment, folder_of_models, *lines)
            stack.callback(opened.close)
            return opened

        yield start


def words(line):
    """What a shell makes of a line."""
    command = ["bash", "-c", f"printf '%s\\n' {line}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


MODELS = {
    "cod": "codes", "my": "my model.onnx", "my\\ m": "my model.onnx", '"my m': "my model.onnx",
    "'my m": "my model.onnx", "it": "it's $5.onnx", "ru": "run:1.onnx", "run:": "run:1.onnx",
    "run\\:": "run:1.onnx", "猫": "猫.onnx", "su\tde": "sub dir/deep.onnx",
}  # fmt: skip
CASES = [
    ("detcli pre\t", ["detcli", "predict"]),
    ("detcli predict --format=p\t", ["detcli", "predict", "--format=parquet"]),
    ("detcli predict --device c\t", ["detcli", "predict", "--device", "cpu"]),
    ("detcli predict --device=cpu,c\t", ["detcli", "predict", "--device=cpu,cpu"]),
    ("detcli predict str\t", ["detcli", "predict", "street.jpg"]),
]
for typed, name in MODELS.items():
    CASES.append((f"detcli predict -m {typed}\t", ["detcli", "predict", "-m", name]))


@pytest.mark.parametrize("name", SHOWN)
def test_completed_lines(terminal, name):
    """One shell for all lines, as each key costs a process."""
    shell = terminal(name, *SHOWN[name])
    for keys, expected_words in CASES:
        assert words(shell.complete(keys)) == expected_words
    home = shell.complete("detcli predict -m ~/home\t")
    assert home.strip() == "detcli predict -m ~/homely.onnx"


@pytest.mark.parametrize("name", SHOWN)
def test_completion_as_it_is_installed(terminal, name, completing_environment):
    """The first key of a new shell works."""
    if shutil.which(name) is not None:
        install = ["detcli", "--install-completion", name]
        subprocess.run(install, check=True, capture_output=True, env=completing_environment)
    completed = terminal(name).complete("detcli predict -m it\t")
    assert words(completed) == ["detcli", "predict", "-m", "it's $5.onnx"]
