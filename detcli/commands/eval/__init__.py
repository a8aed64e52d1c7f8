"""Measures a model on labelled pictures: `detcli eval`.

command, run            options; pictures through the pipeline, detections beside labels, the report
advice                  the best confidences
report, render, plots   the report, as tables, as pictures
"""
