from dataclasses import dataclass

from detcli.commands.inspect.examine import decoded


@dataclass(frozen=True, slots=True)
class Inner:
    name: str


@dataclass(frozen=True, slots=True)
class Outer:
    names: tuple[str, ...]
    counts: dict[str, int]
    inner: Inner | None


def test_bytes_become_text_at_any_depth():
    damaged = Outer((b"r\xe9d", "green"), {b"Conv": 3, "k": b"\0v"}, Inner(b"\xff"))
    assert decoded(damaged) == Outer(("r\\xe9d", "green"), {"Conv": 3, "k": "\0v"}, Inner("\\xff"))


def test_valid_text_is_unchanged():
    whole = Outer(("red",), {}, None)
    assert decoded(whole) == whole
