"""The colours of classes, tracks and zones, and of the text on them."""

Colour = tuple[int, int, int]

# Strong colours, as CSS abbreviates them. Each is the one that is farthest from all before it, by
# CIEDE2000: to people with deuteranopia, or, if that is less, at 0.8 of what others see.
PALETTE = (
    "e24 0cf 55c fe0 3fc 187 ea7 f5a 071 58f c1a 4b8 6dd f60 c26 3ab af8 eb3 b40 93f "
    "078 f67 e4e c58 8fe 6d9 075 099 f7d b44 5b4 47b c56 0f9 b5c f8a 0db e41 4bb 8ef "
    "e19 f16 54f ce5 e94 8fb 077 6e6 b38 7df 3a8 0bd 4cb 08d 49b b53 b61 076 d5a d67 "
    "a1d 086 294 d47 297 fc0 b45 f88 570 d69 4ed 4c6 f80 0c8 59f 6ec c4a 079 f28 1bf"
).split()
GREY = (136, 136, 136)  # colour of what has no track yet, where there are tracks
# How touching boxes of the same class are told apart: the shares of white and of black mixed in.
SHADES = ((0.0, 0.0), (0.45, 0.0), (0.0, 0.4))
BLACK = (0, 0, 0)
WHITE = (255, 255, 255)

WHITE_CONTRAST = 4.0  # by WCAG 2; on colours with less, black is easier to read

FIRST_ZONE_COLOUR = 40  # index of the first colour for zones


def colour_of(number: int) -> Colour:
    """Return a strong colour (BGR) for the index of a class, a track or a zone."""
    digits = PALETTE[number % len(PALETTE)]  # as in CSS, `e24` is `ee2244`
    red, green, blue = (17 * int(digit, 16) for digit in digits)
    return blue, green, red


def shaded(colour: Colour, shade_number: int) -> Colour:
    """Return a lighter or darker shade of a colour, by its index in SHADES."""
    white_share, black_share = SHADES[shade_number]
    blue, green, red = (
        round((value + white_share * (255 - value)) * (1 - black_share)) for value in colour
    )
    return blue, green, red


def ink(colour: Colour) -> Colour:
    """Return the colour for text on a background: white on dark and strong colours, else black.

    The contrast of white is computed as WCAG 2 defines it, from the relative luminance.
    """
    blue, green, red = colour
    luminance = 0.0722 * _linear(blue) + 0.7152 * _linear(green) + 0.2126 * _linear(red)
    if 1.05 / (luminance + 0.05) >= WHITE_CONTRAST:
        return WHITE
    return BLACK


def _linear(value: int) -> float:
    """Return the light intensity, from 0 to 1, of an sRGB channel's value, from 0 to 255."""
    fraction = value / 255
    if fraction <= 0.04045:
        return fraction / 12.92
    linear: float = ((fraction + 0.055) / 1.055) ** 2.4
    return linear
