"""The families of detectors, a row each: how to recognise one, and what its file does not say.

The structure of a graph shows where boxes and scores are (`detcli.model.heads`). What a family adds
is how its networks were trained to see pictures, and what their scores mean. The first row that
fits counts. To add a family, add a row and a test of its files.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from detcli.model.contract import Interpolation, Layout, Preprocessing, Resize
from detcli.model.decode import Boxes
from detcli.model.heads import Head
from detcli.model.inputs import ImageInput

LETTERBOX = Preprocessing()
STRETCH = Preprocessing(resize=Resize.STRETCH, interpolation=Interpolation.BILINEAR)
# Mean and standard deviation of the pictures of ImageNet.
IMAGENET = replace(STRETCH, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


@dataclass(frozen=True, slots=True)
class Family:
    """A family of detectors.

    Attributes:
        name: As its authors write it.
        fits: Whether a head is of this family.
        preprocessing: What its networks were trained with.
        needs_nms: Several boxes are given for an object; None where the file says it.
        every_class: Each class of a box is a candidate for that, not only its best.
        no_object: Scores become shares of all classes (softmax), and the last of them, that of no
            object, is dropped.
        one_class: At most one class counts for each box.
        fractions: Boxes are fractions of the picture.
        swapped: Corners of rows are y1, x1, y2, x2, where the nodes do not show their order.
        channels_last: Its graphs take pictures with the channels last; None if either way.
        single: Its graphs take one picture without a batch; None if either way.
        margin: Pixels of the input that the longer side of a picture leaves free.
    """

    name: str
    fits: Callable[[Head], bool]
    preprocessing: Preprocessing
    needs_nms: bool | None = False
    every_class: bool = False
    no_object: bool = False
    one_class: bool = False
    fractions: bool = False
    swapped: bool = False
    channels_last: bool | None = None
    single: bool | None = None
    margin: int = 0

    def preprocess(self, size: tuple[int, int] | None, default: tuple[int, int]) -> Preprocessing:
        """What its networks were trained with.

        Args:
            size: Height and width of the input, where it is fixed.
            default: Height and width to use in the other case.
        """
        longest = max(size or default) - self.margin if self.margin else None
        rule = replace(self.preprocessing, longest=longest)
        if size is not None and rule.resize in {Resize.SHORTEST_EDGE, Resize.NONE}:
            # Whoever fixed the size has stretched to it.
            rule = replace(rule, resize=Resize.STRETCH, edges=None, multiple=1)
        return rule


def _decoded(head: Head, *ways: Boxes) -> bool:
    return head.decoded is not None and head.decoded.how in ways


def _cells(head: Head) -> bool:
    """Whether boxes and scores are apart and those of cells: a convolution's output."""
    return head.layout is Layout.PAIR and head.layer == "Conv"


def _queries(head: Head, way: Boxes) -> bool:
    """Whether boxes and scores are those of queries, as of DETR and its successors."""
    return head.layout is Layout.PAIR and head.layer != "Conv" and _decoded(head, way)


FAMILIES = (
    Family(
        "YOLOX",  # github.com/Megvii-BaseDetection/YOLOX, data_augment.preproc, demo_postprocess
        lambda head: head.objectness and _decoded(head, Boxes.LINEAR, Boxes.EXPONENTIAL),
        Preprocessing(resize=Resize.CORNER, scale=1.0, bgr=True),
        needs_nms=True,
    ),
    Family(
        "YOLOv5",  # and v3, v6, v7, R: objectness and classes
        lambda head: head.objectness,
        LETTERBOX,
        needs_nms=True,
    ),
    Family(
        "YOLO-NAS",  # github.com/Deci-AI/super-gradients, default_yolo_nas_coco_processing_params
        lambda head: _cells(head) and _decoded(head, Boxes.DISTANCES) and not head.one_class,
        LETTERBOX,
        needs_nms=True,
        every_class=True,
        margin=4,
    ),
    Family(
        "YOLO, boxes apart",  # as DeepStream-Yolo and TensorRT's plug-ins want it
        _cells,
        LETTERBOX,
        needs_nms=True,
    ),
    Family(
        "YOLO, scales apart",  # as RKNN's model zoo exports YOLOv8 and its successors
        lambda head: head.layout is Layout.SCALES,
        LETTERBOX,
        needs_nms=True,
    ),
    Family(
        "DETR",  # and YOLOS, Table Transformer: Hugging Face's DetrImageProcessor
        lambda head: _queries(head, Boxes.SIGMOID),
        replace(IMAGENET, resize=Resize.SHORTEST_EDGE, edges=(800, 1333)),
        no_object=True,
        one_class=True,
        fractions=True,
    ),
    Family(
        "RF-DETR",  # and LW-DETR: github.com/roboflow/rf-detr, RFDETR.predict
        lambda head: _queries(head, Boxes.EXPONENTIAL),
        replace(IMAGENET, interpolation=Interpolation.LINEAR),
        fractions=True,
    ),
    Family(
        "RT-DETR",  # and v2: github.com/lyuwenyu/RT-DETR, rtdetrv2_onnxruntime.py
        lambda head: _queries(head, Boxes.REFINED),
        STRETCH,
        fractions=True,
    ),
    Family(
        "D-FINE",  # and DEIM: github.com/Peterande/D-FINE, its training and torch_inf.py
        lambda head: _queries(head, Boxes.DISTANCES),
        STRETCH,
        fractions=True,
    ),
    Family(
        "TensorFlow",  # exporter of its object detection API: resizes inside, ids from 1
        lambda head: head.layout is Layout.ROWS,
        Preprocessing(resize=Resize.NONE, scale=1.0),
        fractions=True,
        swapped=True,
        channels_last=True,
    ),
    Family(
        "torchvision",  # its detection models: a picture without a batch, any size, 0 to 1
        lambda head: head.layout is Layout.ROWS,
        replace(STRETCH, interpolation=Interpolation.LINEAR),
        single=True,
    ),
    Family(
        "selected inside",  # by a graph that suppresses duplicates itself
        lambda head: head.layout is Layout.ROWS,
        LETTERBOX,
    ),
    Family("YOLO", lambda head: not head.objectness, LETTERBOX, needs_nms=None),
)


def family_of(head: Head, image: ImageInput) -> Family:
    """The family of a graph."""
    return next(
        family
        for family in FAMILIES
        if family.fits(head)
        and family.channels_last in {None, image.channels_last}
        and family.single in {None, image.single}
    )
