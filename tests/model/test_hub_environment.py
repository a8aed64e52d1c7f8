"""Connection settings from the environment that do not work."""

import huggingface_hub
import pytest
from hub_server import COMMIT

from detcli.errors import ModelError
from detcli.model.hub import fetch
from detcli.model.hub_cache import HubFile

FILE = HubFile("onnx-community/yolov10n", "onnx/model.onnx", COMMIT)


@pytest.fixture(autouse=True)
def _fresh(hub, monkeypatch):
    """A new session, with no proxy set."""
    hub.add("yolov10n", b"content")
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    huggingface_hub.close_session()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ALL_PROXY", "socks9://somebody:secret@127.0.0.1:9", "scheme for proxy"),
        ("SSL_CERT_FILE", "/no/such/file.pem", "No such file"),
    ],
)
def test_a_broken_setting_is_reported_with_its_variable(monkeypatch, name, value, words):
    monkeypatch.setenv(name, value)
    with pytest.raises(ModelError, match=words) as error:
        fetch(FILE, "yolov10n", "AGPL-3.0")
    assert name in error.value.hint
    assert "secret" not in str(error.value)


def test_a_proxy_that_needs_another_package(monkeypatch):
    def refuse():
        raise ImportError("Using SOCKS proxy, but the 'socksio' package is not installed.")

    monkeypatch.setattr(huggingface_hub, "get_session", refuse)
    with pytest.raises(ModelError, match="'socksio' package is not installed") as error:
        fetch(FILE, "yolov10n", "AGPL-3.0")
    assert "'codes'" in error.value.hint


def test_a_token_that_cannot_be_sent(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_s\u00e9cret")
    with pytest.raises(ModelError, match="HF_TOKEN") as error:
        fetch(FILE, "yolov10n", "AGPL-3.0")
    assert "cret" not in str(error.value)


def test_a_setting_that_is_not_a_number(detcli, monkeypatch):
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "soon")
    done = detcli("models", "pull", "yolov10n")
    assert done.returncode == 4
    assert "'soon'" in done.stderr
    assert "HF_*" in done.stderr
