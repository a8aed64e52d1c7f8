"""The check and the benchmark of the CUDA backend, see `make gpu-check`.

__main__   all parts, the time limit, the exit code
parts      tests, sanitizers and sections of the benchmark, each in a process of its own
suite      the tests with the marker `gpu`
launches   every kernel on small shapes, for the sanitizers
bench      one section: selection, top_k, letterbox, nms; network is `detcli bench`
measure    checks all implementations of a case, then times them
clock      CUDA events around work that is queued behind a delay
peers      PyTorch, CuPy, ONNX Runtime on our stream
devices    the machine, downloads, recorded launches
report     JSON and Markdown
"""
