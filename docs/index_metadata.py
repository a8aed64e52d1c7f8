"""What the package index is told, as far as it depends on where the sources are.

A release names that place in DETCLI_REPOSITORY, see `make release`. Without, a build is marked as
private, which the index refuses, and README keeps links that are dead there.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!#|\w+:)([^)]+)\)")


class IndexMetadata(MetadataHookInterface):
    """Fills in classifiers, the page and the links beside it."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["classifiers"] = [*self.config["classifiers"]]
        if place := os.environ.get("DETCLI_REPOSITORY", "").rstrip("/"):
            tag = f"v{metadata['version']}"
            kinds = {"!": f"{place}/raw/{tag}", "": f"{place}/blob/{tag}"}
            text = LINK.sub(
                lambda found: f"{found[1]}{found[2]}({kinds[found[1]]}/{found[3]})", text
            )
            metadata["urls"] = {
                "Source": place,
                "Documentation": f"{kinds['']}/docs/index.md",
                "Changelog": f"{kinds['']}/CHANGELOG.md",
                "Issues": f"{place}/issues",
            }
        else:
            metadata["classifiers"].append("Private :: Do Not Upload")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
