"""A run, opened."""

from detcli.config.config import Config
from detcli.config.option import options_of
from detcli.data.record import SettingsJson

IN_MANIFESTS = {"start", "end", "max_pixels", "strict", "lenient"}
UNNOTED = IN_MANIFESTS | {"boxes_only"}  # without which a model that needs it is refused
"""What journals do not note, though boxes depend on it."""


def test_what_boxes_depend_on_is_noted():
    settings = set(SettingsJson.__annotations__)
    options = set()
    for name, option in options_of(Config).items():
        if option.affects_detections:
            options.add({"zone": "zones", "line": "lines"}.get(name, name))
    assert options - settings == UNNOTED
    assert settings - options == {"model_sha256", "blur"}  # the second of texts
