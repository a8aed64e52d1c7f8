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
from typing import Any, BinaryIO, Literal, NamedTuple

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
    TruncatedObjectError,
    explain_error,
    key_error,
)

CHUNK = 1 << 20  # bytes that a read yields at once
UPLOAD_CHUNK = 8 << 20  # a larger object is sent in parts of this size, two at a time
PAGE = 1000  # keys per page of a listing, the maximum that stores return
ATTEMPTS = 5  # requests for a page of a listing that breaks off
RETRY_S = 30  # how long a request is repeated after temporary failures, such as 503
MAX_RETRIES = 12
FIRST_WAIT_S = 0.1  # the first wait before a request is repeated; each later one is twice as long
LONGEST_WAIT_S = 5
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 20  # without a byte

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
        scheme, _, bucket_and_key = text.partition("://")
        bucket, _, key = bucket_and_key.partition("/")
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


class ObjectContent(NamedTuple):
    """The content of an object, as it comes."""

    size: int  # in bytes
    chunks: Generator[bytes]  # its bytes; may raise ObjectError, too


class Bucket:
    """A bucket of S3 or Google Cloud Storage, or a container of Azure's.

    Requests that fail for a passing reason are repeated with back-off for half a minute. It may be
    used from several threads. Every method raises ObjectError.
    """

    def __init__(self, scheme: str, name: str, timeout_s: float = 0) -> None:
        """Open a bucket, with the credentials that the environment has for it.

        Args:
            scheme: The kind of store: "s3", "gs" or "az".
            name: The name of the bucket.
            timeout_s: The limit for one request; 0 for none.

        Raises:
            ObjectError: There are no credentials, or the settings of the store are not valid.
        """
        require_obstore()
        import obstore
        from obstore import store

        self._obstore = obstore
        self._scheme = scheme
        store_class: Any = store.AzureStore
        if scheme == "s3":
            store_class = store.S3Store
        elif scheme == "gs":
            store_class = store.GCSStore

        settings = _store_settings(scheme)  # endpoint, region and credentials
        client_options = {
            "allow_http": _allows_http(scheme, settings),
            "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
            "read_timeout": timedelta(seconds=READ_TIMEOUT_S),
            "timeout": timedelta(seconds=timeout_s or UNLIMITED_S),
        }
        with self._object_errors():
            self.store = store_class(
                name, **settings, client_options=client_options, retry_config=_retry_config()
            )

    def list(self, folder: str) -> Iterator[Listed]:
        """Yield all objects whose keys begin with a folder, in pages as the store lists them.

        Where the connection breaks off within a page, the listing is resumed after the last key.

        Args:
            folder: What the keys begin with, as in "photos/2024/"; empty for all keys.

        Yields:
            Lists of key, ETag and time, in the order of the keys' bytes.

        Raises:
            ObjectKeyError: A key has an empty part, . or .., or a control code: obstore does not
                accept it, and it hides the other keys of its page.
            TruncatedObjectError: The connection broke off several times with no page in between.
        """
        last_key = None
        failures_in_a_row = 0
        while True:
            try:
                for page in self._pages_after(last_key, folder):
                    yield page
                    last_key, _, _ = page[-1]
                    failures_in_a_row = 0
            except TruncatedObjectError:  # within a page, where obstore does not try again
                failures_in_a_row += 1
                if failures_in_a_row == ATTEMPTS:
                    raise
            else:
                return

    def _pages_after(self, last_key: str | None, folder: str) -> Iterator[Listed]:
        """Yield the objects of a folder in pages, from the one that follows a key; None for all."""
        with self._object_errors():
            pages = self._obstore.list(self.store, folder or None, offset=last_key, chunk_size=PAGE)
            for page in pages:
                yield _listed(page)

    def require(self) -> None:
        """Raise an error if the bucket cannot be reached, by listing a folder that has nothing."""
        with contextlib.suppress(ObjectDeniedError):  # writing may be allowed without listing
            next(self.list("detcli-asks-for-nothing/"), None)

    def read(self, key: str, last: int = 0, tag: str | None = None) -> ObjectContent:
        """Begin to read an object.

        Args:
            key: The key of the object.
            last: Read only this many bytes at its end; 0 for all. Azure does not support such
                requests, and returns all of it.
            tag: The ETag that it must have, if any.

        Raises:
            ObjectChangedError: It has a different ETag.
            ObjectError: It cannot be read.
        """
        options: Any = {}
        if tag:
            options["if_match"] = tag
        is_azure = self._scheme == "az"
        if last > 0 and not is_azure:
            options["range"] = {"suffix": last}
        with self._object_errors():
            result = self._obstore.get(self.store, checked(key), options=options)
            start, end = result.range
        size = end - start
        return ObjectContent(size, self._chunks(result, size))

    def _chunks(self, result: Any, size: int) -> Generator[bytes]:  # noqa: ANN401 - of obstore
        """Yield the bytes of obstore's answer, and raise an error if they are not `size` bytes."""
        received_bytes = 0
        with self._object_errors():
            for chunk in result.stream(min_chunk_size=CHUNK):
                received_bytes += len(chunk)
                yield bytes(chunk)
        if received_bytes != size:
            raise ObjectError(f"{received_bytes} of {size} bytes came", "try it again")

    def exists(self, key: str) -> bool:
        """Whether there is an object with this key."""
        try:
            with self._object_errors():
                self._obstore.head(self.store, checked(key))
        except ObjectMissingError:
            return False
        return True

    def tag(self, key: str) -> str | None:
        """Return the ETag of an object; None if there is none, empty if the store does not say."""
        try:
            with self._object_errors():
                meta = self._obstore.head(self.store, checked(key))
        except ObjectMissingError:
            return None
        except ObjectError:
            return ""
        return meta["e_tag"] or ""

    def write(self, key: str, content: bytes | BinaryIO, *, replace: bool = True) -> None:
        """Write an object: all of it, or nothing if that fails.

        Args:
            key: The key of the object.
            content: Its bytes, or a file, which is read from its current position.
            replace: Whether to replace an object that already has the key. If not, that is an
                ObjectExistsError, and an object can have 5 GB at most.
        """
        mode: Literal["create", "overwrite"] = "create"
        if replace:
            mode = "overwrite"
        with self._object_errors():
            self._obstore.put(
                self.store,
                checked(key),
                content,
                mode=mode,
                chunk_size=UPLOAD_CHUNK,
                max_concurrency=2,
            )

    def delete(self, key: str) -> None:
        """Remove an object, if there is one."""
        with self._object_errors():
            self._obstore.delete(self.store, checked(key))

    def sign(self, key: str) -> str:
        """Make an HTTP address from which anybody who knows it can read the object for a day."""
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
    """Convert a page of obstore's listing to tuples of key, ETag and time in seconds since 1970."""
    entries = []
    for meta in page:
        entries.append((meta["path"], meta["e_tag"] or "", meta["last_modified"].timestamp()))
    return entries


def checked(key: str) -> str:
    """Return a key that obstore accepts as it is, or raise ObjectKeyError.

    It would drop slashes at the ends, and so use a different key from the one that was asked for.
    """
    if not {"", ".", ".."}.isdisjoint(key.split("/")):
        raise ObjectKeyError
    return key


class ObjectFile(AtomicFile):
    """An output that becomes an object in a store when it is complete.

    Until then it is a file in the folder for temporary files. If it cannot become an object, or
    somebody else has written this object meanwhile, it stays there, and the error names it.
    """

    def __init__(self, address: Address) -> None:
        """Start the file, after making sure that the bucket can be reached.

        Raises:
            OutputError: The bucket cannot be reached, or the file cannot be written.
        """
        self._address = address
        self._bucket = _open_for_writing(address)
        # By its ETag, it is noticed if somebody else writes the object until this file is complete.
        self._tag_before = self._bucket.tag(address.key)
        temporary_name = f"detcli-{os.urandom(8).hex()}{address.suffix}"
        temporary_path = Path(tempfile.gettempdir(), temporary_name)
        super().__init__(temporary_path, display_name=str(address))
        if sys.platform != "win32":
            os.fchmod(self.file.fileno(), 0o600)  # only the user may read it

    def commit(self) -> None:
        """Upload the file as the object, and remove it.

        Raises:
            OutputError: It cannot be uploaded, or somebody else has written the object; the file
                stays.
        """
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


def _open_for_writing(address: Address) -> Bucket:
    """Open the bucket of an address, and make sure that it can be reached.

    Raises:
        OutputError: It cannot.
    """
    try:
        bucket = Bucket(address.scheme, address.bucket)
        bucket.require()
    except ObjectError as error:
        raise OutputError(f"cannot write {address}: {error}", error.hint) from None
    return bucket


def _retry_config() -> Fields:
    """Return how obstore repeats requests that fail for a passing reason."""
    first_wait = timedelta(seconds=FIRST_WAIT_S)
    longest_wait = timedelta(seconds=LONGEST_WAIT_S)
    return {
        "max_retries": MAX_RETRIES,
        "backoff": {"init_backoff": first_wait, "max_backoff": longest_wait, "base": 2},
        "retry_timeout": timedelta(seconds=RETRY_S),
    }


def _allows_http(scheme: str, settings: Fields) -> bool:
    """Return whether a store may be asked without encryption, such as one in the local network.

    Args:
        scheme: The kind of store: "s3", "gs" or "az".
        settings: Its settings, as `_store_settings` returns them.

    Raises:
        ObjectError: The endpoint in the settings is not an address.
    """
    endpoint = settings.get("endpoint") or settings.get("base_url") or ""
    is_address = re.fullmatch(r"https?://[\w.:\[\]-]+(/\S*)?", endpoint) is not None
    if endpoint and not is_address:
        raise ObjectError("its endpoint is not an address", "set it as in https://host:9000")
    return endpoint.startswith("http://") or _is_set(f"{PREFIXES[scheme]}_ALLOW_HTTP")


def _store_settings(scheme: str) -> Fields:
    """Find out region, endpoint and credentials of a store, for the constructor of its class.

    They come from the environment, as for the store's own command line.

    Args:
        scheme: The kind of store: "s3", "gs" or "az".

    Returns:
        Arguments of obstore's class for this kind of store.
    """
    if scheme == "s3":
        return _aws_settings()
    if scheme == "gs":
        return _google_settings()
    return _azure_settings()


def _aws_settings() -> Fields:
    """Find out region, endpoint and credentials as the aws command does.

    botocore takes longer to import than all of detcli. It is not needed if everything is in
    environment variables: then obstore reads the credentials there, and this returns none. If there
    are files of the aws command, botocore reads them, since they may say what the variables do not.
    """
    variables = os.environ
    needs_no_credentials_file = (
        _is_set("AWS_SKIP_SIGNATURE") or "AWS_SECRET_ACCESS_KEY" in variables
    )
    if needs_no_credentials_file and not _has_aws_files():
        settings = {
            "region": variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION"),
            "endpoint": variables.get("AWS_ENDPOINT_URL_S3") or variables.get("AWS_ENDPOINT_URL"),
        }
    else:
        settings = _aws_settings_from_botocore()

    if not settings["endpoint"]:
        settings["endpoint"] = variables.get("AWS_ENDPOINT")
    return _without_empty(settings)


def _has_aws_files() -> bool:
    """Return whether the aws command has a file of settings or of credentials for this user."""
    files = (
        os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"),
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    )
    # Unlike Path's methods, these raise no error where there is no home folder.
    return any(os.path.isfile(os.path.expanduser(file)) for file in files)  # noqa: PTH111, PTH113


def _botocore_session() -> Any:  # noqa: ANN401 - of botocore
    """Import botocore, which reads the settings of the aws command, and open a session of it."""
    with loading("botocore", INSTALL, DeviceError):
        from botocore.session import Session

    for name in ("botocore", "urllib3"):  # what they log may hold credentials
        logging.getLogger(name).setLevel(logging.WARNING)
    return Session()


def _aws_settings_from_botocore() -> Fields:
    """Have botocore find region, endpoint and credentials, in files, variables or on the network.

    Raises:
        ObjectError: There are no credentials, or they cannot be used.
    """
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
            credentials.get_frozen_credentials()  # raises if they have expired
            settings["credential_provider"] = partial(_current_credentials, credentials)
    except BotoCoreError as error:
        # Its messages name profiles and files. What a service answered is not among them.
        raise ObjectError(f"no credentials: {error}", SIGN_IN["s3"]) from None
    return settings


def _current_credentials(credentials: Any) -> Fields:  # noqa: ANN401 - of botocore
    """Convert botocore's credentials to obstore's; botocore renews those that expire.

    obstore asks again after CREDENTIALS_S.
    """
    snapshot = credentials.get_frozen_credentials()
    return {
        "access_key_id": snapshot.access_key,
        "secret_access_key": snapshot.secret_key,
        "token": snapshot.token,
        "expires_at": datetime.now(UTC) + timedelta(seconds=CREDENTIALS_S),
    }


def _is_set(variable: str) -> bool:
    """Whether an environment variable is set to a word for yes."""
    return os.environ.get(variable, "").lower() in {"1", "true", "yes"}


def _google_settings() -> Fields:
    """Return the address of an emulator of Google's store, if a variable names one.

    Nothing is needed for the store itself: obstore finds the credentials.
    """
    address = os.environ.get("STORAGE_EMULATOR_HOST")
    if not address:
        return {}
    if "://" not in address:
        address = f"http://{address}"
    # An emulator takes any token. With `skip_signature`, obstore would ask for one to write.
    token = {"token": "none", "expires_at": None}
    return {"base_url": address, "credential_provider": lambda: token}


def _azure_settings() -> Fields:
    """Collect account, key and endpoint from the variables of the az command.

    obstore itself reads variables with different names. If no variable has a secret, the az command
    is asked who is signed in.
    """
    import shutil

    variables = os.environ
    connection: dict[str, str] = {}  # the variable may be "AccountName=shop;AccountKey=abc"
    connection_string = variables.get("AZURE_STORAGE_CONNECTION_STRING", "")
    for assignment in connection_string.split(";"):
        name, _, value = assignment.partition("=")
        connection[name] = value

    has_secret = any(variables.get(name) for name in AZURE_SECRETS)
    settings = {
        "account_name": variables.get("AZURE_STORAGE_ACCOUNT") or connection.get("AccountName"),
        "account_key": variables.get("AZURE_STORAGE_KEY") or connection.get("AccountKey"),
        "sas_key": connection.get("SharedAccessSignature"),
        "endpoint": connection.get("BlobEndpoint") or variables.get("AZURE_STORAGE_ENDPOINT"),
        "use_azure_cli": not has_secret and shutil.which("az") is not None,
    }
    return _without_empty(settings)


def _without_empty(settings: Fields) -> Fields:
    return {name: value for name, value in settings.items() if value}
