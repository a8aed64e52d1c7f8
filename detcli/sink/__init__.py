"""Sinks: the outputs of a run, one file per format.

records     formats.py chooses the format; text.py and parquet.py write it; journal.py for --resume;
            recorded_inputs.py: which inputs a journal has records of; bursts.py collects them;
            megadetector.py: for Timelapse and MegaDetector's tools
images    image.py saves and window.py shows them; draw.py draws boxes and labels
videos      video.py; h264.py encodes them with their sound
labels      labels.py: labels for other programs; dataset.py: images with labels to train on
folders     folder.py gives files unique names; claims.py, among runs at the same time; blurred.py
            remembers which classes are hidden in a folder
protocol.py what every sink has to offer

Each is imported only when it is used. What --report writes is in detcli/page.
"""
