"""How good a model is on labelled data: `detcli eval`.

request, run                    the pictures through the pipeline
data, coco_data, yolo_data      labelled pictures: a dataset
objects, classes                what is in them; the model's classes and the data's categories
comparison, findings            what was found beside what is there; what is odd about it
evaluator, metrics, confusion   the figures: pycocotools' arithmetic and matches
curves, advice, plots           what follows from the matches
assemble, report                what it all comes to
"""
