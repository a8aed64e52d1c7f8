"""A notebook session: cells, each of which uses what those before it left open."""

# %% A model, open until the last cell
from detcli import Detector, Inputs, Record, predict

detector = Detector("yolov10n", device="cpu")
print(detector)

# %% One image
detections = detector("street.jpg")
print(detections, detections.image_size)

# %% The same with other confidences
for conf in (0.3, 0.9):
    print(conf, len(detector("street.jpg", conf=conf)))

# %% A video, the first records of which are enough
records = predict("street.mp4", detector)
first = next(records)
print(first.origin.frame, first.detections)

# %% The cell is run again, later in the video
records = predict("street.mp4", detector, inputs=Inputs(start=1.5))
last: Record | None = None
for record in records:
    last = record
assert last is not None
assert last.picture is not None
rgb = last.picture.pixels[..., ::-1]
print(last.origin.time_s, last.detections, rgb.shape)

# %% How long the network took, and the end
print(detector.times["network"] > 0)
detector.close()
