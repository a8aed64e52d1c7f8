"""When a photograph was taken: read as other programs read it, and never from nonsense."""

import io
import struct

import cv2
import numpy as np
import photographs
import pytest
from made_jpegs import exif, insert, orientation, segment
from PIL import Image, features
from thinning import thin

from detcli.core.errors import DecodeError
from detcli.data.capture_time import CaptureTime
from detcli.source.decode import load_bytes
from detcli.source.exif import capture_time

DATE = b"2021:05:06 07:08:09\0"
TIME = CaptureTime("2021-05-06T07:08:09", None)

needs_avif = pytest.mark.skipif(not features.check("avif"), reason="this Pillow writes no AVIF")
FORMATS = ["JPEG", "PNG", "WEBP", pytest.param("AVIF", marks=needs_avif)]


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_format_with_exif_is_read(file_format):
    metadata = photographs.exif_of_camera(
        date="2021:05:06 07:08:09", fraction="25", offset="+02:00"
    )
    data = photographs.encoded(file_format, exif=metadata)
    expected = CaptureTime("2021-05-06T07:08:09.25", "+02:00")
    assert capture_time(data) == expected
    assert load_bytes(data).capture_time == expected


@pytest.mark.parametrize("file_format", FORMATS + ["TIFF", "BMP", "GIF", "PPM"])
def test_an_image_without_exif_has_no_time(file_format):
    data = photographs.encoded(file_format)
    assert capture_time(data) is None
    assert load_bytes(data).capture_time is None


@pytest.mark.parametrize("order", ["<", ">"])
def test_both_orders_of_bytes_are_read_and_short_texts_in_their_fields(order):
    for fraction in (b"7\0", b"25\0", b"130\0", b"123456\0"):
        data = photographs.jpeg_with_times(DATE, fraction=fraction, order=order)
        digits = fraction.rstrip(b"0\0").decode()
        assert capture_time(data) == CaptureTime(f"2021-05-06T07:08:09.{digits}", None)


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_tiff_is_its_own_exif(order):
    encoded, tiff = cv2.imencode(".tiff", np.zeros((8, 8, 3), np.uint8))
    assert encoded
    assert load_bytes(tiff.tobytes()).capture_time is None
    assert capture_time(photographs.tiff_with_times(DATE, order=order)) == TIME


def test_a_tiff_may_have_the_time_in_its_first_directory():
    """TIFF/EP, the standard before EXIF, has it there."""
    tiff = struct.pack("<2sHI", b"II", 42, 8)
    tiff += struct.pack("<HHHIII", 1, 0x9003, 2, len(DATE), 26, 0)
    assert capture_time(tiff + DATE) == TIME


NO_DATES = [
    b"0000:00:00 00:00:00\0",
    b"    :  :     :  :  \0",
    b"                   \0",
    b"\0" * 20,
    b"",
    b"\xff" * 20,
    b"2021:13:06 07:08:09\0",
    b"2021:02:30 07:08:09\0",
    b"2021:05:06 24:08:09\0",
    b"2021:05:06 07:60:09\0",
    b"1799:05:06 07:08:09\0",
    b"2021:05:06\0",
    b"2021:05:06 07:08\0",
    b"yesterday, at noon.\0",
    b"2021:05:06 07:08:09 and a good deal more than that, as no camera writes it\0",
]


@pytest.mark.parametrize("date", NO_DATES)
def test_what_is_no_date_is_absent(date):
    data = photographs.jpeg_with_times(date, fraction=b"25\0", offset=b"+01:00\0")
    assert capture_time(data) is None
    assert load_bytes(data).capture_time is None


@pytest.mark.parametrize(
    "date",
    [b"2021-05-06 07:08:09\0", b"2021/05/06 07:08:09\0", b"2021:05:06 07:08:09", DATE + DATE],
)
def test_dates_as_some_programs_write_them_are_read(date):
    assert capture_time(photographs.jpeg_with_times(date)) == TIME


@pytest.mark.parametrize("fraction", [b"", b"\0", b"   \0", b"000\0", b"-5\0", b"n/a\0"])
def test_a_fraction_without_digits_is_none(fraction):
    assert capture_time(photographs.jpeg_with_times(DATE, fraction=fraction)) == TIME


def test_digits_beyond_microseconds_are_dropped():
    data = photographs.jpeg_with_times(DATE, fraction=b"123456789\0")
    assert capture_time(data) == CaptureTime("2021-05-06T07:08:09.123456", None)


@pytest.mark.parametrize("offset", [b"-09:30\0", b"+00:00\0", b"+14:00\0"])
def test_an_offset_is_kept(offset):
    data = photographs.jpeg_with_times(DATE, offset=offset)
    assert capture_time(data) == CaptureTime(TIME.local, offset.rstrip(b"\0").decode())


@pytest.mark.parametrize("offset", [b"   :  \0", b"+15:00\0", b"+01:60\0", b"CET\0", b"0100\0"])
def test_what_is_no_offset_is_absent(offset):
    assert capture_time(photographs.jpeg_with_times(DATE, offset=offset)) == TIME


def test_only_the_time_of_the_photograph_counts():
    """Not when the file was changed (DateTime), nor when it was digitized."""
    metadata = photographs.exif_of_camera()
    metadata.get_ifd(photographs.EXIF_DIRECTORY)[0x9004] = "2021:05:06 07:08:09"
    assert capture_time(photographs.encoded("JPEG", exif=metadata)) is None


def test_the_first_exif_of_a_jpeg_counts():
    other = b"Exif\0\0" + photographs.tiff_with_times(b"1999:09:09 09:09:09\0")
    data = insert(photographs.encoded("JPEG"), segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0"))
    first = b"Exif\0\0" + photographs.tiff_with_times(DATE)
    assert capture_time(insert(data, segment(0xE1, first), segment(0xE1, other))) == TIME


def test_exif_with_an_orientation_alone_has_no_time():
    image = load_bytes(insert(photographs.encoded("JPEG"), exif(orientation(6))))
    assert image.capture_time is None
    assert image.size == (64, 48)


def test_a_directory_that_leads_to_itself_ends():
    tiff = struct.pack("<2sHI", b"II", 42, 8)
    tiff += struct.pack("<HHHIII", 1, photographs.EXIF_DIRECTORY, 4, 1, 8, 8)
    assert capture_time(tiff) is None


def box(name, content):
    """A box of an AVIF file."""
    return struct.pack(">I4s", 8 + len(content), name) + content


def avif_with_exif_among_its_boxes(version):
    """The boxes of an AVIF whose EXIF is in two ranges of the box `idat`."""
    exif_item = 2
    content = struct.pack(">I", 6) + b"Exif\0\0" + photographs.tiff_with_times(DATE)
    entry = struct.pack(">IHH4s", 2 << 24, exif_item, 0, b"Exif")
    item_format = ">H"
    if version == 2:
        item_format = ">I"
    locations = struct.pack(">IH", version << 24, 0x4400)
    locations += struct.pack(item_format, 1)
    locations += struct.pack(item_format, exif_item)
    locations += struct.pack(">HHH", 1, 0, 2)  # in `idat`, of this file, in two ranges
    locations += struct.pack(">IIII", 0, 10, 10, len(content) - 10)
    meta = bytes(4)
    meta += box(b"iinf", struct.pack(">IH", 0, 1) + box(b"infe", entry))
    meta += box(b"iloc", locations)
    meta += box(b"idat", content)
    return box(b"ftyp", b"avif" + bytes(4)) + box(b"meta", meta)


@pytest.mark.parametrize("version", [1, 2])
def test_the_exif_of_an_avif_may_be_in_parts_and_among_its_boxes(version):
    assert capture_time(avif_with_exif_among_its_boxes(version)) == TIME


def damaged_copies(data, count):
    """Copies of a file in which some bytes are changed, left out or added, or the end is cut."""
    generator = np.random.default_rng(7)
    for _ in range(count):
        damaged = bytearray(data)
        for _ in range(generator.integers(1, 4)):
            position = int(generator.integers(min(len(damaged), 1200)))
            damage = generator.integers(4)
            if damage == 0:
                damaged[position] = generator.choice([0, 1, 127, 128, 255])
            elif damage == 1:
                del damaged[position : position + int(generator.integers(1, 9))]
            elif damage == 2:
                damaged[position:position] = generator.bytes(3)
            else:
                del damaged[max(position, 16) :]
        yield bytes(damaged)


@pytest.mark.parametrize("file_format", FORMATS)
def test_damaged_exif_has_no_time_or_another_but_is_no_error(file_format):
    metadata = photographs.exif_of_camera(date="2021:05:06 07:08:09", fraction="25")
    data = photographs.encoded(file_format, exif=metadata)
    copies = list(damaged_copies(data, 2000))
    times = [capture_time(copy) for copy in copies]
    assert None in times
    assert CaptureTime("2021-05-06T07:08:09.25", None) in times


def test_damaged_exif_does_not_fail_an_image():
    """Each byte of the EXIF is wrong once, and the image is decoded all the same."""
    tiff = photographs.tiff_with_times(DATE, fraction=b"25\0")
    image = photographs.encoded("JPEG")
    for position in thin("bytes of EXIF", range(len(tiff)), 20):
        damaged = tiff[:position] + b"\xff" + tiff[position + 1 :]
        data = insert(image, segment(0xE1, b"Exif\0\0" + damaged))
        assert load_bytes(data).size == (48, 64)


def test_an_image_that_cannot_be_decoded_stays_an_error():
    data = photographs.jpeg_with_times(DATE)
    with pytest.raises(DecodeError):
        load_bytes(data[: len(data) // 2])


def time_by_pillow(data):
    """The time as Pillow has it: date, fraction and offset, None where the file has none."""
    directory = Image.open(io.BytesIO(data)).getexif().get_ifd(photographs.EXIF_DIRECTORY)
    return directory.get(0x9003), directory.get(0x9291), directory.get(0x9011)


@pytest.mark.parametrize("folder", ["real/pictures", "data/codes-boofcv"])
def test_photographs_have_the_times_that_pillow_reads(shared, folder):
    count = 0
    for path in sorted(shared(folder).glob("*.jpg")):
        data = path.read_bytes()
        date, fraction, offset = time_by_pillow(data)
        time = capture_time(data)
        if date is None:
            assert time is None, path
            continue
        count += 1
        local_date = date.replace(":", "-", 2).replace(" ", "T")
        digits = (fraction or "").strip("\0 ").rstrip("0")
        expected = local_date
        if digits:
            expected = f"{local_date}.{digits}"
        assert time == CaptureTime(expected, offset), path
    assert count > 0
