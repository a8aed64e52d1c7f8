"""Credentials, regions and endpoints come from where the cloud's own tools take them."""

import logging
import sys

import optional
import pytest

from detcli.core.errors import DeviceError
from detcli.storage import objects as credentials
from detcli.storage.object_errors import ObjectError, ObjectMissingError
from detcli.storage.objects import Bucket

pytestmark = optional.needs("obstore")

SECRET = "wJalrXUtnFEMI/K7MDENG"  # noqa: S105 - of AWS's documentation


def listed(scheme="s3", name="photos"):
    keys = []
    for page in Bucket(scheme, name).list(""):
        for key, _, _ in page:
            keys.append(key)
    return keys


@pytest.fixture
def credential_files(s3, tmp_path, monkeypatch):
    """The two files of the aws command, and no variables."""
    s3.put("a.jpg")
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION", "ENDPOINT_URL"):
        monkeypatch.delenv(f"AWS_{name}")
    config, credentials = tmp_path / "config", tmp_path / "credentials"
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    config.write_text(f"[profile lab]\nregion = eu-west-3\nendpoint_url = {s3.url}\n")
    credentials.write_text(
        f"[lab]\naws_access_key_id = AKIALAB\naws_secret_access_key = {SECRET}\n"
    )
    return config, credentials


def test_variables_are_enough(s3, monkeypatch):
    monkeypatch.setitem(sys.modules, "botocore", None)
    s3.put("a.jpg")
    assert listed() == ["a.jpg"]


def test_an_endpoint_has_several_variables(s3, monkeypatch):
    s3.put("a.jpg")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    for variable in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, s3.url)
            assert listed() == ["a.jpg"]


@pytest.mark.usefixtures("credential_files")
def test_a_profile_is_used_and_nothing_secret_logged(monkeypatch, caplog):
    monkeypatch.setenv("AWS_PROFILE", "lab")
    caplog.set_level(logging.DEBUG)
    assert listed() == ["a.jpg"]
    store = Bucket("s3", "photos").store
    assert store.config["region"] == "eu-west-3"
    assert store.credential_provider()["access_key_id"] == "AKIALAB"
    with pytest.raises(ObjectMissingError):
        Bucket("s3", "photos").read("gone")
    assert SECRET not in repr(store) + caplog.text
    assert "AKIALAB" not in caplog.text


def test_a_command_that_prints_credentials_is_used(credential_files, monkeypatch, tmp_path, s3):
    printed = tmp_path / "printed.json"
    printed.write_text(f'{{"Version": 1, "AccessKeyId": "AKIACMD", "SecretAccessKey": "{SECRET}"}}')
    credential_files[0].write_text(
        f"[profile lab]\ncredential_process = cat {printed}\nendpoint_url = {s3.url}\n"
    )
    credential_files[1].write_text("")
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert listed() == ["a.jpg"]
    assert Bucket("s3", "photos").store.credential_provider()["access_key_id"] == "AKIACMD"


@pytest.mark.parametrize(
    ("profile", "reason"),
    [("gone", "no credentials: .*gone.* could not be found"), ("", "no credentials found")],
)
def test_without_credentials_it_says_how_to_sign_in(credential_files, monkeypatch, profile, reason):
    credential_files[1].write_text("")
    if profile:
        monkeypatch.setenv("AWS_PROFILE", profile)
    with pytest.raises(ObjectError, match=reason) as caught:
        listed()
    assert "AWS_PROFILE" in caught.value.hint


@pytest.mark.usefixtures("credential_files")
def test_a_public_bucket_needs_none(monkeypatch, s3):
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
    assert listed() == ["a.jpg"]


@pytest.mark.usefixtures("credential_files")
@pytest.mark.parametrize("library", ["obstore", "botocore"])
def test_a_missing_library_is_named(monkeypatch, library):
    for name in list(sys.modules):
        if name.partition(".")[0] == library:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(DeviceError, match=library) as caught:
        listed()
    assert caught.value.hint == 'pip install "detcli[cloud]"'


def test_google_is_asked_in_its_own_way(s3, monkeypatch):
    """Google's XML interface lists and reads as S3 does, so moto can stand in for it."""
    s3.put("a b.jpg", b"123")
    s3.client.put_object_acl(Bucket="photos", Key="a b.jpg", ACL="public-read")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", s3.url)
    assert listed("gs") == ["a b.jpg"]
    assert b"".join(Bucket("gs", "photos").read("a b.jpg")[1]) == b"123"
    with pytest.raises(ObjectMissingError, match="no such bucket"):
        listed("gs", "gone")


def test_google_without_credentials_says_how_to_sign_in(monkeypatch, tmp_path):
    monkeypatch.setattr(credentials, "RETRY_S", 1)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "gone.json"))
    with pytest.raises(ObjectError, match="no credentials found") as caught:
        listed("gs")
    assert "gcloud auth" in caught.value.hint


@pytest.fixture
def azure(monkeypatch, tmp_path):
    monkeypatch.setattr(credentials, "RETRY_S", 1)
    monkeypatch.setenv("PATH", str(tmp_path))  # no az command
    return monkeypatch


KEY = "a2V5"


@pytest.mark.parametrize(
    "variables",
    [
        {"AZURE_STORAGE_ACCOUNT": "lab", "AZURE_STORAGE_KEY": KEY},
        {
            "AZURE_STORAGE_CONNECTION_STRING": f"AccountName=lab;AccountKey={KEY};"
            "BlobEndpoint=http://127.0.0.1:9/lab;"
        },
    ],
)
def test_azure_has_the_variables_of_its_command(azure, variables):
    azure.setattr("detcli.storage.objects.RETRY_S", 0.1)
    azure.setenv("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:9/lab")
    for name, value in variables.items():
        azure.setenv(name, value)
    assert Bucket("az", "photos").store.config["account_name"] == "lab"
    with pytest.raises(ObjectError, match="refuses connections"):
        listed("az")


def test_azure_asks_its_command_who_is_signed_in(azure, tmp_path):
    command = tmp_path / "az"
    command.write_text("#!/bin/sh\nexit 1\n")
    command.chmod(0o700)
    azure.setenv("AZURE_STORAGE_ACCOUNT", "lab")
    with pytest.raises(ObjectError, match="no credentials found") as caught:
        listed("az")
    assert "az login" in caught.value.hint


@pytest.mark.usefixtures("azure")
def test_azure_without_an_account_names_the_variable():
    with pytest.raises(ObjectError, match="no storage account") as caught:
        listed("az")
    assert "AZURE_STORAGE_ACCOUNT" in caught.value.hint
