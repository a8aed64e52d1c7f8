"""Sources: from the names that a user gives to the items of a run.

sources.py, item.py                  all kinds of names, and what they become
folders.py, lists.py, stdin.py       files, patterns, lists, standard input; mjpeg.py in it
address.py, live.py                  cameras and streams
http.py, object_store.py             the network; fetch.py and ahead.py: before their turn
video.py, capture.py                 frames of files, and OpenCV's readers of them
reading.py, loading.py               bytes with a limit, and within a time limit
decode.py                            bytes to pixels: decode_jpeg.py, decode_size.py
"""
