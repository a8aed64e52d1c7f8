"""What a run works on: images, boxes, detections and records, and the algorithms on them.

geometry.py      images, letterboxes, and boxes beside one another
detections.py    the detections of an image
coco.py          the classes of COCO, and their ids
record.py        what a run says about an image or a frame, as JSON
capture_time.py  when a photograph was taken, as stored in a record
bursts.py        which photographs were taken shortly after one another
saved_record.py  a record that is read back, checked
record_file.py   the records of a file, or of standard input
json_text.py     records as lines of JSON, fast
columns.py       the optional columns of records, with their options and their text in CSV
barcode.py       what was read from a symbol
topk.py          the k largest of a row, in a total order
ranges.py        ranges of whole numbers, joined
suppression.py   non-maximum suppression
tiling.py        large images in tiles, and the detections of tiles joined
sampling.py      a sample of records by their scores
repeats.py       boxes of the same class and place in many images of a camera
per_video.py     what is counted from the start of each video
"""
