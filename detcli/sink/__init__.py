"""Sinks: the outputs of a run, one file per format.

records     formats.py chooses the format; text.py, parquet.py and megadetector.py write it;
            bursts.py collects records; journal.py for --resume, with journal_lines.py, which
            tells damaged lines, recorded_inputs.py: which inputs it has records of (images in
            recorded_images.py), and inputs_to_repeat.py: which of these are detected again
images      image.py saves and window.py shows them; draw.py draws boxes, and draw_labels.py labels
            beside them, where label_layout.py has room; colours.py: of classes, tracks and zones
videos      video.py; h264.py encodes them with their sound; gif.py for --gif; frame_clock.py says
            when frames are shown
labels      labels.py: labels for other programs; dataset.py: images with labels to train on
folders     folder.py chooses the names of files: input_names.py derives them from the inputs, and
            unique_names.py makes them unique; claims.py, among runs at the same time; blurred.py
            remembers which classes are hidden in a folder
sorted      sorted_files.py links, copies or lists files in folders; sort_log.py takes that back
protocol.py what every sink has to offer

Each is imported only when it is used. What --report writes is in detcli/page.
"""
