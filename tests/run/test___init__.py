"""A run, opened."""

from detcli.config.config import Config
from detcli.config.option import options_of
from detcli.data.record import SettingsJson

UNNOTED = {
    *("start", "end", "max_pixels", "strict", "lenient"),  # a manifest has them
    "boxes_only",  # without it, a model that needs it is refused
}
"""What journals do not note, though boxes depend on it."""


def test_what_boxes_depend_on_is_noted():
    noted = {"zone" if name == "zones" else "line" if name == "lines" else name
             for name in SettingsJson.__annotations__}  # fmt: skip
    depended = {name for name, option in options_of(Config).items() if option.affects_detections}
    assert depended - noted == UNNOTED
    assert noted - depended == {"model_sha256", "blur"}  # the second of texts
