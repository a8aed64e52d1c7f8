"""Names that cause trouble in folders, and a strategy for any text."""

from hypothesis import strategies as st

NASTY = [
    *("", ".", "..", "...", "../x", "/etc/passwd", "a/b", "a\\b", "C:\\x", "nul\0", "a\nb", "\x7f"),
    *("\x85", "\u2028", "\udcff", "\ud800", "\udcc3\udca9", "\udcc2\udc85", "con", "NUL", "aux.x"),
    *("COM1", "lpt¹", "CONIN$", "con .x", "a.", "a ", ". .", " ", "-rf", "~", "$HOME", "%s", "*"),
    *("x" * 300, "é" * 200, "猫" * 100, "x" * 219 + "猫", "a_1", "_1", "_1_2", "a-2", "😀"),
]
anything = st.one_of(
    st.sampled_from(NASTY),
    st.text(),
    st.text(st.characters(), max_size=400),
    st.text("aA_-1./", max_size=9),
)
