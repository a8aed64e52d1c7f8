"""Commands that still declare their options themselves; the others are `cli.options.command`."""

from typing import Any

from detcli.cli.options import Command as Command
from detcli.cli.options import Group as Group
from detcli.commands.shared.defaults_file import DefaultsContext
from detcli.core.config import DEVICES as DEVICES
from detcli.core.config import INPUT as INPUT
from detcli.core.config import MODEL as MODEL
from detcli.core.config import OUTPUT as OUTPUT
from detcli.core.config import PANELS as PANELS
from detcli.core.config import SCENE as SCENE
from detcli.core.config import SELECTION as SELECTION
from detcli.errors import DetcliError


class OldCommand(Command):
    """A command whose model and device may come from the user's file."""

    context_class = DefaultsContext

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - as in Typer
        """Run; an error about a value that was not typed says where the value comes from."""
        try:
            return super().invoke(ctx)
        except DetcliError as error:
            if origin := ctx.blame(str(error)):
                error.hint = f"{error.hint} ({origin})".strip()
            raise
