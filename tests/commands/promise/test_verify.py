"""`detcli promise verify`, and the script of the documentation that does the same."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from reviews import answer, dealt, deck_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"t": 0.9}, "is not a threshold"),
        ({"lost": 0.001, "asked": [0.001]}, "may be lost"),
        ({"lost": 0.5}, "its loss does not follow"),
        ({"below": 0.9}, "does not follow"),
        ({"error": 0.4}, "its probability of an error"),
        ({"sure": 0.5}, "its probability of an error"),
        ({"animals_below": []}, "does not hold: its row at"),
        ({"doubtful_below": ["a.jpg", "a.jpg"]}, "a name is in its lists twice"),
        ({"put_aside": 3}, "it puts aside another number"),
        ({"t": None}, "promises nothing"),
        ({"round": 9}, "its round is not one of its plan"),
        ({"round": -1}, "its round is not one of its plan"),
        ({"seed": 3.7}, "its seed is not a whole number"),
        ({"seed": float("inf")}, "its seed is not a whole number"),
        ({"asked": []}, "its losses are missing, or not between 0 and 1"),
        ({"sure": 1.5}, "its probability is not between 0 and 1"),
        ({"units": 5}, "the number of units is different"),
        ({"failed": 0}, "the number of failed inputs is different"),
        ({"records_sha256": "0"}, "the hash of the records is different"),
    ],
)
def test_a_forged_promise_does_not_hold(promise, card, review, change, says):
    first = dealt(review)[: deck_of(review)["plan"][0]]
    animals = card.animals | dict.fromkeys(first[:2], True)
    promise.check(answer(review, animals), "--records", "boxes.jsonl")
    fields = promise.promise() | change
    (card.folder / "forged.json").write_text(json.dumps(fields))
    promise("verify", "forged.json", "boxes.jsonl", code=6, says=says)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"v": 2}', '{"v": 1, "rows": 3}'])
def test_what_is_no_promise_is_refused(promise, text):
    (promise.folder / "promise.json").write_text(text)
    promise("verify", "promise.json", "boxes.jsonl", code=2, says="after a complete round")


def test_the_script_of_the_documentation_checks_a_promise(promise, card, review):
    page = (ROOT / "docs/promise.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (card.folder / "check.py").write_text(script, encoding="utf-8")
    first = dealt(review)[: deck_of(review)["plan"][0]]
    animals = card.animals | dict.fromkeys(first[:2], True)
    promise.check(answer(review, animals), "--records", "boxes.jsonl")

    def run(name):
        command = [sys.executable, "-I", "check.py", name, "boxes.jsonl"]
        return subprocess.run(command, check=False, capture_output=True, text=True, cwd=card.folder)

    threshold = promise.promise()["t"]
    completed = run("review/promise.json")
    assert completed.stdout.startswith(f"it holds: {threshold}, "), completed.stderr
    for change in (
        {"lost": 0.001},
        {"error": 1e-9},
        {"animals_below": []},
        {"scores_sha256": "0"},
        {"seed": 8},
        {"lost": 0.5},
        {"sure": 0.99999},
        {"t": float("nan")},
        {"round": 0},
        {"round": -1},
        {"round": 9},
        {"round": 1.0},
        {"plan": promise.promise()["plan"] + [-1]},
        {"error": 0.05},
    ):
        (card.folder / "forged.json").write_text(json.dumps(promise.promise() | change))
        assert "AssertionError" in run("forged.json").stderr
    for change in ({"classes": []}, {"t": None}):
        (card.folder / "forged.json").write_text(json.dumps(promise.promise() | change))
        assert run("forged.json").stderr.startswith("nothing to check here")
