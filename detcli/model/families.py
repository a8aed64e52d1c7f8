"""The families of detectors: how to recognise each, and what its files do not say.

The structure of a graph shows where boxes and scores are (`detcli.model.heads`). What a family adds
is how its networks were trained to see images, and what their scores mean. To add a family, add
it to FAMILIES, before those that would match its files too, and its files to the tests.
"""

from collections.abc import Callable
from dataclasses import replace

from detcli.model.contract import (
    Interpolation,
    Layout,
    MultiLabel,
    Preprocessing,
    Resize,
)
from detcli.model.face_families import FACE_FAMILIES
from detcli.model.family import Family
from detcli.model.family_heads import (
    columns_of_detections,
    has_class_ids_apart,
    has_grid_boxes_apart,
    has_query_boxes,
    has_refined_query_boxes,
    is_detr,
    is_in_one_tensor,
    is_yolo_nas,
    selects_among_cells,
    selects_as_yolox,
)
from detcli.model.family_values import LETTERBOX, STRETCH, STRETCH_BY_IMAGENET, part_widths
from detcli.model.heads import (
    Activation,
    BoxDecode,
    GridSpec,
    Head,
    Offset,
    Queries,
    TensorsPerScale,
    Unrecognised,
)
from detcli.model.inputs import ImageInput

NANODET_PREPROCESSING = Preprocessing(
    interpolation=Interpolation.AREA,
    scale=1.0,
    mean=(103.53, 116.28, 123.675),  # of blue, green and red
    std=(57.375, 57.12, 58.395),
    bgr=True,
    pad=0,
)
YOLOX_PREPROCESSING = Preprocessing(resize=Resize.CORNER, scale=1.0, bgr=True)

MIN_WEIGHT_FOR_SMALL_VALUES = 0.05
"""The mean absolute weight of a network's first convolution above which it takes small values.

The smaller the values of pixels, the larger the weights become in training. They are 0.3 in the
networks of YOLOX 0.1.0, for values from about -2 to 3, and 0.005 to 0.008 in later ones, for values
up to 255.
"""

# The strides of a grid head's scales: these three are common.
USUAL_STRIDES = ((8, 16, 32), (8, 16, 32, 64), (16, 32))


def _family_without_suppression(
    name: str,
    source: str,
    preprocessing: Preprocessing | None = None,
    *,
    matches: Callable[[Head], bool],
    no_object: int | None = None,
    multi_label: MultiLabel = MultiLabel.WITHOUT_NMS,
) -> Family:
    """Return a family that outputs one box for each object, as DETR and its successors do.

    Nothing has to be suppressed, boxes are fractions of the image, and may reach beyond it.

    Args:
        name: The family's name.
        source: Where the facts about it come from.
        preprocessing: What its networks were trained with; None where that differs.
        matches: Returns whether a head belongs to this family.
        no_object: The index of the score that says that there is no object, if there is one.
        multi_label: Whether a query may give a detection for each of several classes.
    """
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


YOLOX = Family(
    "YOLOX",
    "Megvii-BaseDetection/YOLOX, data_augment.preproc, demo_postprocess",
    YOLOX_PREPROCESSING,
    matches=lambda head: (
        head.objectness and not head.landmark_channels and head.decodes(BoxDecode.EXPONENTIAL)
    ),
    clips=False,
    grid=GridSpec(
        part_widths(box=4, objectness=1, classes=0),
        Offset.EXPONENTIAL,
        USUAL_STRIDES,
        tensors=TensorsPerScale.JOINED,
    ),
    assumed_values="the values of YOLOX 0.1.1 and later; for an older one pass --preprocess "
    "rgb,mean=123.675:116.28:103.53,std=58.395:57.12:57.375",
    earlier_preprocessing=replace(
        YOLOX_PREPROCESSING,
        bgr=False,
        mean=(123.675, 116.28, 103.53),
        std=(58.395, 57.12, 57.375),
    ),
)

# The order matters: a graph belongs to the first family that matches. SSD, PP-YOLOE, DAMO-YOLO and
# YOLO-NAS come before "YOLO, boxes apart", which would match their files; tests read a head of each
# family as that family.
HEAD_FAMILIES = (
    YOLOX,
    Family(
        "YOLOv5",
        "ultralytics/yolov5, utils/augmentations.letterbox; and v3, v6, v7, R",
        LETTERBOX,
        matches=lambda head: head.objectness and not head.landmark_channels,
    ),
    _family_without_suppression(
        "DETR",
        "huggingface/transformers, DetrImageProcessor; and YOLOS, Table Transformer",
        replace(STRETCH_BY_IMAGENET, resize=Resize.SHORTEST_EDGE, edges=(800, 1333)),
        matches=is_detr,
        no_object=-1,
        multi_label=MultiLabel.NEVER,
    ),
    _family_without_suppression(
        "RF-DETR",
        "roboflow/rf-detr, RFDETR.predict; and LW-DETR",
        replace(STRETCH_BY_IMAGENET, interpolation=Interpolation.LINEAR),
        matches=lambda head: has_query_boxes(head, BoxDecode.EXPONENTIAL, BoxDecode.GRID),
    ),
    _family_without_suppression(
        "RT-DETR",
        "lyuwenyu/RT-DETR, rtdetrv2_onnxruntime.py; and v2",
        STRETCH,
        matches=lambda head: (
            has_refined_query_boxes(head) and head.queries is Queries.MAPS and not head.patches
        ),
    ),
    _family_without_suppression(
        "Conditional DETR",
        "huggingface/transformers, models/conditional_detr; and DAB-DETR, Deformable DETR, DINO",
        replace(STRETCH_BY_IMAGENET, resize=Resize.SHORTEST_EDGE, edges=(800, 1333)),
        matches=lambda head: (
            has_refined_query_boxes(head) and head.queries is not Queries.MAPS and not head.patches
        ),
    ),
    _family_without_suppression(
        "DETR, refined boxes",
        "RT-DETR and its like on other backbones: no known values",
        matches=has_refined_query_boxes,
    ),
    _family_without_suppression(
        "DEIMv2",
        "Intellindust-AI-Lab/DEIMv2, tools/inference/torch_inf.py; on DINOv3",
        STRETCH_BY_IMAGENET,
        matches=lambda head: has_query_boxes(head, BoxDecode.DISTANCES) and head.patches,
    ),
    _family_without_suppression(
        "D-FINE",
        "Peterande/D-FINE, its training and torch_inf.py; and DEIM",
        STRETCH,
        matches=lambda head: has_query_boxes(head, BoxDecode.DISTANCES),
    ),
    Family(
        "SSD",
        "qfgaohao/pytorch-ssd, vision/ssd/ssd.py",
        matches=lambda head: has_grid_boxes_apart(head) and head.scores_are is Activation.SOFTMAX,
        multi_label=MultiLabel.ALWAYS,
        no_object=0,
        fractions=True,
    ),
    Family(
        "PP-YOLOE",
        "PaddlePaddle/PaddleDetection, configs/ppyoloe; without suppression",
        matches=lambda head: has_grid_boxes_apart(head) and head.scores_transposed,
        multi_label=MultiLabel.ALWAYS,
    ),
    Family(
        "DAMO-YOLO",
        "tinyvision/DAMO-YOLO, zero_head.py; and RTMDet, with other preprocessing",
        matches=lambda head: has_grid_boxes_apart(head) and head.from_corners,
        nms=0.7,
    ),
    Family(
        "YOLO-NAS",
        "Deci-AI/super-gradients, default_yolo_nas_coco_processing_params",
        LETTERBOX,
        matches=is_yolo_nas,
        nms=0.7,
        multi_label=MultiLabel.ALWAYS,
        margin=4,
    ),
    Family(
        "YOLO, boxes apart",
        "marcoslucianops/DeepStream-Yolo, utils/export_yoloV8.py; and for TensorRT's plug-ins",
        LETTERBOX,
        matches=has_grid_boxes_apart,
    ),
    Family(
        "YOLO, scales apart",
        "airockchip/rknn_model_zoo, examples/yolov8; and other exporters' raw outputs",
        LETTERBOX,
        grid=GridSpec(
            part_widths(box=64, classes=0), Offset.DISTANCES, USUAL_STRIDES, centre=(0.5, 0)
        ),
    ),
    Family(
        "YOLOv6, scales apart",
        "airockchip/rknn_model_zoo, examples/yolov6",
        LETTERBOX,
        grid=GridSpec(
            part_widths(box=4, classes=0),
            Offset.DISTANCES,
            USUAL_STRIDES,
            centre=(0.5, 0),
            tensors=TensorsPerScale.APART,
            scales_may_be_joined=False,
        ),
    ),
    Family(
        "NanoDet",
        "RangiLyu/nanodet, nanodet_head.py, before Plus",
        NANODET_PREPROCESSING,
        multi_label=MultiLabel.ALWAYS,
        grid=GridSpec(part_widths(classes=0, box=32), Offset.DISTANCES, centre=(0.5, -0.5)),
        nms=0.6,
    ),
    Family(
        "NanoDet-Plus",
        "RangiLyu/nanodet, nanodet_plus_head.py",
        replace(NANODET_PREPROCESSING, resize=Resize.STRETCH, interpolation=Interpolation.LINEAR),
        multi_label=MultiLabel.ALWAYS,
        grid=GridSpec(
            part_widths(classes=0, box=32),
            Offset.DISTANCES,
            ((8, 16, 32, 64),),
            tensors=TensorsPerScale.JOINED,
        ),
        nms=0.6,
    ),
    Family(
        "PicoDet",
        "PaddlePaddle/PaddleDetection, configs/picodet, deploy/third_engine",
        replace(STRETCH_BY_IMAGENET, interpolation=Interpolation.CUBIC),
        multi_label=MultiLabel.ALWAYS,
        grid=GridSpec(
            part_widths(classes=0, box=32),
            Offset.DISTANCES,
            ((8, 16, 32, 64),),
            centre=(0.5, 0),
            tensors=TensorsPerScale.APART,
        ),
        nms=0.6,
    ),
    Family(
        "FastestDet",
        "dog-qiuqiu/FastestDet, test.py",
        replace(STRETCH, interpolation=Interpolation.AREA, bgr=True),
        grid=GridSpec(
            part_widths(objectness=1, box=4, classes=0),
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
            part_widths(box=4, objectness=1, classes=0),
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
)

# Those whose graphs select detections and end in rows of these.
ROW_FAMILIES = (
    Family(
        "MMDetection",
        "open-mmlab/mmdeploy, multiclass_nms",
        matches=has_class_ids_apart,
        needs_nms=False,
    ),
    Family(
        "EfficientDet",
        "google/automl, generate_detections: image, y1, x1, y2, x2, score, class",
        Preprocessing(resize=Resize.CORNER, scale=1.0),
        matches=lambda head: columns_of_detections(head) == (1, 5, 6),
        y_first=True,
        channels_last=True,
        needs_nms=False,
    ),
    Family(
        "PaddleDetection",
        "PaddlePaddle/Paddle2ONNX, multiclass_nms3: class, score, box",
        matches=lambda head: columns_of_detections(head) == (2, 1, 0),
        needs_nms=False,
    ),
    Family(
        "TensorFlow",
        "tensorflow/models, research/object_detection/exporter.py",
        Preprocessing(resize=Resize.NONE, scale=1.0),
        matches=lambda head: head.layout is Layout.ROWS and not columns_of_detections(head),
        fractions=True,
        y_first=True,
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
    replace(
        YOLOX,
        name="YOLOX, selected inside",
        source="PINTO0309/PINTO_model_zoo, 132_YOLOX: image, class, score, corners",
        matches=selects_as_yolox,
        grid=None,
        must_show_corners=True,
        clips=True,
        needs_nms=False,
    ),
    Family(
        "YOLOv7, selected inside",
        "WongKinYiu/yolov7, its export for ONNX Runtime: image, corners, class, score",
        LETTERBOX,
        matches=lambda head: selects_among_cells(head) and columns_of_detections(head) == (1, 6, 5),
        must_show_corners=True,
        clips=False,
        needs_nms=False,
    ),
    Family(
        "selected inside",
        "ultralytics/ultralytics, export(nms=True)",
        LETTERBOX,
        matches=selects_among_cells,
        must_show_corners=True,
        needs_nms=False,
    ),
)

YOLO = Family(
    "YOLO",
    "ultralytics/ultralytics, LetterBox, and what its predict suppresses: YOLOv8 and later",
    LETTERBOX,
    matches=is_in_one_tensor,
    needs_nms=None,
    nms=0.7,
)

FAMILIES = HEAD_FAMILIES + FACE_FAMILIES + ROW_FAMILIES + (YOLO,)


def family_of(head: Head, image: ImageInput) -> Family:
    """Find the family of a detector by its head and its input.

    Args:
        head: Where boxes and scores are in the graph, and how they are made.
        image: The graph's input for images.

    Returns:
        The first family in FAMILIES that has such heads and takes such images.

    Raises:
        Unrecognised: There is none.
    """
    for family in FAMILIES:
        if family.has_head(head) and family.takes_input(image):
            return family
    raise Unrecognised("no family is known that decodes boxes and scores like that")
