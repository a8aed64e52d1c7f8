"""PageFile: a result page in one HTML file to send, with its code, data and thumbnails in it.

The code is that of `folder.py`'s pages. What those load from files is in this page: `inlined` of
files/data.js has the scripts of data as functions, by path, and the images by name. The page's
policy lets nothing else run, as it names the digest of each script.
"""

import base64
import hashlib
import os
import re
from collections.abc import Container, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from detcli.core.errors import OutputError, UsageError
from detcli.page.folder import FORMAT, PageFolder, script_call
from detcli.storage.files import make_folder, write_file, writing

SUFFIXES = frozenset({".html", ".htm"})
MAX_IMAGES = 500
MAX_BYTES = 20_000_000
IMAGE = (480, 70)  # pixels of the longer side, at most, and quality of the JPEG
MARK = '<meta name="generator" content="detcli" />'  # marks a file as written by detcli
MARK_BYTES = 1000  # the mark is among the first

_STYLE = re.compile(r'<link rel="stylesheet" href="([^"]+)" />')
_ICON = re.compile(r'\s*<link rel="icon"[^>]*/>')
_SCRIPT = re.compile(r'<script src="([^"]+)"></script>')
_POLICY = re.compile(r'content="default-src[^"]*"')


def is_one_file(path: Path) -> bool:
    """Whether a page with this path is one file: page.html, and not a folder of that name."""
    return path.suffix.lower() in SUFFIXES and not path.is_dir()


def address_of_page(path: Path) -> Path:
    """Return the file to open of a page: the page itself, or index.html in its folder."""
    if is_one_file(path):
        return path
    return path / "index.html"


def open_page(
    path: Path,
    inputs: Container[Path] = (),
    *,
    resumed: bool = False,
    linked: bool = False,
) -> "PageFolder | PageFile":
    """Open the folder of a page, or its single file, as the path says.

    Args:
        path: The folder, or a file that ends in .html.
        inputs: The files that the run reads, which are never written over.
        resumed: Whether the run is added to those of the existing page.
        linked: Whether the page shows image files where they are.

    Raises:
        UsageError: Something else already exists, or one file cannot do what is asked for.
        OutputError: It cannot be written to.
    """
    if not is_one_file(path):
        return PageFolder(path, inputs, resumed=resumed)
    folder_hint = f"name a folder: --report {path.with_suffix('')}"
    if resumed:
        raise UsageError(f"--resume cannot add to {path}, a page in one file", folder_hint)
    if linked:
        raise UsageError(f"--report-link would leave the images out of {path}", folder_hint)
    return PageFile(path, inputs)


class PageFile:
    """A page that is written as one file, when it is complete.

    It has the methods of `PageFolder`. Memory holds its data and images, up to a limit.
    """

    def __init__(self, path: Path, inputs: Container[Path] = ()) -> None:
        """Check that the page can be written; the existing page stays as it is until `close`.

        Args:
            path: The HTML file.
            inputs: The files that the run reads, which are never written over.

        Raises:
            UsageError: The file exists and is not a page in one file, or it is an input.
            OutputError: It cannot be written to.
        """
        self.path = path
        make_folder(path.parent)
        if path in inputs:
            raise UsageError(f"{path} is one of the inputs", "name another file")
        if not _may_be_replaced(path):
            raise UsageError(f"{path} is not a page of detcli in one file", "name another file")

        self._run: dict[str, Any] = {}  # what `describe` was called with
        self._entries: list[str] = []  # lines of script
        self._images: dict[str, str] = {}  # in base64, by name
        self._size = 0  # bytes of entries and images
        # Whether `close` writes the file: there are records, and not too many.
        self._is_to_be_written = False

    def begin(self) -> None:
        """Record that there are records, so that the page is written at the end."""
        self._is_to_be_written = True

    def describe(self, run: Mapping[str, Any]) -> None:
        """Store what made the records, in place of what was stored before."""
        self._run = {**run, "chunks": 1}

    def add(self, entry: Mapping[str, Any]) -> bool:
        """Add the entry of a record; returns False, as no other chunk begins.

        Raises:
            OutputError: The page holds too much.
        """
        line = script_call("add", entry).decode("ascii")
        self._entries.append(line)
        self._count_bytes(len(line))
        return False

    def write_image(self, number: int, jpeg: bytes) -> str:
        """Add an image to the page, which has it in a single size, and return its name.

        Raises:
            OutputError: The page holds too much.
        """
        if len(self._images) == MAX_IMAGES:
            raise self._refuse(f"more than {MAX_IMAGES} images")
        name = str(number)
        image_text = base64.b64encode(jpeg).decode("ascii")
        self._images[name] = image_text
        self._count_bytes(len(image_text))
        return name

    def _count_bytes(self, added_bytes: int) -> None:
        """Count bytes that were added to the page.

        Raises:
            OutputError: The page holds too many.
        """
        self._size += added_bytes
        if self._size > MAX_BYTES:
            raise self._refuse(f"more than {MAX_BYTES // 1_000_000} MB")

    def _refuse(self, excess: str) -> OutputError:
        """Make the error of a page that holds too much, so that `close` does not write it."""
        self._is_to_be_written = False
        return OutputError(
            f"{self.path} would have {excess}, too much for one file to send",
            "show fewer: detcli report RECORDS --sample 300, or --only-detections; or name a "
            f"folder, {self.path.with_suffix('')}",
        )

    def address_of(self, path: Path) -> str:  # noqa: ARG002 - the same as of a folder
        """Return no address: whoever gets the file has no other one."""
        return ""

    def remove_image(self, name: str) -> None:
        """Remove an image that the page no longer shows."""
        self._size -= len(self._images.pop(name, ""))

    def sync(self) -> None:
        """Do nothing: nothing is on the disk before the end, and --resume needs a folder."""

    def close(self) -> None:
        """Write the file, if there are records."""
        if self._is_to_be_written:
            write_file(self.path, self._html().encode())
            self._is_to_be_written = False

    def _html(self) -> str:
        """Return the page as HTML: index.html with its styles, scripts and data put into it.

        Its Content-Security-Policy then allows only these styles and scripts, each by its digest.
        """
        style_digests: list[str] = []
        script_digests: list[str] = []

        def inline_style(link: re.Match[str]) -> str:
            """Replace the link to a style with the style, and store its digest."""
            style = _read_page_file(link[1])
            style_digests.append(_digest_in_policy(style))
            return f"<style>{style}</style>"

        def inline_script(element: re.Match[str]) -> str:
            """Replace an element that loads a script with the script, and store its digest."""
            path = element[1]
            scripts = []
            if path == "files/main.js":
                scripts.append(self._data())  # first, as main.js loads the data at once
            scripts.append(_read_page_file(path))

            html_of_scripts = ""
            for script in scripts:
                script_digests.append(_digest_in_policy(script))
                html_of_scripts += f"<script>{script}</script>"
            return html_of_scripts

        html = _read_page_file("index.html")
        html = _ICON.sub("", html)
        html = _STYLE.sub(inline_style, html)
        html = _SCRIPT.sub(inline_script, html)

        policy = _policy(style_digests, script_digests)
        html = _POLICY.sub(f'content="{policy}"', html, count=1)
        charset = '<meta charset="utf-8" />'
        return html.replace(charset, f"{charset}\n    {MARK}", 1)

    def _data(self) -> str:
        """Build the script with the data of the page."""
        runs = script_call("runs", FORMAT, [self._run]).decode("ascii")
        images = script_call("", self._images).decode("ascii").strip("();\n")
        return (
            f'inlined.scripts["data/runs.js"] = () => {{ {runs} }};\n'
            f'inlined.scripts["data/0.js"] = () => {{\n{"".join(self._entries)}}};\n'
            f"inlined.images = {images};\n"
        )


def _read_page_file(path: str) -> str:
    """Read a file of the page from the package: "index.html", or "files/main.js" as it names it."""
    folder = resources.files(__package__).joinpath("files")
    return folder.joinpath(path.removeprefix("files/")).read_text("utf-8")


def _digest_in_policy(text: str) -> str:
    """Return the SHA-256 of a style or script, as a Content-Security-Policy names it."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _policy(style_digests: Iterable[str], script_digests: Iterable[str]) -> str:
    """Return a Content-Security-Policy that allows only these styles and scripts, and images."""
    return (
        f"default-src 'none'; script-src {' '.join(script_digests)}; "
        f"style-src {' '.join(style_digests)}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def _may_be_replaced(path: Path) -> bool:
    """Whether a path has no file, or a page in one file."""
    with writing(path):
        if not os.path.lexists(path):
            return True
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return MARK.encode() in file.read(MARK_BYTES)
