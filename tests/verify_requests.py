"""What `detcli verify` is asked for, from models and values by name."""

from detcli.commands.verify.request import VerifyRequest


def asked(*models, **values):
    named = dict(zip(("model", "other"), map(str, models), strict=False))
    return VerifyRequest.of({"images": ("pictures",)} | named | values)
