"""Fetch the photographs without symbols: `python -m codes.photographs FOLDER`.

They are in packages of Debian 12, under free licences, which README.md names. Any system can unpack
these: a package is an `ar` archive, and its files are in the `data.tar.xz` in there.
"""

import argparse
import hashlib
import io
import lzma
import tarfile
import urllib.request
from pathlib import Path

POOL = "https://deb.debian.org/debian/pool/main/"
PACKAGES = {  # and their SHA-256
    "g/gnome-backgrounds/gnome-backgrounds_43.1-1_all.deb": (
        "a670dea21572652127d6e55f9cdb3a226d0037854fdbfd037003c7d00ee0dc4e"
    ),
    "l/lomiri-wallpapers/lomiri-wallpapers-16.04_20.04.0-2_all.deb": (
        "a99ff6a3bfe451e4cc0682ecb3cc82e71740626d59e4845ae34a0a0e45421eab"
    ),
    "l/lomiri-wallpapers/lomiri-wallpapers-20.04_20.04.0-2_all.deb": (
        "d44e89b8473aafe64a5b678f014862dc31335aaaf18665c544d985d854f1a709"
    ),
    "m/mate-backgrounds/mate-backgrounds_1.26.0-1_all.deb": (
        "7bf4c2209f34b4f61ba6d24c8b58c28b361e82e4b943aae6d42c030169af9e04"
    ),
    "s/scratch/scratch_1.4.0.6~dfsg1-6.1_all.deb": (
        "36c582eb93110f64f06c4e685c41e933ccba2fa68db12f79b10bfe840b21fc10"
    ),
    "t/tuxpaint-stamps/tuxpaint-stamps-default_2022.06.04-1_all.deb": (
        "6db6c1bfc870a47f1499d6203b083522eacb57c5f9c87d468f2e92eb6d9d5f34"
    ),
}
# Where the packages have their images; all else in them is left out.
FOLDERS = (
    "./usr/share/backgrounds/",
    "./usr/share/scratch/Media/Backgrounds/",
    "./usr/share/tuxpaint/stamps/",
)
HEADER_SIZE = 60  # bytes before each member of an `ar` archive
SIZE_FIELD = slice(48, 58)  # of such a header: the member's size in decimal digits


def fetch(folder: Path, pool: str = POOL, packages: dict[str, str] = PACKAGES) -> None:
    """Download the packages and unpack their images.

    Args:
        folder: Where the images go, below their paths in the packages.
        pool: Address that the packages' paths follow.
        packages: Path of each package and its SHA-256, in hexadecimal digits.

    Raises:
        ValueError: A package's SHA-256 is not the one in `packages`.
        OSError: A package cannot be downloaded.
    """
    for path, expected_sha256 in packages.items():
        with urllib.request.urlopen(pool + path) as response:  # noqa: S310 - https, or a test's file
            package = response.read()
        sha256 = hashlib.sha256(package).hexdigest()
        if sha256 != expected_sha256:
            raise ValueError(f"{pool}{path}: its SHA-256 is {sha256}, not {expected_sha256}")
        _unpack_images(package, folder)


def _unpack_images(package: bytes, folder: Path) -> None:
    """Unpack those files of a package that are below one of `FOLDERS`."""
    tar = io.BytesIO(lzma.decompress(data_archive(package)))
    with tarfile.open(fileobj=tar) as archive:
        members = [member for member in archive if member.name.startswith(FOLDERS)]
        # Python before 3.11.4 has none, and what is unpacked is known by its SHA-256.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder, members)  # noqa: S202


def data_archive(package: bytes) -> bytes:
    """The member `data.tar.xz` of a package, which holds its files.

    Raises:
        ValueError: The package has no such member.
    """
    start = len(b"!<arch>\n")
    while start < len(package):
        content = start + HEADER_SIZE
        header = package[start:content]
        size = int(header[SIZE_FIELD])
        if header.startswith(b"data.tar.xz"):
            return package[content : content + size]
        start = content + size + size % 2  # members begin at even offsets
    raise ValueError("the package has no data.tar.xz")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where they go")
    fetch(parser.parse_args().folder)
