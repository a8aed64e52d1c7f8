// Watches every access to memory that a kernel makes, and ends the launch at the first wrong one.
//
// -fsanitize=thread makes the compiler call __tsan_read4 and the like before each access. Here they
// do not belong to ThreadSanitizer, which knows threads of the CPU only, but to the threads of a
// grid. Two accesses are ordered if one thread makes them, if the block's barrier lies between
// them, or if they are of one warp and its barrier lies between them. Shuffles and ballots order
// nothing, as CUDA promises nothing, nor does anything order two blocks. Wrong are
//
//   - two accesses that nothing orders, one of them a write, unless both are atomic,
//   - a read of what nobody has written,
//   - an access outside of all memory that somebody has allocated.
//
// A barrier is one for all threads of its block or warp, so counting barriers says all that vector
// clocks would.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <map>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace {

constexpr unsigned kWarp = 32, kThreads = 1024;
constexpr size_t kGrain = 2;  // bytes; what threads write side by side is no smaller than a float16

// Accesses of one kind to one grain: all that a later one could be in conflict with.
struct Accesses {
  uint32_t period = 0;   // in which they were made; older ones are over
  uint32_t block = 0;    // that made the last one
  uint32_t barrier = 0;  // of the block, since which `warps` are
  uint32_t warps = 0;    // a bit each
  uint32_t sync = 0;     // of the last one's warp, since which `lanes` are
  uint32_t lanes = 0;
  uint8_t warp = 0;
  bool several = false;  // of several blocks
};

struct Grain {
  Accesses reads, writes, atomics;
  uint32_t written = 0;  // period of shared memory in which it was; not 0 for other memory
};

struct Region {
  uintptr_t begin, end;
  bool shared;
  std::vector<Grain> grains;
};

std::map<uintptr_t, Region> regions;  // by their end
Region* recent;
Region image, stacks;  // of the kernel's library, with the shim and its data; of the threads

uint32_t grid, block, thread;  // numbers that grow; `thread` in its block
uint32_t barriers[kThreads], syncs[kThreads];
bool watching, atomic;
void (*fail)(const char*);

Region* find(uintptr_t address) {
  if (recent && recent->begin <= address && address < recent->end) return recent;
  auto found = regions.upper_bound(address);
  if (found == regions.end() || address < found->second.begin) return nullptr;
  return recent = &found->second;
}

uint32_t period_of(const Region& region) { return region.shared ? block : grid; }

bool conflicts(const Accesses& earlier, uint32_t period) {
  if (earlier.period != period) return false;
  if (earlier.several || earlier.block != block) return true;
  if (earlier.barrier != barriers[thread]) return false;
  uint32_t warp = thread / kWarp;
  if (earlier.warps & ~(1u << warp)) return true;
  return earlier.sync == syncs[thread] && earlier.lanes & ~(1u << thread % kWarp);
}

void note(Accesses& all, uint32_t period) {
  uint32_t warp = thread / kWarp;
  if (all.period != period) all = {}, all.period = period, all.block = block;
  if (all.block != block) all.several = true;
  if (all.block != block || all.barrier != barriers[thread]) all.warps = all.lanes = 0;
  if (all.warp != warp || all.sync != syncs[thread]) all.lanes = 0;
  all.block = block, all.barrier = barriers[thread], all.warps |= 1u << warp;
  all.warp = uint8_t(warp), all.sync = syncs[thread], all.lanes |= 1u << thread % kWarp;
}

[[noreturn]] void complain(const char* what, const char* other, uintptr_t address, void* code) {
  static char text[256];
  Region* region = find(address);
  watching = false;
  snprintf(text, sizeof text, "thread %u %s%s memory, byte %zu%s (code at 0x%zx)", thread, what,
           !region          ? ""
           : region->shared ? "shared"
                            : "global",
           region ? size_t(address - region->begin) : size_t(address), other,
           size_t(uintptr_t(code) - image.begin));
  fail(text);
  __builtin_unreachable();
}

void access(uintptr_t address, size_t size, bool writes, void* code) {
  if (!watching) return;
  if (stacks.begin <= address && address < stacks.end) return;
  Region* region = find(address);
  if (!region && image.begin <= address && address < image.end) return;
  if (!region || address + size > region->end)
    complain(writes ? "writes outside of " : "reads outside of ", "", address, code);
  uint32_t period = period_of(*region);
  for (uintptr_t at = address / kGrain * kGrain; at < address + size; at += kGrain) {
    Grain& grain = region->grains[(at - region->begin) / kGrain];
    if (conflicts(grain.writes, period) || (!atomic && conflicts(grain.atomics, period)))
      complain(writes ? "writes " : "reads ",
               ", which another one wrote, without a barrier between", at, code);
    if (writes && conflicts(grain.reads, period))
      complain("writes ", ", which another one read, without a barrier between", at, code);
    if (!writes && (region->shared ? grain.written != period : !grain.written))
      complain("reads ", ", which nobody wrote", at, code);
    if (writes) grain.written = period;
    note(atomic ? grain.atomics : writes ? grain.writes : grain.reads, period);
  }
}

}  // namespace

// ---------------------------------------------------------------- for shim.cpp and libcuda.cpp

// Global memory: whether it may be read before a kernel has written there.
API void checks_memory(uintptr_t begin, size_t size, int written) {
  Region region{begin, begin + size, false, std::vector<Grain>(size / kGrain + 1)};
  for (Grain& grain : region.grains) grain.written = uint32_t(written);
  recent = nullptr;
  regions[region.end] = std::move(region);
}
API void checks_forget(uintptr_t begin, size_t size) {
  recent = nullptr;
  regions.erase(begin + size);
}
// The host copies or sets memory. What was not written stays so in the copy; `from` is 0 for none.
API void checks_copied(uintptr_t to, uintptr_t from, size_t size) {
  for (size_t offset = 0; offset < size; offset += kGrain) {
    Region *source = from ? find(from + offset) : nullptr, *target;
    bool written = !source || source->grains[(from + offset - source->begin) / kGrain].written;
    if ((target = find(to + offset)))
      target->grains[(to + offset - target->begin) / kGrain].written = written;
  }
}
API void checks_grid(const uintptr_t* library, const uintptr_t* fibers, void (*end)(const char*)) {
  image.begin = library[0], image.end = library[1];
  stacks.begin = fibers[0], stacks.end = fibers[1];
  fail = end, atomic = false;
  ++grid;
}
API void checks_block(uintptr_t begin, uintptr_t end) {
  ++block;
  for (unsigned i = 0; i < kThreads; i++) barriers[i] = syncs[i] = 0;
  if (begin < end && !regions.count(end)) {
    checks_memory(begin, size_t(end - begin), 0);
    regions[end].shared = true;
  }
}
// Whether a thread of the kernel runs from now on, or the scheduler.
API void checks_runs(uint32_t number, int on) { thread = number, watching = on; }
API void checks_barrier() { ++barriers[thread]; }
API void checks_sync() { ++syncs[thread]; }
API void checks_atomic(int on) { atomic = on; }

// ---------------------------------------------------------------- for the compiler

#define ACCESS(size)                                      \
  API void __tsan_read##size(uintptr_t at) {              \
    access(at, size, false, __builtin_return_address(0)); \
  }                                                       \
  API void __tsan_write##size(uintptr_t at) {             \
    access(at, size, true, __builtin_return_address(0));  \
  }                                                       \
  API void __tsan_unaligned_read##size(uintptr_t at) {    \
    access(at, size, false, __builtin_return_address(0)); \
  }                                                       \
  API void __tsan_unaligned_write##size(uintptr_t at) {   \
    access(at, size, true, __builtin_return_address(0));  \
  }
ACCESS(1)
ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16) API void __tsan_read_range(uintptr_t at, size_t size) {
  access(at, size, false, __builtin_return_address(0));
}
API void __tsan_write_range(uintptr_t at, size_t size) {
  access(at, size, true, __builtin_return_address(0));
}
API void __tsan_func_entry(void*) {}
API void __tsan_func_exit() {}
API void __tsan_init() {}
