"""The command `schema`: the JSON Schema of a command's output."""

from importlib import resources

from detcli.cli.command import command
from detcli.config.option import option
from detcli.core.errors import UsageError
from detcli.storage.files import StandardOutput

PAGES = {"models": "models.md"}
"""Where the documentation shows a command's JSON by example."""

SCHEMAS = ("bench", "convert", "doctor", "eval", "inspect", "predict", "tune", "verify")
"""Commands that have a schema."""


@command()
def schema(
    name: str = option("predict", "COMMAND", f"The command: {', '.join(SCHEMAS)}."),
) -> None:
    """Print the JSON Schema of a command's JSON output."""
    if name not in SCHEMAS:
        hint = f"these commands have one: {', '.join(SCHEMAS)}"
        if name in PAGES:
            hint = f"docs/{PAGES[name]} shows its JSON by example; {hint}"
        raise UsageError(f"'{name}' has no schema", hint)
    file = resources.files("detcli.commands") / name / "schema.json"
    StandardOutput().write(file.read_text(encoding="utf-8"))
