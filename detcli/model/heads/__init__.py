"""The head of a detector: what it is, how it is found in a graph, and what its nodes show.

head.py               what a head is
find.py               finds it, by the first way in the next four that does, in its own order
separate_tensors.py   boxes and scores in tensors of their own
single_tensor.py      in one tensor
scales.py             in maps of each scale
rows.py               detections that the graph selects itself
decode.py             what makes boxes and scores
queries.py            what the queries of a DETR begin with
"""
