"""Sources: from the names that a user gives to the items of a run.

sources.py             all kinds of names, and what they become
checks.py              names and options that cannot be used together
follow.py              files in followed folders: which are new, and complete
guard.py               no output is written over an input
search.py              the files and objects that a name stands for
names.py               addresses, files, folders, patterns, lists
listing.py             all names of a run in shards, before any is opened
loading.py             an item, and the threads that load it within a time limit
reading.py             bytes from files, pipes and standard input
fetch.py               bytes from the network, ahead of their turn
http_opener.py         what opens addresses on web servers, with passwords
decode.py              bytes to pixels
header_checks.py       headers for which OpenCV would allocate far too much
forms.py               which forms of which formats OpenCV reads, and which are read here
tiff.py, pnm.py, bmp.py   those that are read here
tiff_directory.py      the fields of a TIFF, and of EXIF
tiff_forms.py          the forms of TIFF, and how each is read
segments.py, jpeg_header.py  the segments of a JPEG; its size, orientation and scans
exif.py                when a photograph was taken
cut_jpeg.py            how much is there of a JPEG without its end
gif.py, avif.py        how many frames a GIF has; how an AVIF is turned and mirrored, its EXIF
values.py, limits.py   numbers to bytes; how large an image may be
pillow.py              images of Pillow, as their files are read
stdin.py               an image or a stream of images on standard input
splitter.py            where each image of a stream ends
archives.py            images in tar files and in Parquet, and what a damaged one becomes
tar.py, columns.py     how a tar file is walked; which column of a Parquet file has images
video.py, live.py      frames of files; cameras and streams
video_frames.py        the reader of a video file, and the number and time of each frame
capture.py             how OpenCV opens them, and what it says about them
conversion.py          whether OpenCV converted a frame to colours
part_file.py           a file object for OpenCV, read by a function
containers.py, mp4.py, matroska.py  what video files say about their frames and length
video_tracks.py        which of a video's tracks is read
"""
