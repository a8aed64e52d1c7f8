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
from detcli.model.preprocessing import format_preprocessing  # noqa: E402

COMMON_OPTIONS = re.compile(
    r"^  (?:-h, --help|-q, --quiet|-v, --verbose) .*\n(?: {9,}.*\n)*", re.MULTILINE
)
"""Options that mean the same in each command, with the further lines of their help."""
COMMANDS = DOCS.parent / "detcli/commands"
ROWS = re.compile("(<!-- rows -->\n).*?(<!-- end of rows -->)", re.DOTALL)
HEADER = """
| family | input | preprocessing | boxes | NMS | source |
| --- | --- | --- | --- | --- | --- |
"""
TESTS = DOCS.parent / "tests"
TEST_MODULES = (
    "head_graphs",
    "anchor_graphs",
    "query_graphs",
    "cell_graphs",
    "model/test_families",
    "model/test_adapt",
    "model/test_zoo_faces",
)
"""Modules of tests that hold families against their own code; each family is named in one."""


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
    """The text of docs/cli.md, in which options of every command are explained once."""
    sections = []
    commands_without_quiet = []
    for arguments in ([], *commands()):
        title = " ".join(["detcli", *arguments])
        help_text = detcli(*arguments, "--help")
        if "  -q, --" not in help_text and "\nCommands:\n" not in help_text:
            commands_without_quiet.append(f"`{' '.join(arguments)}`")
        text = COMMON_OPTIONS.sub("", help_text).strip()
        text = re.sub(r"\n\nOptions:(?=\n\n|\Z)", "", text)  # of those alone
        sections.append(f"## {title}\n\n```text\n{text}\n```\n")
    explained = "".join(COMMON_OPTIONS.findall(detcli("merge", "--help")))
    introduction = (
        "# Command line\n\n"
        "Written by docs/generate.py from the program's own help. Every command has these options; "
        f"{', '.join(commands_without_quiet)} have only the last:\n\n"
        f"```text\n{explained}```\n"
    )
    return "\n".join([introduction, *sections])


def models(text: str) -> str:
    """The text of docs/models.md with the families in their place."""
    for family in FAMILIES:
        check_tested(family)
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
    text = format_preprocessing(rule).replace("0.00392156862745098", "1/255")
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


def check_tested(family: Family) -> None:
    """Exit with an error if no test module has the name of a family in quotes."""
    for module in TEST_MODULES:
        if f'"{family.name}"' in (TESTS / f"{module}.py").read_text(encoding="utf-8"):
            return
    sys.exit(f"no test of {', '.join(TEST_MODULES)} builds graphs of the family {family.name}")


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
