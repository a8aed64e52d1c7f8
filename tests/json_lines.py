"""JSON Lines, read."""

import json


def lines(text):
    return [json.loads(line) for line in text.splitlines()]
