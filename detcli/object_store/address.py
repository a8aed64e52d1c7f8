"""Addresses of objects, and of folders of them."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from detcli.object_store.failures import ObjectError
from detcli.text import OBJECT_SCHEMES


@dataclass(frozen=True, slots=True)
class Address:
    """Where an object is, or where the names of some begin."""

    scheme: str
    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Take an address apart; its key is used as it is, with `?`, `#` and `%`.

        Raises:
            ObjectError: It has no bucket, or something else in place of its name.

        Examples:
            >>> Address.parse("s3://photos/2024/a b#1.jpg")
            Address(scheme='s3', bucket='photos', key='2024/a b#1.jpg')
        """
        scheme, _, rest = text.partition("://")
        bucket, _, key = rest.partition("/")
        scheme = scheme.lower()
        if not re.fullmatch(r"[\w.-]+", bucket):
            raise ObjectError("not a valid address", f"write it as in {scheme}://bucket/pics/")
        return cls(scheme, bucket, key)

    @property
    def suffix(self) -> str:
        """The suffix of its last part, with its dot; empty if there is none."""
        return PurePosixPath(self.key).suffix

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"


def is_object(name: str) -> bool:
    """Whether a name is the address of an object, or of a bucket or a folder in one."""
    return name.lower().startswith(OBJECT_SCHEMES)
