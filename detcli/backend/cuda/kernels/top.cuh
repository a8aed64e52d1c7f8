// The k largest unique keys of a source, sorted, by one block of 1024 threads.
//
// A source is a function from 0..total-1 to unique 64-bit keys (order.cuh); it is read several
// times instead of being copied, so neither `total` nor k is bounded by shared memory. Keys below
// `floor` (at least 1) are left out.
//
//   collect        all keys from `floor` up, if they fit into the list
//   radix_floor    otherwise a higher floor: digit by digit (11 bits, the highest first), until
//                  what is left fits and still holds the k largest
//   sort           bitonic, in place
#pragma once
#include "order.cuh"

constexpr u32 BLOCK = 1024;
constexpr u32 SHARED_LIST = 2048;
constexpr u32 DIGIT_BITS = 11;
constexpr u32 DIGITS = 1u << DIGIT_BITS;
constexpr u32 WARP = 32;
constexpr u32 EVERY_LANE = 0xFFFFFFFFu;
constexpr u32 AHEAD = 4;  // reads of the source that a thread has in flight

struct Scratch {
  u64 list[SHARED_LIST];
  u32 histogram[DIGITS];
  u32 warp_sum[BLOCK / WARP];
  u32 counter;
  u32 digit, above, inside;  // what radix_floor found
};

struct Top {
  const u64* keys;  // descending
  u32 count;
};

// Call use(key) for every key of the source, 0 where a thread has none; all threads take part.
template <class Source, class Use>
__device__ __forceinline__ void each_key(const Source& source, u32 total, const Use& use) {
  for (u32 start = 0; start < total; start += BLOCK * AHEAD) {
    u64 keys[AHEAD];
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) {
      u32 index = start + i * BLOCK + threadIdx.x;
      u64 key = source(min(index, total - 1));  // without a branch around the read
      keys[i] = index < total ? key : 0;
    }
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) use(keys[i]);
  }
}

// Write all keys >= floor to the list, in any order; return how many there are, which may be more
// than fit.
template <class Source>
__device__ u32 collect(const Source& source, u32 total, u64 floor, u64* list, u32 capacity,
                       u32* counter) {
  __syncthreads();  // nobody still reads the list or the counter
  if (threadIdx.x == 0) *counter = 0;
  __syncthreads();
  u32 lane = threadIdx.x % WARP;
  each_key(source, total, [&](u64 key) {
    bool passes = key >= floor;
    u32 votes = __ballot_sync(EVERY_LANE, passes);
    if (votes == 0) return;  // the whole warp agrees
    u32 slot = 0;
    if (lane == 0) slot = atomicAdd(counter, (u32)__popc(votes));  // one atomic a warp
    slot = __shfl_sync(EVERY_LANE, slot, 0) + __popc(votes & ((1u << lane) - 1));
    if (passes && slot < capacity) list[slot] = key;
  });
  __syncthreads();
  return *counter;
}

// Find the digit whose keys hold the `wanted`-th largest: leaves it in scratch.digit, how many keys
// have a larger digit in scratch.above, and how many this one in scratch.inside.
__device__ __forceinline__ void find_digit(Scratch& scratch, u32 wanted) {
  constexpr u32 EACH = DIGITS / BLOCK;
  u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  u32 highest = DIGITS - 1 - threadIdx.x * EACH;  // thread 0 has the largest digits
  u32 own = 0;
  for (u32 i = 0; i < EACH; i++) own += scratch.histogram[highest - i];
  u32 sum = own;  // of this lane and those before it
  for (u32 step = 1; step < WARP; step *= 2) {
    u32 other = __shfl_up_sync(EVERY_LANE, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == WARP - 1) scratch.warp_sum[warp] = sum;
  __syncthreads();
  u32 above = sum - own;
  for (u32 i = 0; i < warp; i++) above += scratch.warp_sum[i];
  for (u32 i = 0; i < EACH; i++) {
    u32 inside = scratch.histogram[highest - i];
    if (above < wanted && wanted <= above + inside) {  // true for one digit of one thread
      scratch.digit = highest - i;
      scratch.above = above;
      scratch.inside = inside;
    }
    above += inside;
  }
  __syncthreads();
}

// A floor that at least k and at most `capacity` keys reach. More than `capacity` >= k keys must
// reach the floor that comes in.
template <class Source>
__device__ u64 radix_floor(const Source& source, u32 total, u32 k, u64 floor, u32 capacity,
                           Scratch& scratch) {
  u64 prefix = 0;  // the digits found so far, in place
  u32 above = 0;   // keys with larger digits
  for (u32 shift = 64; shift > 0;) {
    u32 bits = shift < DIGIT_BITS ? shift : DIGIT_BITS;
    u32 upper = shift;  // where the digits found so far begin
    shift -= bits;
    for (u32 digit = threadIdx.x; digit < DIGITS; digit += BLOCK) scratch.histogram[digit] = 0;
    __syncthreads();
    each_key(source, total, [&](u64 key) {
      bool same = upper == 64 || key >> upper == prefix >> upper;
      if (key >= floor && same)
        atomicAdd(&scratch.histogram[key >> shift & ((1u << bits) - 1)], 1u);
    });
    __syncthreads();
    find_digit(scratch, k - above);
    prefix |= (u64)scratch.digit << shift;
    above += scratch.above;
    if (above + scratch.inside <= capacity) break;
  }
  return prefix > floor ? prefix : floor;
}

// Sort the first `count` keys, descending; the list has room for the next power of two.
//
// Steps of up to a warp's width pair keys within 64 neighbours, which one warp holds, so a
// barrier of the warp is enough between two of them.
__device__ __forceinline__ void sort_descending(u64* list, u32 count) {
  u32 size = 2;
  while (size < count) size *= 2;
  for (u32 index = count + threadIdx.x; index < size; index += BLOCK) list[index] = 0;
  __syncthreads();
  for (u32 width = 2; width <= size; width *= 2) {
    for (u32 stride = width / 2; stride > 0; stride /= 2) {
      for (u32 pair = threadIdx.x; pair < size / 2; pair += BLOCK) {
        u32 low = 2 * pair - (pair & (stride - 1)), high = low + stride;
        bool descending = (low & width) == 0;
        u64 a = list[low], b = list[high];
        if ((a < b) == descending) list[low] = b, list[high] = a;
      }
      u32 next = stride > 1 ? stride / 2 : width;
      if (stride <= WARP && next <= WARP) {
        __syncwarp();
      } else {
        __syncthreads();
      }
    }
  }
  __syncthreads();  // the last step may have ended with the warp's barrier only
}

// The k largest keys of the source, at most; fewer where fewer reach the floor. `spill` has room
// for the power of two from k up, and is used, and needed, where that is more than SHARED_LIST.
template <class Source>
__device__ Top top(const Source& source, u32 total, u32 k, u64 floor, Scratch& scratch, u64* spill,
                   u32 spill_capacity) {
  u64* list = scratch.list;
  u32 capacity = SHARED_LIST;
  u32 count = collect(source, total, floor, list, capacity, &scratch.counter);
  if (count > capacity) {
    if (k > capacity) list = spill, capacity = spill_capacity;
    if (count > capacity) floor = radix_floor(source, total, k, floor, capacity, scratch);
    count = collect(source, total, floor, list, capacity, &scratch.counter);
  }
  sort_descending(list, count);
  return Top{list, count < k ? count : k};
}
