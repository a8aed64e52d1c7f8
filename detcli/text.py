"""Text that is safe to print."""


def printable(text: str) -> str:
    """Escape control codes, which a file or class name may contain."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
