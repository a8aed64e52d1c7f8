"""`detcli schema`: the JSON Schema of what a command prints."""

from importlib import resources

import typer


def schema() -> None:
    """Print the JSON Schema of the records that `predict` writes."""
    typer.echo(resources.files("detcli").joinpath("schemas/predict.json").read_text().rstrip())
