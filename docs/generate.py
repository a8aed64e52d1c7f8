"""Writes the parts of the documentation that come from the program itself.

    python docs/generate.py

docs/cli.md holds the real `--help` of every command, docs/output.md the real schema, and each
command's `schema.json` follows from its report. A test fails where they differ from what this would
write.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

from schemas import REPORTS, schema  # noqa: E402 - beside this file

COMMANDS = DOCS.parent / "detcli/commands"
SCHEMA = re.compile("(<!-- schema: .*? -->\n).*?(<!-- end of schema -->)", re.DOTALL)


def detcli(*arguments: str) -> str:
    """What a command prints, at a fixed width."""
    environment = {**os.environ, "COLUMNS": "100", "TERMINAL_WIDTH": "100"}
    command = [sys.executable, "-m", "detcli", *arguments]
    finished = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return finished.stdout


def commands(*group: str) -> Iterator[list[str]]:
    """Words of all commands, from the help of the program or of a group of commands."""
    listing = detcli(*group, "--help").partition("Commands:\n")[2]
    for name in re.findall(r"^ {2}(\w+)", listing, re.MULTILINE):
        yield [*group, name]
        yield from commands(*group, name)


def cli() -> str:
    """The text of docs/cli.md."""
    parts = ["# Command line\n", "Written by docs/generate.py from the program's own help.\n"]
    for arguments in ([], *commands()):
        title = " ".join(["detcli", *arguments])
        parts.append(f"## {title}\n\n```text\n{detcli(*arguments, '--help').strip()}\n```\n")
    return "\n".join(parts)


def output(text: str) -> str:
    """The text of docs/output.md with the schema in its place."""
    schema = f"\n```json\n{detcli('schema')}```\n\n"
    return SCHEMA.sub(lambda found: found[1] + schema + found[2], text)


def main() -> None:
    """Write the files."""
    for command in REPORTS:
        (COMMANDS / command / "schema.json").write_text(schema(command), encoding="utf-8")
    (DOCS / "cli.md").write_text(cli(), encoding="utf-8")
    path = DOCS / "output.md"
    path.write_text(output(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
