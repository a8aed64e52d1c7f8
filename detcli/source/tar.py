"""Reads tar files as a stream: each member is looked at once, and one image is held at a time.

Blocks are walked here rather than by `tarfile`, which ends in a RecursionError when many extended
headers follow one another, holds as much of a sparse map as there is, and takes a file that ends
between two members for a whole one. A single header is parsed by `tarfile`, in every version of
Python.
"""

import bz2
import gzip
import io
import logging
import lzma
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, cast

from detcli.core.errors import DecodeError
from detcli.core.text import pluralize
from detcli.source.limits import LARGER
from detcli.source.names import is_media, is_video

log = logging.getLogger(__name__)

CHUNK = 1 << 20

BLOCK = 512  # bytes of a header; the content of a member is padded to a multiple of them

ENDING_BLOCK = bytes(BLOCK)
"""What ends an archive; there should be two of them, and GNU tar accepts one with a warning."""

MAX_EXTENDED_BYTES = 1 << 20
"""Bytes of a long name, of pax records, or of a sparse map, which are read at once."""

MAX_EXTENDED_HEADERS = 64
"""Extended headers that may precede a member; a program writes up to four."""

MAX_LENGTH_DIGITS = 20
"""Bytes in which the length of a pax record has to end."""

MAX_PADDING = 1 << 20
"""Bytes after the end that are looked at; programs pad archives with zeros to 10 KiB or more."""

LONG_NAME = b"L"
LONG_LINK = b"K"
PAX_OF_ALL = b"g"
PAX = (b"x", b"X")
SPARSE = b"S"
EXTENDED_TYPES = frozenset((LONG_NAME, LONG_LINK, PAX_OF_ALL) + PAX)

# Places in the header of a sparse file of old GNU tar, and in the blocks that continue its map.
REGION = 24  # length in bytes of an offset and a size
HEADER_MAP = 386
HEADER_REGIONS = 4
HEADER_CONTINUES = 482
HEADER_REAL_SIZE = slice(483, 495)
BLOCK_REGIONS = 21
BLOCK_CONTINUES = 504

Regions = list[tuple[int, int]]
"""Where the stored bytes of a sparse file belong: offsets and sizes, in their order."""

PaxRecords = list[tuple[str, bytes]]
"""Keys and values of pax headers, in their order; the last one of a repeated key is used."""


class TarError(Exception):
    """The archive ends too early, or has content that no program writes."""


@dataclass(slots=True)
class Member:
    """A member of the archive, as its header and the extended headers before it describe it."""

    name: str
    stored_size: int  # bytes that follow the header
    is_file: bool
    is_link: bool = False
    regions: Regions | None = None  # of a sparse file, unless they precede its content
    real_size: int | None = None  # of a sparse file

    @property
    def largest_size(self) -> int:
        """How many bytes its content takes at most: as it is stored, or with its zeros."""
        return max(self.stored_size, self.real_size or 0)

    @property
    def is_image(self) -> bool:
        """Whether it is a file with the name of an image."""
        return self.is_file and self._has_image_name

    @property
    def is_link_to_image(self) -> bool:
        """Whether it is a symbolic or hard link with the name of an image."""
        return self.is_link and self._has_image_name

    @property
    def _has_image_name(self) -> bool:
        return is_media(self.name) and not is_video(self.name)


@dataclass(slots=True)
class _Extension:
    """What the extended headers before a member's own header say about it."""

    records: PaxRecords
    long_name: str | None = None


def read_tar(
    file: BinaryIO, max_bytes: int, archive_name: str
) -> Iterator[tuple[str, bytes | DecodeError]]:
    """Yield the name and the bytes of each image, or its error if it cannot be used.

    Links have no content: it is that of another member, which may be far ahead in the stream, or of
    a file outside the archive. A warning says how many images were left out because of that.

    Args:
        file: The archive, which is read once from its beginning to its end.
        max_bytes: Larger images are errors.
        archive_name: As the warning names it.

    Raises:
        TarError: The archive breaks off, or is damaged; errors of the decompressors mean the same.
    """
    reader = TarReader(decompressed(file))
    link_count = 0
    for member in iter(reader.next_member, None):
        link_count += member.is_link_to_image
        if not member.is_image:
            reader.skip(member.stored_size)
        elif member.largest_size > max_bytes:
            yield member.name, DecodeError(f"too large: more than {max_bytes} bytes", LARGER)
            reader.skip(member.stored_size)
        else:
            stored = reader.read(member.stored_size)
            if member.real_size is None:
                yield member.name, stored
            else:
                yield member.name, _expand_sparse(member, stored)
    reader.check_end()
    if link_count:
        links = pluralize(link_count, "link")
        log.warning(
            "%s: left out %s with an image's name, as links have no content; "
            "pack files in place of links: tar --dereference --hard-dereference",
            archive_name,
            links,
        )


def decompressed(file: BinaryIO) -> BinaryIO:
    """Return a file object that decompresses a tar file, or reads one that is not compressed.

    The first bytes identify the compression, because suffixes are often wrong.

    Raises:
        TarError: It is compressed by zstd, which cannot be read.
    """
    buffered = io.BufferedReader(cast("io.RawIOBase", file), CHUNK)
    begin = buffered.peek(6)
    if begin.startswith(b"\x1f\x8b"):
        return cast("BinaryIO", gzip.GzipFile(fileobj=buffered))
    if begin.startswith(b"BZh"):
        return cast("BinaryIO", bz2.BZ2File(buffered))
    if begin.startswith((b"\xfd7zXZ\0", b"\x5d\0\0\x80")):
        return cast("BinaryIO", lzma.LZMAFile(buffered))
    if begin.startswith(b"\x28\xb5\x2f\xfd"):
        raise TarError("it is compressed by zstd: decompress it with zstd -d")
    return buffered


class TarReader:
    """Reads a tar file without its compression, from the header of one member to the next."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._position = 0  # bytes that have been read
        self._common: dict[str, bytes] = {}  # pax records of all members

    def next_member(self) -> Member | None:
        """Read headers up to the next member of the archive; None at its end.

        Extended headers before a member's own one say what has no room there, such as a long name.
        The caller must then read or skip the content of the member.

        Raises:
            TarError: The archive is damaged or breaks off.
        """
        # The records that earlier headers gave to all members apply to this one, too.
        extension = _Extension(list(self._common.items()))
        # An extended header of a single member needs one after it. A header of all members may be
        # the last one of the archive.
        member_must_follow = False
        for _ in range(MAX_EXTENDED_HEADERS):
            block = self._header_block()
            if block == ENDING_BLOCK:
                if member_must_follow:
                    raise TarError("it breaks off: an extended header has no member")
                return None
            header = _parse_header(block)
            if header.type not in EXTENDED_TYPES:
                return self._member(block, header, extension)
            member_must_follow = header.type != PAX_OF_ALL
            content = self._extended_content(header.size)
            self._add_extended_header(header.type, content, extension)
        raise TarError(f"a member with more than {MAX_EXTENDED_HEADERS} headers")

    def _add_extended_header(self, kind: bytes, content: bytes, extension: _Extension) -> None:
        """Add what an extended header says to what is known about the next member.

        An extended header is a long name, pax records of the next member, or pax records of all
        members that follow. The last kind is also remembered for the members after the next.

        Args:
            kind: The type of the extended header.
            content: The name, or the pax records.
            extension: What the headers before it say, changed here.
        """
        if kind == LONG_NAME:
            extension.long_name = tarfile.nts(content, "utf-8", "surrogateescape")  # type: ignore[attr-defined]
        elif kind == PAX_OF_ALL:
            self._note_common(pax_records(content))
            # If a key occurs twice, its last record is used. So the records of all members go
            # first, and those of the member itself after them.
            common_records = list(self._common.items())
            extension.records = common_records + extension.records
        elif kind in PAX:
            extension.records += pax_records(content)

    def read(self, size: int) -> bytes:
        """Read the content of a member, and skip the bytes that pad it to whole blocks."""
        content = self._read(size)
        padding = -size % BLOCK
        self._skip(padding)
        return content

    def skip(self, size: int) -> None:
        """Skip the content of a member, and the bytes that pad it to whole blocks."""
        padding = -size % BLOCK
        self._skip(size + padding)

    def check_end(self) -> None:
        """Read the zeros after the last member, and refuse another archive after them.

        In a compressed file, the checksum is read and checked with the zeros.

        Raises:
            TarError: Another archive follows, which no program would read.
        """
        block = self._skip_padding()
        if block is None:
            return
        try:
            _parse_header(block)
        except TarError:
            # Not a header, so no archive: a tape may still have bytes of an older, longer archive.
            return
        raise TarError("another archive follows its end, which is not read: give each its own file")

    def _skip_padding(self) -> bytes | None:
        """Read the blocks of zeros at the end of the archive, and return the first other block.

        In a compressed file, the decompressor also checks the checksum after the archive. Bytes
        after the gzip data are ignored, as the program gzip ignores them.

        Returns:
            The block; None if the file or its gzip data end first, or if there are more than
            `MAX_PADDING` bytes of zeros.
        """
        padding_bytes = 0
        while padding_bytes < MAX_PADDING:
            try:
                block = self._file.read(BLOCK)
            except gzip.BadGzipFile as error:
                # Only this error says that what follows is not gzip data. Others have the same
                # type, such as that of a wrong checksum.
                is_after_gzip_data = "Not a gzipped file" in str(error)
                if is_after_gzip_data:
                    return None
                raise
            if not block:
                return None
            if block != ENDING_BLOCK:
                return block
            padding_bytes += BLOCK
        return None

    def _header_block(self) -> bytes:
        """Read the next block of the file, which is a header, or zeros at the end of the archive.

        Raises:
            TarError: The file ends before it, or within it.
        """
        block = self._file.read(BLOCK)
        if not block and not self._position:
            raise TarError("it is empty")
        if not block:
            raise TarError("it breaks off: the blocks of zeros at its end are missing")
        if len(block) < BLOCK:
            raise TarError("it breaks off within a header")
        self._position += BLOCK
        return block

    def _member(
        self,
        block: bytes,
        header: tarfile.TarInfo,
        extension: _Extension,
    ) -> Member:
        """Describe a member of the archive, by its header and the extended headers before it.

        What the extended headers say takes precedence over the header itself. The zeros of a sparse
        file are not stored, so it also has a list of the regions that are. In the newest form this
        list is at the beginning of the content, and `regions` stays None.

        Args:
            block: The bytes of the header. For a sparse file, more blocks of its list are read.
            header: The same header, parsed.
            extension: What the extended headers say.
        """
        value_by_key = dict(extension.records)  # the last value of a repeated key
        name = extension.long_name or header.name
        if "path" in value_by_key:
            name = value_by_key["path"].decode("utf-8", "surrogateescape")
        stored_size = _stored_size(header, value_by_key)

        is_link = header.issym() or header.islnk()
        member = Member(name, stored_size, is_file=header.isreg(), is_link=is_link)
        is_pax_sparse = any(key.startswith("GNU.sparse.") for key in value_by_key)
        if header.type == SPARSE:  # the old format of GNU tar
            member.regions = self._regions_in_headers(block)
            member.real_size = _header_number(block[HEADER_REAL_SIZE])
        elif is_pax_sparse:
            _describe_sparse(member, value_by_key, extension.records)
        return member

    def _extended_content(self, size: int) -> bytes:
        """Read the content of an extended header; a TarError if it is too large to be sensible."""
        if size > MAX_EXTENDED_BYTES:
            raise TarError(f"a name or header of {size} bytes")
        return self.read(size)

    def _note_common(self, records: PaxRecords) -> None:
        """Remember the names and sizes that a global pax header gives to all members after it.

        Other records are dropped, because there may be any number of them.
        """
        for key, value in records:
            if key in {"path", "size"}:
                self._common[key] = value

    def _regions_in_headers(self, block: bytes) -> Regions:
        """Read the map of a sparse file in the old format of GNU tar.

        The header has room for four regions. A flag says that another block follows with 21
        more, which has such a flag itself.

        Args:
            block: The header of the file; the blocks after it are read.

        Returns:
            The offset and the size of each region that is stored.
        """
        regions = _region_fields(block[HEADER_MAP:], HEADER_REGIONS)
        continues = block[HEADER_CONTINUES]
        while continues:
            block = self._read(BLOCK)
            regions += _region_fields(block, BLOCK_REGIONS)
            continues = block[BLOCK_CONTINUES]
            if len(regions) * REGION > MAX_EXTENDED_BYTES:
                raise TarError("a sparse map without an end")
        return regions

    def _read(self, size: int) -> bytes:
        """Read bytes of the archive; a TarError if it ends before that."""
        content = io.BytesIO()
        missing_bytes = size
        while missing_bytes > 0:
            chunk = self._file.read(min(missing_bytes, CHUNK))
            if not chunk:
                raise TarError("it breaks off within a member")
            missing_bytes -= len(chunk)
            content.write(chunk)
        self._position += size
        return content.getvalue()

    def _skip(self, size: int) -> None:
        """Read bytes of the archive and drop them; a TarError if it ends before that."""
        self._position += size
        missing_bytes = size
        while missing_bytes > 0:
            chunk = self._file.read(min(missing_bytes, CHUNK))
            if not chunk:
                raise TarError("it breaks off within a member")
            missing_bytes -= len(chunk)


def _parse_header(block: bytes) -> tarfile.TarInfo:
    """Parse the block of a header.

    Raises:
        TarError: The block is not a header, as its checksum says, or its size is negative.
    """
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise TarError(f"it breaks off: {error}") from error
    if header.size < 0:
        raise TarError(f"a member of {header.size} bytes")
    return header


def _stored_size(header: tarfile.TarInfo, value_by_key: dict[str, bytes]) -> int:
    """Return how many bytes of content follow the header of a member.

    A member that is not a file, such as a link, has none, whatever its size says. An unknown type
    counts as that of a file here, as the standard requires.

    Args:
        header: The header of the member.
        value_by_key: The pax records of the member. Their size takes precedence over the header's.

    Raises:
        TarError: The size in the pax records is not a number.
    """
    size = header.size
    if "size" in value_by_key:
        size = _decimal_number(value_by_key["size"])
    is_of_unknown_type = header.type not in tarfile.SUPPORTED_TYPES
    if header.isreg() or is_of_unknown_type:
        return size
    return 0


def pax_records(content: bytes) -> PaxRecords:
    """Parse the content of a pax header.

    A record is written as `LENGTH KEY=VALUE` and a newline; the length is that of all of this. A
    zero byte ends the records.

    Raises:
        TarError: A length is missing or wrong.
    """
    records = []
    start = 0
    while start < len(content) and content[start] != 0:
        beginning = content[start : start + MAX_LENGTH_DIGITS]
        digits, space, _ = beginning.partition(b" ")
        if not space or not digits.isdigit():
            raise TarError("a pax header without lengths")
        end = start + int(digits)
        key_start = start + len(digits) + len(space)
        key_and_value = content[key_start:end]
        is_complete = end <= len(content) and key_and_value.endswith(b"\n")
        key, equals_sign, value = key_and_value.removesuffix(b"\n").partition(b"=")
        if not is_complete or not equals_sign:
            raise TarError("a pax header with a wrong length")
        records.append((key.decode("utf-8", "replace"), value))
        start = end
    return records


def _decimal_number(text: bytes) -> int:
    """A decimal number of a pax record."""
    if not text.isdigit() or len(text) > 20:
        raise TarError(f"a pax header with the number {text[:40]!r}")
    return int(text)


def _header_number(field: bytes) -> int:
    """A number of a header, in octal digits or base 256."""
    try:
        return tarfile.nti(field)  # type: ignore[attr-defined, no-any-return]
    except tarfile.HeaderError as error:
        raise TarError(f"a sparse map is damaged: {error}") from error


def _region_fields(fields: bytes, count: int) -> Regions:
    """Parse the regions of a sparse file in a header; they end at the first that is empty.

    A region is an offset and a size, each a number in text. `fields` begins with the first region,
    and has room for `count` of them.
    """
    regions = []
    for start in range(0, count * REGION, REGION):
        middle = start + REGION // 2
        offset = fields[start:middle]
        size = fields[middle : start + REGION]
        is_empty = not offset.strip(b"\0 ")
        if is_empty:
            break
        regions.append((_header_number(offset), _header_number(size)))
    return regions


def _describe_sparse(member: Member, fields: dict[str, bytes], records: PaxRecords) -> None:
    """Set the name, the real size and the regions of a sparse file, as its pax records say.

    A pax record is a key and a value, such as `GNU.sparse.realsize` and `4096`.

    Args:
        member: The file, which is changed.
        fields: The values by key; the last one of a key that comes again.
        records: The same records in their order, with keys that come again.

    Raises:
        TarError: The size is missing, or a number is damaged.
    """
    if "GNU.sparse.name" in fields:
        member.name = fields["GNU.sparse.name"].decode("utf-8", "surrogateescape")
    if "GNU.sparse.realsize" in fields:
        member.real_size = _decimal_number(fields["GNU.sparse.realsize"])
    elif "GNU.sparse.size" in fields:  # its name in older versions of GNU tar
        member.real_size = _decimal_number(fields["GNU.sparse.size"])
    else:
        raise TarError("a sparse file without a size")
    member.regions = _regions_in_records(fields, records)


def _regions_in_records(fields: dict[str, bytes], records: PaxRecords) -> Regions | None:
    """Return the regions of a sparse file from its pax records; None if they precede the content.

    GNU tar has had three versions. In version 1.0, which has a record "major", they precede the
    content. In 0.1 they are one record of numbers with commas, such as "0,10,4096,5"; in 0.0 they
    are two records for each region.

    Args:
        fields: The values by key; the last one of a key that comes again.
        records: The same records in their order, with keys that come again.
    """
    if "GNU.sparse.major" in fields:
        return None
    if "GNU.sparse.map" in fields:
        return _pair_regions(fields["GNU.sparse.map"].split(b","))
    keys = {"GNU.sparse.offset", "GNU.sparse.numbytes"}
    return _pair_regions([value for key, value in records if key in keys])


def _pair_regions(numbers: list[bytes]) -> Regions:
    """Make the regions of a sparse file from numbers: an offset and a size by turns."""
    if len(numbers) % 2:
        raise TarError("a sparse map with an odd number of numbers")
    values = [_decimal_number(number) for number in numbers]
    offsets = values[::2]
    sizes = values[1::2]
    return list(zip(offsets, sizes, strict=True))


def _expand_sparse(member: Member, stored: bytes) -> bytes | DecodeError:
    """Return the content of a sparse file with its zeros, or the error of a damaged map.

    `stored` are the bytes in the archive, which begin with the map if the member has none yet.
    """
    try:
        regions = member.regions
        if regions is None:
            regions, stored = _take_leading_map(stored)
        return _fill_regions(regions, stored, real_size=member.real_size or 0)
    except TarError as error:
        return DecodeError(f"a damaged member: {error}", "see how the archive was made")


def _fill_regions(regions: Regions, stored: bytes, real_size: int) -> bytes:
    """Return a file of zeros in which the stored bytes are where they belong.

    Args:
        regions: The offset and the size of each region, in the order of the stored bytes.
        stored: The bytes of all regions, one after the other.
        real_size: The length of the file.

    Raises:
        TarError: A region is not within the file, or its bytes are not stored.
    """
    content = bytearray(real_size)
    stored_start = 0
    for offset, size in regions:
        stored_end = stored_start + size
        if min(offset, size) < 0 or offset + size > real_size or stored_end > len(stored):
            raise TarError("a sparse map leads out of its file")
        content[offset : offset + size] = stored[stored_start:stored_end]
        stored_start = stored_end
    return bytes(content)


class _SparseContent(NamedTuple):
    """What is stored of a sparse file: where its regions belong, and their bytes."""

    regions: Regions
    stored: bytes


def _take_leading_map(stored: bytes) -> _SparseContent:
    r"""Split what is stored of a sparse file into the map at its beginning and the content.

    The map is text with a number in each line: how many regions there are, and then the offset and
    the size of each. So `b"1\n4096\n5\n"` is one region of 5 bytes at offset 4096. Zeros pad the
    map to whole blocks of the archive.

    Raises:
        TarError: The map is damaged or not complete.
    """
    first_line, _, _ = stored.partition(b"\n")
    region_count = _decimal_number(first_line)
    number_count = 2 * region_count
    # Each number takes at least one byte. A damaged count could have `split` fill the memory.
    if number_count >= len(stored):
        raise TarError("a sparse map breaks off")

    # The lines of the map are split, and everything after them stays together.
    line_count = 1 + number_count
    pieces = stored.split(b"\n", maxsplit=line_count)
    is_complete = len(pieces) == line_count + 1
    if not is_complete:
        raise TarError("a sparse map breaks off")
    numbers = pieces[1:line_count]
    padded_content = pieces[-1]

    map_size = len(stored) - len(padded_content)
    padding = -map_size % BLOCK  # zeros up to the next multiple of a block
    return _SparseContent(_pair_regions(numbers), padded_content[padding:])
