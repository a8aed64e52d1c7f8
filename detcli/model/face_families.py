"""The families of face detectors, and of plates that are found like faces.

Most of their files leave the boxes undecoded, and output landmarks beside them, which are left out.
"""

from dataclasses import replace

from detcli.model.contract import Interpolation, MultiLabel, Preprocessing, Resize, Suppression
from detcli.model.family import Family
from detcli.model.family_heads import selects_as_ultraface
from detcli.model.family_values import (
    BLACK_PADDING,
    LETTERBOX,
    STRETCH,
    dense_centres,
    part_widths,
    square_anchors,
)
from detcli.model.heads import BoxDecode, GridSpec, Offset, TensorsPerScale

FACE_NAMES = ("face",)

RETINAFACE_GRID = GridSpec(
    part_widths(classes=2, box=4, points=10),
    Offset.EXPONENTIAL,
    anchors=square_anchors((16, 32), (64, 128), (256, 512)),
    centre=(0.5, 0),
    variances=(0.1, 0.2),
    tensors=TensorsPerScale.APART,
)
RETINAFACE = Family(
    "RetinaFace",
    "biubug6/Pytorch_Retinaface, layers/functions/prior_box.py",
    replace(
        BLACK_PADDING, resize=Resize.CORNER_NEAREST, scale=1.0, bgr=True, mean=(104.0, 117.0, 123.0)
    ),
    multi_label=MultiLabel.ALWAYS,
    no_object=0,
    grid=RETINAFACE_GRID,
    names=FACE_NAMES,
    nms=0.4,
)

# At strides of 32 pixels the small anchors are repeated, 4 x 4 and 2 x 2 in a cell.
FACEBOXES_SIDES = (32,) * 16 + (64,) * 4 + (128,)
FACEBOXES_GRID = GridSpec(
    part_widths(box=4, classes=2),
    Offset.EXPONENTIAL,
    ((32, 64, 128),),
    anchors=square_anchors(FACEBOXES_SIDES, (256,), (512,)),
    anchor_centres=(dense_centres(4, 2, 1), dense_centres(1), dense_centres(1)),
    variances=(0.1, 0.2),
    tensors=TensorsPerScale.APART,
)
FACEBOXES = Family(
    "FaceBoxes",
    "zisianw/FaceBoxes.PyTorch, layers/functions/prior_box.py, test.py",
    Preprocessing(resize=Resize.NONE, scale=1.0, bgr=True, mean=(104.0, 117.0, 123.0)),
    multi_label=MultiLabel.ALWAYS,
    no_object=0,
    grid=FACEBOXES_GRID,
    names=FACE_NAMES,
    nms=0.3,
)

ULTRAFACE_ANCHORS = square_anchors((10, 16, 24), (32, 48), (64, 96), (128, 192, 256))
ULTRAFACE_GRID = GridSpec(
    part_widths(classes=2, box=4),
    Offset.EXPONENTIAL,
    ((8, 16, 32, 64),),
    anchors=ULTRAFACE_ANCHORS,
    centre=(0.5, 0),
    variances=(0.1, 0.2),
    cells_divide_input_evenly=True,
    tensors=TensorsPerScale.APART,
    input_sizes=((240, 320), (480, 640)),
)
ULTRAFACE = Family(
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
    grid=ULTRAFACE_GRID,
    names=FACE_NAMES,
    nms=0.3,
)

YOLOV5_FACE_GRID = GridSpec(
    part_widths(box=4, objectness=1, points=10, classes=1),
    Offset.SIGMOID,
    anchors=(
        ((4, 5), (8, 10), (13, 16)),
        ((23, 29), (43, 55), (73, 105)),
        ((146, 217), (231, 300), (335, 433)),
    ),
    is_of_one_layer=True,
    tensors=TensorsPerScale.JOINED,
)
YOLOV5_FACE = Family(
    "YOLOv5-face",
    "deepcam-cn/yolov5-face, models/yolo.py, models/yolov5s.yaml, detect_face.py",
    LETTERBOX,
    grid=YOLOV5_FACE_GRID,
    names=FACE_NAMES,
    nms=0.5,
)

BLAZEFACE_GRID = GridSpec(
    part_widths(box=4, points=12, classes=1),
    Offset.PIXELS,
    ((8, 16), (16, 32)),
    anchors=square_anchors((0, 0), (0, 0, 0, 0, 0, 0)),
    centre=(0.5, 0),
    input_sizes=((128, 128), (256, 256)),
)
BLAZEFACE = Family(
    "BlazeFace",
    "google-ai-edge/mediapipe, the anchors in its graphs; short range, back camera",
    replace(
        BLACK_PADDING,
        resize=Resize.PAD_FIRST,
        interpolation=Interpolation.BILINEAR,
        scale=1.0,
        mean=(127.5, 127.5, 127.5),
        std=(127.5, 127.5, 127.5),
    ),
    grid=BLAZEFACE_GRID,
    names=FACE_NAMES,
    nms=0.3,
    suppression=Suppression.BLEND,
)

FACE_FAMILIES = (
    Family(
        "YuNet",
        "ShiqiYu/libfacedetection.train, as OpenCV's FaceDetectorYN",
        Preprocessing(resize=Resize.NONE, scale=1.0, bgr=True, pad=0, multiple=32),
        grid=GridSpec(
            part_widths(classes=0, objectness=1, box=4, points=10),
            Offset.EXPONENTIAL,
            powers=(0.5, 0.5),
            tensors=TensorsPerScale.APART,
        ),
        names=FACE_NAMES,
        nms=0.3,
    ),
    Family(
        "YuNet of 2021",
        "ShiqiYu/libfacedetection.train, before 2023; FaceDetectorYN of OpenCV until 4.7",
        Preprocessing(resize=Resize.NONE, scale=1.0, bgr=True, pad=0, multiple=32),
        multi_label=MultiLabel.ALWAYS,
        no_object=0,
        grid=GridSpec(
            part_widths(box=4, points=10, classes=2, objectness=1),
            Offset.EXPONENTIAL,
            ((8, 16, 32, 64),),
            anchors=ULTRAFACE_ANCHORS,
            centre=(0.5, 0),
            cells_rounded_down=True,
            variances=(0.1, 0.2),
            powers=(0.5, 0.5),
            softmax=True,
            objectness_is_iou=True,
            tensors=TensorsPerScale.JOINED,
        ),
        names=FACE_NAMES,
        nms=0.3,
    ),
    ULTRAFACE,
    replace(
        ULTRAFACE,
        name="UltraFace, selected inside",
        source="PINTO0309/PINTO_model_zoo, RFB-320 with selection: image, class, score, corners",
        matches=selects_as_ultraface,
        grid=None,
        no_object=None,
        multi_label=MultiLabel.WITHOUT_NMS,
        must_show_corners=True,
        needs_nms=False,
    ),
    Family(
        "SCRFD",
        "deepinsight/insightface, detection/scrfd/tools/scrfd.py",
        replace(
            BLACK_PADDING,
            resize=Resize.CORNER,
            scale=1.0,
            mean=(127.5, 127.5, 127.5),
            std=(128.0, 128.0, 128.0),
        ),
        grid=GridSpec(
            part_widths(classes=1, box=4, points=10),
            Offset.DISTANCES,
            anchors=square_anchors((0, 0)) * 3,
            landmarks_optional=True,
            tensors=TensorsPerScale.APART,
        ),
        names=FACE_NAMES,
        nms=0.4,
    ),
    Family(
        "RetinaFace, MXNet",
        "deepinsight/insightface, detection/retinaface, mnet.25",
        replace(BLACK_PADDING, resize=Resize.CORNER, scale=1.0),
        grid=GridSpec(
            part_widths(pair=2, box=4, points=10),
            Offset.EXPONENTIAL,
            anchors=square_anchors((32, 16), (128, 64), (512, 256)),
            centre=(0, 8),
            tensors=TensorsPerScale.APART,
        ),
        names=FACE_NAMES,
        nms=0.5,
    ),
    RETINAFACE,
    replace(
        RETINAFACE,
        name="RetinaFace, plates",
        source="zeusees/License-Plate-Detector, layers/functions/prior_box.py: four corners",
        grid=replace(
            RETINAFACE_GRID,
            parts=part_widths(classes=2, box=4, points=8),
            anchors=square_anchors((24, 48), (96, 192), (384, 768)),
        ),
        names=("plate",),
    ),
    YOLOV5_FACE,
    replace(
        YOLOV5_FACE,
        name="YOLOv5-face, P6",
        source="deepcam-cn/yolov5-face, models/yolo.py, models/yolov5s6.yaml",
        grid=replace(
            YOLOV5_FACE_GRID,
            strides=((8, 16, 32, 64),),
            anchors=(
                ((6, 7), (9, 11), (13, 16)),
                ((18, 23), (26, 33), (37, 47)),
                ((54, 67), (77, 104), (112, 154)),
                ((174, 238), (258, 355), (445, 568)),
            ),
        ),
    ),
    replace(
        YOLOV5_FACE,
        name="YOLOv5-face, decoded",
        source="deepcam-cn/yolov5-face, models/yolo.py with export_cat, models/export.py",
        grid=None,
        matches=lambda head: bool(head.landmark_channels) and head.decodes(BoxDecode.GRID),
    ),
    replace(
        RETINAFACE,
        name="Face-Detector-1MB",
        source="biubug6/Face-Detector-1MB-with-landmark, detect.py, layers/functions/prior_box.py",
        grid=replace(RETINAFACE_GRID, strides=((8, 16, 32, 64),), anchors=ULTRAFACE_ANCHORS),
    ),
    Family(
        "CenterFace",
        "Star-Clouds/CenterFace, prj-python/centerface.py",
        Preprocessing(resize=Resize.ROUND, scale=1.0, multiple=32),
        grid=GridSpec(
            part_widths(classes=1, size=2, centre=2, points=10),
            Offset.EXPONENTIAL,
            ((4,),),
            centre=(0.5, 0),
            tensors=TensorsPerScale.APART,
            takes_any_size=True,
            rows_first=True,
        ),
        names=FACE_NAMES,
        nms=0.3,
    ),
    FACEBOXES,
    replace(
        FACEBOXES,
        name="SeetaFace6",
        source="zjd1988/seetaface6_onnx_model, common/face_detector_util.py, its test",
        preprocessing=Preprocessing(resize=Resize.NONE, scale=1.0, mean=(123.0, 117.0, 104.0)),
        grid=replace(FACEBOXES_GRID, gives_map_sizes=True),
        assumed_values="RGB, as SeetaFace6 has it; for a FaceBoxes that gives the sizes of its "
        "feature maps, too, pass --preprocess bgr,mean=104:117:123",
    ),
    BLAZEFACE,
    replace(
        BLAZEFACE,
        name="BlazeFace, full range",
        source="google-ai-edge/mediapipe, the anchors in its graphs; full range, dense and sparse",
        grid=replace(
            BLAZEFACE_GRID,
            strides=((4,),),
            anchors=square_anchors((0,)),
            input_sizes=((192, 192),),
        ),
    ),
)
