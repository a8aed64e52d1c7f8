"""The command `schema`: the JSON Schema of a command's output."""

from importlib import resources

from detcli.cli.command import command
from detcli.config.option import option
from detcli.core.errors import UsageError
from detcli.storage.files import StandardOutput

PAGES = {
    "bench": "benchmark.md",
    "convert": "convert.md",
    "inspect": "output.md",
    "models": "models.md",
    "tune": "tune.md",
    "verify": "verify.md",
}
"""Where the documentation shows a command's JSON by example."""

SCHEMAS = ("eval", "predict")
"""Commands that have a schema."""


@command()
def schema(
    name: str = option("predict", "COMMAND", "The command: predict or eval."),
) -> None:
    """Print the JSON Schema of a command's JSON output."""
    if name not in SCHEMAS:
        hint = f"these commands have one: {', '.join(SCHEMAS)}"
        if name in PAGES:
            hint = f"docs/{PAGES[name]} shows its JSON by example; {hint}"
        raise UsageError(f"'{name}' has no schema", hint)
    file = resources.files("detcli.commands") / name / "schema.json"
    StandardOutput().write(file.read_text(encoding="utf-8"))
