"""GIF: how many frames a file has."""

_HEADER_BYTES = 13  # with the size of the canvas
_EXTENSION, _IMAGE = 0x21, 0x2C
_DESCRIPTOR_BYTES = 10
_HAS_COLOURS = 0x80


def count_frames(data: bytes, limit: int) -> int:
    """Count the frames of a GIF, up to a limit, with or without graphic control extensions."""
    count = 0
    try:
        position = _HEADER_BYTES + _bytes_of_colours(data[10])
        while count < limit:
            if data[position] == _EXTENSION:
                position = _end_of_blocks(data, position + 2)
            elif data[position] == _IMAGE:
                count += 1
                colours = _bytes_of_colours(data[position + 9])
                code_size = position + _DESCRIPTOR_BYTES + colours
                position = _end_of_blocks(data, code_size + 1)
            else:  # the end, or damage
                break
    except IndexError:  # cut, which the decoder reports
        pass
    return count


def _bytes_of_colours(flags: int) -> int:
    """The length of a table of colours, as the flags before it say."""
    if not flags & _HAS_COLOURS:
        return 0
    return 3 << (flags & 7) + 1


def _end_of_blocks(data: bytes, position: int) -> int:
    """Where a series of blocks ends, each of which begins with its length; 0 is the last."""
    while data[position]:
        position += 1 + data[position]
    return position + 1
