"""Objects in stores, `s3://`, `gs://` and `az://`, through obstore: plain runs import nothing.

Nothing that a store or a library says is passed on whole: it may hold signed addresses and keys.
"""

import contextlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Generator, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from detcli.core import Fields, frozen
from detcli.core.errors import DeviceError, OutputError, loading
from detcli.storage.files import AtomicFile
from detcli.storage.object_errors import (
    SIGN_IN,
    AddressError,
    ObjectDeniedError,
    ObjectError,
    ObjectKeyError,
    ObjectMissingError,
    ObjectTornError,
    explain_error,
    key_error,
)

CHUNK = 1 << 20  # bytes that a read yields at once
UPLOAD_CHUNK = 8 << 20  # a larger object is sent in parts of this size, two at a time
PAGE = 1000  # Keys per page of a listing, the most that stores return
ATTEMPTS = 5  # requests for a page of a listing that breaks off
RETRY_S = 30  # for how long a request is repeated after failures that pass, such as 503
FIRST_WAIT_S = 0.1  # the first wait before a request is repeated; each further one is twice as long

UNLIMITED_S = 24 * 3600

CREDENTIALS_S = 15 * 60
"""Credentials are used for this long before the library that found them is asked again."""

INSTALL = 'pip install "detcli[cloud]"'

PREFIXES = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}  # of the variables of each kind of store

AZURE_SECRETS = (
    "AZURE_STORAGE_KEY AZURE_STORAGE_ACCOUNT_KEY AZURE_STORAGE_ACCESS_KEY AZURE_STORAGE_SAS_KEY "
    "AZURE_STORAGE_SAS_TOKEN AZURE_STORAGE_CONNECTION_STRING AZURE_CLIENT_SECRET "
    "AZURE_STORAGE_CLIENT_SECRET AZURE_FEDERATED_TOKEN_FILE AZURE_STORAGE_TOKEN "
    "AZURE_SKIP_SIGNATURE AZURE_MSI_ENDPOINT"
).split()
"""Variables with which nobody has to be asked who is signed in."""

Listed = list[tuple[str, str, float]]
"""Keys, ETags, and when the objects were made, in seconds since 1970."""


@frozen
class Address:
    """Where an object is, or where the names of some begin."""

    scheme: str
    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Take an address apart; its key is used as it is, with `?`, `#` and `%`.

        Examples:
            >>> Address.parse("s3://photos/2024/a b#1.jpg")
            Address(scheme='s3', bucket='photos', key='2024/a b#1.jpg')
        """
        scheme, _, rest = text.partition("://")
        bucket, _, key = rest.partition("/")
        scheme = scheme.lower()
        if not re.fullmatch(r"[\w.-]+", bucket):
            raise AddressError("not a valid address", f"write it as in {scheme}://bucket/pics/")
        return cls(scheme, bucket, key)

    @property
    def suffix(self) -> str:
        """The suffix of its last part, with its dot; empty if there is none."""
        return PurePosixPath(self.key).suffix

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"


def require_obstore() -> None:
    """Require the library for object stores, or raise a DeviceError."""
    with loading("obstore", INSTALL, DeviceError):
        import obstore  # noqa: F401


class Bucket:
    """A bucket, or a container of Azure's.

    Requests that fail for a passing reason are repeated with back-off for half a minute. May be
    used from several threads. Every method raises ObjectError.
    """

    def __init__(self, scheme: str, name: str, timeout_s: float = 0) -> None:
        """Open it, and find credentials; `timeout_s` is for one request, 0 for no limit."""
        require_obstore()
        import obstore
        from obstore import store

        self._obstore = obstore
        self._scheme = scheme
        settings = _store_settings(scheme)
        store_classes: Fields = {
            "s3": store.S3Store,
            "gs": store.GCSStore,
            "az": store.AzureStore,
        }
        endpoint = settings.get("endpoint") or settings.get("base_url") or ""
        if endpoint and not re.fullmatch(r"https?://[\w.:\[\]-]+(/\S*)?", endpoint):
            raise ObjectError("its endpoint is not an address", "set it as in https://host:9000")
        allow_http = endpoint.startswith("http://") or _is_set(f"{PREFIXES[scheme]}_ALLOW_HTTP")
        client = {
            "allow_http": allow_http,
            "connect_timeout": timedelta(seconds=5),
            "read_timeout": timedelta(seconds=20),
            "timeout": timedelta(seconds=timeout_s or UNLIMITED_S),
        }
        wait = timedelta(seconds=FIRST_WAIT_S)
        retry = {
            "max_retries": 12,
            "backoff": {"init_backoff": wait, "max_backoff": timedelta(seconds=5), "base": 2},
            "retry_timeout": timedelta(seconds=RETRY_S),
        }
        store_class = store_classes[scheme]
        with self._object_errors():
            self.store = store_class(name, **settings, client_options=client, retry_config=retry)

    def list(self, folder: str) -> Iterator[Listed]:
        """Yield pages of keys in the order of the store, which is that of their bytes.

        What the keys begin with ends with `/`, or is empty.

        Raises:
            ObjectKeyError: A key has an empty part, . or .., or a control code: obstore does not
                take it, and it hides the other keys of its page.
        """
        last_key = None
        failures = 0
        while True:
            try:
                with self._object_errors():
                    pages = self._obstore.list(
                        self.store, folder or None, offset=last_key, chunk_size=PAGE
                    )
                    for page in pages:
                        yield _listed(page)
                        last_key = page[-1]["path"]
                        failures = 0
            except ObjectTornError:  # which obstore does not repeat
                failures += 1
                if failures == ATTEMPTS:
                    raise
            else:
                return

    def require(self) -> None:
        """Require that the bucket can be reached, as far as these credentials may tell."""
        with contextlib.suppress(ObjectDeniedError):  # writing may be allowed without listing
            next(self.list("detcli-asks-for-nothing/"), None)

    def read(self, key: str, last: int = 0, tag: str | None = None) -> tuple[int, Generator[bytes]]:
        """The size of an object, and its bytes as they come, which may raise ObjectError, too.

        Or only of its last bytes, where the store knows that; and only if it has this ETag.
        """
        options: Any = {}
        if tag:
            options["if_match"] = tag
        if last and self._scheme != "az":
            options["range"] = {"suffix": last}
        with self._object_errors():
            result = self._obstore.get(self.store, checked(key), options=options)
            size = result.range[1] - result.range[0]
        return size, self._chunks(result, size)

    def _chunks(self, result: Any, size: int) -> Generator[bytes]:  # noqa: ANN401 - of obstore
        received = 0
        with self._object_errors():
            for chunk in result.stream(min_chunk_size=CHUNK):
                received += len(chunk)
                yield bytes(chunk)
        if received != size:
            raise ObjectError(f"{received} of {size} bytes came", "try it again")

    def exists(self, key: str) -> bool:
        """True if there is such an object."""
        try:
            with self._object_errors():
                self._obstore.head(self.store, checked(key))
        except ObjectMissingError:
            return False
        return True

    def tag(self, key: str) -> str | None:
        """The ETag of an object; None if there is none, empty if the store does not tell."""
        try:
            with self._object_errors():
                meta = self._obstore.head(self.store, checked(key))
        except ObjectMissingError:
            return None
        except ObjectError:
            return ""
        return meta["e_tag"] or ""

    def write(self, key: str, content: bytes | BinaryIO, *, replace: bool = True) -> None:
        """Make an object, all of it or nothing; a file is read from where it stands.

        With `replace` off, an object of that name is an ObjectExistsError, and 5 GB are the limit.
        """
        with self._object_errors():
            self._obstore.put(
                self.store,
                checked(key),
                content,
                mode="overwrite" if replace else "create",
                chunk_size=UPLOAD_CHUNK,
                max_concurrency=2,
            )

    def delete(self, key: str) -> None:
        """Remove an object, if there is one."""
        with self._object_errors():
            self._obstore.delete(self.store, checked(key))

    def sign(self, key: str) -> str:
        """An HTTP address from which an object can be read for a day by whoever has it."""
        with self._object_errors():
            address: str = self._obstore.sign(self.store, "GET", checked(key), timedelta(days=1))
        return address

    @contextlib.contextmanager
    def _object_errors(self) -> Iterator[None]:
        """Turn what obstore raises into an ObjectError."""
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, ValueError, OSError) as error:
            object_error: ObjectError | None = key_error(str(error))
            if object_error is None:
                object_error = explain_error(error, self._scheme)
            raise object_error from None  # the cause holds signed addresses


def _listed(page: Any) -> Listed:  # noqa: ANN401 - of obstore
    """A page of a listing, as `Bucket.list` yields it."""
    entries = []
    for meta in page:
        entries.append((meta["path"], meta["e_tag"] or "", meta["last_modified"].timestamp()))
    return entries


def checked(key: str) -> str:
    """A key that obstore takes as it is: it drops slashes at the ends."""
    if not {"", ".", ".."}.isdisjoint(key.split("/")):
        raise ObjectKeyError
    return key


class ObjectFile(AtomicFile):
    """A file for temporary use that becomes an object when it is complete.

    If it cannot become one, or somebody else has made this object meanwhile, it stays where it is,
    and the error names it.
    """

    def __init__(self, address: Address) -> None:
        try:
            self._bucket = Bucket(address.scheme, address.bucket)
            self._bucket.require()
        except ObjectError as error:
            raise OutputError(f"cannot write {address}: {error}", error.hint) from None
        self._address = address
        self._tag_before = self._bucket.tag(address.key)
        name = f"detcli-{os.urandom(8).hex()}{address.suffix}"
        super().__init__(Path(tempfile.gettempdir(), name), display_name=str(address))
        if sys.platform != "win32":
            os.fchmod(self.file.fileno(), 0o600)  # others have no business in it

    def commit(self) -> None:
        """Make the object; on an OutputError the file stays."""
        super().commit()
        if self._was_replaced():
            raise OutputError(
                f"{self._address} was written by somebody else while this run went on; what this "
                f"run would have written there is in {self.path}",
                "let each run write to an object of its own",
            )
        try:
            with self.path.open("rb") as file:
                self._bucket.write(self._address.key, file)
        except ObjectError as error:
            reason = f"cannot write {self._address}: {error}; what it would hold is in {self.path}"
            raise OutputError(reason, error.hint) from None
        self.path.unlink()

    def _was_replaced(self) -> bool:
        """Whether somebody else has made the object since this file was opened."""
        if self._tag_before == "":
            return False
        tag = self._bucket.tag(self._address.key)
        return bool(tag) and tag != self._tag_before


def _store_settings(scheme: str) -> Fields:
    """What obstore is told of a store besides the name of the bucket, from the environment."""
    if scheme == "s3":
        return _aws()
    if scheme == "gs":
        return _google()
    return _azure()


def _aws() -> Fields:
    """Region, endpoint and credentials as the aws command would have them.

    botocore, which takes longer to import than all of detcli, is asked only where there is more to
    look at than variables.
    """
    variables = os.environ
    files = (
        variables.get("AWS_CONFIG_FILE", "~/.aws/config"),
        variables.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    )
    has_files = False
    for file in files:
        # Unlike Path's methods, these take it that there is no home folder.
        if os.path.isfile(os.path.expanduser(file)):  # noqa: PTH111, PTH113
            has_files = True
    has_credentials = _is_set("AWS_SKIP_SIGNATURE") or "AWS_SECRET_ACCESS_KEY" in variables
    if has_credentials and not has_files:
        settings = {
            "region": variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION"),
            "endpoint": variables.get("AWS_ENDPOINT_URL_S3") or variables.get("AWS_ENDPOINT_URL"),
        }
    else:
        settings = _aws_of_botocore()
    if not settings["endpoint"]:
        settings["endpoint"] = variables.get("AWS_ENDPOINT")
    return _without_empty(settings)


def _botocore_session() -> Any:  # noqa: ANN401 - of botocore
    with loading("botocore", INSTALL, DeviceError):
        from botocore.session import Session

    for name in ("botocore", "urllib3"):  # what they log may hold credentials
        logging.getLogger(name).setLevel(logging.WARNING)
    return Session()


def _aws_of_botocore() -> Fields:
    session = _botocore_session()
    from botocore.configprovider import ConfiguredEndpointProvider
    from botocore.exceptions import BotoCoreError

    try:
        endpoint = ConfiguredEndpointProvider(
            full_config=session.full_config,
            scoped_config=session.get_scoped_config(),
            client_name="s3",
        ).provide()
        region = os.environ.get("AWS_REGION") or session.get_config_variable("region")
        settings = {"region": region, "endpoint": endpoint}
        if not _is_set("AWS_SKIP_SIGNATURE"):
            credentials = session.get_credentials()
            if credentials is None:
                raise ObjectError("no credentials found", SIGN_IN["s3"])
            credentials.get_frozen_credentials()  # raises where they have expired
            settings["credential_provider"] = partial(_renewed, credentials)
    except BotoCoreError as error:
        # Its texts name profiles and files. What a service answered is not among them.
        raise ObjectError(f"no credentials: {error}", SIGN_IN["s3"]) from None
    return settings


def _renewed(credentials: Any) -> Fields:  # noqa: ANN401 - of botocore
    """Credentials that botocore finds now, in a file or on the network, as obstore takes them."""
    frozen = credentials.get_frozen_credentials()
    return {
        "access_key_id": frozen.access_key,
        "secret_access_key": frozen.secret_key,
        "token": frozen.token,
        "expires_at": datetime.now(UTC) + timedelta(seconds=CREDENTIALS_S),
    }


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in {"1", "true", "yes"}


def _google() -> Fields:
    """Settings from the variables of Google's libraries; obstore reads the credentials itself."""
    address = os.environ.get("STORAGE_EMULATOR_HOST")
    if not address:
        return {}
    if "://" not in address:
        address = f"http://{address}"
    # An emulator takes any token. With `skip_signature`, obstore would ask for one to write.
    token = {"token": "none", "expires_at": None}
    return {"base_url": address, "credential_provider": lambda: token}


def _azure() -> Fields:
    """Settings from the variables of the az command; obstore reads its own."""
    import shutil

    variables = os.environ
    parts = {}
    for part in variables.get("AZURE_STORAGE_CONNECTION_STRING", "").split(";"):
        name, _, value = part.partition("=")
        parts[name] = value
    has_secret = any(variables.get(name) for name in AZURE_SECRETS)
    settings = {
        "account_name": variables.get("AZURE_STORAGE_ACCOUNT") or parts.get("AccountName"),
        "account_key": variables.get("AZURE_STORAGE_KEY") or parts.get("AccountKey"),
        "sas_key": parts.get("SharedAccessSignature"),
        "endpoint": parts.get("BlobEndpoint") or variables.get("AZURE_STORAGE_ENDPOINT"),
        "use_azure_cli": not has_secret and shutil.which("az") is not None,
    }
    return _without_empty(settings)


def _without_empty(settings: Fields) -> Fields:
    return {name: value for name, value in settings.items() if value}
