"""TIFF: its forms, and how OpenCV is made to read each correctly.

OpenCV has two ways. For colours it asks libtiff, which gives 8 bits and knows every photometric
interpretation, but multiplies colours by an alpha that is stored apart from them. It takes values
of 16 bits and more as they are stored, but only the first of separate planes. So `TiffDecoding`
lists what OpenCV is asked for, if necessary with some of the file's fields changed in memory.
"""

import struct

import numpy as np

from detcli.core.errors import DecodeError
from detcli.core.opencv import cv2
from detcli.data.geometry import Pixels
from detcli.source.limits import RESAVE, check_size, require_bytes
from detcli.source.tiff_directory import (
    HEIGHT,
    LONG,
    LONG8,
    MAX_FIELDS,
    VALUE_FORMATS,
    WIDTH,
    Directory,
    TiffLayout,
    damaged_tiff,
)
from detcli.source.tiff_forms import (
    FLOAT,
    MIN_IS_BLACK,
    MIN_IS_WHITE,
    RGB,
    SIGNED,
    UNSIGNED,
    TiffDecoding,
    TiffForm,
    decoding_of,
)
from detcli.source.values import to_colours, to_eight_bits, turn_upright

MAX_TILE_PIXELS = 1 << 20
"""The maximum size of a tile that is larger than the image."""

MAX_PARTS = 1 << 20
"""The maximum number of strips or tiles of an image whose planes are read one by one."""

# The tags of fields.
_NEW_SUBFILE_TYPE, _THUMBNAIL_OR_MASK = 254, 0b101
_BITS, _COMPRESSION, _PHOTOMETRIC = 258, 259, 262
_STRIP_OFFSETS, _SAMPLES, _STRIP_BYTES, _PLANAR = 273, 277, 279, 284
_TILE_WIDTH, _TILE_HEIGHT, _TILE_OFFSETS, _TILE_BYTES = 322, 323, 324, 325
_ROWS_OF_STRIP, _PREDICTOR, _EXTRA_SAMPLES, _SAMPLE_FORMAT = 278, 317, 338, 339
_FILL_ORDER, _ORIENTATION, _PALETTE_COLOURS, _JPEG_TABLES = 266, 274, 320, 347
# Where the strips or tiles of an image are in the file, and how long they are: one value for each.
_POSITIONS_AND_LENGTHS = (_STRIP_OFFSETS, _STRIP_BYTES, _TILE_OFFSETS, _TILE_BYTES)
_SAME_IN_PLANES = (
    WIDTH,
    HEIGHT,
    _COMPRESSION,
    _FILL_ORDER,
    _ORIENTATION,
    _ROWS_OF_STRIP,
    _PREDICTOR,
    _TILE_WIDTH,
    _TILE_HEIGHT,
)
_UNCOMPRESSED = 1
_SEPARATE_PLANES = 2  # the value of `_PLANAR` if each sample of a pixel is in its own plane

_ASSOCIATED_ALPHA = 1  # colours are already multiplied by it, so libtiff leaves them alone
_TURNED_ORIENTATIONS = range(2, 9)  # 1 is upright


def has_second_page(data: bytes) -> bool:
    """Whether a TIFF has a second page with another image.

    Thumbnails of the first page and masks for it are ignored, and so is a page that is cut.
    """
    try:
        directory = Directory(data, page=1)
        page_kind = directory.value(_NEW_SUBFILE_TYPE, 0)
    except DecodeError:  # cut
        return False
    is_thumbnail_or_mask = bool(page_kind & _THUMBNAIL_OR_MASK)
    return bool(directory.fields) and not is_thumbnail_or_mask


def read_tiff(data: bytes, max_pixels: int) -> Pixels | None:
    """Decode a TIFF that OpenCV would show with wrong pixels; None if it shows the right ones.

    It is still OpenCV that decodes it. The form of the pixels decides how: OpenCV is asked for
    another kind of result, or gets a copy of the file in which some fields are changed.

    Args:
        data: The file.
        max_pixels: The maximum number of pixels of the image.

    Returns:
        The image (H, W, 3) in blue, green and red; None if OpenCV decodes the file correctly when
        it is asked for colours, as for every other image.

    Raises:
        DecodeError: The form is in no row of `FORMS`, or the file is damaged or too large.
    """
    directory = Directory(data)  # the fields that describe the image
    form = form_of(directory)
    check_size(directory.size, max_pixels)
    _check_tiles(directory)
    decoding = decoding_of(form)
    if decoding is None:
        raise _refused(form)
    _check_complete(directory, form)

    orientation = directory.value(_ORIENTATION, 1)
    is_tiled = _TILE_WIDTH in directory.fields
    if is_tiled and orientation in _TURNED_ORIENTATIONS:
        # libtiff would mirror each tile by itself. So it is told that the image is upright, and the
        # whole image is turned afterwards.
        as_if_upright = Directory(_with_value(directory, _ORIENTATION, 1))
        return turn_upright(_decode_as(decoding, as_if_upright, form), orientation)
    if decoding is TiffDecoding.COLOURS:
        return None
    return _decode_as(decoding, directory, form)


def _decode_as(decoding: TiffDecoding, directory: Directory, form: TiffForm) -> Pixels:
    """Decode the image of a TIFF by OpenCV, so that it gives the right pixels.

    OpenCV gives colours in 8 bits, or the values as they are stored, which are then converted. For
    some decodings it gets a copy of the file in which some fields are changed.

    Args:
        decoding: What OpenCV is asked for, see `decoding_of`.
        directory: The fields of the image, and its file.
        form: The form of its pixels.

    Returns:
        The image (H, W, 3) in blue, green and red, turned as OpenCV turns it.
    """
    match decoding:
        case TiffDecoding.COLOURS:
            return np.asarray(_decode(directory.data, cv2.IMREAD_COLOR), np.uint8)
        case TiffDecoding.COLOURS_AS_STORED:
            file_with_multiplied_alpha = _with_value(directory, _EXTRA_SAMPLES, _ASSOCIATED_ALPHA)
            return np.asarray(_decode(file_with_multiplied_alpha, cv2.IMREAD_COLOR), np.uint8)
        case TiffDecoding.LAB:
            file_with_rgb = _with_value(directory, _PHOTOMETRIC, RGB)
            return _colours_of_lab(_decode(file_with_rgb, cv2.IMREAD_COLOR))
        case TiffDecoding.VALUES:
            values = _decode(directory.data, cv2.IMREAD_UNCHANGED)
        case TiffDecoding.FIRST_PLANE:
            values = _decode_plane(directory, 0)
        case TiffDecoding.THREE_PLANES:
            red = _decode_plane(directory, 0)
            green = _decode_plane(directory, 1)
            blue = _decode_plane(directory, 2)
            values = np.dstack([blue, green, red])
    return _as_colours(values, is_negative=form.photometric == MIN_IS_WHITE)


def _decode_plane(directory: Directory, plane: int) -> np.ndarray:
    """Decode one of the separate planes of a TIFF to its values as they are stored, (H, W)."""
    grey_file = _with_one_plane(directory, plane)
    return _decode(grey_file, cv2.IMREAD_UNCHANGED)


def form_of(directory: Directory) -> TiffForm:
    """Read from the fields of a TIFF what form it has: its colours, bits and layout.

    Raises:
        DecodeError: Its samples differ in their kind, or fields are missing.
    """
    photometrics = directory.values(_PHOTOMETRIC, 1)  # at most one
    if not photometrics:
        raise damaged_tiff()

    # Two fields have a value for each sample of a pixel; a damaged file may claim any number of
    # samples. If there is no such field, the default of the standard applies to all samples.
    samples = directory.value(_SAMPLES, 1)
    max_values = min(samples, MAX_FIELDS)
    bits = set(directory.values(_BITS, max_values)) or {1}
    sample_formats = set(directory.values(_SAMPLE_FORMAT, max_values)) or {UNSIGNED}
    if len(bits) > 1 or len(sample_formats) > 1:
        raise DecodeError("a TIFF whose samples differ in their bits, which is not read", RESAVE)

    _, width = directory.size
    tile_width = directory.value(_TILE_WIDTH, 0)
    return TiffForm(
        photometric=photometrics[0],
        bits=bits.pop(),
        sample_format=sample_formats.pop(),
        samples=samples,
        has_planes=samples > 1 and directory.value(_PLANAR, 1) == _SEPARATE_PLANES,
        has_cut_tiles=tile_width > 0 and width % tile_width > 0,
        compression=directory.value(_COMPRESSION, 1),
    )


def _refused(form: TiffForm) -> DecodeError:
    """Make the error for a TIFF whose form is not read, with a description of the form."""
    number_kinds = {SIGNED: " signed", FLOAT: " floating point"}
    number_kind = number_kinds.get(form.sample_format, "")
    layout = ""
    if form.has_planes:
        layout = " in separate planes"
    return DecodeError(
        f"a TIFF of a form that is not read: {form.samples}{number_kind} samples of "
        f"{form.bits} bits a pixel{layout}, photometric interpretation {form.photometric}, "
        f"compression {form.compression}",
        "save it as PNG, or as TIFF with 8 or 16 bits a value in grey or RGB",
    )


def _check_tiles(directory: Directory) -> None:
    """Refuse a TIFF whose tiles are much larger than the image, as no writer makes them.

    libtiff allocates a whole tile, however small the image is that it holds.
    """
    height, width = directory.size
    tile_pixels = directory.value(_TILE_WIDTH, 0) * directory.value(_TILE_HEIGHT, 0)
    if tile_pixels > max(MAX_TILE_PIXELS, 4 * height * width):
        raise DecodeError(f"a TIFF with tiles of {tile_pixels} pixels, larger than itself", RESAVE)


def _check_complete(directory: Directory, form: TiffForm) -> None:
    """Refuse a file that ends before its pixels, its palette or its JPEG tables do.

    libtiff shows some such files as if nothing were missing: a palette is then black, and so are
    all planes but the first.

    Raises:
        DecodeError: Bytes are missing.
    """
    end = max(_end_of_tables(directory), _end_of_pixels(directory, form))
    require_bytes(directory.data, end, "TIFF")


def _end_of_tables(directory: Directory) -> int:
    """Find where the palette or the JPEG tables end in the file; 0 if it has neither."""
    end = 0
    for tag in (_PALETTE_COLOURS, _JPEG_TABLES):
        if tag in directory.fields:
            value_type, value_count, position = directory.fields[tag]
            bytes_per_value = struct.calcsize(VALUE_FORMATS.get(value_type, "B"))
            end = max(end, position + value_count * bytes_per_value)
    return end


def _end_of_pixels(directory: Directory, form: TiffForm) -> int:
    """Find where the last strip or tile of an image ends in the file, as an offset in bytes.

    Strips and tiles are the pieces in which a TIFF stores its pixels: a few whole rows, or a
    rectangle. Its fields say where each begins, and how many bytes it has.
    """
    strip_starts = directory.values(_STRIP_OFFSETS, MAX_PARTS)
    strip_lengths = directory.values(_STRIP_BYTES, MAX_PARTS)
    if form.compression == _UNCOMPRESSED:
        strip_lengths = _without_padding(directory, form, strip_lengths)
    tile_starts = directory.values(_TILE_OFFSETS, MAX_PARTS)
    tile_lengths = directory.values(_TILE_BYTES, MAX_PARTS)

    end = 0
    for starts, lengths in ((strip_starts, strip_lengths), (tile_starts, tile_lengths)):
        for start, length in zip(starts, lengths, strict=False):
            end = max(end, start + length)
    return end


def _without_padding(
    directory: Directory, form: TiffForm, lengths: tuple[int, ...]
) -> tuple[int, ...]:
    """Limit the lengths of uncompressed strips to the bytes that hold pixels.

    A strip is a few whole rows of the image, or of one of its planes. Some writers say that a strip
    has more bytes than its rows, as when the last one has fewer rows than the others. A file that
    lacks only these bytes is complete.

    Args:
        directory: The fields of the image.
        form: The form of its pixels.
        lengths: How many bytes each strip has, as the file says.

    Returns:
        How many bytes of each strip have to be present.
    """
    height, width = directory.size
    rows_per_strip = min(directory.value(_ROWS_OF_STRIP, height), height)
    if rows_per_strip == 0:
        return lengths
    samples_per_row = width * form.samples
    if form.has_planes:  # each of which has one sample of a pixel
        samples_per_row = width
    bytes_per_row = -(-samples_per_row * form.bits // 8)  # -(-a // b) is a / b, rounded up
    strips_per_plane = -(-height // rows_per_strip)

    lengths_of_pixels = []
    for index, length in enumerate(lengths):
        index_in_plane = index % strips_per_plane  # the strips of one plane follow those of another
        first_row = index_in_plane * rows_per_strip
        row_count = min(rows_per_strip, height - first_row)
        lengths_of_pixels.append(min(length, row_count * bytes_per_row))
    return tuple(lengths_of_pixels)


def _decode(data: bytes, flags: int) -> np.ndarray:
    """Decode a TIFF by OpenCV with some of its flags for reading; a DecodeError if it refuses."""
    image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if image is None:
        raise damaged_tiff()
    return np.asarray(image)


def _with_value(directory: Directory, tag: int, value: int) -> bytes:
    """Copy the file of a TIFF with a different first value in one of its fields.

    A file without such a field is returned as it is.
    """
    if not directory.values(tag, 1):
        return directory.data
    stored = directory.fields[tag]
    value_format = directory.layout.byte_order + VALUE_FORMATS[stored.value_type]
    changed = bytearray(directory.data)
    struct.pack_into(value_format, changed, stored.position, value)
    return bytes(changed)


def _with_one_plane(directory: Directory, plane: int) -> bytes:
    """Copy the file of a TIFF of separate planes so that it shows one of them as a grey image.

    OpenCV reads only the first plane of such a file. The copy has a new directory, which
    names the strips or tiles of the one plane alone.

    Args:
        directory: The fields of the image.
        plane: The index of the plane; for colours, 0 is red, 1 green and 2 blue.
    """
    fields = {
        _BITS: directory.values(_BITS, 1),
        _PHOTOMETRIC: (MIN_IS_BLACK,),
        _SAMPLES: (1,),
        _PLANAR: (1,),
        _SAMPLE_FORMAT: (directory.value(_SAMPLE_FORMAT, UNSIGNED),),
    }
    for tag in _SAME_IN_PLANES:
        if tag in directory.fields:
            fields[tag] = directory.values(tag, 1)

    plane_count = directory.value(_SAMPLES, 1)
    for tag in _POSITIONS_AND_LENGTHS:
        if tag in directory.fields:
            values_of_all_planes = directory.values(tag, MAX_PARTS)  # one plane after the other
            values_per_plane = len(values_of_all_planes) // plane_count
            first = plane * values_per_plane
            fields[tag] = values_of_all_planes[first : first + values_per_plane]
    return _with_fields(directory, fields)


def _append_field(file: bytearray, layout: TiffLayout, tag: int, values: tuple[int, ...]) -> bytes:
    """Make the entry of a field for a directory, and append its values to the file if needed.

    The last number of an entry is the field's value, or the position of its values in the file. All
    values are stored with as many bytes as a position, so an entry has room for one value only.

    Args:
        file: The file; several values are appended to it.
        layout: How the directory is stored.
        tag: The tag of the field.
        values: The values of the field.
    """
    if layout.offset_format == "Q":  # eight bytes
        value_type = LONG8
    else:
        value_type = LONG
    if len(values) == 1:
        value_or_position = values[0]
    else:
        value_or_position = len(file)
        value_format = f"{layout.byte_order}{len(values)}{layout.offset_format}"
        file += struct.pack(value_format, *values)
    return struct.pack(layout.field_format, tag, value_type, len(values), value_or_position)


def _with_fields(directory: Directory, fields: dict[int, tuple[int, ...]]) -> bytes:
    """Copy the file of a TIFF, and give it a different directory at its end.

    The old directory stays in the file, but nothing leads to it. The new one has the new fields,
    and only the JPEG tables of the old fields.

    Args:
        directory: The old fields, and the file.
        fields: The values of the new fields, by tag.

    Returns:
        The file, whose header leads to the new directory.
    """
    layout = directory.layout  # the byte order, and how wide numbers are
    file = bytearray(directory.data)
    file += bytes(-len(file) % 16)  # zeros up to the next multiple of 16

    entry_by_tag: dict[int, bytes] = {}
    for tag, values in fields.items():
        entry_by_tag[tag] = _append_field(file, layout, tag, values)
    if _JPEG_TABLES in directory.fields:  # the tables themselves stay where they are
        tables = directory.fields[_JPEG_TABLES]
        entry_by_tag[_JPEG_TABLES] = struct.pack(
            layout.field_format,
            _JPEG_TABLES,
            tables.value_type,
            tables.value_count,
            tables.position,
        )

    # The header of the file says where its directory begins.
    offset_format = layout.byte_order + layout.offset_format
    directory_start = len(file)
    struct.pack_into(offset_format, file, layout.first_position, directory_start)

    # A directory has the number of its entries, the entries in the order of their tags, and the
    # offset of the next directory, which is 0 if there is none.
    file += struct.pack(layout.byte_order + layout.count_format, len(entry_by_tag))
    for tag in sorted(entry_by_tag):
        file += entry_by_tag[tag]
    file += struct.pack(offset_format, 0)
    return bytes(file)


def _colours_of_lab(image: np.ndarray) -> Pixels:
    """Convert CIE L*a*b* to blue, green and red.

    Args:
        image: What OpenCV decodes if it takes L, a and b for red, green and blue: an array
            (H, W, 3) in the order b, a, L, where a and b have a sign.
    """
    lab = np.ascontiguousarray(image[..., ::-1])
    lab[..., 1:] += np.uint8(128)  # cv2.cvtColor takes 128 for the zero of a and b
    return np.asarray(cv2.cvtColor(lab, cv2.COLOR_Lab2BGR), np.uint8)


def _as_colours(values: np.ndarray, *, is_negative: bool) -> Pixels:
    """Convert stored values to 8 bits in blue, green and red.

    Args:
        values: Grey (H, W), or colours with alpha or without (H, W, 3 or 4).
        is_negative: Whether 0 is white.
    """
    if values.dtype == np.uint16:
        values = (values >> 8).astype(np.uint8)  # the higher byte
    image = to_eight_bits(values)
    if is_negative:
        image = np.asarray(255 - image, np.uint8)
    return to_colours(image)
