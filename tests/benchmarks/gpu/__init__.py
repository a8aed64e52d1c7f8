"""The check and the benchmark of the CUDA backend, see `make gpu-check`.

__main__   tests, sanitizers and sections of the benchmark, each in a process of its own
recorder   a pytest plugin that keeps results where a test crashes
launches   every kernel on small shapes, also for the sanitizers and profilers
graphs     a detector with CUDA graphs beside one without, bit for bit
pack       what a machine without internet needs, in pieces; there.sh runs the check on it
bench      one section: selection, top_k, letterbox, nms; network is `detcli bench`
end_to_end the section of folders of JPEG files, by `detcli predict` and py-spy
measure    checks all implementations of a case, then times them
clock      CUDA events around work that is queued behind a delay
peers      PyTorch on our stream
devices    the machine, downloads, recorded launches
report     JSON and Markdown
host_cost  a batch's cost for the host, which needs no GPU
"""

DONE = "everything ran, every answer is right"
"""What `launches` and `graphs` end with."""

PROVIDER_OPTIONS = ("prefer_nhwc", "fuse_conv_bias", "use_tf32")
"""Of ONNX Runtime's CUDA provider, off in detcli; boxes need not be the CPU's with them."""
