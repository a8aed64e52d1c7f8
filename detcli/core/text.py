"""Text for people: without control codes and the secrets in addresses, and who reads it."""

import contextlib
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Iterable
from io import FileIO
from typing import IO, Any, TextIO

# Expressions are compiled when they are used: `--help` loads this module.

OBJECT_SCHEMES = ("s3://", "gs://", "az://")
"""The schemes of object stores: after the bucket comes a key, with any characters and no secret."""

# Keys that select a stream of a camera. Any other value may be a password or a token.
_HARMLESS = frozenset(
    "camera channel chn codec fps h height id profile quality resolution stream subtype track "
    "video w width".split()
)
_ASSIGNMENT = "[^/=]+=[^/]*"
_ADDRESS = r"(?i)[a-z][a-z0-9+.-]*://"
_SCHEME_AND_SLASH = r"(?i)[a-z][a-z0-9+.-]+:/"
_USER_AFTER_SCHEME = r"(?is)^([a-z][a-z0-9+.-]+:/+).*@"
_USER_WITHOUT_SCHEME = r"(?is)^(?![a-z]:[\\/])[^/\\]*:.*@"
_OBJECT_ADDRESS = r"(?i)(s3|gs|az)://[\w.-]*(/|$)"
_SIGNATURE = (
    r"(?i)[?&](sig|signature|x-amz-[\w-]+|x-goog-[\w-]+|awsaccesskeyid|googleaccessid|token|"
    r"access_token|sharedaccesssignature|apikey|api_key|password|secret)="
)
_ADDRESS_IN_TEXT = (
    r"""(?i)(?<![a-z0-9+.-])[a-z][a-z0-9+.-]+:/+(?:\S*@)?[^\s"'<>]*[^\s"'<>.,:;)\]]"""
)
_USER_IN_TEXT = r"""(?<![^\s/:@"'<>])[^\s/:@"'<>]+:(?![/\s])\S*@(?=[\w\[.])"""


_TYPED: dict[str, str] = {}
"""Addresses that were typed with spaces or quotes in them, and their public names."""


def remember_typed(words: Iterable[str]) -> None:
    """Remember typed addresses that have spaces or quotation marks in them.

    `public_text` could not tell where such an address ends in a message, so it looks for these.
    """
    for word in words:
        address = word
        if word.startswith("--"):
            address = word.partition("=")[2]
        if looks_like_address(address) and re.search(r"""[\s"'<>]""", address):
            _TYPED[address] = public_name(address)


def short_number(value: float, digits: int = 3) -> str:
    """Format a number with `digits` significant digits, and large ones without an exponent.

    Examples:
        >>> short_number(0.123456), short_number(123456), short_number(100, 2)
        ('0.123', '123456', '100')
    """
    text = f"{value:.{digits}g}"
    if "e+" in text:
        return f"{value:.0f}"
    return text


def escape_unprintable(text: str) -> str:
    """Escape control codes, which a file or class name may contain."""
    escaped = ""
    for char in text:
        if char.isprintable():
            escaped += char
        else:
            escaped += repr(char)[1:-1]  # without its quotation marks
    return escaped


def escape_surrogates(value: Any) -> Any:  # noqa: ANN401 - JSON
    r"""Escape the halves of surrogate pairs in a value for JSON, which not every reader takes.

    They stand for bytes of file names that are not UTF-8, and become escapes such as `\xe9`.
    """
    match value:
        case str() if not value.isascii():
            return re.sub("[\ud800-\udfff]", _escape_surrogate, value)
        case list():
            return [escape_surrogates(entry) for entry in value]
        case dict():
            return {
                escape_surrogates(name): escape_surrogates(entry) for name, entry in value.items()
            }
    return value


def _escape_surrogate(match: re.Match[str]) -> str:
    """Escape a half of a surrogate pair: as the byte that it stands for, or as its code."""
    code = ord(match[0])
    if 0xDC80 <= code < 0xDD00:  # Python uses these for bytes of 0x80 and above in names of files
        byte = code - 0xDC00
        return f"\\x{byte:02x}"
    return f"\\u{code:x}"


def is_object(name: str) -> bool:
    """True for the address of an object, or of a bucket or a folder in one."""
    return name.lower().startswith(OBJECT_SCHEMES)


def looks_like_address(name: str) -> bool:
    """True for an address of any kind, including that of an object or one that became a path."""
    if re.match(_ADDRESS, name):
        return True
    return bool(re.match(_SCHEME_AND_SLASH, name)) and not os.path.lexists(name)


def public_name(name: str) -> str:
    """Return the name of an input or model as it may be shown.

    An address loses its user, password and possible secrets; other names stay as they are.
    Messages, logs, records and pages show addresses only in this form.

    Examples:
        >>> public_name("rtsp://admin:1234@10.0.0.7:554/cam?channel=1&token=abc")
        'rtsp://10.0.0.7:554/cam?channel=1&token=***'
    """
    if re.match(_OBJECT_ADDRESS, name):
        return _public_object(name)
    if re.match(_ADDRESS, name):
        return _public_address(name)
    if os.path.lexists(name):  # a file may have any name
        return name

    # An address with a single slash was mistyped, as in http:/user:password@host, or was a `Path`.
    if re.match(_SCHEME_AND_SLASH, name):
        without_user = re.sub(_USER_AFTER_SCHEME, r"\1***@", name)
        without_fragment = without_user.partition("#")[0]
        path, question_mark, query = without_fragment.partition("?")
        return f"{path}{question_mark}{_public_query(query)}"

    # Where the scheme was forgotten, as in user:password@host, the user is hidden, too.
    return re.sub(_USER_WITHOUT_SCHEME, "***@", name)


def public_text(text: str) -> str:
    """Replace users, passwords and possible secrets in the addresses that a string contains."""
    for typed_address, public_address in _TYPED.items():
        text = text.replace(typed_address, public_address)
    text = re.sub(_ADDRESS_IN_TEXT, lambda match: public_name(match[0]), text)
    return re.sub(_USER_IN_TEXT, "***@", text)


def _public_address(address: str) -> str:
    """Return an address with a scheme as it may be shown.

    The user, the password and the fragment are left out; values in the path and the query that may
    be secrets become ***.
    """
    scheme, _, rest = address.partition("://")
    after_host = re.sub("^[^/?#]*", "", rest)
    if "@" in after_host:
        # A password with an unescaped / or ? would end the host too early: nothing is shown.
        return f"{scheme}://***"
    without_fragment = rest.partition("#")[0]
    host_and_path, question_mark, query = without_fragment.partition("?")
    user_and_host, slash, path = host_and_path.partition("/")
    host = _without_password(user_and_host.rpartition("@")[2])
    path = re.sub(_ASSIGNMENT, lambda match: _masked(match[0]), path)
    return f"{scheme}://{host}{slash}{path}{question_mark}{_public_query(query)}"


def _without_password(host: str) -> str:
    """Leave out what comes after the colon of a host if it is not a port.

    It may be a password, in "user:password" without a host. The address of a host in IPv6 has
    colons, and ends with a bracket.
    """
    host_name, _, port = host.rpartition(":")
    is_port = port.isdecimal() or port.endswith("]")
    if host_name and not is_port:
        return host_name
    return host


def _public_object(address: str) -> str:
    """Return the address of an object in a store as it may be shown.

    Its key may hold any character, including a question mark. Only if a signature follows one, the
    first question mark begins a query.
    """
    if re.search(_SIGNATURE, address) is None:
        return address
    path, question_mark, query = address.partition("?")
    return f"{path}{question_mark}{_public_query(query)}"


def _public_query(query: str) -> str:
    """Mask possible secrets in the query of an address."""
    assignments = re.split("[&;]", query)
    return "&".join(_masked(assignment) for assignment in assignments)


def _masked(assignment: str) -> str:
    """Mask the value of an assignment such as "token=abc", unless its key is a harmless one."""
    key, equals, _ = assignment.partition("=")
    if not assignment or key.lower() in _HARMLESS:
        return assignment
    if not equals:
        return "***"
    return f"{key}=***"


def plot_text(text: str) -> str:
    """Escape a string for a plot: printable, and not read as a formula by matplotlib."""
    return escape_unprintable(text).replace("$", r"\$")


def pluralize(number: int, noun: str) -> str:
    """Format a count of things: `1 frame`, `2 frames`, `2 classes`."""
    if number == 1:
        return f"{number} {noun}"
    ending = "s"
    if noun.endswith("s"):
        ending = "es"
    return f"{number} {noun}{ending}"


def shell_line(words: Iterable[str]) -> str:
    """Format words as one types them, quoted for Windows or for a POSIX shell."""
    import shlex  # only errors and reports need it

    if sys.platform != "win32":
        return shlex.join(words)
    import subprocess

    return subprocess.list2cmdline(words)


MIN_BEGINNING = 3  # letters of a word that is regarded as the beginning of another


def closest(word: str, candidates: Iterable[str]) -> str:
    """Find the candidate that a word is a typo or the beginning of; empty if there is none.

    Only candidates with the same first letter are considered, as few typos are in that. A beginning
    has three letters or more, and only one candidate begins so.

    Examples:
        >>> closest("Fromat", ["format", "force"]), closest("watch", ["batch"])
        ('format', '')
        >>> closest("pred", ["predict", "report"]), closest("re", ["report"])
        ('predict', '')
    """
    import difflib  # only errors need it

    word = word.lower()
    candidates_by_lower_case = {}
    for candidate in candidates:
        if candidate[:1].lower() == word[:1]:
            candidates_by_lower_case[candidate.lower()] = candidate
    if len(word) >= MIN_BEGINNING:
        completions = [name for name in candidates_by_lower_case if name.startswith(word)]
        if len(completions) == 1:
            return candidates_by_lower_case[completions[0]]
    matches = difflib.get_close_matches(word, candidates_by_lower_case, n=1, cutoff=0.75)
    if not matches:
        return ""
    return candidates_by_lower_case[matches[0]]


def wrap_for(text: str, stream: FileIO | IO[Any] | None) -> str:
    """Break a line between words if it is wider than the terminal that a stream leads to.

    Continuation lines are indented by two more spaces than the first.
    """
    width = 0
    if stream is not None and is_terminal(stream):
        with contextlib.suppress(OSError):
            width = os.get_terminal_size(stream.fileno()).columns
    if not 0 < width < len(text):
        return text
    import textwrap  # only narrow terminals need it

    indent = " " * (len(text) - len(text.lstrip()) + 2)
    return textwrap.fill(
        text, width, break_long_words=False, break_on_hyphens=False, subsequent_indent=indent
    )


def is_terminal(stream: FileIO | IO[Any] | None) -> bool:
    """True for a terminal; a standard stream may be None or closed."""
    return stream is not None and not stream.closed and stream.isatty()


def is_pipe(stream: TextIO | None) -> bool:
    """True for a pipe; a standard stream may be None, closed or no file."""
    try:
        return stream is not None and stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False


MAX_KINDS = 5  # how many kinds of errors are shown


def kind_of(message: str, message_type: str) -> str:
    """Return what is common to similar errors or warnings of many inputs, to count them.

    That is the type, and the message up to a colon or parenthesis, with N in place of numbers.
    """
    beginning = re.split(r" ?[(:]", message, maxsplit=1)[0]
    without_numbers = re.sub("[0-9]+", "N", beginning)
    return f"{message_type}: {without_numbers}"


def format_kinds(kinds: Counter[str]) -> str:
    """Format the most frequent kinds, and how many there are of each."""
    texts = [f"{number} {kind}" for kind, number in kinds.most_common(MAX_KINDS)]
    if len(kinds) > MAX_KINDS:
        texts.append("...")
    return ", ".join(texts)
