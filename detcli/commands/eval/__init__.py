"""Measures a model on labelled pictures: `detcli eval`.

command, run            options; pictures through the pipeline, detections beside labels, the report
dataset                 labelled pictures, findings about them, their categories as classes
coco_data, yolo_data    readers of labels
evaluator, advice       hotcoco's figures and matches; the best confidences
report, render, plots   the report, as tables, as pictures
"""
