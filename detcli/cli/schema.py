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
        entry.name: entry for entry in resources.files("detcli").joinpath("schemas").iterdir()
    }
    if f"{command}.json" not in schemas:
        known = ", ".join(sorted(name.removesuffix(".json") for name in schemas))
        raise UsageError(f"'{command}' has no schema", f"these have one: {known}")
    from detcli.files import StandardOutput

    StandardOutput().write(schemas[f"{command}.json"].read_text(encoding="utf-8"))
