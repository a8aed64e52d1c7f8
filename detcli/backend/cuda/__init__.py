"""The GPU: our own kernels from picture to boxes, ONNX Runtime for the network between them.

    letterbox.py   pictures -> the network's input      kernels/letterbox.cu
    network.py     ONNX Runtime on device memory
    selection.py   the network's head -> rows            kernels/class_max.cu, select.cu, nms.cu
    topk.py        detcli.top_k for arrays on the GPU    kernels/top_k.cu
    ring.py        which memory a batch in flight owns
    transfer.py    single arrays there and back
    spill.py       memory for lists that are too long for shared memory
    program.py     .cu files -> machine code for this GPU, cached
    driver.py      the GPU itself: memory, copies, launches
    backend.py     all of it as a Backend
    ranker.py      top-k and selection alone, as a Ranker

Each kernel is held bit for bit to its NumPy specification; docs/kernels.md says why it is exact.
"""

from detcli.backend.cuda.backend import CudaBackend, open_cuda
from detcli.backend.cuda.ranker import open_cuda_ranker
from detcli.backend.cuda.topk import DeviceArray, top_k

__all__ = ["CudaBackend", "DeviceArray", "open_cuda", "open_cuda_ranker", "top_k"]
