"""Labelled pictures of YOLO and COCO, and how detections are evaluated on them."""
