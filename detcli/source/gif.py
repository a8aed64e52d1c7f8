"""GIF: how many frames a file has."""

_HEADER_BYTES = 13  # with the size of the canvas
_EXTENSION, _IMAGE = 0x21, 0x2C
# offset in the header of the byte that says whether there is a palette for all images
_FLAGS_OF_CANVAS = 10
_DESCRIPTOR_BYTES = 10  # descriptor of an image: what it is, its place and size, and flags
_EXTENSION_BYTES = 2  # before its blocks: that it is one, and its kind
_CODE_SIZE_BYTES = 1  # before the blocks of an image
_HAS_PALETTE = 0x80


def count_frames(data: bytes, limit: int) -> int:
    """Count the frames of a GIF, up to a limit.

    After its header, a GIF is a series of extensions and images. Both begin with a byte that says
    which of them it is, and end with a series of data blocks. An image is a frame, whether or not
    an extension before it says how long it is shown.

    Args:
        data: The file; if it is cut, the frames before the cut are counted.
        limit: Where to stop counting.
    """
    count = 0
    try:
        position = _HEADER_BYTES + _bytes_of_palette(data[_FLAGS_OF_CANVAS])
        while count < limit:
            if data[position] == _EXTENSION:
                blocks_start = position + _EXTENSION_BYTES
            elif data[position] == _IMAGE:
                count += 1
                descriptor_end = position + _DESCRIPTOR_BYTES
                palette_bytes = _bytes_of_palette(data[descriptor_end - 1])  # by its flags
                blocks_start = descriptor_end + palette_bytes + _CODE_SIZE_BYTES
            else:  # the end, or damage
                break
            position = _end_of_blocks(data, blocks_start)
    except IndexError:  # cut; the decoder reports it
        pass
    return count


def _bytes_of_palette(flags: int) -> int:
    """Compute the length of a palette from the byte of flags before it; 0 if there is none.

    The number of its colours is a power of two whose exponent is 1 more than the lowest three bits
    of the flags. Each colour takes three bytes.
    """
    if not flags & _HAS_PALETTE:
        return 0
    colour_count = 1 << ((flags & 7) + 1)
    return 3 * colour_count


def _end_of_blocks(data: bytes, position: int) -> int:
    """Find the end of a series of data blocks that begins at a position.

    Each block begins with a byte that holds its length; the last has the length 0.
    """
    while data[position]:
        position += 1 + data[position]
    return position + 1
