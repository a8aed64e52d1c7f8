"""How a store is opened: endpoint, region and credentials, as the cloud's own tools find them."""

import logging
import os
import re
from typing import TYPE_CHECKING, Any

from detcli.errors import DeviceError, loading
from detcli.object_store.failures import SIGN_IN, ObjectError, explained

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore, S3Store

    Store = AzureStore | GCSStore | S3Store

RETRY_S = 30
"""For how long a request is repeated after failures that pass, such as 503."""

FIRST_WAIT_S = 0.1
"""How long it waits to be repeated for the first time; twice as long each time after that."""

UNLIMITED_S = 24 * 3600

CREDENTIALS_S = 15 * 60
"""How long credentials are used until the library that found them is asked again."""

INSTALL = "pip install 'detcli[cloud]'"

AZURE_SECRETS = (
    *("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY"),
    *("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_CONNECTION_STRING"),
    *("AZURE_CLIENT_SECRET", "AZURE_STORAGE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE"),
    *("AZURE_STORAGE_TOKEN", "AZURE_SKIP_SIGNATURE", "AZURE_MSI_ENDPOINT"),
)
"""Variables with which nobody has to be asked who is signed in."""


def require_obstore() -> None:
    """Require that the library for object stores is installed.

    Raises:
        DeviceError: It is not.
    """
    with loading("obstore", INSTALL, DeviceError):
        import obstore  # noqa: F401


def open_store(scheme: str, name: str, timeout_s: float) -> "Store":
    """Open a store; nothing is asked of it yet, only who is signed in.

    Args:
        scheme: `s3`, `gs` or `az`.
        name: The bucket's.
        timeout_s: For one request with all that it brings; 0 for no limit.

    Raises:
        DeviceError: A library is missing.
        ObjectError: No credentials were found, or a setting is wrong.
    """
    require_obstore()
    from obstore import store
    from obstore.exceptions import BaseError

    found = {"s3": _aws, "gs": _google, "az": _azure}[scheme]()
    kinds: dict[str, Any] = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}
    endpoint = found.get("endpoint") or found.get("base_url") or ""
    if endpoint and not re.fullmatch(r"https?://[\w.:\[\]-]+(/\S*)?", endpoint):
        raise ObjectError("its endpoint is not an address", "set it as in https://host:9000")
    prefix = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}[scheme]
    try:
        opened: Store = kinds[scheme](
            name,
            **found,
            **client_settings(endpoint, timeout_s, allow_http=_is_set(f"{prefix}_ALLOW_HTTP")),
        )
    except (BaseError, ValueError, OSError) as error:
        raise explained(error, scheme) from None
    return opened


def client_settings(
    endpoint: str, timeout_s: float = 0, *, allow_http: bool = False
) -> dict[str, Any]:
    """How long obstore waits, and how often it asks again.

    Args:
        endpoint: Where it asks; may be empty.
        timeout_s: For one request with all that it brings; 0 for no limit.
        allow_http: Whether not to insist on encryption; implied by the endpoint.
    """
    from datetime import timedelta

    return {
        "client_options": {
            "allow_http": allow_http or endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=5),
            "read_timeout": timedelta(seconds=20),
            "timeout": timedelta(seconds=timeout_s or UNLIMITED_S),
        },
        "retry_config": {
            "max_retries": 12,
            "backoff": {
                "init_backoff": timedelta(seconds=FIRST_WAIT_S),
                "max_backoff": timedelta(seconds=5),
                "base": 2,
            },
            "retry_timeout": timedelta(seconds=RETRY_S),
        },
    }


def _aws() -> dict[str, Any]:
    """Region, endpoint and credentials as the aws command would have them.

    botocore, which takes longer to import than all of detcli, is asked only where there is more to
    look at than variables.

    Raises:
        DeviceError: botocore is missing.
        ObjectError: No credentials were found.
    """
    known = os.environ
    files = (
        known.get("AWS_CONFIG_FILE", "~/.aws/config"),
        known.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    )
    complete = _is_set("AWS_SKIP_SIGNATURE") or "AWS_SECRET_ACCESS_KEY" in known
    if complete and not any(map(os.path.isfile, map(os.path.expanduser, files))):
        found = {
            "region": known.get("AWS_REGION") or known.get("AWS_DEFAULT_REGION"),
            "endpoint": known.get("AWS_ENDPOINT_URL_S3") or known.get("AWS_ENDPOINT_URL"),
        }
    else:
        found = _aws_of_botocore()
    found["endpoint"] = found["endpoint"] or known.get("AWS_ENDPOINT")
    return {name: value for name, value in found.items() if value}


def _aws_of_botocore() -> dict[str, Any]:
    with loading("botocore", INSTALL, DeviceError):
        from botocore.configprovider import ConfiguredEndpointProvider
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session

    for name in ("botocore", "urllib3"):  # what they log may hold credentials
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        session = Session()
        endpoint = ConfiguredEndpointProvider(
            full_config=session.full_config,
            scoped_config=session.get_scoped_config(),
            client_name="s3",
        ).provide()
        region = os.environ.get("AWS_REGION") or session.get_config_variable("region")
        found = {"region": region, "endpoint": endpoint}
        if not _is_set("AWS_SKIP_SIGNATURE"):
            credentials = session.get_credentials()
            if credentials is None:
                raise ObjectError("no credentials found", SIGN_IN["s3"])
            credentials.get_frozen_credentials()  # raises where they have expired
            found["credential_provider"] = _AwsCredentials(credentials)
    except BotoCoreError as error:
        # Its texts name profiles and files. What a service answered is not among them.
        raise ObjectError(f"no credentials: {error}", SIGN_IN["s3"]) from None
    return found


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in {"1", "true", "yes"}


class _AwsCredentials:
    """Gives obstore what botocore finds, and renews, whether in a file or on the network."""

    def __init__(self, credentials: Any) -> None:  # noqa: ANN401 - of botocore
        self._credentials = credentials

    def __call__(self) -> dict[str, Any]:
        """The credentials now."""
        from datetime import UTC, datetime, timedelta

        frozen = self._credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + timedelta(seconds=CREDENTIALS_S),
        }


def _google() -> dict[str, Any]:
    """What the variables of Google's libraries say; obstore reads the credentials itself."""
    if host := os.environ.get("STORAGE_EMULATOR_HOST"):
        address = host if "://" in host else f"http://{host}"
        # Not `skip_signature`, with which obstore asks for credentials when it writes.
        return {"base_url": address, "credential_provider": _no_token}
    return {}


def _no_token() -> dict[str, Any]:
    """The credentials of an emulator, which takes any."""
    return {"token": "none", "expires_at": None}


def _azure() -> dict[str, Any]:
    """What the variables of the az command say; obstore reads its own."""
    import shutil

    known = os.environ
    parts = dict(
        part.partition("=")[::2]
        for part in known.get("AZURE_STORAGE_CONNECTION_STRING", "").split(";")
    )
    found = {
        "account_name": known.get("AZURE_STORAGE_ACCOUNT") or parts.get("AccountName"),
        "account_key": known.get("AZURE_STORAGE_KEY") or parts.get("AccountKey"),
        "sas_key": parts.get("SharedAccessSignature"),
        "endpoint": parts.get("BlobEndpoint") or known.get("AZURE_STORAGE_ENDPOINT"),
        "use_azure_cli": not any(map(known.get, AZURE_SECRETS)) and bool(shutil.which("az")),
    }
    return {name: value for name, value in found.items() if value}
