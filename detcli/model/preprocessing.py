"""The text form of a preprocessing: `stretch,mean=0.485:0.456:0.406,std=0.229:0.224:0.225`.

The option --preprocess changes the steps that it names; a model's metadata names all steps.
"""

import math
from dataclasses import replace

from detcli.core import Fields
from detcli.core.errors import UsageError
from detcli.model.contract import (
    FOLLOWING,
    Contract,
    Interpolation,
    Preprocessing,
    Resize,
)

METADATA_KEY = "detcli.preprocess"
"""The metadata entry that holds a preprocessing; it says what the file itself is fed."""

OPTION = "--preprocess"

SIZE = "imgsz"  # what a contract calls the size of an input that is free, if that is assumed

MAX_TEXT = 1000  # characters
MAX_SIDE = 1 << 16  # pixels
LARGEST_FLOAT16 = 65504.0  # the largest finite number of that type
LARGEST_FLOAT32 = 3.4e38  # rounded down
EXAMPLE = "write for example stretch,mean=0.485:0.456:0.406,std=0.229:0.224:0.225"
WORDS: dict[str, Fields] = {
    resize: {"resize": resize} for resize in Resize if resize is not Resize.SHORTEST_EDGE
}
WORDS.update({interpolation: {"interpolation": interpolation} for interpolation in Interpolation})
WORDS["rgb"] = {"bgr": False}
WORDS["bgr"] = {"bgr": True}
NUMBERS: dict[str, tuple[type[float], int, float, float]] = {
    "scale": (float, 1, -math.inf, math.inf),
    "mean": (float, 3, -math.inf, math.inf),
    "std": (float, 3, -math.inf, math.inf),
    "enlarge": (float, 1, 1, math.inf),
    "longest": (int, 1, 1, MAX_SIDE),
    "multiple": (int, 1, 1, MAX_SIDE),
    "pad": (int, 1, 0, 255),
    Resize.SHORTEST_EDGE: (int, 2, 1, MAX_SIDE),
}
"""Entries of numbers: their type, how many there are, the minimum and the maximum."""
PREPROCESSING_STEPS = {
    "resize": ("resize", "longest", "enlarge", "edges", "multiple", "pad"),
    "interpolation": ("interpolation",),
    "values": ("scale", "mean", "std"),
    "channels": ("bgr",),
}
"""The steps, each of which may be known from a different source, and the fields of each."""

RULE = "the family's rule"
BY_FAMILY = tuple((step, RULE) for step in PREPROCESSING_STEPS)
"""Where each step is known from, if the family is known."""


def parse(text: str) -> Fields:
    """Parse the fields of a `Preprocessing` that a string names.

    Entries are separated by commas: letterbox, corner, corner-nearest, pad-first, stretch, none,
    round or shortest-edge=MIN:MAX; linear, cubic, area, bilinear or bicubic; rgb or bgr; scale=N;
    mean=R:G:B; std=R:G:B; pad=LEVEL; longest=PIXELS; enlarge=FACTOR; multiple=PIXELS.

    Returns:
        Values by the name of the field; fields that the string does not name are missing.

    Raises:
        UsageError: The text is too long, an entry is unknown or out of range, or two entries set
            the same field.
    """
    if len(text) > MAX_TEXT:
        raise UsageError(f"--preprocess has {len(text)} characters", EXAMPLE)
    named: Fields = {}
    for entry in text.split(","):
        for name, value in _read_entry(entry.strip(), text).items():
            if name in named:
                raise UsageError(f"--preprocess '{text}' sets {name} twice", "leave one out")
            named[name] = value
    return named


def with_fields(preprocessing: Preprocessing, new_values: Fields) -> Preprocessing:
    """Return a preprocessing with new values for the given fields.

    If the resize method changes, the limits that belong to the old method are reset, unless
    `new_values` sets them. The number that image sides have to be a multiple of is a need of the
    network, so it stays as long as the input size still follows the image.

    Args:
        preprocessing: The preprocessing to start from.
        new_values: The new values by the name of the field, as `parse` returns them.
    """
    values: Fields = {}
    if "resize" in new_values:
        values = {"longest": None, "enlarge": None, "edges": None}
        if new_values["resize"] not in FOLLOWING:
            values["multiple"] = 1
    values.update(new_values)
    return replace(preprocessing, **values)


def with_user_preprocessing(contract: Contract, text: str | None) -> Contract:
    """Return a model's contract with the steps of the preprocessing that the user changes.

    Args:
        contract: What is known about the model's inputs and outputs.
        text: The value of --preprocess, such as `stretch,bgr`; None if the option is not given.

    Raises:
        UsageError: The text is wrong, or the model's input cannot take such images.
    """
    if text is None:
        return contract
    sources = dict(contract.preprocessing_sources)
    for step in named_steps(text):
        sources[step] = OPTION
    preprocessing = with_fields(contract.preprocessing, parse(text))
    overriding = with_preprocessing_and_sources(contract, preprocessing, sources)
    if overriding.follows_image and contract.input_size is not None:
        height, width = contract.input_size
        raise UsageError(
            f"--preprocess {text}: this graph takes {width}x{height} images only",
            "use letterbox, corner or stretch",
        )
    if overriding.takes_uint8:
        require_uint8_values(overriding.preprocessing, text)
    return overriding


def with_preprocessing_and_sources(
    contract: Contract, preprocessing: Preprocessing, sources: dict[str, str]
) -> Contract:
    """Return a model's contract with a new preprocessing and the sources of its steps.

    The contract also lists what was assumed about some steps, for want of a source. Assumptions
    that are no longer needed are dropped.

    Args:
        contract: What is known about the model's inputs and outputs.
        preprocessing: The new preprocessing.
        sources: The source of each known step, such as `{"channels": "nodes at the input"}`. The
            steps of `PREPROCESSING_STEPS` that are missing are listed as unknown.

    Raises:
        UsageError: Scale, mean and std make values that the input's type cannot hold.
    """
    _check_values_fit(preprocessing, contract.input_dtype)

    known_steps = []
    unknown_steps = []
    for step in PREPROCESSING_STEPS:
        if step in sources:
            known_steps.append((step, sources[step]))
        else:
            unknown_steps.append(step)
    changed = replace(
        contract,
        preprocessing=preprocessing,
        preprocessing_sources=tuple(known_steps),
        unknown_preprocessing=tuple(unknown_steps),
    )
    return _without_needless_assumptions(changed, sources)


def _without_needless_assumptions(contract: Contract, sources: dict[str, str]) -> Contract:
    """Return a contract without assumptions about steps of the preprocessing that are known now.

    Args:
        contract: The contract, with its new preprocessing.
        sources: The source of each known step. If it is only the rule of the model's family, the
            assumption stays: models of the family differ in this step.
    """
    assumptions = []
    for step, assumption in contract.assumed_preprocessing:
        is_known_for_certain = step in sources and sources[step] != RULE
        # An input that follows the size of each image needs no assumed size.
        is_needless_size = step == SIZE and contract.follows_image
        if not is_known_for_certain and not is_needless_size:
            assumptions.append((step, assumption))
    return replace(contract, assumed_preprocessing=tuple(assumptions))


def _check_values_fit(preprocessing: Preprocessing, input_dtype: str) -> None:
    """Check that the values of black and white pixels are numbers that an input can hold.

    Args:
        preprocessing: The preprocessing, which scales and normalises the values.
        input_dtype: The element type of the input.

    Raises:
        UsageError: They are too large.
    """
    largest = LARGEST_FLOAT16 if input_dtype == "float16" else LARGEST_FLOAT32
    for mean, std in zip(preprocessing.mean, preprocessing.std, strict=True):
        for level in (0, 255):
            value = abs((level * preprocessing.scale - mean) / std)
            if not value <= largest:  # also true for NaN
                raise UsageError(
                    f"scale, mean and std make values that {input_dtype} cannot hold",
                    "give those that the network was trained with",
                )


def require_uint8_values(preprocessing: Preprocessing, text: str) -> None:
    """Check that a preprocessing leaves the uint8 values of an image unchanged.

    A graph whose input has the type uint8 cannot take scaled or normalised values.

    Args:
        preprocessing: The preprocessing of the graph's input.
        text: The value of --preprocess, for the message.
    """
    plain = replace(preprocessing, scale=1.0, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    if preprocessing != plain:
        raise UsageError(
            f"--preprocess {text}: this graph takes whole numbers, the levels of an image",
            "leave scale, mean and std out",
        )


def named_steps(text: str) -> set[str]:
    """Find the steps of `PREPROCESSING_STEPS` of which a string sets a field."""
    named = parse(text)
    steps = set()
    for step, fields in PREPROCESSING_STEPS.items():
        if not named.keys().isdisjoint(fields):
            steps.add(step)
    return steps


def format_preprocessing(preprocessing: Preprocessing) -> str:
    """Format a preprocessing as the string that `parse` reads, with all its steps.

    Examples:
        >>> format_preprocessing(Preprocessing(Resize.STRETCH, mean=(0.5, 0.5, 0.5)))
        'stretch,linear,rgb,scale=0.00392156862745098,mean=0.5:0.5:0.5,std=1:1:1,pad=114'
    """
    resize = str(preprocessing.resize)
    if preprocessing.edges is not None:
        shortest, longest = preprocessing.edges
        resize += f"={shortest}:{longest}"
    channels = "bgr" if preprocessing.bgr else "rgb"
    entries = [resize, preprocessing.interpolation, channels]

    # The other steps are numbers by the name of the field; None stands for a step left out.
    for name in ("scale", "mean", "std", "pad", "longest", "enlarge", "multiple"):
        value = getattr(preprocessing, name)
        has_no_effect = value is None or (name == "multiple" and value == 1)
        if has_no_effect:
            continue
        numbers = value if isinstance(value, tuple) else (value,)
        number_texts = [repr(number).removesuffix(".0") for number in numbers]
        entries.append(f"{name}={':'.join(number_texts)}")
    return ",".join(entries)


def _read_entry(entry: str, text: str) -> Fields:
    """Read one entry of a preprocessing's text, such as `stretch` or `mean=0.5:0.5:0.5`.

    Args:
        entry: The entry, without commas or spaces around it.
        text: The whole text, for the message.

    Returns:
        The values that the entry sets, by the name of the field: `{"resize": Resize.STRETCH}`.

    Raises:
        UsageError: The entry is unknown, or its numbers are too many, too few or out of range.
    """
    name, equals, value = entry.partition("=")
    if not equals and name in WORDS:
        return WORDS[name]
    if not equals or name not in NUMBERS:
        entries = list(WORDS) + [f"{name}=" for name in NUMBERS]
        raise UsageError(
            f"--preprocess '{text}': '{entry}' is unknown",
            f"the entries are: {', '.join(entries)}",
        )

    numbers = _numbers_of_entry(name, value, entry)
    if name == Resize.SHORTEST_EDGE:
        return {"resize": Resize.SHORTEST_EDGE, "edges": numbers}
    if len(numbers) == 1:
        return {name: numbers[0]}
    return {name: numbers}


def _numbers_of_entry(name: str, value: str, entry: str) -> tuple[float, ...]:
    """Read the numbers of an entry such as `mean=0.5:0.5:0.5`, and check their count and range.

    Args:
        name: The name of the entry, which is one of `NUMBERS`.
        value: The text of the numbers.
        entry: The whole entry, for the message.

    Raises:
        UsageError: The numbers are too many, too few or out of range.
    """
    number_type, count, smallest, largest = NUMBERS[name]
    numbers = _numbers(value, number_type)
    if len(numbers) != count:
        expected = "one number" if count == 1 else f"{count} numbers with colons between them"
        raise UsageError(f"--preprocess {entry}: '{value}' is not {expected}", EXAMPLE)
    if not all(smallest <= number <= largest for number in numbers):
        if largest == math.inf:
            hint = f"use {smallest} or more"
        else:
            hint = f"use {smallest} to {largest}"
        raise UsageError(f"--preprocess {entry}: out of range", hint)
    if name == "std" and 0 in numbers:
        raise UsageError(f"--preprocess {entry}: nothing can be divided by 0", EXAMPLE)
    return numbers


def _numbers(value: str, number_type: type[float]) -> tuple[float, ...]:
    """Read finite numbers with colons between them, such as `0.5:0.5:0.5` or `1/255`.

    Returns:
        The numbers; empty if any of them cannot be read or is not finite.
    """
    numbers = []
    try:
        for text in value.split(":"):
            number = _number(text, number_type)
            if not math.isfinite(number):
                return ()
            numbers.append(number)
    except (ValueError, ArithmeticError):
        return ()
    return tuple(numbers)


def _number(text: str, number_type: type[float]) -> float:
    """Read a number; where floats are expected, it may be a fraction such as `1/255`."""
    if number_type is float:
        numerator, _, denominator = text.partition("/")
        if denominator:
            return float(numerator) / float(denominator)
    return number_type(text)
