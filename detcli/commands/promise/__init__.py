"""`detcli promise`: below which score no image needs eyes, and how sure that is.

deal.py          the command that makes a review; options.py has its options, dealing.py its work
check.py         the command that says what is promised; checking.py has its work
split.py         the command that parts what needs eyes from the rest; splitting.py has its work
verify.py        the command that recomputes a promise; verifying.py has its work
unit_kind.py     what a unit is: an image, a burst, a folder
inputs.py        the images and videos of records, in columns
units.py         the units made of them, their scores, and the order of the draw
reading.py       reads units from records, and refuses records that are of no use
thresholds.py    the thresholds that may be promised
plan.py          how much is looked at in each round, and how likely that suffices
effort.py        whether that is worth it, and what is said about it
draw.py          what is looked at, in which round and order
images.py        copies of the images that are looked at
deck.py          deck.json, which says what was asked for and drawn
labels.py        labels.jsonl, which has the answers, and which of them apply
kept_labels.py   labels of an earlier review that still hold
bounds.py        how many units may show an animal, from a random sample
evaluation.py    the bounds at all thresholds, and the highest that can be promised
promise_file.py  promise.json, with all numbers behind a promise
statements.py    the sentences about all this
"""

import typer

from detcli.cli.command import Command
from detcli.cli.help import Group
from detcli.commands.promise.check import check
from detcli.commands.promise.deal import deal
from detcli.commands.promise.split import split
from detcli.commands.promise.verify import verify

app = typer.Typer(
    cls=Group,
    help="Promise below which score no image needs eyes, from a sample that one looks at.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

for function in (deal, check, split, verify):
    app.command(function.__name__, cls=Command, epilog=function.examples)(function)  # type: ignore[attr-defined]
