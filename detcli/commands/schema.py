"""`detcli schema`: the JSON Schemas of what commands print."""

from importlib import resources
from typing import Annotated

import typer

from detcli.errors import UsageError


def schema(
    command: Annotated[
        str, typer.Argument(metavar="[COMMAND]", help="The command: predict, verify, bench, ...")
    ] = "predict",
) -> None:
    """Print the JSON Schema of a command's JSON output."""
    schemas = {
        folder.name: file
        for folder in resources.files("detcli.commands").iterdir()
        if (file := folder / "schema.json").is_file()
    }
    if command not in schemas:
        known = ", ".join(sorted(schemas))
        raise UsageError(f"'{command}' has no schema", f"these commands have one: {known}")
    from detcli.files import StandardOutput

    StandardOutput().write(schemas[command].read_text(encoding="utf-8"))
