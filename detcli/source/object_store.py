"""Pictures in object stores: listed page by page, and fetched ahead of their turn."""

import contextlib
from collections.abc import Generator, Iterator
from functools import partial

from detcli.errors import SourceError
from detcli.object_store.address import Address
from detcli.object_store.bucket import Bucket
from detcli.object_store.failures import ObjectError
from detcli.source.fetch import Fetches
from detcli.source.folders import is_media
from detcli.source.item import Item
from detcli.text import public_name


class ObjectReader:
    """Reads what is in object stores for one run; each bucket is opened once."""

    def __init__(self, fetches: Fetches) -> None:
        self._fetches = fetches
        self._buckets: dict[tuple[str, str], Bucket | ObjectError] = {}

    def picture(self, url: str) -> Item:
        """The picture in an object.

        Raises:
            SourceError: The address is malformed, or there are no credentials.
            DeviceError: A library is missing.
        """
        bucket, key = self._locate(url)
        if not key or key.endswith("/"):
            raise SourceError("a folder, where a picture is expected", "name it as a source")
        return self._fetches.item(public_name(url), partial(_request, bucket, key))

    def search(self, url: str, *, recursive: bool) -> Iterator[list[str]]:
        """Yield the addresses of pictures and videos in a folder, in the order of the store.

        Names that begin with a dot are left out, as in folders on a disk.

        Args:
            url: The folder.
            recursive: Whether to search the folders in it.

        Yields:
            Those in one page of the listing; none for an empty page.

        Raises:
            SourceError: It cannot be listed.
            DeviceError: A library is missing.
        """
        bucket, key = self._locate(url)
        folder = key if key.endswith("/") or not key else f"{key}/"
        root = url.removesuffix(key) if key else f"{url.rstrip('/')}/"
        with _as_source_error("cannot be listed"):
            for page in bucket.list(folder):
                names = ((key, key.removeprefix(folder)) for key, _ in page)
                yield [
                    root + key
                    for key, name in names
                    if is_media(name)
                    and (recursive or "/" not in name)
                    and not name.startswith(".")
                    and "/." not in name
                ]

    def video(self, url: str) -> str:
        """An address with which a video can be read for a day, without credentials.

        Raises:
            SourceError: These credentials cannot make one.
            DeviceError: A library is missing.
        """
        bucket, key = self._locate(url)
        with _as_source_error("cannot be opened"):
            return bucket.sign(key)

    def _locate(self, url: str) -> tuple[Bucket, str]:
        """The bucket and the key of an address."""
        with _as_source_error("cannot be fetched"):
            address = Address.parse(url)
            place = address.scheme, address.bucket
            if place not in self._buckets:
                self._buckets[place] = _open(*place, self._fetches.options.timeout_s)
            bucket = self._buckets[place]
            if isinstance(bucket, ObjectError):
                raise bucket
        return bucket, address.key


def _open(scheme: str, name: str, timeout_s: float) -> Bucket | ObjectError:
    """A bucket; or why it cannot be opened, which takes seconds to find out."""
    try:
        return Bucket(scheme, name, timeout_s)
    except ObjectError as error:
        return error


def _request(bucket: Bucket, key: str) -> tuple[int, Generator[bytes]]:
    with _as_source_error("cannot be fetched"):
        size, chunks = bucket.read(key)
    return size, _passed_on(chunks)


def _passed_on(chunks: Generator[bytes]) -> Generator[bytes]:
    with _as_source_error("cannot be fetched"):
        yield from chunks


@contextlib.contextmanager
def _as_source_error(what: str) -> Iterator[None]:
    try:
        yield
    except ObjectError as error:
        raise SourceError(f"{what}: {error}", error.hint) from None
