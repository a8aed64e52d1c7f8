"""The option of commands that sort images into folders."""

from detcli.config.config import OUTPUT
from detcli.config.option import option
from detcli.sink.sorted_files import How

HOW: How = option(
    How.LINK,
    f"--how {'|'.join(How)}",
    "Link the files, which takes no space, copy them, or write lists for --files-from.",
    panel=OUTPUT,
)
