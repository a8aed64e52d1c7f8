"""`--tolerance`: how far apart is still the same, as people write it."""

from detcli.errors import UsageError


def parse_tolerance(text: str | None, known: tuple[str, ...]) -> dict[str, float]:
    """Read "score=0.02,corner=2,boxes=1%"; a percentage is a share of 1.

    Args:
        text: What was given; None for nothing.
        known: The names that there are.

    Raises:
        UsageError: An entry is no number, or has another name.
    """
    hint = f"write NAME=NUMBER for any of {', '.join(known)}, as in {known[0]}=0.01"
    values = {}
    for entry in (part.strip() for part in (text or "").split(",") if part.strip()):
        name, _, number = (part.strip() for part in entry.partition("="))
        share = 0.01 if number.endswith("%") else 1.0
        try:
            value = float(number.removesuffix("%")) * share
        except ValueError:
            raise UsageError(f"--tolerance '{text}': '{entry}' is no tolerance", hint) from None
        if name not in known or name in values:
            why = "comes twice" if name in values else "is none"
            raise UsageError(f"--tolerance '{text}': '{name}' {why}", hint)
        values[name] = value
    if text is not None and not values:
        raise UsageError(f"--tolerance '{text}' says nothing", hint)
    return values
