"""Images to the network's input: the kernel, with and without the upload, beside other ways."""

import numpy as np

from benchmarks.gpu.measure import Case, Way
from benchmarks.gpu.peers import DisagreementError, torch_on
from detcli.backend.cuda.letterbox import LetterboxBatch
from detcli.backend.cuda.topk import download
from detcli.backend.preprocess import letterbox_image, to_tensor
from detcli.data.geometry import Letterbox

INPUTS = 2
FULL_HD = (1080, 1920)
CANVAS = (640, 640)
ALL = (
    (1, "float32", FULL_HD, CANVAS),
    (1, "float16", FULL_HD, CANVAS),
    (8, "float32", FULL_HD, CANVAS),
    (8, "float16", FULL_HD, CANVAS),
    (32, "float32", FULL_HD, CANVAS),
    (32, "float16", FULL_HD, CANVAS),
)
QUICK = ALL[:2]
TINY = ((1, "float32", (50, 70), (64, 64)), (3, "float16", (90, 40), (32, 64)))


def case_of(gpu, chosen, generator, scope) -> Case:
    """The letterbox of a (batch, dtype, size of the images, canvas)."""
    count, type_name, size, canvas = chosen
    dtype = np.dtype(type_name)
    letterboxes = [Letterbox.fit(size, canvas)] * count
    images = []
    expected = []
    for _ in range(INPUTS):
        batch = list(generator.integers(0, 256, (count,) + size + (3,), np.uint8))
        images.append(batch)
        expected.append(specified(batch, letterboxes, dtype))

    def check(number, answer, ours):
        if ours and not np.array_equal(answer, expected[number]):
            raise DisagreementError("another tensor than NumPy's")
        # One level of 255, and what float16 rounds: others round otherwise where they interpolate.
        if np.abs(answer.astype(np.float32) - expected[number]).max() > 1.5 / 255:
            raise DisagreementError("a tensor that is not even close to NumPy's")

    # The kernel reads two rows of the image for each of the canvas, or all of them.
    read = 3 * min(2 * letterboxes[0].resized[0], size[0]) * size[1]
    return Case(
        f"{len(letterboxes)} of {size[1]}x{size[0]} to {canvas[1]}x{canvas[0]} {dtype}",
        INPUTS,
        {
            "detcli": lambda: ours(gpu, images, letterboxes, dtype, scope, upload=False),
            "detcli, with the upload": lambda: ours(gpu, images, letterboxes, dtype, scope),
            "PyTorch, with the upload": lambda: in_torch(gpu, images, letterboxes[0], dtype),
            "OpenCV and upload": lambda: on_the_host(gpu, images, letterboxes, dtype, scope),
        },
        check,
        bytes=len(letterboxes) * read + int(np.prod(tensor_shape(letterboxes))) * dtype.itemsize,
        more={"batch": len(letterboxes)},
    )


def tensor_shape(letterboxes):
    """The shape of the network's input for as many images as there are letterboxes."""
    height, width = letterboxes[0].canvas
    return (len(letterboxes), 3, height, width)


def specified(images, letterboxes, dtype):
    """What `backend.preprocess` makes of the images."""
    tensor = np.empty(tensor_shape(letterboxes), dtype)
    for image, letterbox, out in zip(images, letterboxes, tensor, strict=True):
        to_tensor(letterbox_image(image, letterbox), out)
    return tensor


class _Recorder:
    """Stands for a GPU and keeps what it is asked for, to be asked again."""

    def __init__(self):
        self.copied = self.launched = None

    def upload(self, copies):
        (self.copied,) = copies  # the images lie in ordinary memory

    def launch(self, *arguments):
        self.launched = arguments


def ours(gpu, images, letterboxes, dtype, scope, *, upload=True) -> Way:
    """The kernel: with the upload from page-locked memory, or for images that are there."""
    recorders = []
    for batch in images:
        staged = LetterboxBatch(batch, letterboxes, dtype)
        tensor = gpu.allocate(int(np.prod(staged.shape)) * dtype.itemsize)
        staging, device = gpu.pin(staged.size), gpu.allocate(staged.size)
        for memory in (tensor, staging, device):
            scope.callback(memory.close)
        recorder = _Recorder()
        staged.upload(recorder, staging, device)  # type: ignore[arg-type]
        staged.enqueue(recorder, device, tensor.address)  # type: ignore[arg-type]
        gpu.copy(*recorder.copied)
        recorders.append((recorder, tensor))

    def enqueue(number):
        recorder, tensor = recorders[number]
        if upload:
            gpu.copy(*recorder.copied)
        gpu.launch(*recorder.launched)
        return tensor

    shape = tensor_shape(letterboxes)
    return Way(
        enqueue,
        lambda tensor: download(gpu, tensor.address, shape, dtype),
        finish=lambda _: gpu.record().wait(),
    )


def in_torch(gpu, images, letterbox, dtype) -> Way:
    """Upload uint8, then cast, scale, pad and divide with PyTorch's operators."""
    peer = torch_on(gpu)
    torch, pinned = peer.torch, peer.device != "cpu"
    host = []
    for batch in images:
        tensor = torch.from_numpy(np.stack(batch))
        host.append(tensor.pin_memory() if pinned else tensor)
    (height, width), kind = letterbox.canvas, getattr(torch, dtype.name)
    bottom = height - letterbox.resized[0] - letterbox.top
    right = width - letterbox.resized[1] - letterbox.left

    def to_input(batch):
        planes = batch.to(peer.device, non_blocking=True).permute(0, 3, 1, 2).flip(1).float()
        scaled = torch.nn.functional.interpolate(
            planes, letterbox.resized, mode="bilinear", align_corners=False
        ).round()
        padding = (letterbox.left, right, letterbox.top, bottom)
        return (torch.nn.functional.pad(scaled, padding, value=114.0) / 255).to(kind)

    return Way(peer.eager(to_input, host), peer.to_host, finish=lambda _: peer.wait())


def on_the_host(gpu, images, letterboxes, dtype, scope) -> Way:
    """Letterbox with OpenCV on the host and upload the tensor."""
    shape = tensor_shape(letterboxes)
    size = int(np.prod(shape)) * dtype.itemsize
    staging, device = gpu.pin(size), gpu.allocate(size)
    scope.callback(staging.close)
    scope.callback(device.close)
    room = staging.array.view(dtype).reshape(shape)

    def fetch(number):
        for image, letterbox, out in zip(images[number], letterboxes, room, strict=True):
            to_tensor(letterbox_image(image, letterbox), out)
        gpu.copy(device.address, staging.address, size)
        gpu.record().wait()
        return room

    return Way(lambda number: number, fetch, on_gpu=False)
