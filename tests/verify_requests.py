"""What `detcli verify` is asked for, from models and values by name, and what comes of it."""

from onnx import ModelProto, parser

from detcli.commands.verify.images import open_results
from detcli.commands.verify.request import VerifyRequest
from detcli.commands.verify.running import compare_running
from detcli.commands.verify.running_plan import plan_running
from detcli.commands.verify.tensors import Probe
from detcli.config.device import Device, DeviceOptions
from detcli.model.file import ModelFile


def asked(*models, **values):
    models_by_option = dict(zip(("model", "other"), map(str, models), strict=False))
    return VerifyRequest.from_json({"images": ("pictures",)} | models_by_option | values)


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


IMAGE = "float[1, 3, 8, 8]"


def parsed(graph: str, outputs: str = f"{IMAGE} y", inputs: str = IMAGE) -> ModelProto:
    """A network of an image of 8 pixels, from its nodes as onnx writes them."""
    head = f'<ir_version: 8, opset_import: ["": 17]> g ({inputs} images) => ({outputs})'
    return parser.parse_model(f"{head} {graph}")
