"""A run, opened."""

import pytest

from detcli.backend import cpu
from detcli.config.config import Config, Runtime
from detcli.config.device import Device
from detcli.config.inputs import InputOptions
from detcli.config.option import options_of
from detcli.data.record import SettingsJson
from detcli.run import open_run

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


@pytest.mark.parametrize(
    ("image_count", "one_by_one", "spins"),
    [(1, None, True), (2, None, False), (1, False, False), (2, True, True)],
)
def test_the_network_spins_where_nothing_is_decoded_meanwhile(
    image_count, one_by_one, spins, make_model, make_image, monkeypatch
):
    sessions = []

    def open_session(_, threads, *, spins):
        sessions.append((threads, spins))

    monkeypatch.setattr(cpu, "open_on_cpu", open_session)
    names = []
    for number in range(image_count):
        names.append(str(make_image(f"{number}.png")))
    config = Config(
        inputs=InputOptions(source=tuple(names)),
        runtime=Runtime(model=str(make_model()), device=(Device.parse("cpu"),), workers=1),
    )
    monkeypatch.setattr(cpu.CpuBackend, "close", lambda _: None)
    with open_run(config, one_by_one=one_by_one):
        pass
    assert sessions == [(0, spins)]
