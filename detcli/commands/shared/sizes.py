"""Sizes of memory as people write them."""

import re

from detcli.errors import UsageError

UNITS = {
    "": 1,
    "k": 2**10,
    "kib": 2**10,
    "kb": 10**3,
    "m": 2**20,
    "mib": 2**20,
    "mb": 10**6,
    "t": 2**40,
    "tib": 2**40,
    "tb": 10**12,
    "g": 2**30,
    "gib": 2**30,
    "gb": 10**9,
}


def parse_size(text: str) -> int:
    """Read a number of bytes: `2GiB`, `512 MiB`, `1.5g`, `4000000000`.

    KiB or K and so on count in steps of 1024, KB and so on in steps of 1000.

    Raises:
        UsageError: It is no size.
    """
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip(), re.ASCII | re.IGNORECASE)
    if parts is None or parts[2].lower() not in UNITS:
        raise UsageError(f"'{text}' is no size", "write 2GiB, 512MiB, or a number of bytes")
    return int(float(parts[1]) * UNITS[parts[2].lower()])
