"""SAHI's side of tiles.py, in an environment of its own: `pip install sahi onnxruntime`.

Reads names of images from standard input, and writes for each a line of JSON: the seconds that
SAHI took, and its rows (class, box, score). The network runs on ONNX Runtime with its defaults, on
all cores; images are letterboxed as its authors do. Everything else is SAHI's default.
"""

import json
import sys
import time

import cv2
import numpy as np
import onnxruntime
from sahi.models.base import DetectionModel
from sahi.predict import get_sliced_prediction
from sahi.prediction import ObjectPrediction
from sahi.utils.compatibility import fix_full_shape_list, fix_shift_amount_list


class OnnxModel(DetectionModel):
    """A graph that takes `[1, 3, S, S]` and ends in `[1, K, 6]`: x1, y1, x2, y2, score, class."""

    def __init__(self, path, names, **options):
        """Keep the names; SAHI calls `load_model`."""
        self.names = names
        options["category_mapping"] = {str(index): name for index, name in enumerate(names)}
        super().__init__(model_path=path, device="cpu", **options)

    def check_dependencies(self, *_):
        """Everything is imported above."""

    def set_device(self, device=None):
        """There is no PyTorch here to ask."""
        self.device = device or "cpu"

    def load_model(self):
        """Open the session."""
        self.model = onnxruntime.InferenceSession(
            self.model_path, providers=["CPUExecutionProvider"]
        )
        (self.input,) = self.model.get_inputs()

    def perform_inference(self, image):
        """Detect on one RGB image."""
        side = self.input.shape[2]
        height, width = image.shape[:2]
        gain = min(side / height, side / width)
        resized = round(width * gain), round(height * gain)
        if (width, height) != resized:
            image = cv2.resize(image, resized, interpolation=cv2.INTER_LINEAR)
        top, left = round((side - resized[1]) / 2 - 0.1), round((side - resized[0]) / 2 - 0.1)
        canvas = np.full((side, side, 3), 114, np.uint8)
        canvas[top : top + resized[1], left : left + resized[0]] = image
        tensor = cv2.dnn.blobFromImage(canvas, 1 / 255)
        (rows,) = self.model.run(None, {self.input.name: tensor})
        rows = rows[0][rows[0][:, 4] > self.confidence_threshold]
        rows[:, :4] = (rows[:, :4] - [left, top, left, top]) / gain
        rows[:, :4] = rows[:, :4].clip(0, [width, height, width, height])
        self._original_predictions = rows

    def _create_object_prediction_list_from_original_predictions(
        self, shift_amount_list=None, full_shape_list=None
    ):
        (shift,) = fix_shift_amount_list(shift_amount_list or [[0, 0]])
        (shape,) = fix_full_shape_list(full_shape_list) or [None]
        predictions = []
        for row in self._original_predictions:
            left, top, right, bottom, score, class_id = row.tolist()
            if right > left and bottom > top:
                prediction = ObjectPrediction(
                    bbox=[left, top, right, bottom],
                    category_id=int(class_id),
                    category_name=self.names[int(class_id)],
                    score=score,
                    shift_amount=shift,
                    full_shape=shape,
                )
                predictions.append(prediction)
        self._object_prediction_list_per_image = [predictions]


def main():
    """Answer until standard input ends."""
    path, names, size, overlap, conf = sys.argv[1:]
    model = OnnxModel(path, json.loads(names), confidence_threshold=float(conf))
    for line in sys.stdin:
        image = cv2.cvtColor(cv2.imread(line.rstrip("\n")), cv2.COLOR_BGR2RGB)
        start = time.perf_counter()
        result = get_sliced_prediction(
            image,
            model,
            slice_height=int(size),
            slice_width=int(size),
            overlap_height_ratio=float(overlap),
            overlap_width_ratio=float(overlap),
            verbose=0,
        )
        seconds = time.perf_counter() - start
        rows = []
        for prediction in result.object_prediction_list:
            box = [float(side) for side in prediction.bbox.to_xyxy()]
            rows.append((prediction.category.name, box, float(prediction.score.value)))
        print(json.dumps([seconds, rows]), flush=True)


if __name__ == "__main__":
    main()
