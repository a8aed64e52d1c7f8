"""The shim notices what a kernel does wrong."""

import re
import signal

import numpy as np
import pytest
from backend.cuda.shim import Shim, ShimError, need_compiler
from forked import CONTEXT
from thinning import thin

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Build a kernel, once however many tests launch it."""
    folder = tmp_path_factory.mktemp("kernels")
    return lambda text: Shim({"test.cu": text}, folder)


DIVERGENCES = [
    ("if (threadIdx.x == 40) return; __syncthreads();", "thread 32 is at __syncthreads test"),
    ("if (threadIdx.x >= 32) return; __syncthreads();", "thread 32 at its end"),
    ("if (threadIdx.x != 3) __syncwarp();", "thread 0 is at __syncwarp test.cu:1, thread 3"),
    ("if (threadIdx.x < 7)\n__syncwarp(); else __syncthreads();", "thread 7 at __syncthreads"),
    ("if (threadIdx.x < 32)\n__syncthreads(); else\n__syncthreads();", "test.cu:2, thread 32"),
    ("__ballot_sync(0xff, 1);", "only the full mask"),
]
"""Kernels whose threads part, and what is said of them."""


@pytest.mark.parametrize(("body", "complaint"), thin("divergences", DIVERGENCES, 3))
def test_divergence_is_an_error_and_the_next_launch_works(build, body, complaint):
    shim = build(
        f'extern "C" __global__ void test() {{ {body} }}\n'
        'extern "C" __global__ void fine(int* out) { __syncthreads(); out[threadIdx.x] = 1; }'
    )
    with pytest.raises(ShimError, match=re.escape(complaint)):
        shim.launch("test", (2, 1, 1), 64)
    out = np.zeros(64, np.int32)
    shim.launch("fine", (1, 1, 1), 64, out.ctypes.data)
    assert out.all()


@pytest.mark.parametrize(
    ("grid", "block"), [((1, 1, 1), 1025), ((1, 65536, 1), 32), ((0, 1, 1), 1)]
)
def test_a_launch_that_cuda_refuses(build, grid, block):
    with pytest.raises(ShimError, match="CUDA refuses"):
        build('extern "C" __global__ void test() {}').launch("test", grid, block)


def test_arguments_of_another_type_are_refused(build):
    shim = build('extern "C" __global__ void test(unsigned* out, unsigned, float) { out[0] = 1; }')
    with pytest.raises(ShimError, match="takes PIf, but was given PIi"):
        shim.launch("test", (1, 1, 1), 1, 0, np.uint32(1), np.int32(2))


# ---------------------------------------------------------------- watched

ALONE = "__shared__ int s[64]; int t = threadIdx.x, b = blockIdx.x;"
OK, GLOBAL, SHARED = "", "global memory", "shared memory"
WROTE, READ = "which another one wrote", "which another one read"
WATCHED = {
    "s[t] = t; __syncthreads(); out[64 * b + t] = s[63 - t];": OK,
    "s[t] = t; __syncwarp(); out[64 * b + t] = s[t ^ 31];": OK,
    "s[t] = t; out[64 * b + t] = s[t];": OK,
    "if (t == 0) s[0] = 1; __syncthreads(); atomicAdd(&s[0], t); __syncthreads();": OK,
    "atomicAdd(out, 1), atomicMax(out, t), atomicOr(out, 2);": OK,
    "((half*)out)[64 * b + t] = half{1};": OK,
    "out[64 * b + t] = in[t]; __syncthreads(); out[64 * b + t] += out[64 * b + (t ^ 40)];": GLOBAL,
    "s[t] = t; __syncwarp(); out[64 * b + t] = s[t ^ 32];": SHARED,
    "s[t] = t; __ballot_sync(0xffffffff, 1); out[64 * b + t] = s[t ^ 1];": WROTE,
    "s[t] = t; __shfl_sync(0xffffffff, 1, 0); out[64 * b + t] = s[t ^ 31];": WROTE,
    "s[t] = t; __syncthreads(); int x = s[t ^ 1]; s[t] = x;": SHARED,
    "if (!t) *s = 1; __syncthreads(); int x = *s; __ballot_sync(~0u, 1); if (!t) *s = x;": READ,
    "s[t] = t; __syncthreads(); int x = s[t ^ 32]; __syncwarp(); s[t] = x;": SHARED,
    "s[0] = t; __syncthreads(); out[64 * b + t] = s[0];": WROTE,
    "out[t] = t;": GLOBAL,
    "out[64 * b + t] = in[t]; if (b) in[0] = 1;": GLOBAL,
    "atomicAdd(out, 1); if (t == 40) *out = 1;": WROTE,
    "if (t == 0) s[0] = 1; atomicAdd(&s[0], t);": SHARED,
    "if (in[0]) s[t] = 1; out[64 * b + t] = s[t];": "which nobody wrote",
    "out[64 * b + t] = rest[t];": "which nobody wrote",
    "if (t == 63) rest[t + 1] = 0;": "writes outside",
    "out[64 * b + t] = in[t - 1];": "reads outside",
    "out[64 * b + t] = ((long long*)in)[t];": "outside",
}
"""The body of a kernel, and what is said about it, or nothing."""


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    code = "struct half { unsigned short bits; };\n"
    for number, body in enumerate(WATCHED):
        code += f'extern "C" __global__ void k{number}(int* in, int* out, int* rest)'
        code += (
            f"{{ {ALONE} (void)s, (void)t, (void)b, (void)in, (void)out, (void)rest; {body} }}\n"
        )
    return Shim({"test.cu": code}, tmp_path_factory.mktemp("watched"), watched=True)


@pytest.mark.parametrize("reverse", [False, True])
def test_accesses_that_nothing_orders_and_wrong_ones_are_told(watched, reverse):
    several = np.zeros((3, 256), np.int32)  # rows, so that nothing lies beside one by chance
    inputs = watched.watch(several[0, 64:128])
    outputs = watched.watch(several[1, :128])
    rest = watched.watch(several[2, 64:128], written=False)
    messages = {}
    for number, body in enumerate(WATCHED):
        messages[body] = ""
        several[:] = 0
        watched.watch(several[2, 64:128], written=False)
        try:
            watched.launch(f"k{number}", (2, 1, 1), 64, inputs, outputs, rest, reverse=reverse)
        except ShimError as error:
            messages[body] = str(error)
    wrong = {}
    for body, expected in WATCHED.items():
        if expected not in messages[body] or (messages[body] and not expected):
            wrong[body] = messages[body]
    assert wrong == {}


@pytest.mark.parametrize(
    "body",
    [
        "in[0] = in[1] << (threadIdx.x + 40);",
        "in[0] = *(const int*)((const char*)in + 2);",
    ],
)
def test_undefined_behaviour_ends_the_process(body, tmp_path):
    need_compiler()
    process = CONTEXT.Process(target=_launch_watched, args=(body, tmp_path))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGILL


def _launch_watched(body, folder):
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    shim = Shim(
        {"test.cu": f'extern "C" __global__ void test(int* in) {{ {body} }}'}, folder, watched=True
    )
    shim.launch("test", (1, 1, 1), 1, shim.watch(np.zeros(64, np.int32)))
