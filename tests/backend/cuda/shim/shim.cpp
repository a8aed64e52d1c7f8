// Runs the threads of a block as fibers on one thread of the CPU.
//
// A fiber runs until it waits at a barrier or ends, then the next one does, in ascending or in
// descending order. A kernel that lacks a barrier thus reads too early in one order or the other.
// The lanes of a warp take turns until all of them wait for the block or have ended; then the next
// warp runs.
//
// What this cannot show: a shuffle or a ballot makes the lanes wait here, so that they also see
// each other's memory, which a GPU does not promise, as checks.cpp knows; writes become visible in
// order; no thread is cut off between two barriers.
//
// ucontext starts a fiber, once; setjmp and longjmp switch, since swapcontext makes a system call
// each time. Fibers are used again for the next block.
#include <setjmp.h>
#include <stdio.h>
#include <ucontext.h>

dim3 threadIdx, blockIdx, blockDim, gridDim;

// All shared memory of this library; null if its kernels use none.
extern "C" __attribute__((weak, visibility("hidden"))) char __start_shim_shared[];
extern "C" __attribute__((weak, visibility("hidden"))) char __stop_shim_shared[];
// The library itself.
extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start[], _end[];

namespace shim {
namespace {

constexpr unsigned kThreads = 1024;  // the most that CUDA allows in a block
constexpr int kRubbish = 0xCD;

struct Fiber {
  jmp_buf context;
  bool started;
  unsigned gathered;  // times it called `gather`
  Place place;        // where it waits
};

// The odd size keeps the stacks' tops from all falling on the same few lines of the cache.
struct alignas(64) Stack {
  char bytes[32 * 1024 + 192];
};

Fiber fibers[kThreads], *current;
Stack stacks[kThreads];
uint64_t gathered[kThreads / kWarp][2][kWarp];  // [warp][alternating][lane]

jmp_buf scheduler, failure;
char message[512];

void (*kernel)(void**);
void** arguments;
bool reverse;

template <class... T>
[[noreturn]] void fail(const char* format, T... values) {
  int end =
      snprintf(message, sizeof message, "block (%u,%u,%u): ", blockIdx.x, blockIdx.y, blockIdx.z);
  snprintf(message + end, sizeof message - size_t(end), format, values...);
  longjmp(failure, 1);
}
[[maybe_unused]] void fail_as_told(const char* what) { fail("%s", what); }

void run_fiber() {
  for (;;) {
    SHIM_CHECKS(checks_runs(threadIdx.x, 1));
    kernel(arguments);
    wait({Scope::end, "its end", "", 0});
  }
}

// Goes on with a thread until it waits.
void resume(unsigned thread) {
  current = &fibers[thread];
  threadIdx = {thread, 0, 0};
  if (_setjmp(scheduler)) return;
  if (current->started) {
    SHIM_CHECKS(checks_runs(thread, 1));
    longjmp(current->context, 1);
  }
  current->started = true;
  ucontext_t fresh;
  getcontext(&fresh);
  fresh.uc_stack.ss_sp = &stacks[thread];
  fresh.uc_stack.ss_size = sizeof stacks[thread];
  makecontext(&fresh, run_fiber, 0);
  setcontext(&fresh);
}

// Checks that every `step`-th thread is where the first one is, and returns what they wait for.
Scope common_scope(unsigned first, unsigned last, unsigned step) {
  const Place& a = fibers[first].place;
  for (unsigned thread = first + step; thread < last; thread += step) {
    const Place& b = fibers[thread].place;
    if (a.scope != b.scope || a.line != b.line || strcmp(a.file, b.file) != 0) {
      fail("barrier divergence: thread %u is at %s %s:%d, thread %u at %s %s:%d", first, a.what,
           a.file, a.line, thread, b.what, b.file, b.line);
    }
  }
  return a.scope;
}

unsigned in_order(unsigned index, unsigned count) { return reverse ? count - 1 - index : index; }

void run_warp(unsigned warp) {
  unsigned first = warp * kWarp, count = min(kWarp, blockDim.x - first);
  do {
    for (unsigned i = 0; i < count; ++i) resume(first + in_order(i, count));
  } while (common_scope(first, first + count, 1) == Scope::warp);
}

void run_block() {
  if (__start_shim_shared) {
    memset(__start_shim_shared, kRubbish, size_t(__stop_shim_shared - __start_shim_shared));
  }
  memset(gathered, kRubbish, sizeof gathered);
  SHIM_CHECKS(checks_block(uintptr_t(__start_shim_shared), uintptr_t(__stop_shim_shared)));
  unsigned warps = (blockDim.x + kWarp - 1) / kWarp;
  do {
    for (unsigned i = 0; i < warps; ++i) run_warp(in_order(i, warps));
  } while (common_scope(0, blockDim.x, kWarp) == Scope::block);
}

void run_grid() {
  unsigned blocks = gridDim.x * gridDim.y * gridDim.z;
  for (unsigned i = 0; i < blocks; ++i) {
    unsigned block = in_order(i, blocks);
    blockIdx = {block % gridDim.x, block / gridDim.x % gridDim.y, block / gridDim.x / gridDim.y};
    run_block();
  }
}

}  // namespace

char skipped_file[64];
int skipped_line;

void wait(Place place) {
  current->place = place;
  if (!_setjmp(current->context)) {
    SHIM_CHECKS(checks_runs(0, 0));
    longjmp(scheduler, 1);
  }
}

unsigned lanes() { return min(kWarp, blockDim.x - threadIdx.x / kWarp * kWarp); }

const uint64_t* gather(unsigned mask, uint64_t value, Place place) {
  if (mask != kAllLanes)
    fail("%s %s:%d: only the full mask is known here", place.what, place.file, place.line);
  // No lane can be two calls ahead of another, so two arrays are enough.
  auto& all = gathered[threadIdx.x / kWarp][current->gathered++ % 2];
  all[threadIdx.x % kWarp] = value;
  wait(place);
  return all;
}

const char* launch(void (*entry)(void**), void** values, dim3 grid, unsigned block,
                   bool backwards) {
  kernel = entry;
  arguments = values;
  reverse = backwards;
  gridDim = grid;
  blockDim = {block, 1, 1};
  if (_setjmp(failure)) {
    memset(fibers, 0, sizeof fibers);  // whatever they were doing is given up
    return message;
  }
  if (block < 1 || block > kThreads || grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.y > 65535 ||
      grid.z > 65535) {
    fail("CUDA refuses a grid of %ux%ux%u blocks of %u threads", grid.x, grid.y, grid.z, block);
  }
  const uintptr_t library[] = {uintptr_t(__ehdr_start), uintptr_t(_end)};
  const uintptr_t threads[] = {uintptr_t(stacks), uintptr_t(stacks + kThreads)};
  (void)library, (void)threads;
  SHIM_CHECKS(checks_grid(library, threads, fail_as_told));
  run_grid();
  return nullptr;
}

}  // namespace shim

extern "C" __attribute__((visibility("default"))) void shim_skip(const char* file, int line) {
  snprintf(shim::skipped_file, sizeof shim::skipped_file, "%s", file);
  shim::skipped_line = line;
}
