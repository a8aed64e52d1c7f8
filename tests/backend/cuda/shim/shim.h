// CUDA C++ for g++: enough of the language that a .cu file of ours compiles unchanged and runs on
// the CPU, one block after another. It stands in front of the .cu file; see shim.cpp for how the
// threads of a block run.
//
// It is stricter than a GPU where that helps a test: all threads of a block have to wait at the
// same barrier in the source, and shared memory starts as rubbish.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
// A section of its own, so that all of it can be filled with rubbish before a block starts.
#define __shared__ static __attribute__((section("shim_shared")))

struct dim3 {
  unsigned x, y, z;
};
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

// With -fsanitize=thread, checks.cpp is told what orders accesses to memory.
#ifdef __SANITIZE_THREAD__
#define SHIM_CHECKS(call) call
extern "C" {
void checks_grid(const uintptr_t* library, const uintptr_t* fibers, void (*end)(const char*));
void checks_block(uintptr_t begin, uintptr_t end);
void checks_runs(uint32_t thread, int on);
void checks_barrier();
void checks_sync();
void checks_atomic(int on);
}
#else
#define SHIM_CHECKS(call)
#endif

namespace shim {

constexpr unsigned kWarp = 32, kAllLanes = 0xffffffff;

enum class Scope { end, warp, block };  // the threads that have to arrive for one to go on

struct Place {  // where a thread waits
  Scope scope;
  const char* what;
  const char* file;
  int line;
};

// The barrier at which no thread waits, as if its line were deleted; line 0 for none.
extern char skipped_file[64];
extern int skipped_line;
inline bool is_skipped(const char* file, int line) {
  return line == skipped_line && strcmp(file, skipped_file) == 0;
}

// Lets the other threads run until all in the scope have arrived at this place.
void wait(Place place);

// Waits for the whole warp and returns what each of its lanes brought, `lanes()` of them valid,
// to be read before the next call.
const uint64_t* gather(unsigned mask, uint64_t value, Place place);

// Lanes of this thread's warp: 32, or fewer in a block's last one.
unsigned lanes();

// The value that a lane of the warp brought; our own if there is no such lane.
template <class T>
T value_of(unsigned mask, T value, unsigned lane, Place place) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  const uint64_t* all = gather(mask, bits, place);
  if (lane < kWarp) memcpy(&value, &all[lane], sizeof value);
  return value;
}

}  // namespace shim

// The caller's place in the source, as arguments nobody passes.
#define SHIM_CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(SHIM_CALLER) {
  if (shim::is_skipped(file, line)) return;
  shim::wait({shim::Scope::block, "__syncthreads", file, line});
  SHIM_CHECKS(checks_barrier());
}
inline void __syncwarp(unsigned mask = shim::kAllLanes, SHIM_CALLER) {
  if (shim::is_skipped(file, line)) return;
  shim::gather(mask, 0, {shim::Scope::warp, "__syncwarp", file, line});
  SHIM_CHECKS(checks_sync());
}
inline unsigned __ballot_sync(unsigned mask, int predicate, SHIM_CALLER) {
  const uint64_t* all =
      shim::gather(mask, predicate != 0, {shim::Scope::warp, "__ballot_sync", file, line});
  unsigned bits = 0;
  for (unsigned lane = 0; lane < shim::lanes(); ++lane) bits |= unsigned(all[lane]) << lane;
  return bits;
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, SHIM_CALLER) {
  return shim::value_of(mask, value, unsigned(lane) % shim::kWarp,
                        {shim::Scope::warp, "__shfl_sync", file, line});
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, SHIM_CALLER) {
  return shim::value_of(mask, value, threadIdx.x % shim::kWarp - by,  // wraps round to no lane
                        {shim::Scope::warp, "__shfl_up_sync", file, line});
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, SHIM_CALLER) {
  return shim::value_of(mask, value, threadIdx.x % shim::kWarp + by,
                        {shim::Scope::warp, "__shfl_down_sync", file, line});
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int flip, SHIM_CALLER) {
  return shim::value_of(mask, value, (threadIdx.x % shim::kWarp) ^ unsigned(flip),
                        {shim::Scope::warp, "__shfl_xor_sync", file, line});
}

// Threads change only at barriers, so nothing can come between the two halves of an atomic.
namespace shim {
template <class T, class Change>
T atomically(T* target, const Change& change) {
  SHIM_CHECKS(checks_atomic(1));
  T before = std::exchange(*target, change(*target));
  SHIM_CHECKS(checks_atomic(0));
  return before;
}
}  // namespace shim
template <class T>
T atomicAdd(T* target, std::common_type_t<T> value) {
  return shim::atomically(target, [=](T now) { return now + value; });
}
template <class T>
T atomicOr(T* target, std::common_type_t<T> value) {
  return shim::atomically(target, [=](T now) { return now | value; });
}
template <class T>
T atomicMax(T* target, std::common_type_t<T> value) {
  return shim::atomically(target, [=](T now) { return now < value ? value : now; });
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __popcll(unsigned long long bits) { return __builtin_popcountll(bits); }
inline int __clz(int bits) { return bits ? __builtin_clz(unsigned(bits)) : 32; }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __ffsll(long long bits) { return __builtin_ffsll(bits); }
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T, class = std::enable_if_t<std::is_integral_v<T>>>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T, class = std::enable_if_t<std::is_integral_v<T>>>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}

namespace shim {

// Runs a grid; returns null, or what went wrong.
const char* launch(void (*kernel)(void**), void** arguments, dim3 grid, unsigned block,
                   bool reverse);

// One letter for each type that a kernel's parameter may have; shim.py knows the same.
template <class T>
constexpr char letter() {
  static_assert(std::is_pointer_v<T> || std::is_same_v<T, float> ||
                (std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8)));
  if (std::is_pointer_v<T>) return 'P';
  if (std::is_same_v<T, float>) return 'f';
  return sizeof(T) == 4 ? (std::is_signed_v<T> ? 'i' : 'I') : (std::is_signed_v<T> ? 'q' : 'Q');
}
template <class... T>
const char* signature(void (*)(T...)) {
  static const char letters[] = {letter<T>()..., 0};
  return letters;
}

template <class... T, size_t... index>
__attribute__((no_sanitize("thread"))) void call(void (*kernel)(T...), void** arguments,
                                                 std::index_sequence<index...>) {
  kernel(*static_cast<T*>(arguments[index])...);
}
template <class... T>
void call(void (*kernel)(T...), void** arguments) {
  call(kernel, arguments, std::index_sequence_for<T...>{});
}

}  // namespace shim

// Makes a kernel callable from outside; `arguments` points to each of them.
#define SHIM_ENTRY(kernel)                                                                      \
  extern "C" __attribute__((visibility("default"))) const char* kernel##_signature() {          \
    return shim::signature(kernel);                                                             \
  }                                                                                             \
  extern "C" __attribute__((visibility("default"))) const char* kernel##_launch(                \
      const dim3* grid, unsigned block, int reverse, void** arguments) {                        \
    return shim::launch([](void** each) { shim::call(kernel, each); }, arguments, *grid, block, \
                        reverse != 0);                                                          \
  }
