"""The families of detectors: how to recognise each, and what its files do not say.

The structure of a graph shows where boxes and scores are (`detcli.model.heads`). What a family adds
is how its networks were trained to see pictures, and what their scores mean. To add a family, add
it to FAMILIES, in front of those that would take its files too, and its files to the tests.
"""

from collections.abc import Callable
from dataclasses import replace

from detcli.config.values import BoxFormat
from detcli.model.contract import (
    Interpolation,
    Layout,
    MultiLabel,
    Preprocessing,
    Resize,
)
from detcli.model.family import Family
from detcli.model.graph import CONVOLUTIONS
from detcli.model.heads import (
    Activation,
    Anchors,
    BoxDecode,
    GridSpec,
    Head,
    HeadPart,
    Offset,
    PartWidths,
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
NANODET = Preprocessing(  # mean and std are in this order, too
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
0.3 in the networks of YOLOX 0.1.0, and 0.005 to 0.008 in those for values up to 255."""
STRIDES = ((8, 16, 32), (8, 16, 32, 64), (16, 32))
FACE = ("face",)


def _is_grid_pair(head: Head) -> bool:
    """True if boxes and scores are two tensors, and the boxes those of a grid's cells."""
    if head.layout is not Layout.PAIR or head.of_queries:
        return False
    return head.decodes(BoxDecode.DISTANCES, BoxDecode.EXPONENTIAL, BoxDecode.GRID)


def _selects_cells(head: Head) -> bool:
    """True if a graph selects among cells: the preprocessing of queries is another family's."""
    return head.layout is Layout.ROWS and head.layer in CONVOLUTIONS


def _is_of_queries(head: Head, *methods: BoxDecode) -> bool:
    """True if boxes and scores are those of queries, as of DETR and its successors."""
    return head.layout is not Layout.ROWS and head.of_queries and head.decodes(*methods)


def _is_refined(head: Head) -> bool:
    """True if the boxes of queries are refined, and their scores are sigmoids'."""
    is_softmax = head.scores_are is Activation.SOFTMAX
    return _is_of_queries(head, BoxDecode.REFINED) and not is_softmax


def _is_detr(head: Head) -> bool:
    return _is_of_queries(head, BoxDecode.SIGMOID) and head.scores_are is not Activation.SIGMOID


def _is_yolo_nas(head: Head) -> bool:
    """True if boxes are distances from a point to corners, with a bin more than YOLOv8's."""
    if not _is_grid_pair(head) or head.best_class_only or head.decoded is None:
        return False
    if head.decoded.method is not BoxDecode.DISTANCES:
        return False
    return head.decoded.box_format is BoxFormat.XYXY and head.bins in {NAS_BINS, None}


def _is_one_tensor(head: Head) -> bool:
    """True if boxes and scores are one tensor, and the boxes are those of cells or not known."""
    if head.layout not in {Layout.BODY, Layout.TRANSPOSED_BODY, Layout.END_TO_END}:
        return False
    return not head.decodes(BoxDecode.SIGMOID, BoxDecode.REFINED)


def _first_columns(head: Head) -> tuple[int, ...]:
    """The first columns of boxes, scores and class ids of detections in one tensor; else empty."""
    if head.layout is not Layout.ROWS or len(head.tensors) != 1:
        return ()
    columns = [head.boxes[0].start, head.scores[0].start]
    if head.labels is not None:
        columns.append(head.labels.start)
    return tuple(columns)


def _parts(**widths: int) -> PartWidths:
    """The parts of a grid head in their order, with the width of each."""
    return tuple((HeadPart(part), width) for part, width in widths.items())


def _squares(*scales: tuple[float, ...]) -> tuple[Anchors, ...]:
    """Square anchors of each scale."""
    anchors = []
    for lengths in scales:
        anchors.append(tuple((length, length) for length in lengths))
    return tuple(anchors)


def _gives_set(
    name: str,
    source: str,
    preprocessing: Preprocessing | None = None,
    *,
    matches: Callable[[Head], bool],
    no_object: int | None = None,
    multi_label: MultiLabel = MultiLabel.WITHOUT_NMS,
) -> Family:
    """A family that gives a box for each object, as DETR and its successors."""
    return Family(
        name,
        source,
        preprocessing,
        matches,
        needs_nms=False,
        fractions=True,
        clips=False,
        no_object=no_object,
        multi_label=multi_label,
    )


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

# The order counts: a graph is of the first family that matches. SSD, PP-YOLOE, DAMO-YOLO and
# YOLO-NAS are in front of "YOLO, boxes apart", which would take their files; tests read a head of
# each family as that family.
FAMILIES = (
    Family(
        "YOLOX",
        "Megvii-BaseDetection/YOLOX, data_augment.preproc, demo_postprocess",
        YOLOX,
        matches=lambda head: head.objectness and head.decodes(BoxDecode.EXPONENTIAL),
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
        matches=lambda head: head.objectness,
    ),
    _gives_set(
        "DETR",
        "huggingface/transformers, DetrImageProcessor; and YOLOS, Table Transformer",
        replace(IMAGENET, resize=Resize.SHORTEST_EDGE, edges=(800, 1333)),
        matches=_is_detr,
        no_object=-1,
        multi_label=MultiLabel.NEVER,
    ),
    _gives_set(
        "RF-DETR",
        "roboflow/rf-detr, RFDETR.predict; and LW-DETR",
        replace(IMAGENET, interpolation=Interpolation.LINEAR),
        matches=lambda head: _is_of_queries(head, BoxDecode.EXPONENTIAL, BoxDecode.GRID),
    ),
    _gives_set(
        "RT-DETR",
        "lyuwenyu/RT-DETR, rtdetrv2_onnxruntime.py; and v2",
        STRETCH,
        matches=lambda head: (
            _is_refined(head) and head.queries is Queries.MAPS and not head.patches
        ),
    ),
    _gives_set(
        "Conditional DETR",
        "huggingface/transformers, models/conditional_detr; and DAB-DETR, Deformable DETR, DINO",
        replace(IMAGENET, resize=Resize.SHORTEST_EDGE, edges=(800, 1333)),
        matches=lambda head: (
            _is_refined(head) and head.queries is not Queries.MAPS and not head.patches
        ),
    ),
    _gives_set(
        "DETR, refined boxes",
        "RT-DETR and its like on other backbones: no known values",
        matches=_is_refined,
    ),
    _gives_set(
        "DEIMv2",
        "Intellindust-AI-Lab/DEIMv2, tools/inference/torch_inf.py; on DINOv3",
        IMAGENET,
        matches=lambda head: _is_of_queries(head, BoxDecode.DISTANCES) and head.patches,
    ),
    _gives_set(
        "D-FINE",
        "Peterande/D-FINE, its training and torch_inf.py; and DEIM",
        STRETCH,
        matches=lambda head: _is_of_queries(head, BoxDecode.DISTANCES),
    ),
    Family(
        "SSD",
        "qfgaohao/pytorch-ssd, vision/ssd/ssd.py",
        matches=lambda head: _is_grid_pair(head) and head.scores_are is Activation.SOFTMAX,
        multi_label=MultiLabel.ALWAYS,
        no_object=0,
        fractions=True,
    ),
    Family(
        "PP-YOLOE",
        "PaddlePaddle/PaddleDetection, configs/ppyoloe; without suppression",
        matches=lambda head: _is_grid_pair(head) and head.scores_transposed,
        multi_label=MultiLabel.ALWAYS,
    ),
    Family(
        "DAMO-YOLO",
        "tinyvision/DAMO-YOLO, zero_head.py; and RTMDet, with other preprocessing",
        matches=lambda head: _is_grid_pair(head) and head.from_corners,
        nms=0.7,
    ),
    Family(
        "YOLO-NAS",
        "Deci-AI/super-gradients, default_yolo_nas_coco_processing_params",
        LETTERBOX,
        matches=_is_yolo_nas,
        nms=0.7,
        multi_label=MultiLabel.ALWAYS,
        margin=4,
    ),
    Family(
        "YOLO, boxes apart",
        "marcoslucianops/DeepStream-Yolo, utils/export_yoloV8.py; and for TensorRT's plug-ins",
        LETTERBOX,
        matches=_is_grid_pair,
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
    Family(
        "MMDetection",
        "open-mmlab/mmdeploy, multiclass_nms",
        matches=lambda head: head.layout is Layout.ROWS and len(head.tensors) == 2,
        needs_nms=False,
    ),
    Family(
        "EfficientDet",
        "google/automl, generate_detections: picture, y1, x1, y2, x2, score, class",
        Preprocessing(resize=Resize.CORNER, scale=1.0),
        matches=lambda head: _first_columns(head) == (1, 5, 6),
        swapped=True,
        channels_last=True,
        needs_nms=False,
    ),
    Family(
        "PaddleDetection",
        "PaddlePaddle/Paddle2ONNX, multiclass_nms3: class, score, box",
        matches=lambda head: _first_columns(head) == (2, 1, 0),
        needs_nms=False,
    ),
    Family(
        "TensorFlow",
        "tensorflow/models, research/object_detection/exporter.py",
        Preprocessing(resize=Resize.NONE, scale=1.0),
        matches=lambda head: head.layout is Layout.ROWS and not _first_columns(head),
        fractions=True,
        swapped=True,
        channels_last=True,
        clips=False,
        needs_nms=False,
    ),
    Family(
        "torchvision",
        "pytorch/vision, torchvision/models/detection",
        replace(STRETCH, interpolation=Interpolation.LINEAR),
        matches=lambda head: head.layout is Layout.ROWS,
        single=True,
        needs_nms=False,
    ),
    Family(
        "YOLOv7, selected inside",
        "WongKinYiu/yolov7, its export for ONNX Runtime: picture, corners, class, score",
        LETTERBOX,
        matches=lambda head: _selects_cells(head) and _first_columns(head) == (1, 6, 5),
        shown=True,
        clips=False,
        needs_nms=False,
    ),
    Family(
        "selected inside",
        "ultralytics/ultralytics, export(nms=True)",
        LETTERBOX,
        matches=_selects_cells,
        shown=True,
        needs_nms=False,
    ),
    Family(
        "YOLO",
        "ultralytics/ultralytics, LetterBox, and what its predict suppresses: YOLOv8 and later",
        LETTERBOX,
        matches=_is_one_tensor,
        needs_nms=None,
        nms=0.7,
    ),
)


def family_of(head: Head, image: ImageInput) -> Family:
    """The first family that a head and an input are of."""
    for family in FAMILIES:
        if family.is_of(head) and family.takes(image):
            return family
    raise Unrecognised("no family is known that decodes boxes and scores like that")
