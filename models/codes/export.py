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
SAME_SYMBOL_IOU = 0.6  # above it, two boxes are of one symbol
# How far apart cells of two scales are compared, in cells of the coarser one: of strides 8 and 16,
# and of 16 and 32.
REACH = (1, 2)


class Deployed(nn.Module):
    """A network without its training-only parts; images may have any size.

    Args:
        network: A trained network; it is not changed.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        folded_network = folded(network)
        self.backbone = folded_network.backbone
        self.neck = folded_network.neck
        self.head = folded_network.one

    def forward(self, images: Tensor) -> Tensor:
        """Boxes and scores `[B, 4 + K, N]` of images `[B, 3, H, W]`, RGB from 0 to 1.

        A cell gets a score of 0 if another one around the same symbol has a higher score: in its
        scale (`peaks`), or in the next finer or coarser scale (`distinct`).
        """
        maps = self.neck(self.backbone(images))
        distributions_by_scale, logits_by_scale = self.head.branches(maps)
        boxes = []  # of each scale: [B, 4, H, W]
        scores = []  # of each scale: [B, K, H, W]
        for distributions, logits, stride in zip(
            distributions_by_scale, logits_by_scale, STRIDES, strict=True
        ):
            shape = logits.shape[2:]
            centres, cell_strides = anchors([shape], [stride])
            flat_boxes = decode_boxes(distributions.flatten(2), centres, cell_strides)
            boxes.append(flat_boxes.unflatten(2, shape))
            scores.append(peaks(logits.sigmoid()))

        # First the scales of strides 8 and 16, then those of 16 and 32.
        for fine_scale, reach in enumerate(REACH):
            coarse_scale = fine_scale + 1
            scores[fine_scale], scores[coarse_scale] = distinct(
                fine_boxes=boxes[fine_scale],
                coarse_boxes=boxes[coarse_scale],
                fine_scores=scores[fine_scale],
                coarse_scores=scores[coarse_scale],
                reach=reach,
            )

        bodies = []  # of each scale: [B, 4 + K, H * W]
        for scale_boxes, scale_scores in zip(boxes, scores, strict=True):
            bodies.append(torch.cat([scale_boxes, scale_scores], 1).flatten(2))
        return torch.cat(bodies, 2)


def peaks(scores: Tensor) -> Tensor:
    """What a cell of `[B, K, H, W]` and its eight neighbours score together, if it scores best.

    Training gives each symbol to one cell, and two symbols are never in adjacent cells of the scale
    that finds them. So cells with a symbol between them share its score; all but the best get 0.
    """
    best = scores.amax(1, keepdim=True)  # [B, 1, H, W]
    is_peak = best >= functional.max_pool2d(best, 3, 1, 1)
    sum_around = 9 * functional.avg_pool2d(scores, 3, 1, 1)  # a mean of nine cells, times nine
    return sum_around.clamp(max=1) * is_peak


def distinct(
    fine_boxes: Tensor,
    coarse_boxes: Tensor,
    fine_scores: Tensor,
    coarse_scores: Tensor,
    *,
    reach: int,
) -> tuple[Tensor, Tensor]:
    """The scores of two scales, 0 for each cell whose symbol another cell finds with a higher one.

    A fine cell is treated as part of the coarse cell that it lies in; of the four fine cells there,
    `peaks` has left scores to one at most. Two boxes are of one symbol if their IoU is above
    `SAME_SYMBOL_IOU`. This is faster than `--nms`, which has little left to drop.

    Args:
        fine_boxes: `[B, 4, 2H, 2W]`, xyxy.
        coarse_boxes: `[B, 4, H, W]`.
        fine_scores: `[B, K, 2H, 2W]`, as `peaks` leaves them.
        coarse_scores: `[B, K, H, W]`.
        reach: How many coarse cells apart, across or down, two cells may be to be compared.

    Returns:
        Fine and coarse scores, shaped as they came.
    """
    height, width = coarse_boxes.shape[2:]
    fine_best = fine_scores.amax(1, keepdim=True)
    coarse_best = coarse_scores.amax(1, keepdim=True)

    # The box of the one fine cell with a score: the other three count as zeros in a mean of four.
    scoring_boxes = 4 * functional.avg_pool2d(fine_boxes * (fine_best > 0), 2)
    boxes = torch.stack([scoring_boxes, coarse_boxes], 2)  # [B, 4, scale, H, W]
    best = torch.stack([functional.max_pool2d(fine_best, 2), coarse_best], 2)  # [B, 1, scale, H, W]

    # Around each cell, boxes and scores of all cells within reach, of both scales, along axis 2.
    boxes_and_scores = functional.pad(torch.cat([boxes, best], 1), [reach] * 4)
    shifted = []
    for y in range(2 * reach + 1):
        for x in range(2 * reach + 1):
            shifted.append(boxes_and_scores[..., y : y + height, x : x + width])
    neighbours = torch.cat(shifted, 2)  # [B, 5, neighbour, H, W]
    neighbour_boxes = neighbours[:, :4]
    neighbour_scores = neighbours[:, 4]

    iou = overlap(boxes[:, :, None], neighbour_boxes[:, :, :, None], 1)
    is_same_symbol = iou > SAME_SYMBOL_IOU  # [B, neighbour, scale, H, W]
    best_rival = (is_same_symbol * neighbour_scores[:, :, None]).amax(1)  # [B, scale, H, W]
    stays = (best[:, 0] >= best_rival).to(best)  # 1 or 0

    # Four equal channels become the four fine cells of each coarse one.
    fine_stays = functional.pixel_shuffle(stays[:, :1].expand(-1, 4, -1, -1), 2)
    return fine_scores * fine_stays, coarse_scores * stays[:, 1:]


def folded(network: Network) -> Network:
    """A copy in evaluation mode with fewer, equivalent layers.

    Its convolutions include their batch normalisation, and large kernels the small ones that they
    were trained beside.
    """
    network_copy = copy.deepcopy(network).eval().requires_grad_(requires_grad=False).float()
    for module in network_copy.modules():
        if isinstance(module, Conv):
            module.conv = fuse_conv_bn_eval(module.conv, module.norm)
            module.norm = nn.Identity()  # type: ignore[assignment] # no longer one that normalises

    for module in network_copy.modules():
        if isinstance(module, LargeKernel) and module.small is not None:
            large = module.large.conv
            small = module.small.conv
            margin = (large.kernel_size[0] - small.kernel_size[0]) // 2
            large.weight += functional.pad(small.weight, [margin] * 4)
            large.bias += small.bias  # type: ignore[operator] # folded ones have a bias
            module.small = None
    return network_copy


@torch.no_grad()
def restore(network: Network, path: Path, images: Tensor) -> None:
    """Load the weights of an exported file into a network; both heads get those of the file's head.

    The file has no batch normalisation any more. The network's is chosen so that it changes nothing
    on these images: the network runs on them once, and a hook on each normalisation sets it just
    before it runs, when its input is there to be measured.

    The scores of classes that the file lacks start untrained. Blocks that it lacks start as
    identities whose output is not used yet.

    Args:
        network: A network of the file's widths, with as many blocks or more in each C2f of its
            backbone; it is changed, and left in training mode.
        path: A file written by `export`.
        images: `[B, 3, H, W]`, RGB from 0 to 1.
    """
    file_weights = {}
    for initializer in onnx.load(path).graph.initializer:
        array = numpy_helper.to_array(initializer)
        file_weights[initializer.name] = torch.tensor(array, device=images.device)

    hooks = []
    for name, module in network.named_modules():
        name_in_file = re.sub("^(many|one)", "head", name)
        if isinstance(module, Conv):
            hooks.append(_restore_conv(module, file_weights, f"{name_in_file}.conv"))
        elif isinstance(module, nn.Conv2d) and module.bias is not None:  # the last of a branch
            weight = file_weights[f"{name_in_file}.weight"]
            bias = file_weights[f"{name_in_file}.bias"]
            # The file may have fewer classes: the filters of others stay 0, and their biases
            # untrained.
            file_channels = len(weight)
            module.weight.zero_()
            module.weight[:file_channels] = weight
            module.bias[:file_channels] = bias

    network.eval()(images)  # here the hooks run
    for hook in hooks:
        hook.remove()
    network.train()


def _restore_conv(module: Conv, file_weights: dict[str, Tensor], name: str) -> RemovableHandle:
    """Restore a convolution's weights now, and its normalisation when the module next runs.

    The optimiser's steps depend on the size of weights. So each filter is scaled to the root mean
    square of an untrained one, and the normalisation scales its output back.

    A convolution that the file lacks starts untrained. The first one of a new block passes its
    output on, and all others have an output of 0, so that the block changes nothing at first. The
    same holds for small kernels, which were folded into large ones in the file.

    Args:
        module: The convolution with its normalisation.
        file_weights: Weights and biases of the file, by name.
        name: The convolution's name in the file.

    Returns:
        The hook that sets the normalisation; remove it after the module has run.
    """
    weight = file_weights.get(f"{name}.weight")
    bias = file_weights.get(f"{name}.bias")
    if weight is None:
        is_first_of_block = name.endswith("body.0.conv")
        output_scale = 1.0 if is_first_of_block else 0.0
        scale = torch.full_like(module.norm.bias, output_scale)
    else:
        # Filters have inputs from blocks that the file lacks; the weights of these are 0.
        missing_inputs = module.conv.in_channels // module.conv.groups - weight.shape[1]
        weight = functional.pad(weight, (0, 0, 0, 0, 0, missing_inputs))

        weights_per_filter = weight[0].numel()
        rms = weight.square().mean((1, 2, 3)).sqrt().clamp(min=1e-6)  # of each filter
        # PyTorch draws weights uniformly up to weights_per_filter ** -0.5: this is their RMS.
        untrained_rms = (3 * weights_per_filter) ** -0.5
        module.conv.weight.copy_(weight * (untrained_rms / rms)[:, None, None, None])
        scale = rms / untrained_rms
    shift: Tensor | int = 0 if bias is None else bias

    def undo_normalisation(norm: nn.BatchNorm2d, inputs: tuple[Tensor]) -> None:
        """Set a normalisation so that of these inputs it makes `inputs * scale + shift`."""
        variance, mean = torch.var_mean(inputs[0], (0, 2, 3))
        norm.running_mean = mean
        norm.running_var = variance
        norm.weight.copy_((variance + norm.eps).sqrt() * scale)
        norm.bias.copy_(mean * scale + shift)

    return module.norm.register_forward_pre_hook(undo_normalisation)


def trained(path: Path) -> Network:
    """The averaged weights of a checkpoint, as a network in evaluation mode."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    network = Network(Plan.narrow(len(NAMES)))
    network.load_state_dict(state["average"])
    return network.eval()


def export(network: Network, path: Path, metadata: dict[str, str]) -> None:
    """Write a network as ONNX for any batch and image size, atomically.

    Raises:
        TypeError: PyTorch's exporter returned nothing.
    """
    # Height and width are multiples of the largest stride, of two cells or more.
    height = STRIDES[-1] * torch.export.Dim("rows", min=2)
    width = STRIDES[-1] * torch.export.Dim("columns", min=2)
    # Batch, height and width differ, or the exporter would take two of them for one dimension.
    example_images = torch.zeros(2, 3, IMGSZ, IMGSZ - STRIDES[-1])
    program = torch.onnx.export(
        Deployed(network),
        (example_images,),
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

    temporary_path = path.with_suffix(".new")
    onnx.save_model(model, temporary_path)
    temporary_path.replace(path)


def _strip(graph: onnx.GraphProto) -> None:
    """Drop the exporter's stack traces, which contain paths of this machine."""
    del graph.metadata_props[:]
    lists = (graph.node, graph.input, graph.output, graph.value_info, graph.initializer)
    for protos in lists:
        for proto in protos:
            del proto.metadata_props[:]
            proto.doc_string = ""


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
        "detcli.conf": _recommended_confidences(),
        "detcli.tile": TILE,
        "detcli.preprocess": PREPROCESS,
        "steps": str(step),
    }


def _recommended_confidences() -> str:
    """The value of `--conf` that is recommended: one for all classes, then one for each."""
    confidences = [str(CONF)]
    for name in NAMES:
        confidences.append(f"{name}={CONFS[name]}")
    return ",".join(confidences)


def main() -> None:
    """Export the checkpoint of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    checkpoint = torch.load(arguments.checkpoint, map_location="cpu", weights_only=True)
    network = trained(arguments.checkpoint)
    export(network, arguments.output, describe(checkpoint["step"]))


if __name__ == "__main__":
    main()
