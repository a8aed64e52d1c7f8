"""Runs the commands of the documentation as their readers would."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def page(name):
    return (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")


def section(text, title):
    return text.partition(f"## {title}")[2].partition("\n## ")[0]


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def titled_blocks(text, language):
    """The blocks of a text by the paragraph before each."""
    pattern = rf"([^\n]+(?:\n[^\n]+)*)\n\n```{language}\n(.*?)^```"
    return dict(re.findall(pattern, text, re.MULTILINE | re.DOTALL))


def shell(script):
    """Run a script in bash, as another program would: without a terminal."""
    return run(["bash", "-c", script])


def works(script):
    """Run a script like `shell`; all of its commands have to succeed."""
    process = shell(f"set -eo pipefail\n{script}")
    assert process.returncode == 0, process.stderr
    return process


ON_TERMINAL = [
    sys.executable,
    "-c",
    "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))",
    "bash",
    "-c",
]


def in_terminal(script):
    """Run a script in bash on a terminal of its own, as somebody would type it."""
    process = run(ON_TERMINAL + [script])
    process.stdout = plain(process.stdout)
    return process


def until_ctrl_c(script, sign):
    """What a script says on a terminal of its own; Ctrl-C is pressed when the sign appears.

    With the real `detcli`: a warm one would hear of it later than the reader of its pipe.
    """
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    with subprocess.Popen(
        ON_TERMINAL + [script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PATH": path},
    ) as process:
        output = b""
        while not re.search(sign, plain(output.decode(errors="ignore"))):
            chunk = process.stdout.read1()  # type: ignore[attr-defined]
            assert chunk, output
            output += chunk
        process.stdin.write(b"\x03")
        process.stdin.flush()
        return plain((output + process.stdout.read()).decode())


def plain(text):
    """What a terminal was sent, without its control codes."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r\n", "\n")


def from_cron(script):
    """Run a script as cron does: in sh, at home, with hardly any variables."""
    first = os.environ["PATH"].split(os.pathsep)[0]
    path = f"{first}:/usr/bin:/bin"  # as the text before the recipe says
    variables = {"HOME": str(Path.cwd()), "LOGNAME": "you", "SHELL": "/bin/sh", "PATH": path}
    variables["DETCLI_DEVICE"] = "cpu"  # `auto` without the extras, as on the page
    return run(["/bin/sh", "-c", script], env=variables)


def run(command, **options):
    return subprocess.run(
        command,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        **options,
    )


def skip_without_jq(script):
    if "jq" in script and shutil.which("jq") is None and not os.environ.get("CI"):
        pytest.skip("jq is not installed")
