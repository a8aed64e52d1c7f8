"""What `detcli verify` is asked for, from models and values by name, and what comes of it."""

from detcli.commands.verify.pictures import open_results
from detcli.commands.verify.request import VerifyRequest
from detcli.commands.verify.running import compare_running, plan_running
from detcli.commands.verify.tensors import Probe
from detcli.core.device import Device, DeviceOptions
from detcli.model.file import ModelFile


def asked(*models, **values):
    named = dict(zip(("model", "other"), map(str, models), strict=False))
    return VerifyRequest.of({"images": ("pictures",)} | named | values)


def plan_of(*models, **values):
    return plan_running(asked(*models, **values))


def verified(items, *models, **values):
    """The report on some items."""
    plan = plan_of(*models, **values)
    with open_results(plan.request, (), plan.rules, plan.reports) as results:
        return compare_running(plan, items, results).report


def probe(path, *, size=(64, 64), at_head=False):
    file = ModelFile.read(path)
    return Probe(file, size, Device.parse("cpu"), DeviceOptions(), at_head=at_head)
