"""Files without a name: in memory, and when they grow, on the disk."""

import pytest

from detcli.core.errors import OutputError
from detcli.storage.temporary import temporary, temporary_file_errors


def test_a_temporary_file_is_in_memory_up_to_8_mib_and_then_in_a_folder(tmp_path, monkeypatch):
    """So that a large one does not fill the memory; here the folder is missing."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with temporary() as file:
        file.write(bytes(8 << 20))
        with pytest.raises(OutputError, match="missing"), temporary_file_errors():
            file.write(b"x")
