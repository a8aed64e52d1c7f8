"""Candidates for completion in the shell that more is known of here than in `detcli.cli`."""

from detcli.cli.completion import complete_device as complete_device
from detcli.cli.completion import complete_files
from detcli.cli.completion import complete_model as complete_model


def complete_side(incomplete: str) -> list[str]:
    """What a side of a comparison may be: a model, or saved records."""
    from detcli.commands.shared.saved import SUFFIXES
    from detcli.model.zoo import MODELS

    return [*MODELS, *complete_files(incomplete, (".onnx", *SUFFIXES))]
