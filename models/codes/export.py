"""Write a trained network as ONNX: `python -m codes.export last.pt codes.onnx`.

Batch normalisation is folded into the convolutions, and the one-to-many head is left out. The
graph's output is a body `[B, 4 + K, N]`: boxes as xyxy in input pixels, then scores. Batch, height
and width are dynamic, which does not make the graph slower.
"""

import argparse
import copy
import re
from pathlib import Path

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.utils.hooks import RemovableHandle

from codes.loss import overlap
from codes.network import STRIDES, Conv, LargeKernel, Network, Plan, anchors, decode_boxes
from codes.symbols import NAMES

IMGSZ = 640
# Recommended: few false alarms matter more than the last symbols. And for each class: as low as
# false alarms on photographs without symbols allow.
CONF = 0.5
CONFS = {
    "qr_code": 0.3,
    "micro_qr": 0.45,
    "data_matrix": 0.46,
    "barcode": 0.35,
    "pdf417": 0.55,
    "aruco": 0.5,
    "aztec": 0.3,
}
# Sheets of symbols are looked at again in tiles, images with fewer are not.
TILE = "1024,crowd=10"
# Enlarged, a small image would be softer than those in training.
PREPROCESS = "letterbox,linear,rgb,scale=0.00392156862745098,mean=0:0:0,std=1:1:1,pad=114,enlarge=1"
OPSET = 18
SAME = 0.6  # IoU above which two boxes are of one symbol
REACH = (1, 2)  # how far apart cells of two scales are compared, in cells of the coarser one


class Deployed(nn.Module):
    """A network without its training-only parts; images may have any size.

    Args:
        network: A trained network; it is not changed.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        own = folded(network)
        self.backbone, self.neck, self.head = own.backbone, own.neck, own.one

    def forward(self, images: Tensor) -> Tensor:
        """Boxes and scores `[B, 4 + K, N]` of images `[B, 3, H, W]`, RGB from 0 to 1."""
        maps = self.neck(self.backbone(images))
        sides, logits = self.head.branches(maps)
        boxes, scores = [], []
        for side, logit, stride in zip(sides, logits, STRIDES, strict=True):
            shape = logit.shape[2:]
            centres, sizes = anchors([shape], [stride])
            boxes.append(decode_boxes(side.flatten(2), centres, sizes).unflatten(2, shape))
            scores.append(peaks(logit.sigmoid()))
        for scale, reach in enumerate(REACH):
            pair = slice(scale, scale + 2)
            scores[pair] = distinct(*boxes[pair], *scores[pair], reach=reach)
        rows = zip(boxes, scores, strict=True)
        return torch.cat([torch.cat(part, 1).flatten(2) for part in rows], 2)


def peaks(scores: Tensor) -> Tensor:
    """What a cell of `[B, K, H, W]` and its eight neighbours score together, if it scores best.

    Training gives each symbol to one cell, and two symbols are never in adjacent cells of the scale
    that finds them. So cells between which one lies share its score; all but the best get 0.
    """
    best = scores.amax(1, keepdim=True)  # [B, 1, H, W]
    together = 9 * functional.avg_pool2d(scores, 3, 1, 1)
    return together.clamp(max=1) * (best >= functional.max_pool2d(best, 3, 1, 1))


def distinct(
    fine_boxes: Tensor,
    coarse_boxes: Tensor,
    fine_scores: Tensor,
    coarse_scores: Tensor,
    *,
    reach: int,
) -> tuple[Tensor, Tensor]:
    """The scores of two scales without those of symbols that another cell finds with a higher one.

    This is faster than `--nms`, which has little left to do.

    Args:
        fine_boxes: `[B, 4, 2H, 2W]`, xyxy.
        coarse_boxes: `[B, 4, H, W]`.
        fine_scores: `[B, K, 2H, 2W]`, as `peaks` leaves them: in one of four cells at most.
        coarse_scores: `[B, K, H, W]`.
        reach: How many coarse cells apart those may be that are compared, of either scale.
    """
    height, width = coarse_boxes.shape[2:]
    fine_best, coarse_best = (part.amax(1, keepdim=True) for part in (fine_scores, coarse_scores))
    only = 4 * functional.avg_pool2d(fine_boxes * (fine_best > 0), 2)  # that of the four cells
    boxes = torch.stack([only, coarse_boxes], 2)  # [B, 4, scale, H, W]
    best = torch.stack([functional.max_pool2d(fine_best, 2), coarse_best], 2)
    cells = functional.pad(torch.cat([boxes, best], 1), [reach] * 4)
    steps = [(y, x) for y in range(2 * reach + 1) for x in range(2 * reach + 1)]
    near = torch.cat([cells[..., y : y + height, x : x + width] for y, x in steps], 2)
    same = overlap(boxes[:, :, None], near[:, :4, :, None], 1) > SAME
    rivals = (same * near[:, 4, :, None]).amax(1)  # [B, scale, H, W]
    kept = (best[:, 0] >= rivals).to(best)
    fine_kept = functional.pixel_shuffle(kept[:, :1].expand(-1, 4, -1, -1), 2)
    return fine_scores * fine_kept, coarse_scores * kept[:, 1:]


def folded(network: Network) -> Network:
    """A copy in evaluation mode whose convolutions include their batch normalisation."""
    own = copy.deepcopy(network).eval().requires_grad_(requires_grad=False).float()
    for module in own.modules():
        if isinstance(module, Conv):
            module.conv = fuse_conv_bn_eval(module.conv, module.norm)
            module.norm = nn.Identity()  # type: ignore[assignment] # no longer one that normalises
    for module in own.modules():
        if isinstance(module, LargeKernel) and module.small is not None:
            large, small = module.large.conv, module.small.conv
            margin = (large.kernel_size[0] - small.kernel_size[0]) // 2
            large.weight += functional.pad(small.weight, [margin] * 4)
            large.bias += small.bias  # type: ignore[operator] # folded ones have a bias
            module.small = None
    return own


@torch.no_grad()
def restore(network: Network, path: Path, images: Tensor) -> None:
    """Give a network the weights of an exported file, and both of its heads those of the file's.

    Batch normalisation, which the file has no longer, is chosen so that it changes nothing on these
    images. The scores of classes that the file lacks start untrained. Blocks that it lacks
    start as identities whose output is not used yet.

    Args:
        network: A network of the file's widths, with as many blocks or more in each C2f of its
            backbone; it is changed, and left in training mode.
        path: A file written by `export`.
        images: `[B, 3, H, W]`, RGB from 0 to 1.
    """
    graph = onnx.load(path).graph
    file = {
        part.name: torch.tensor(numpy_helper.to_array(part), device=images.device)
        for part in graph.initializer
    }
    hooks = []
    for name, module in network.named_modules():
        source = re.sub("^(many|one)", "head", name)
        if isinstance(module, Conv):
            hooks.append(_restore_conv(module, file, f"{source}.conv"))
        elif isinstance(module, nn.Conv2d) and module.bias is not None:  # the last of a branch
            weight, bias = file[f"{source}.weight"], file[f"{source}.bias"]
            module.weight.zero_()
            module.weight[: len(weight)], module.bias[: len(bias)] = weight, bias
    network.eval()(images)
    for hook in hooks:
        hook.remove()
    network.train()


def _restore_conv(module: Conv, file: dict[str, Tensor], name: str) -> RemovableHandle:
    """Restore the weights, and when the module next runs, its normalisation.

    Filters get the length of untrained ones, on which the optimiser's steps depend. A convolution
    that the file lacks starts untrained. The last one of a block adds nothing at first, like one
    that was folded into another.
    """
    weight, bias = file.get(f"{name}.weight"), file.get(f"{name}.bias")
    if weight is None:
        gain = torch.full_like(module.norm.bias, float(name.endswith("body.0.conv")))
    else:
        missing = module.conv.in_channels // module.conv.groups - weight.shape[1]
        weight = functional.pad(weight, (0, 0, 0, 0, 0, missing))  # inputs from blocks it lacks
        fan_in = weight[0].numel()
        length = weight.square().mean((1, 2, 3)).sqrt().clamp(min=1e-6)
        untrained = (3 * fan_in) ** -0.5
        module.conv.weight.copy_(weight * (untrained / length)[:, None, None, None])
        gain = length / untrained

    def measure(norm: nn.BatchNorm2d, inputs: tuple[Tensor]) -> None:
        variance, mean = torch.var_mean(inputs[0], (0, 2, 3))
        norm.running_mean, norm.running_var = mean, variance
        norm.weight.copy_((variance + norm.eps).sqrt() * gain)
        norm.bias.copy_(mean * gain + (0 if bias is None else bias))

    return module.norm.register_forward_pre_hook(measure)


def trained(path: Path) -> Network:
    """The averaged weights of a checkpoint, as a network in evaluation mode."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    network = Network(Plan.narrow(len(NAMES)))
    network.load_state_dict(state["average"])
    return network.eval()


def export(network: Network, path: Path, metadata: dict[str, str]) -> None:
    """Write a network as ONNX for any batch and image size, atomically."""
    height, width = (STRIDES[-1] * torch.export.Dim(name, min=2) for name in ("rows", "columns"))
    program = torch.onnx.export(
        Deployed(network),
        (torch.zeros(2, 3, IMGSZ, IMGSZ - STRIDES[-1]),),  # distinct, so no two are merged
        dynamo=True,
        opset_version=OPSET,
        input_names=["images"],
        output_names=["output0"],
        dynamic_shapes=({0: torch.export.Dim("batch"), 2: height, 3: width},),
        verbose=False,
    )
    if program is None:
        raise TypeError("torch.onnx.export returned nothing")
    model = program.model_proto
    del model.metadata_props[:]
    _strip(model.graph)
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=value)
    onnx.checker.check_model(model, full_check=True)
    draft = path.with_suffix(".new")
    onnx.save_model(model, draft)
    draft.replace(path)


def _strip(graph: onnx.GraphProto) -> None:
    """Drop the exporter's stack traces, which contain paths of this machine."""
    del graph.metadata_props[:]
    for part in [*graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer]:
        del part.metadata_props[:]
        part.doc_string = ""


def describe(step: int) -> dict[str, str]:
    """The file's metadata; detcli reads `names` and `stride`."""
    return {
        "description": "detcli's codes: machine-readable symbols, a narrow YOLOv10",
        "license": "Apache-2.0",
        "task": "detect",
        "stride": str(STRIDES[-1]),
        "imgsz": str([IMGSZ, IMGSZ]),
        "names": str(dict(enumerate(NAMES))),
        "end2end": "True",
        "detcli.conf": ",".join([str(CONF), *(f"{name}={CONFS[name]}" for name in NAMES)]),
        "detcli.tile": TILE,
        "detcli.preprocess": PREPROCESS,
        "steps": str(step),
    }


def main() -> None:
    """Export the checkpoint of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("output", type=Path)
    given = parser.parse_args()
    step = torch.load(given.checkpoint, map_location="cpu", weights_only=True)["step"]
    export(trained(given.checkpoint), given.output, describe(step))


if __name__ == "__main__":
    main()
