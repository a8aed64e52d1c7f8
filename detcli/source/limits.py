"""How large an image may be, and what to do about one that cannot be read."""

from detcli.core.errors import DecodeError
from detcli.data.geometry import Size

LARGER = "raise --max-pixels if it is meant to be that large"
RESAVE = "open it in an image viewer and save it again"
FETCH_AGAIN = "fetch it again"


def check_size(size: Size, max_pixels: int) -> None:
    """Require that an image or frame of (height, width) has at most `max_pixels` pixels."""
    height, width = size
    if height * width > max_pixels:
        pixels = f"{width}x{height} is {height * width} pixels, more than the {max_pixels} allowed"
        raise DecodeError(f"too large: {pixels}", LARGER)


def require_bytes(data: bytes, end: int, name: str) -> None:
    """Require that a file reaches as far as its header says."""
    missing = end - len(data)
    if missing > 0:
        raise DecodeError(f"a damaged {name}: {missing} of its bytes are missing", FETCH_AGAIN)
