"""Writes the parts of the documentation that come from the program itself.

    python docs/generate.py

docs/cli.md holds the real `--help` of every command, docs/models.md a line for each family of
detectors, and each command's `schema.json` follows from its report. A test fails where they differ
from what this would write.
"""

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

from schemas import REPORTS, schema  # noqa: E402 - beside this file

from detcli.cli.app import app  # noqa: E402
from detcli.model.contract import Resize, Suppression  # noqa: E402
from detcli.model.families import FAMILIES  # noqa: E402
from detcli.model.family import Family  # noqa: E402
from detcli.model.preprocessing import written  # noqa: E402

COMMANDS = DOCS.parent / "detcli/commands"
ROWS = re.compile("(<!-- rows -->\n).*?(<!-- end of rows -->)", re.DOTALL)
HEADER = """
| family | input | preprocessing | boxes | NMS | source | test |
| --- | --- | --- | --- | --- | --- | --- |
"""
TESTS = DOCS.parent / "tests"
HOLDING = {
    "model/test_recognise_heads.py": ("head_graphs", "anchor_graphs", "query_graphs"),
    "model/heads/test_raw_outputs.py": ("cell_graphs",),
    "model/test_families.py": ("model/test_families",),
    "model/test_adapt.py": ("model/test_adapt",),
    "model/test_zoo_faces.py": ("model/test_zoo_faces",),
}
"""Tests that hold families against their own code, and the modules that name these."""


def detcli(*arguments: str) -> str:
    """What a command prints, at a fixed width."""
    os.environ["COLUMNS"] = "100"
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            app(arguments, prog_name="detcli")
    except SystemExit as end:
        if end.code:
            raise
    return printed.getvalue()


def commands(*group: str) -> Iterator[list[str]]:
    """Words of all commands, from the help of the program or of a group of commands."""
    listing = detcli(*group, "--help").partition("Commands:\n")[2]
    for name in re.findall(r"^ {2}(\w+)", listing, re.MULTILINE):
        yield [*group, name]
        yield from commands(*group, name)


def cli() -> str:
    """The text of docs/cli.md."""
    parts = ["# Command line\n", "Written by docs/generate.py from the program's own help.\n"]
    for arguments in ([], *commands()):
        title = " ".join(["detcli", *arguments])
        parts.append(f"## {title}\n\n```text\n{detcli(*arguments, '--help').strip()}\n```\n")
    return "\n".join(parts)


def models(text: str) -> str:
    """The text of docs/models.md with the families in their place."""
    table = HEADER + "".join(f"| {' | '.join(cells(family))} |\n" for family in FAMILIES) + "\n"
    return ROWS.sub(lambda found: found[1] + table + found[2], text)


def cells(family: Family) -> tuple[str, ...]:
    """What the table says of a family."""
    repository, _, rest = family.source.partition(",")
    known = "/" in repository
    return (
        family.name,
        taken(family),
        fed(family),
        boxes(family),
        suppressed(family),
        f"[{repository}](https://github.com/{repository}),{rest}" if known else family.source,
        held(family),
    )


def taken(family: Family) -> str:
    """The inputs of a family's files."""
    sizes = family.grid.input_sizes if family.grid else ()
    takes_any_size = family.grid is not None and family.grid.takes_any_size
    said = [f"{width}x{height}" for height, width in sizes]
    said += ["channels last"] * bool(family.channels_last)
    said += ["one image without a batch"] * bool(family.single)
    return ", ".join([*said, *["any, whatever the file says"] * takes_any_size]) or "any"


def fed(family: Family) -> str:
    """How images become the input, as --preprocess says it but for what is as usual."""
    if (rule := family.preprocessing) is None:
        return "differs"
    text = written(rule).replace("0.00392156862745098", "1/255")
    text = text.replace(",mean=0:0:0", "").replace(",std=1:1:1", "")
    if rule.resize in {Resize.STRETCH, Resize.SHORTEST_EDGE}:
        text = re.sub(",pad=[0-9]+", "", text)
    margin = f", {family.margin} pixels of the longer side left free" if family.margin else ""
    return f"`{text}`{margin}"


def boxes(family: Family) -> str:
    """What a family's boxes are; how detcli decodes them, where the graph does not."""
    said = ["by nodes"] if family.matches else []
    if (spec := family.grid) is not None:
        strides = " or ".join(" ".join(map(str, some)) for some in spec.strides)
        anchors = " ".join(str(len(some)) for some in spec.anchors)
        each = f", {anchors} anchors" if anchors else ""
        said.append(f"{spec.offset}, strides {strides}{each}")
    said += ["fractions"] * family.fractions
    return "; ".join(said)


def suppressed(family: Family) -> str:
    """Above which IoU duplicates are dropped, or blended into the best of them."""
    if family.needs_nms is False:
        return "-"
    where = " where boxes are centre and size" * (family.needs_nms is None)
    blended = ", blended by score" * (family.suppression is Suppression.BLEND)
    return f"{family.nms:g}{where}{', all classes together' * family.class_agnostic}{blended}"


def held(family: Family) -> str:
    """The first test that builds graphs of a family; StopIteration if there is none."""
    test = next(
        test
        for test, modules in HOLDING.items()
        for module in modules
        if f'"{family.name}"' in (TESTS / f"{module}.py").read_text(encoding="utf-8")
    )
    return f"[{Path(test).stem}](../tests/{test})"


def contents() -> Iterator[tuple[Path, str]]:
    """Each file with what it has to hold."""
    for command in REPORTS:
        yield COMMANDS / command / "schema.json", schema(command)
    yield DOCS / "cli.md", cli()
    path = DOCS / "models.md"
    yield path, models(path.read_text(encoding="utf-8"))


def main() -> None:
    """Write the files."""
    for path, text in contents():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
