"""Tar files, walked block by block: whole ones are read as other programs read them."""

import gzip
import io
import random as chances
import shutil
import subprocess
import tarfile
import tracemalloc
import zlib

import pytest

from detcli.source import tar as tar_module
from detcli.source.tar import MAX_EXTENDED_HEADERS, TarError, TarReader, read_tar

LIMIT = 10_000_000
BLOCK = 512


def read(content, limit=LIMIT):
    return list(read_tar(io.BytesIO(content), limit, "a.tar"))


def written(*members, **options):
    """A tar file of names and contents; or of TarInfo, as they are."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, **({"mode": "w"} | options)) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def header(name="a.png", size=0, kind=b"0", content=b""):
    """A header and its padded content; the size may be any."""
    member = tarfile.TarInfo(name)
    member.type = kind
    member.size = size or len(content)
    return member.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % BLOCK)


def with_field(block, at, value):
    """A header with other bytes at a position, and the checksum that fits."""
    block = bytearray(block)
    block[at : at + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block[:BLOCK])
    return bytes(block)


def pax(**records):
    """A pax header with these records."""
    content = b""
    for key, value in records.items():
        record = f" {key.replace('__', '.')}={value}\n".encode()
        length = len(record) + 2
        length = len(record) + len(str(length))
        content += str(length).encode() + record
    return header("pax", kind=b"x", content=content)


END = bytes(2 * BLOCK)
WHOLE = written(("a.png", b"first"), ("b.png", b"second" * 200))


def error_of(content):
    """What is said of an archive, behind its images."""
    with pytest.raises(TarError) as caught:
        read(content)
    return str(caught.value)


def test_a_cut_between_two_members_is_noticed():
    boundary = 2 * BLOCK
    assert error_of(WHOLE[:boundary]) == (
        "it breaks off: the blocks of zeros at its end are missing"
    )


def test_a_cut_within_a_header_is_noticed():
    assert error_of(WHOLE[: 2 * BLOCK + 100]) == "it breaks off within a header"


def test_a_cut_within_a_member_is_noticed():
    assert error_of(WHOLE[: 3 * BLOCK + 100]) == "it breaks off within a member"


def test_a_cut_within_the_padding_of_a_member_is_noticed():
    assert error_of(WHOLE[: BLOCK + 100]) == "it breaks off within a member"


@pytest.mark.parametrize("zeros", [1, 2, 20])
def test_one_block_of_zeros_is_an_end(zeros):
    content = header(content=b"first") + bytes(zeros * BLOCK)
    assert read(content) == [("a.png", b"first")]


def test_gnu_tar_takes_one_block_of_zeros_for_an_end(tmp_path):
    program = shutil.which("tar")
    if program is None:
        pytest.skip("there is no tar")
    path = tmp_path / "a.tar"
    path.write_bytes(header(content=b"first") + bytes(BLOCK))
    result = subprocess.run([program, "-tf", path], capture_output=True, text=True, check=True)
    assert result.stdout == "a.png\n"


def test_what_follows_the_end_is_ignored_unless_it_is_an_archive():
    assert len(read(WHOLE + b"anything else" * 100)) == 2
    assert "another archive follows" in error_of(WHOLE + WHOLE)


def test_a_compressed_archive_with_a_wrong_checksum_is_damaged():
    content = bytearray(gzip.compress(WHOLE))
    content[-5] ^= 1
    with pytest.raises(OSError, match="CRC"):
        read(bytes(content))


def test_bytes_behind_a_compressed_archive_are_ignored():
    assert len(read(gzip.compress(WHOLE) + b"signature")) == 2


def test_an_archive_compressed_in_pieces_is_read_whole():
    content = gzip.compress(WHOLE[:700]) + gzip.compress(WHOLE[700:])
    assert len(read(content)) == 2


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g", b"X"])
def test_extended_headers_without_an_end_are_refused(kind):
    content = b"9 a=bcde\n"[:9]
    many = header("h", kind=kind, content=content) * 3000 + header(content=b"first") + END
    assert error_of(many) == f"a member with more than {MAX_EXTENDED_HEADERS} headers"


def test_a_long_name_in_several_headers_is_read():
    name = "d/" * 100 + "a.png"
    long_name = header("././@LongLink", kind=b"L", content=name.encode() + b"\0")
    link = header("././@LongLink", kind=b"K", content=b"elsewhere\0")
    assert read(long_name + link + header(content=b"first") + END) == [(name, b"first")]


@pytest.mark.parametrize("size", [b"\xff" * 12, b"\xff" * 11 + b"\x00", b"-0000000777\0"])
def test_a_negative_size_is_damage(size):
    assert "member of -" in error_of(with_field(header(content=b"first"), 124, size) + END)


def test_a_size_in_base_256_is_read():
    member = with_field(header(content=b"first"), 124, b"\x80" + (5).to_bytes(11, "big"))
    assert read(member + END) == [("a.png", b"first")]


def test_pax_records_override_size_and_name():
    content = pax(path="é/b.png", size="700") + header(content=b"")
    content += b"x" * 700 + bytes(-700 % BLOCK) + END
    assert read(content) == [("é/b.png", b"x" * 700)]


@pytest.mark.parametrize("size", ["-1", "1e3", "", "9" * 30])
def test_a_size_of_pax_that_is_no_number_is_damage(size):
    assert "a pax header with the number" in error_of(pax(size=size) + header(content=b"a") + END)


@pytest.mark.parametrize("records", [b"0 a=b\n", b"99 a=b\n", b"a=b\n", b"-6 a=b\n", b"6 a-bb\n"])
def test_damaged_pax_records_are_damage(records):
    broken = header("pax", kind=b"x", content=records)
    assert "a pax header with" in error_of(broken + header(content=b"first") + END)


def test_a_sparse_map_without_an_end_is_refused():
    first = with_field(header(kind=b"S", content=b""), 482, b"\x01")
    block = (b"00000000000\0" * 2) * 21 + b"\x01" + bytes(7)
    assert error_of(first + block * 5000) == "a sparse map without an end"


@pytest.mark.parametrize("offset", [b"77777777777\0", b"\xff" * 12])
def test_a_sparse_map_that_leads_out_of_its_file_is_an_error_of_the_member(offset):
    member = header(kind=b"S", content=b"12345")
    for at, value in ((386, offset), (398, b"00000000005\0"), (483, b"00000001000\0")):
        member = with_field(member, at, value)
    (name, error), other = read(member + header("b.png", content=b"second") + END)
    assert name == "a.png"
    assert "leads out of its file" in str(error)
    assert other == ("b.png", b"second")


def test_a_sparse_file_larger_than_images_may_be_is_refused():
    member = with_field(header(kind=b"S", content=b"12345"), 483, b"77777777777\0")
    ((_, error),) = read(member + END)
    assert "too large" in str(error)


@pytest.mark.parametrize("count", [b"99999999\n", b"1\n0\n", b"x\n", b"1\n0\n9999\n"])
def test_a_damaged_sparse_map_before_the_content_is_an_error_of_the_member(count):
    records = {"GNU.sparse.major": 1, "GNU.sparse.minor": 0, "GNU.sparse.realsize": 9}
    content = pax(**records) + header(content=count.ljust(BLOCK, b"\0")) + END
    ((_, error),) = read(content)
    assert "a damaged member" in str(error)


def test_folders_links_and_devices_of_the_names_of_images_are_skipped():
    content = b""
    for kind in (b"1", b"2", b"3", b"5", b"6"):
        content += header("x.jpg", kind=kind)
    assert read(content + header(content=b"first") + END) == [("a.png", b"first")]


@pytest.mark.parametrize("kind", [b"1", b"2"])
def test_a_warning_says_how_many_links_to_images_were_left_out(caplog, kind):
    links = header("x.jpg", kind=kind) + header("y.jpg", kind=kind) + header("notes", kind=kind)
    read(header(content=b"first") + links + END)
    [warning] = caplog.messages
    assert warning.startswith("a.tar: left out 2 links with an image's name")


def test_images_that_gnu_tar_packs_as_hard_links_are_counted(tmp_path, caplog):
    """It stores the content of a file with two names once, under the first name that it meets."""
    (tmp_path / "a.jpg").write_bytes(b"image")
    (tmp_path / "b.jpg").hardlink_to(tmp_path / "a.jpg")
    command = [shutil.which("tar"), "-cf", "a.tar", "a.jpg", "b.jpg"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert read((tmp_path / "a.tar").read_bytes()) == [("a.jpg", b"image")]
    assert "left out 1 link with an image's name" in caplog.text


def test_an_archive_without_links_gives_no_warning(caplog):
    read(header(content=b"first") + header("x", kind=b"5") + END)
    assert caplog.messages == []


FORMS = [
    ("v7", ()),
    ("ustar", ("-z",)),
    ("gnu", ("-S", "-j")),
    ("oldgnu", ("-S",)),
    ("posix", ("-S", "--sparse-version=0.0")),
    ("posix", ("-S", "--sparse-version=0.1", "-J")),
    ("posix", ("-S", "--sparse-version=1.0", "-b", "1")),
]


@pytest.mark.parametrize(("form", "options"), FORMS)
def test_what_gnu_tar_writes_is_read_as_tarfile_reads_it(tmp_path, form, options):
    program = shutil.which("tar")
    if program is None:
        pytest.skip("there is no tar")
    folder = tmp_path / "in"
    folder.mkdir()
    bytes_of = chances.Random(0).randbytes  # noqa: S311
    (folder / "a.png").write_bytes(bytes_of(1000))
    (folder / "empty.jpg").write_bytes(b"")
    if form in {"gnu", "posix"}:
        (folder / f"{'n' * 150}ö.png").write_bytes(bytes_of(BLOCK))
    with (folder / "hole.bmp").open("wb") as file:
        for position in range(9):
            file.seek(position * 100_000)
            file.write(bytes_of(4096))
        file.truncate(1_000_000)
    path = tmp_path / "a.tar"
    result = subprocess.run(
        [program, f"--format={form}", *options, "-cf", path, "-C", folder, "."],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        pytest.skip(f"this tar writes no such file: {result.stderr[:60]}")
    expected = {}
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile():
                expected[member.name] = archive.extractfile(member).read()
    assert dict(read(path.read_bytes())) == expected


def mutated(content, draw):
    """An archive with some damage: bytes, blocks, fields of headers."""
    for _ in range(draw.randint(1, 4)):
        at = BLOCK * draw.randrange(max(1, len(content) // BLOCK))
        kind = draw.choice(["byte", "cut", "type", "size", "repeat", "pax"])
        if kind == "byte":
            position = draw.randrange(len(content) + 1)
            content = content[:position] + bytes([draw.randrange(256)]) + content[position + 1 :]
        elif kind == "cut":
            content = content[: at + draw.choice([0, 100])]
        elif kind == "repeat":
            content = content[:at] + content[at : at + BLOCK] * draw.choice([2, 100]) + content[at:]
        elif kind == "pax":
            content = content[:at] + pax(size=draw.choice([-1, 5, 10**9])) + content[at:]
        elif len(content) >= at + BLOCK:
            position, value = 124, draw.choice([b"77777777777\0", b"\xff" * 12, b"1_1".ljust(12)])
            if kind == "type":
                position, value = 156, draw.choice([b"L", b"x", b"g", b"S", b"5", b"Z"])
            block = with_field(content[at : at + BLOCK], position, value)
            content = content[:at] + block + content[at + BLOCK :]
    return content


@pytest.mark.parametrize("seed", range(100))
def test_any_damage_ends_in_images_or_an_error(seed):
    draw = chances.Random(seed)  # noqa: S311
    members = [(draw.choice(["a.png", "n" * 150 + ".png"]), b"x" * 600) for _ in range(4)]
    content = mutated(written(*members), draw)
    if draw.random() < 0.3:
        content = mutated(gzip.compress(content), draw)
    try:
        images = read(content)
    except (TarError, OSError, EOFError, zlib.error):
        return
    assert len(images) <= 8


def test_padding_without_an_end_is_not_read(monkeypatch):
    monkeypatch.setattr(tar_module, "MAX_PADDING", 10 * BLOCK)

    class Endless(io.RawIOBase):
        """A file of zeros."""

        count = 0

        def readable(self):
            return True

        def readinto(self, buffer):
            self.count += 1
            assert self.count < 10
            buffer[:] = bytes(len(buffer))
            return len(buffer)

    assert list(read_tar(Endless(), LIMIT, "a.tar")) == []  # type: ignore[arg-type]


MIB = 1 << 20


class Pieces(io.RawIOBase):
    """A file made of bytes and of counts of zeros, none of which is held."""

    def __init__(self, *pieces):
        self._pieces = list(pieces)

    def readable(self):
        return True

    def readinto(self, buffer):
        if not self._pieces:
            return 0
        piece = self._pieces.pop(0)
        if isinstance(piece, int):
            size = min(piece, len(buffer))
            buffer[:size] = bytes(size)
            rest = piece - size
        else:
            size = min(len(piece), len(buffer))
            buffer[:size] = piece[:size]
            rest = piece[size:]
        if rest:
            self._pieces.insert(0, rest)
        return size


def peak_bytes(file, limit=LIMIT):
    """The most memory that reading a tar file takes, where nobody holds its images."""
    tracemalloc.start()
    try:
        for _ in read_tar(file, limit, "a.tar"):
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_one_image_at_a_time_is_in_memory():
    images = [header(size=2 * MIB), 2 * MIB] * 20
    assert peak_bytes(Pieces(*images, END)) < 12 * MIB


@pytest.mark.parametrize("name", ["labels.json", "clip.mp4"])
def test_members_that_are_no_images_are_never_in_memory(name):
    assert peak_bytes(Pieces(header(name, size=64 * MIB), 64 * MIB, END)) < 8 * MIB


def test_an_image_above_the_limit_is_never_in_memory():
    assert peak_bytes(Pieces(header(size=64 * MIB), 64 * MIB, END)) < 8 * MIB


def test_a_size_that_only_a_header_claims_takes_no_memory():
    cut = Pieces(header(size=64 * MIB), b"the end")
    tracemalloc.start()
    try:
        with pytest.raises(TarError, match="breaks off within a member"):
            list(read_tar(cut, 100 * MIB, "a.tar"))  # type: ignore[arg-type]
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


def test_records_of_all_members_that_do_not_matter_are_not_kept():
    content = b""
    for number in range(100):
        record = f" key{number:03}=".encode() + b"x" * 99_980 + b"\n"
        record = str(len(record) + 5).encode() + record
        content += header("pax", kind=b"g", content=record) + header(content=b"first")
    assert peak_bytes(io.BytesIO(content + END)) < 6 * MIB


def test_records_of_all_members_that_matter_are_kept():
    common = header("pax", kind=b"g", content=b"19 path=common.png\n")
    images = read(common + header(content=b"first") + header(content=b"second") + END)
    assert images == [("common.png", b"first"), ("common.png", b"second")]


def test_an_image_as_large_as_the_limit_is_read():
    assert read(header(content=b"12345") + END, limit=5) == [("a.png", b"12345")]


def test_an_image_larger_than_the_limit_is_an_error_and_the_next_is_read():
    content = header(content=b"123456") + header("b.png", content=b"12345") + END
    (name, error), other = read(content, limit=5)
    assert name == "a.png"
    assert str(error) == "too large: more than 5 bytes"
    assert other == ("b.png", b"12345")


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g", b"X"])
def test_an_extended_header_of_a_mebibyte_is_read(kind):
    name = b"n" * (MIB - 5) + b".png\0"
    record = b"1048576 comment=" + b"x" * (MIB - 17) + b"\n"
    extended = header("h", kind=kind, content=name if kind in b"LK" else record)
    ((_, content),) = read(extended + header(content=b"first") + END)
    assert content == b"first"


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g", b"X"])
def test_an_extended_header_of_more_than_a_mebibyte_is_refused_unread(kind):
    extended = header("h", size=MIB + 1, kind=kind)
    assert error_of(extended) == "a name or header of 1048577 bytes"


def sparse_of(blocks):
    """A sparse file of old GNU tar whose map goes on for so many blocks."""
    first = with_field(header(kind=b"S"), 482, b"\x01")
    region = b"00000000000\0" * 2
    first = with_field(first, 386, region * 4)
    others = [region * 21 + b"\x01" + bytes(7)] * (blocks - 1)
    return first + b"".join(others) + region * 21 + bytes(8) + END


def test_a_sparse_map_of_a_mebibyte_is_read():
    assert read(sparse_of(blocks=2080)) == [("a.png", b"")]


def test_a_sparse_map_of_more_than_a_mebibyte_is_refused():
    assert error_of(sparse_of(blocks=2081)) == "a sparse map without an end"


@pytest.mark.parametrize(("extended", "is_read"), [(63, True), (64, False)])
def test_a_member_may_have_63_extended_headers(extended, is_read):
    content = header("h", kind=b"L", content=b"b.png\0") * extended + header(content=b"first") + END
    if is_read:
        assert read(content) == [("b.png", b"first")]
    else:
        assert error_of(content) == "a member with more than 64 headers"


def test_another_archive_is_looked_for_within_a_mebibyte_of_zeros():
    near = header(content=b"first") + bytes(MIB) + WHOLE
    assert "another archive follows" in error_of(near)


def test_no_archive_is_looked_for_behind_a_mebibyte_of_zeros():
    far = header(content=b"first") + bytes(BLOCK + MIB) + WHOLE
    assert read(far) == [("a.png", b"first")]


@pytest.mark.parametrize(("digits", "is_read"), [(20, True), (21, False)])
def test_a_number_of_pax_may_have_20_digits(digits, is_read):
    content = pax(size="5".rjust(digits, "0")) + header(content=b"first") + END
    if is_read:
        assert read(content) == [("a.png", b"first")]
    else:
        assert "a pax header with the number" in error_of(content)


@pytest.mark.parametrize("name", ["clip.mp4", "clip.AVI", "labels.json", "png", "a.png.txt"])
def test_videos_and_other_files_in_an_archive_are_skipped(name):
    content = header(name, content=b"no image") + header(content=b"first") + END
    assert read(content) == [("a.png", b"first")]


@pytest.mark.parametrize("kind", [b"0", b"\0", b"7"])
def test_a_file_of_any_type_code_is_a_member(kind):
    """Contiguous files and those of v7 are files too."""
    assert read(header(kind=kind, content=b"first") + END) == [("a.png", b"first")]


def test_the_target_of_a_link_is_no_name():
    reader = TarReader(io.BytesIO(header("l", kind=b"K", content=b"x.jpg\0") + header() + END))
    assert reader.next_member().name == "a.png"
