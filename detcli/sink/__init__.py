"""Sinks: where records go, one file per format.

records     formats.py: the formats; text.py, parquet.py; journal.py with --resume
pictures    image.py, window.py; draw.py: how
videos      video.py, h264.py
labels      labels.py: of other programs, and datasets
folder.py   folders of files with unique names; claims.py: of runs at the same time
blurred.py  folders that show what is to be hidden
protocol.py what all of them are

Each is imported only when it is used.
"""
