"""Every form of a format is read rightly, or refused; there is nothing in between."""

import io
import random
import re
import shutil
import struct
import subprocess
import sys

import numpy as np
import optional
import pytest
import tifffile
from PIL import Image, ImageCms
from source import image_forms
from source.image_forms import GREY, RGB, ImageForm, bmp, colours_of_grey, pam, tiff

from detcli.config.inputs import InputOptions
from detcli.core.errors import DecodeError
from detcli.source.decode import DecodeOptions, load_bytes

pytestmark = pytest.mark.slow


def with_its_library(kind):
    """A kind of forms; imagecodecs is what tifffile compresses and packs bits with, too."""
    if kind in {"imagecodecs", "tiff", "other tiff"}:
        return pytest.param(kind, marks=optional.needs("imagecodecs"))
    return kind


@pytest.fixture(scope="module")
def forms():
    optional.require("imagecodecs")
    return image_forms.all_forms()


def pixels_of(data):
    """The pixels in red, green and blue."""
    return load_bytes(data).pixels[..., ::-1]


def is_right(form: ImageForm, pixels):
    if pixels.shape != form.expected.shape:
        return False
    difference = np.abs(pixels.astype(int) - form.expected.astype(int))
    return difference.max() <= form.tolerance


def outcomes_of(forms):
    """The names of forms that are read rightly, wrongly, and refused."""
    right, wrong, refused = [], [], []
    for name, form in forms.items():
        try:
            pixels = pixels_of(form.data)
        except DecodeError:
            refused.append(name)
            continue
        if is_right(form, pixels):
            right.append(name)
        else:
            wrong.append(name)
    return right, wrong, refused


@pytest.mark.parametrize("kind", [with_its_library(kind) for kind in image_forms.KINDS])
def test_each_form_is_read_rightly_or_refused(kind):
    forms = dict(image_forms.KINDS[kind]())
    right, wrong, refused = outcomes_of(forms)
    assert wrong == []
    assert len(right) + len(refused) == len(forms)
    assert right


@pytest.mark.parametrize("kind", ["png", "pfm", "pnm", "pam", "bmp"])
def test_plain_formats_are_read_in_every_form(kind):
    _, _, refused = outcomes_of(dict(image_forms.KINDS[kind]()))
    assert refused == []


READ_TIFFS = [
    "uint8 rgb extra (2,) contig strips",
    "uint8 rgb extra (2,) contig tiles",
    "uint16 rgb extra (2,) separate deflate",
    "uint8 minisblack extra (2,) separate strips",
    "uint16 minisblack extra () contig tiles",
    "uint16 miniswhite extra () contig tiles",
    "uint32 rgb extra () separate tiles",
    "int32 rgb extra (0,) separate strips",
    "uint64 rgb extra () separate big big endian",
    "float32 rgb extra () separate lzw",
    "float32 rgb extra (2,) separate deflate tiles",
    "float32 miniswhite extra () contig strips",
    "float32 minisblack extra (0,) separate strips",
    "float64 rgb extra () separate strips",
    "float64 miniswhite extra () contig tiles",
]


@pytest.mark.parametrize("name", READ_TIFFS)
def test_forms_of_tiff_that_opencv_gets_wrong_are_read(forms, name):
    form = forms[f"tiff {name}"]
    assert is_right(form, pixels_of(form.data))


REFUSED_TIFFS = [
    "tiff int8 minisblack extra () contig strips",
    "tiff int16 rgb extra () contig strips",
    "tiff float16 rgb extra () contig strips",
    "tiff float32 minisblack extra (2, 0) contig strips",
    "tiff uint8 minisblack extra (2,) contig tiles",
    "tiff jpeg2000 strips",
    "tiff png strips",
    "tiff of five bands strips",
    "tiff cmyk 16 bit strips",
]


@pytest.mark.parametrize("name", REFUSED_TIFFS)
def test_a_form_that_is_in_no_row_is_refused_with_a_hint(forms, name):
    with pytest.raises(DecodeError, match="a TIFF of a form that is not read: ") as caught:
        load_bytes(forms[name].data)
    assert "save it as PNG" in caught.value.hint


MISREAD_BY_PILLOW = [
    r"extra \(1,\)",  # it divides colours by an alpha that they are multiplied by
    "sun 32 bits",  # it takes the first byte for blue; netpbm does not
    "uint16 .* separate",  # it takes them for 8 bits
    "jpeg 2000 colours 1",  # it shifts more than 8 bits too far
]
"""Patterns of names, of forms for which the pixels that the file was made of decide."""


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # of Pillow, about BigTIFFs
def test_pillow_reads_the_same(forms):
    """A third reader, of what it reads without other libraries and as bytes."""
    agreeing = 0
    for name, form in forms.items():
        if any(re.search(pattern, name) for pattern in MISREAD_BY_PILLOW):
            continue
        try:
            image = Image.open(io.BytesIO(form.data))
            if image.mode not in {"1", "L", "P", "RGB", "RGBA", "RGBX"}:
                continue
            pixels_of_reader = np.asarray(image.convert("RGB"))
            pixels = pixels_of(form.data)
        except (OSError, ValueError, SyntaxError, KeyError, DecodeError):
            continue  # of a form that one of them does not read
        assert is_right(ImageForm(form.data, pixels_of_reader), pixels), name
        agreeing += 1
    assert agreeing > 250


@pytest.mark.skipif(shutil.which("pamtopnm") is None, reason="netpbm is not installed")
@pytest.mark.parametrize("kind", ["pnm", "pam"])
def test_netpbm_reads_the_same(kind):
    for name, form in image_forms.KINDS[kind]():
        program = ["pamtopnm", "-assume"] if kind == "pam" else ["pnmtoplainpnm"]
        converted = subprocess.run(program, input=form.data, capture_output=True, check=True)
        program = ["pamdepth", "255"]
        data = converted.stdout
        if not data.startswith((b"P1", b"P4")):
            converted = subprocess.run(program, input=data, capture_output=True, check=True)
            data = converted.stdout
        pixels_of_pillow = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        assert is_right(ImageForm(form.data, pixels_of_pillow), pixels_of(form.data)), name


@optional.needs("imagecodecs")
@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone fills memory with a byte")
def test_no_pixel_comes_from_memory_that_nothing_was_written_to(report_of):
    outcomes = []
    for byte in ("1", "170"):
        outcomes.append(report_of("source.image_forms", MALLOC_PERTURB_=byte))
    first_fill, second_fill = outcomes
    assert len(first_fill) > 1000
    for name, (first, second) in first_fill.items():
        assert first == second, name
        assert second_fill[name] == [first, second], name


ORIENTATION = 274


def turned(pixels, orientation):
    """Pixels as a viewer shows them, by the table of the TIFF 6.0 specification."""
    if orientation >= 5:
        pixels = np.swapaxes(pixels, 0, 1)
    flips = {2: (1,), 3: (0, 1), 4: (0,), 6: (1,), 7: (0, 1), 8: (0,)}
    return np.flip(pixels, flips.get(orientation, ()))


@pytest.mark.parametrize("planes", ["contig", "separate"])
@pytest.mark.parametrize("type_name", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("layout", [{}, {"tile": (64, 64)}])
def test_each_orientation_of_a_tiff_is_applied(planes, type_name, layout):
    values = image_forms.with_type(RGB, type_name)
    if planes == "separate":
        values = np.moveaxis(values, -1, 0)
    for orientation in range(1, 9):
        tag = (ORIENTATION, "H", 1, orientation, True)
        data = tiff(values, "rgb", planarconfig=planes, extratags=[tag], **layout)
        form = ImageForm(data, turned(RGB, orientation))
        assert is_right(form, pixels_of(data)), orientation


@pytest.mark.parametrize("layout", [{}, {"tile": (64, 64)}, {"planarconfig": "separate"}])
def test_lab_is_as_in_a_colour_management_system(layout):
    to_lab = (ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"))
    lab_image = ImageCms.profileToProfile(Image.fromarray(RGB), *to_lab, outputMode="LAB")
    lab = np.asarray(lab_image)
    if "planarconfig" in layout:
        lab = np.moveaxis(lab, -1, 0)
    difference = np.abs(pixels_of(tiff(lab, "cielab", **layout)).astype(int) - RGB)
    assert difference.mean() < 5  # 14 with the white of libtiff; 8 bits of Lab are coarse
    with pytest.raises(DecodeError, match="a TIFF of a form that is not read"):
        load_bytes(tiff(lab.astype(np.uint16) * 256, "cielab", **layout))


WHITE = np.full((64, 64), 1023, np.uint16)


def white_graymap(maximum=1023):
    return b"P5 64 64 %d\n" % maximum + WHITE.astype(">u2").tobytes()


def test_the_maximum_is_white_in_a_file_and_on_stdin(detcli, make_model, tmp_path):
    """Ten bits of a camera, of which OpenCV made nearly black."""
    (tmp_path / "white.pgm").write_bytes(white_graymap())
    model = make_model()
    file = detcli("predict", tmp_path / "white.pgm", "-m", model, "--conf", "0.9", "-q")
    assert '"class_name":"red"' in file.stdout.replace(" ", "")
    stream = detcli("predict", "-", "-m", model, "--conf", "0.9", "-q", input=white_graymap())
    assert b'"class_name":"red"' in stream.stdout.replace(b" ", b"")


@pytest.mark.parametrize("maximum", [0, 65536])
def test_an_impossible_maximum_is_refused(maximum):
    with pytest.raises(DecodeError, match=f"its maximum is {maximum}"):
        load_bytes(white_graymap(maximum))


def test_a_sample_above_the_maximum_is_refused():
    with pytest.raises(DecodeError, match="a sample is 1023, above its maximum of 1022"):
        load_bytes(white_graymap(1022))
    with pytest.raises(DecodeError, match="a sample is 2000, above its maximum of 1023"):
        load_bytes(b"P2 2 1 1023\n7 2000\n")


def test_text_with_comments_between_its_numbers():
    pixels = pixels_of(b"P2 2 1\n# ten bits\n1023\n0 # black\n1023")
    assert pixels.tolist() == [[[0] * 3, [255] * 3]]
    with pytest.raises(DecodeError, match="1 of its 2 numbers are missing"):
        load_bytes(b"P2 2 1 1023 1000 # 1023")
    with pytest.raises(DecodeError, match="something else between its numbers"):
        load_bytes(b"P2 2 1 1023 0 -123")


def test_a_pam_without_a_type_is_refused_where_nothing_says_what_is_red():
    samples = np.dstack([GREY, GREY, GREY])
    with pytest.raises(DecodeError, match="without a tuple type") as caught:
        load_bytes(pam(samples, 255, ""))
    assert "TUPLTYPE RGB" in caught.value.hint
    assert np.array_equal(pixels_of(pam(GREY[..., None], 255, "")), colours_of_grey(GREY))
    with pytest.raises(DecodeError, match="tuple type CMYK with 4 samples"):
        load_bytes(pam(np.dstack([RGB, GREY]), 255, "TUPLTYPE CMYK\n"))


def test_masks_that_are_not_read_are_refused():
    pixels = GREY.astype("<u4")
    for masks in ((0, 0xFF00, 0xFF), (0xFF00FF, 0xFF00, 0xFF), (0xFFFFF000, 0xF00, 0xFF)):
        with pytest.raises(DecodeError, match="a BMP whose bits of a colour are 0x"):
            load_bytes(bmp(pixels, 32, compression=3, masks=masks))


SIZED = [
    b"P5 64 64 1023\n" + WHITE.astype(">u2").tobytes(),
    pam(GREY[:64, :64, None], 255, "TUPLTYPE GRAYSCALE\n"),
    bmp(GREY[:64, :64].astype("<u2"), 16),
    tiff(np.zeros((3, 64, 64), np.float32), "rgb", planarconfig="separate"),
]


@pytest.mark.parametrize("data", SIZED, ids=["pgm", "pam", "bmp", "tiff"])
def test_a_form_that_is_read_here_is_refused_if_it_is_too_large(data):
    with pytest.raises(DecodeError, match="too large: ") as caught:
        load_bytes(data, DecodeOptions(InputOptions(max_pixels=64 * 64 - 1)))
    assert "--max-pixels" in caught.value.hint


@pytest.mark.parametrize("data", SIZED, ids=["pgm", "pam", "bmp", "tiff"])
def test_a_form_that_is_read_here_is_refused_without_its_last_bytes(data):
    for part in (0.1, 0.5, 0.9, 0.99):
        with pytest.raises(DecodeError, match="damaged"):
            load_bytes(data[: int(len(data) * part)])


def mutated(data, randomness):
    """A file with some bytes changed, most of them in its header or its end, or cut."""
    changed = bytearray(data)
    if randomness.random() < 0.2:
        return data[: randomness.randrange(1, len(data))]
    ends = list(range(min(400, len(data)))) + list(range(max(0, len(data) - 400), len(data)))
    for _ in range(randomness.choice([1, 2, 5, 20])):
        changed[randomness.choice(ends)] = randomness.choice([0, 1, 2, 127, 255])
    return bytes(changed)


def test_a_damaged_file_of_any_form_is_an_image_or_an_error(forms):
    randomness = random.Random(0)  # noqa: S311 - not a secret
    options = DecodeOptions(InputOptions(max_pixels=1_000_000))
    names = sorted(forms)
    errors = 0
    for _ in range(3000):
        data = mutated(forms[randomness.choice(names)].data, randomness)
        try:
            image = load_bytes(data, options)
        except DecodeError:
            errors += 1
        else:
            assert image.pixels.dtype == np.uint8
    assert 0 < errors < 3000


def test_a_tiff_with_numbers_beyond_any_file_is_damaged():
    big = struct.pack("<2sHHHQ", b"II", 43, 8, 0, 2**64 - 1)
    with pytest.raises(DecodeError, match="a damaged TIFF"):
        load_bytes(big)
    loop = struct.pack("<2sHIHHHIII", b"II", 42, 8, 1, 256, 3, 1, 7, 8)  # its next page is itself
    with pytest.raises(DecodeError, match="a damaged TIFF"):
        load_bytes(loop)
    many = struct.pack("<2sHHHQQ", b"II", 43, 8, 0, 16, 2**40)
    with pytest.raises(DecodeError, match=f"with {2**40} fields"):
        load_bytes(many + bytes(100))


@pytest.mark.parametrize("byteorder", "<>")
@pytest.mark.parametrize("bigtiff", [False, True])
def test_further_pages_of_a_tiff_are_told(byteorder, bigtiff):
    options = {"byteorder": byteorder, "bigtiff": bigtiff}
    two_pages = tiff(np.stack([GREY, GREY]), "minisblack", **options)
    (warning,) = load_bytes(two_pages).warnings
    assert "only its first frame or page" in warning
    assert load_bytes(tiff(GREY, "minisblack", **options)).warnings == ()


def without_graphic_control_extensions(gif):
    extension = gif.find(b"!\xf9\x04")
    while extension >= 0:
        gif = gif[:extension] + gif[extension + 8 :]
        extension = gif.find(b"!\xf9\x04", extension)
    return gif


def test_frames_of_a_gif_without_graphic_control_extensions_are_told():
    frames = [Image.fromarray(GREY), Image.fromarray(255 - GREY)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=40)
    animation = without_graphic_control_extensions(file.getvalue())
    assert b"!\xf9" not in animation
    (warning,) = load_bytes(animation).warnings
    assert "only its first frame or page" in warning
    file = io.BytesIO()
    frames[0].save(file, "GIF")
    assert load_bytes(without_graphic_control_extensions(file.getvalue())).warnings == ()


@pytest.mark.parametrize(
    "kind", ["pbm binary", "pnm binary 0 1023", "pnm binary 1 255", "pam RGB 15"]
)
def test_a_second_image_in_a_pnm_is_told(forms, kind):
    data = forms[kind].data
    assert load_bytes(data).warnings == ()
    assert load_bytes(data + b"\nP").warnings == ()
    (warning,) = load_bytes(data + data).warnings
    assert "only its first frame or page" in warning


COLOUR_CASES = [
    "p6_4095.ppm",
    "p6_100.ppm",
    "p3_1023.ppm",
    "planarf32.tif",
    "planar_f64.tif",
    "planaru32.tif",
    "rgb.pam",
    "rgba.pam",
    "b32rgb_mask.bmp",
    "b32_10bit.bmp",
    "rgba_unassoc.tif",
    "unassoc16.tif",
    "unassoc_f32.tif",
]


@pytest.mark.parametrize("name", COLOUR_CASES)
def test_a_case_in_colour_is_the_image_that_it_was_made_from(shared, name):
    plain = load_bytes(shared("cases/plain.png").read_bytes()).pixels.astype(int)
    pixels = load_bytes(shared(f"cases/{name}").read_bytes()).pixels
    assert np.abs(pixels - plain).max() <= 1


@pytest.mark.parametrize("name", ["p5_1023.pgm", "p5_15.pgm", "bw.pam", "miniswhitef32.tif"])
def test_a_case_in_grey_has_bright_cells_on_dark_ground(shared, name):
    pixels = load_bytes(shared(f"cases/{name}").read_bytes()).pixels
    assert pixels.max() >= 250
    assert np.median(pixels) <= 17


@pytest.mark.parametrize("name", ["two_big.tif", "two_classic.tif", "anim.gif"])
def test_a_case_of_further_pages_is_told(shared, name):
    (warning,) = load_bytes(shared(f"cases/{name}").read_bytes()).warnings
    assert "only its first frame or page" in warning


def palette_of(pixels):
    """An image of 12 colours, as Pillow writes it."""
    return Image.fromarray(pixels).quantize(12)


def written_by_pillow(image, **options):
    file = io.BytesIO()
    image.save(file, "TIFF", **options)
    return file.getvalue()


def cut_tiffs():
    """Files whose last bytes libtiff does without: a palette, and planes behind the first."""
    inks = np.dstack([RGB, GREY])
    return {
        "palette": written_by_pillow(palette_of(RGB), compression="tiff_lzw"),
        "palette, not compressed": written_by_pillow(palette_of(RGB)),
        "inks": tiff(np.moveaxis(inks, -1, 0), "separated", planarconfig="separate"),
        "planes": tiff(np.moveaxis(RGB, -1, 0).astype(np.uint16), "rgb", planarconfig="separate"),
    }


@pytest.mark.parametrize("kind", ["palette", "palette, not compressed", "inks", "planes"])
def test_a_tiff_is_refused_without_its_last_bytes(kind):
    data = cut_tiffs()[kind]
    assert pixels_of(data).max() > 0
    for missing in (1, 40, len(data) // 8, len(data) // 2):
        with pytest.raises(DecodeError, match="a damaged TIFF"):
            load_bytes(data[:-missing])


@pytest.mark.parametrize("layout", [{}, {"planarconfig": "separate"}])
def test_a_strip_that_claims_more_bytes_than_its_rows_have_is_read(layout):
    """Some writers do, at the end of a file; libtiff takes what the rows have."""
    values = RGB
    if "planarconfig" in layout:
        values = np.moveaxis(RGB, -1, 0)
    data = bytearray(tiff(values, "rgb", **layout))
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        tag = file.pages[0].tags["StripByteCounts"]  # type: ignore[union-attr]
    counts = list(np.atleast_1d(tag.value))
    counts[-1] += 10
    number_format = {3: "H", 4: "I"}[tag.dtype]
    struct.pack_into(f"<{len(counts)}{number_format}", data, tag.valueoffset, *counts)
    assert np.array_equal(pixels_of(bytes(data)), RGB)


def test_a_palette_with_alpha_is_read_without_it():
    image = palette_of(RGB).convert("PA")
    data = written_by_pillow(image)
    assert np.array_equal(pixels_of(data), np.asarray(image.convert("RGB")))


@pytest.mark.skipif(shutil.which("tiffcp") is None, reason="libtiff's tools are not installed")
def test_planes_in_jpeg_keep_the_tables_that_they_share(tmp_path):
    grey_and_alpha = np.dstack([GREY, GREY])
    source, target = tmp_path / "plain.tif", tmp_path / "jpeg.tif"
    source.write_bytes(tiff(grey_and_alpha, "minisblack", extrasamples=(2,)))
    program = ["tiffcp", "-r", "16", "-c", "jpeg:95", "-p", "separate", source, target]
    subprocess.run(program, check=True)
    with tifffile.TiffFile(target) as file:
        assert "JPEGTables" in file.pages[0].tags  # type: ignore[union-attr]
    difference = np.abs(pixels_of(target.read_bytes()).astype(int) - colours_of_grey(GREY))
    assert difference.max() < 12


@pytest.mark.parametrize(("count", "reason"), [(4096, "damaged"), (4097, "with 4097 fields")])
def test_a_tiff_may_have_4096_fields(count, reason):
    """Fields of zeros say nothing, so it is damaged; of more, none is looked at."""
    data = struct.pack("<2sHIH", b"II", 42, 8, count) + bytes(12 * count + 4)
    with pytest.raises(DecodeError, match=reason):
        load_bytes(data)


def test_a_number_of_a_pnm_may_have_nine_digits():
    assert load_bytes(b"P2 1 1 1023 000001023").pixels.tolist() == [[[255, 255, 255]]]
    with pytest.raises(DecodeError, match="more than 9 digits"):
        load_bytes(b"P2 1 1 1023 0000001023")
