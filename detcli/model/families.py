"""The families of detectors, a row each: how to recognise one, and what its file does not say.

The structure of a graph shows where boxes and scores are (`detcli.model.heads`). What a family adds
is how its networks were trained to see pictures, and what their scores mean. The first row that
fits counts. To add a family, add a row and a test of its files.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from detcli.config.values import BoxFormat
from detcli.core import frozen
from detcli.model.contract import (
    FOLLOWING,
    Interpolation,
    Layout,
    MultiLabel,
    Preprocessing,
    Resize,
    Size,
)
from detcli.model.graph import CONVOLUTIONS
from detcli.model.heads import (
    Activation,
    Anchors,
    BoxDecode,
    GridSpec,
    Head,
    HeadPart,
    Offset,
    Queries,
    TensorsPerScale,
    Unrecognised,
)
from detcli.model.inputs import ImageInput

NAS_BINS = 17
LETTERBOX = Preprocessing()
STRETCH = Preprocessing(resize=Resize.STRETCH, interpolation=Interpolation.BILINEAR)
# Mean and standard deviation of the pictures of ImageNet.
IMAGENET = replace(STRETCH, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))

BLACK = Preprocessing(pad=0)
NANODET = Preprocessing(  # its levels are in this order, too
    interpolation=Interpolation.AREA,
    scale=1.0,
    mean=(103.53, 116.28, 123.675),
    std=(57.375, 57.12, 58.395),
    bgr=True,
    pad=0,
)
YOLOX = Preprocessing(resize=Resize.CORNER, scale=1.0, bgr=True)
FIRST_WEIGHT = 0.05
"""The mean absolute weight of a first convolution above which it was trained on normalised shares:
0.3 in the networks of YOLOX 0.1.0, and 0.005 to 0.008 in those for levels up to 255."""
STRIDES = ((8, 16, 32), (8, 16, 32, 64), (16, 32))
FACE = ("face",)


@frozen
class Family:
    """A family of detectors."""

    name: str
    source: str  # of these facts: a repository at GitHub, and what in it; and what else is like it
    # what its networks were trained with; None where that differs
    preprocessing: Preprocessing | None = None
    # whether a head is of this family; None where its cells tell
    fits: Callable[[Head], bool] | None = None
    # several boxes are given for an object; None where the file says it
    needs_nms: bool | None = True
    nms: float = 0.45  # the IoU that its authors suppress them with
    class_agnostic: bool = (
        False  # boxes of all classes are compared for that, not only those of one
    )
    # scores become shares of all classes (softmax), and the one of this index, that of no object,
    # is dropped: 0 or -1
    no_object: int | None = None
    multi_label: MultiLabel = MultiLabel.WITHOUT_NMS
    fractions: bool = False  # boxes are fractions of the picture
    # corners of rows are y1, x1, y2, x2, where the nodes do not show their order
    swapped: bool = False
    shown: bool = False  # the nodes have to show the order of corners of rows, and their unit
    # its graphs take pictures with the channels last; None if either way
    channels_last: bool | None = None
    single: bool | None = None  # its graphs take one picture without a batch; None if either way
    clips: bool = True  # its own code ends boxes at the edges of the picture
    margin: int = 0  # pixels of the input that the longer side of a picture leaves free
    # what its layers give for each cell, where the graph does not decode it
    grid: GridSpec | None = None
    names: tuple[str, ...] = ()  # of the classes that all its models have
    # the values that are assumed, where its files do not say that they were trained on others
    variant: str = ""
    # what its first networks were trained with, on shares of 1 in place of levels: their first
    # weights are larger than FIRST_WEIGHT
    earlier: Preprocessing | None = None

    @property
    def gives_a_set(self) -> bool:
        """True if it gives a box for each object, as DETR and its successors."""
        return self.fractions and not self.needs_nms

    def is_of(self, head: Head) -> bool:
        """True if a head is of this family."""
        if head.grid is not None:
            return head.grid.spec is self.grid
        return self.fits is not None and self.fits(head)

    def preprocess(self, size: Size | None, default: Size) -> Preprocessing | None:
        """What its networks were trained with; None where that differs."""
        if self.preprocessing is None:
            return None
        longest = max(size or default) - self.margin if self.margin else None
        rule = replace(self.preprocessing, longest=longest)
        if size is not None and rule.resize in FOLLOWING:
            # Whoever fixed the size has stretched to it.
            rule = replace(rule, resize=Resize.STRETCH, edges=None, multiple=1)
        return rule


def _cells(head: Head) -> bool:
    known = head.decodes(BoxDecode.DISTANCES, BoxDecode.EXPONENTIAL, BoxDecode.GRID)
    return head.layout is Layout.PAIR and not head.of_queries and known


def _rows_of_cells(head: Head) -> bool:
    """True if a graph selects among cells: what queries are fed would be another family's."""
    return head.layout is Layout.ROWS and head.layer in CONVOLUTIONS


def _queries(head: Head, *ways: BoxDecode) -> bool:
    """True if boxes and scores are those of queries, as of DETR and its successors."""
    return head.layout is not Layout.ROWS and head.of_queries and head.decodes(*ways)


def _refined(head: Head) -> bool:
    """True if the boxes of queries are refined, and their scores are sigmoids'."""
    return _queries(head, BoxDecode.REFINED) and head.scores_are is not Activation.SOFTMAX


def _joined(head: Head) -> bool:
    """True if boxes and scores are one tensor, and the boxes are those of cells or not known."""
    one = head.layout in {Layout.BODY, Layout.TRANSPOSED_BODY, Layout.END_TO_END}
    return one and not head.decodes(BoxDecode.SIGMOID, BoxDecode.REFINED)


def _places(head: Head) -> tuple[int, ...]:
    """The first columns of boxes, scores and class ids of rows; empty if they are apart."""
    parts = (head.boxes[0], head.scores[0], head.labels)
    one = head.layout is Layout.ROWS and len(head.tensors) == 1
    return tuple(part.start for part in parts if part is not None) if one else ()


def _parts(**widths: int) -> tuple[tuple[HeadPart, int], ...]:
    """The parts of cells in their order, with the width of each."""
    return tuple((HeadPart(part), width) for part, width in widths.items())


def _squares(*scales: tuple[float, ...]) -> tuple[Anchors, ...]:
    """Square anchors of each scale."""
    return tuple(tuple((side, side) for side in sides) for sides in scales)


SET = partial(Family, needs_nms=False, fractions=True, clips=False)
"""Families that give a box for each object, as DETR and its successors."""
SELECTS = partial(Family, needs_nms=False)  # families whose graphs select detections themselves

RETINAFACE_GRID = GridSpec(
    _parts(classes=2, box=4, points=10),
    Offset.EXPONENTIAL,
    anchors=_squares((16, 32), (64, 128), (256, 512)),
    centre=(0.5, 0),
    variances=(0.1, 0.2),
    tensors=TensorsPerScale.APART,
)
RETINAFACE = Family(
    "RetinaFace",
    "biubug6/Pytorch_Retinaface, layers/functions/prior_box.py",
    replace(BLACK, resize=Resize.CORNER, scale=1.0, bgr=True, mean=(104.0, 117.0, 123.0)),
    multi_label=MultiLabel.ALWAYS,
    no_object=0,
    grid=RETINAFACE_GRID,
    names=FACE,
    nms=0.4,
)

FAMILIES = (
    Family(
        "YOLOX",
        "Megvii-BaseDetection/YOLOX, data_augment.preproc, demo_postprocess",
        YOLOX,
        lambda head: head.objectness and head.decodes(BoxDecode.EXPONENTIAL),
        clips=False,
        grid=GridSpec(
            _parts(box=4, objectness=1, classes=0),
            Offset.EXPONENTIAL,
            STRIDES,
            tensors=TensorsPerScale.JOINED,
        ),
        variant="the values of YOLOX 0.1.1 and later; for an older one pass --preprocess "
        "rgb,mean=123.675:116.28:103.53,std=58.395:57.12:57.375",
        earlier=replace(
            YOLOX, bgr=False, mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375)
        ),
    ),
    Family(
        "YOLOv5",
        "ultralytics/yolov5, utils/augmentations.letterbox; and v3, v6, v7, R",
        LETTERBOX,
        lambda head: head.objectness,
    ),
    SET(
        "DETR",
        "huggingface/transformers, DetrImageProcessor; and YOLOS, Table Transformer",
        replace(IMAGENET, resize=Resize.SHORTEST_EDGE, edges=(800, 1333)),
        lambda head: (
            _queries(head, BoxDecode.SIGMOID) and head.scores_are is not Activation.SIGMOID
        ),
        no_object=-1,
        multi_label=MultiLabel.NEVER,
    ),
    SET(
        "RF-DETR",
        "roboflow/rf-detr, RFDETR.predict; and LW-DETR",
        replace(IMAGENET, interpolation=Interpolation.LINEAR),
        lambda head: _queries(head, BoxDecode.EXPONENTIAL, BoxDecode.GRID),
    ),
    SET(
        "RT-DETR",
        "lyuwenyu/RT-DETR, rtdetrv2_onnxruntime.py; and v2",
        STRETCH,
        lambda head: _refined(head) and head.queries is Queries.MAPS and not head.patches,
    ),
    SET(
        "Conditional DETR",
        "huggingface/transformers, models/conditional_detr; and DAB-DETR, Deformable DETR, DINO",
        replace(IMAGENET, resize=Resize.SHORTEST_EDGE, edges=(800, 1333)),
        lambda head: _refined(head) and head.queries is not Queries.MAPS and not head.patches,
    ),
    SET(
        "DETR, refined boxes",
        "RT-DETR and its like on other backbones: no known values",
        fits=_refined,
    ),
    SET(
        "DEIMv2",
        "Intellindust-AI-Lab/DEIMv2, tools/inference/torch_inf.py; on DINOv3",
        IMAGENET,
        lambda head: _queries(head, BoxDecode.DISTANCES) and head.patches,
    ),
    SET(
        "D-FINE",
        "Peterande/D-FINE, its training and torch_inf.py; and DEIM",
        STRETCH,
        lambda head: _queries(head, BoxDecode.DISTANCES),
    ),
    Family(
        "SSD",
        "qfgaohao/pytorch-ssd, vision/ssd/ssd.py",
        fits=lambda head: _cells(head) and head.scores_are is Activation.SOFTMAX,
        multi_label=MultiLabel.ALWAYS,
        no_object=0,
        fractions=True,
    ),
    Family(
        "PP-YOLOE",
        "PaddlePaddle/PaddleDetection, configs/ppyoloe; without suppression",
        fits=lambda head: _cells(head) and head.scores_transposed,
        multi_label=MultiLabel.ALWAYS,
    ),
    Family(
        "DAMO-YOLO",
        "tinyvision/DAMO-YOLO, zero_head.py; and RTMDet, with other preprocessing",
        fits=lambda head: _cells(head) and head.from_corners,
        nms=0.7,
    ),
    Family(
        "YOLO-NAS",
        "Deci-AI/super-gradients, default_yolo_nas_coco_processing_params",
        LETTERBOX,
        # Distances from a point to corners, with a bin more than YOLOv8's.
        lambda head: (
            _cells(head)
            and head.decoded is not None
            and (head.decoded.method, head.decoded.box_format)
            == (BoxDecode.DISTANCES, BoxFormat.XYXY)
            and head.bins in {NAS_BINS, None}
            and not head.best_class_only
        ),
        nms=0.7,
        multi_label=MultiLabel.ALWAYS,
        margin=4,
    ),
    Family(
        "YOLO, boxes apart",
        "marcoslucianops/DeepStream-Yolo, utils/export_yoloV8.py; and for TensorRT's plug-ins",
        LETTERBOX,
        _cells,
    ),
    Family(
        "YOLO, scales apart",
        "airockchip/rknn_model_zoo, examples/yolov8; and other exporters' raw outputs",
        LETTERBOX,
        grid=GridSpec(_parts(box=64, classes=0), Offset.DISTANCES, STRIDES, centre=(0.5, 0)),
    ),
    Family(
        "YOLOv6, scales apart",
        "airockchip/rknn_model_zoo, examples/yolov6",
        LETTERBOX,
        grid=GridSpec(
            _parts(box=4, classes=0),
            Offset.DISTANCES,
            STRIDES,
            centre=(0.5, 0),
            tensors=TensorsPerScale.APART,
            scales_may_be_joined=False,
        ),
    ),
    Family(
        "NanoDet",
        "RangiLyu/nanodet, nanodet_head.py, before Plus",
        NANODET,
        multi_label=MultiLabel.ALWAYS,
        grid=GridSpec(_parts(classes=0, box=32), Offset.DISTANCES, centre=(0.5, -0.5)),
        nms=0.6,
    ),
    Family(
        "NanoDet-Plus",
        "RangiLyu/nanodet, nanodet_plus_head.py",
        replace(NANODET, resize=Resize.STRETCH, interpolation=Interpolation.LINEAR),
        multi_label=MultiLabel.ALWAYS,
        grid=GridSpec(
            _parts(classes=0, box=32),
            Offset.DISTANCES,
            ((8, 16, 32, 64),),
            tensors=TensorsPerScale.JOINED,
        ),
        nms=0.6,
    ),
    Family(
        "PicoDet",
        "PaddlePaddle/PaddleDetection, configs/picodet, deploy/third_engine",
        replace(IMAGENET, interpolation=Interpolation.CUBIC),
        multi_label=MultiLabel.ALWAYS,
        grid=GridSpec(
            _parts(classes=0, box=32),
            Offset.DISTANCES,
            ((8, 16, 32, 64),),
            centre=(0.5, 0),
            tensors=TensorsPerScale.APART,
        ),
        nms=0.6,
    ),
    Family(
        "YuNet",
        "ShiqiYu/libfacedetection.train, as OpenCV's FaceDetectorYN",
        Preprocessing(resize=Resize.NONE, scale=1.0, bgr=True, pad=0, multiple=32),
        grid=GridSpec(
            _parts(classes=0, objectness=1, box=4, points=10),
            Offset.EXPONENTIAL,
            powers=(0.5, 0.5),
            tensors=TensorsPerScale.APART,
        ),
        names=FACE,
        nms=0.3,
    ),
    Family(
        "FastestDet",
        "dog-qiuqiu/FastestDet, test.py",
        replace(STRETCH, interpolation=Interpolation.AREA, bgr=True),
        grid=GridSpec(
            _parts(objectness=1, box=4, classes=0),
            Offset.TANH,
            ((16,),),
            powers=(0.6, 0.4),
            softmax=True,
        ),
        multi_label=MultiLabel.NEVER,
        class_agnostic=True,
    ),
    Family(
        "Yolo-FastestV2",
        "dog-qiuqiu/Yolo-FastestV2, utils.handel_preds",
        replace(STRETCH, interpolation=Interpolation.LINEAR, bgr=True),
        grid=GridSpec(
            _parts(box=4, objectness=1, classes=0),
            Offset.SIGMOID,
            ((16, 32),),
            anchors=(
                ((12.64, 19.39), (37.88, 51.48), (55.71, 138.31)),
                ((126.91, 78.23), (131.57, 214.55), (279.92, 258.87)),
            ),
            softmax=True,
            classes_shared_by_anchors=True,
        ),
        multi_label=MultiLabel.NEVER,
        class_agnostic=True,
        nms=0.4,
    ),
    Family(
        "UltraFace",
        "Linzaer/Ultra-Light-Fast-Generic-Face-Detector-1MB, fd_config.py",
        replace(
            STRETCH,
            interpolation=Interpolation.LINEAR,
            scale=1.0,
            mean=(127.0, 127.0, 127.0),
            std=(128.0, 128.0, 128.0),
        ),
        multi_label=MultiLabel.ALWAYS,
        no_object=0,
        fractions=True,
        grid=GridSpec(
            _parts(classes=2, box=4),
            Offset.EXPONENTIAL,
            ((8, 16, 32, 64),),
            anchors=_squares((10, 16, 24), (32, 48), (64, 96), (128, 192, 256)),
            centre=(0.5, 0),
            variances=(0.1, 0.2),
            cells_divide_input_evenly=True,
            tensors=TensorsPerScale.APART,
            input_sizes=((240, 320), (480, 640)),
        ),
        names=FACE,
        nms=0.3,
    ),
    Family(
        "SCRFD",
        "deepinsight/insightface, detection/scrfd/tools/scrfd.py",
        replace(
            BLACK,
            resize=Resize.CORNER,
            scale=1.0,
            mean=(127.5, 127.5, 127.5),
            std=(128.0, 128.0, 128.0),
        ),
        grid=GridSpec(
            _parts(classes=1, box=4, points=10),
            Offset.DISTANCES,
            anchors=_squares((0, 0)) * 3,
            landmarks_optional=True,
            tensors=TensorsPerScale.APART,
        ),
        names=FACE,
        nms=0.4,
    ),
    Family(
        "RetinaFace, MXNet",
        "deepinsight/insightface, detection/retinaface, mnet.25",
        replace(BLACK, resize=Resize.CORNER, scale=1.0),
        grid=GridSpec(
            _parts(pair=2, box=4, points=10),
            Offset.EXPONENTIAL,
            anchors=_squares((32, 16), (128, 64), (512, 256)),
            centre=(0, 8),
            tensors=TensorsPerScale.APART,
        ),
        names=FACE,
        nms=0.5,
    ),
    RETINAFACE,
    replace(
        RETINAFACE,
        name="RetinaFace, plates",
        source="zeusees/License-Plate-Detector, layers/functions/prior_box.py: four corners",
        grid=replace(
            RETINAFACE_GRID,
            parts=_parts(classes=2, box=4, points=8),
            anchors=_squares((24, 48), (96, 192), (384, 768)),
        ),
        names=("plate",),
    ),
    Family(
        "CenterFace",
        "Star-Clouds/CenterFace, prj-python/centerface.py",
        Preprocessing(resize=Resize.ROUND, scale=1.0, multiple=32),
        grid=GridSpec(
            _parts(classes=1, size=2, centre=2, points=10),
            Offset.EXPONENTIAL,
            ((4,),),
            centre=(0.5, 0),
            tensors=TensorsPerScale.APART,
            takes_any_size=True,
            rows_first=True,
        ),
        names=FACE,
        nms=0.3,
    ),
    Family(
        "BlazeFace",
        "google-ai-edge/mediapipe, the anchors in its graphs; short range, back camera",
        replace(BLACK, scale=1.0, mean=(127.5, 127.5, 127.5), std=(127.5, 127.5, 127.5)),
        grid=GridSpec(
            _parts(box=4, points=12, classes=1),
            Offset.PIXELS,
            ((8, 16), (16, 32)),
            anchors=_squares((0, 0), (0, 0, 0, 0, 0, 0)),
            centre=(0.5, 0),
            input_sizes=((128, 128), (256, 256)),
        ),
        names=FACE,
        nms=0.3,
    ),
    SELECTS(
        "MMDetection",
        "open-mmlab/mmdeploy, multiclass_nms",
        fits=lambda head: head.layout is Layout.ROWS and len(head.tensors) == 2,
    ),
    SELECTS(
        "EfficientDet",
        "google/automl, generate_detections: picture, y1, x1, y2, x2, score, class",
        Preprocessing(resize=Resize.CORNER, scale=1.0),
        lambda head: _places(head) == (1, 5, 6),
        swapped=True,
        channels_last=True,
    ),
    SELECTS(
        "PaddleDetection",
        "PaddlePaddle/Paddle2ONNX, multiclass_nms3: class, score, box",
        fits=lambda head: _places(head) == (2, 1, 0),
    ),
    SELECTS(
        "TensorFlow",
        "tensorflow/models, research/object_detection/exporter.py",
        Preprocessing(resize=Resize.NONE, scale=1.0),
        lambda head: head.layout is Layout.ROWS and not _places(head),
        fractions=True,
        swapped=True,
        channels_last=True,
        clips=False,
    ),
    SELECTS(
        "torchvision",
        "pytorch/vision, torchvision/models/detection",
        replace(STRETCH, interpolation=Interpolation.LINEAR),
        lambda head: head.layout is Layout.ROWS,
        single=True,
    ),
    SELECTS(
        "YOLOv7, selected inside",
        "WongKinYiu/yolov7, its export for ONNX Runtime: picture, corners, class, score",
        LETTERBOX,
        lambda head: _rows_of_cells(head) and _places(head) == (1, 6, 5),
        shown=True,
        clips=False,
    ),
    SELECTS(
        "selected inside",
        "ultralytics/ultralytics, export(nms=True)",
        LETTERBOX,
        _rows_of_cells,
        shown=True,
    ),
    Family(
        "YOLO",
        "ultralytics/ultralytics, LetterBox, and what its predict suppresses: YOLOv8 and later",
        LETTERBOX,
        _joined,
        needs_nms=None,
        nms=0.7,
    ),
)


def family_of(head: Head, image: ImageInput) -> Family:
    """The family of a graph."""
    for family in FAMILIES:
        takes = (family.channels_last, family.single)
        wanted = (image.channels_last, image.single)
        if family.is_of(head) and all(a in {None, b} for a, b in zip(takes, wanted, strict=True)):
            return family
    raise Unrecognised("no family is known that decodes boxes and scores like that")
