"""ObjectFile: an object in a store as the file that a sink writes to."""

import os
import tempfile
from pathlib import Path

from detcli.errors import OutputError
from detcli.files import AtomicFile
from detcli.object_store.address import Address
from detcli.object_store.bucket import Bucket
from detcli.object_store.failures import ObjectError


class ObjectFile(AtomicFile):
    """A file for temporary use that becomes an object when it is complete.

    If it cannot become one, it stays where it is, and the error names it.

    Raises:
        OutputError: The bucket cannot be reached, or the temporary file not written.
    """

    def __init__(self, address: Address) -> None:
        try:
            self._bucket = Bucket(address.scheme, address.bucket)
            self._bucket.require()
        except ObjectError as error:
            raise OutputError(f"cannot write {address}: {error}", error.hint) from None
        self._address = address
        name = f"detcli-{os.urandom(8).hex()}{address.suffix}"
        super().__init__(Path(tempfile.gettempdir(), name), named=str(address))
        if os.name == "posix":
            os.fchmod(self.file.fileno(), 0o600)  # others have no business in it

    def commit(self) -> None:
        """Make the object.

        Raises:
            OutputError: It cannot be made; the file that stays says more.
        """
        super().commit()
        try:
            with self.path.open("rb") as file:
                self._bucket.write(self._address.key, file)
        except ObjectError as error:
            reason = f"cannot write {self._address}: {error}; what it would hold is in {self.path}"
            raise OutputError(reason, error.hint) from None
        self.path.unlink()
