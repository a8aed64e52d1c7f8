"""`detcli schema`: the JSON Schema of what a command prints."""

from importlib import resources
from typing import Annotated

import typer

from detcli.errors import UsageError


def schema(
    command: Annotated[
        str, typer.Argument(metavar="[COMMAND]", help="Whose output: predict, verify, bench, ...")
    ] = "predict",
) -> None:
    """Print the JSON Schema of what a command writes as JSON."""
    schemas = {
        folder.name: file
        for folder in resources.files("detcli.commands").iterdir()
        if (file := folder / "schema.json").is_file()
    }
    if command not in schemas:
        known = ", ".join(sorted(schemas))
        raise UsageError(f"'{command}' has no schema", f"these have one: {known}")
    from detcli.files import StandardOutput

    StandardOutput().write(schemas[command].read_text(encoding="utf-8"))
