"""What a run works on: images, boxes, detections and records, and the algorithms on them."""
