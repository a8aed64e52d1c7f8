// The k largest unique keys of a source, sorted, by one block of 1024 threads.
//
// A source is a function from 0..total-1 to unique 64-bit keys (order.cuh); it is read again
// instead of being copied, so neither `total` nor k is bounded by shared memory. Keys below `floor`
// (at least 1) are left out.
//
//   read_keys      lists the keys from the floor up, and counts them by their next digit (11 bits,
//                  the highest first), in one reading
//   raise_floor    to the digit that holds the k-th largest, as long as too many keys reach it
//   sort           bitonic, in place
#pragma once
#include "order.cuh"

constexpr u32 BLOCK = 1024;
constexpr u32 SHARED_LIST = 2048;
constexpr u32 DIGIT_BITS = 11;
constexpr u32 DIGITS = 1u << DIGIT_BITS;
constexpr u32 AHEAD = 4;     // reads of the source that a thread has in flight
constexpr u64 ANYTHING = 1;  // a floor that every key reaches, also that of NaN; none is 0

struct Scratch {
  u64 list[SHARED_LIST];
  u64 narrowed[SHARED_LIST / 2];  // what is left of the list
  u32 histogram[DIGITS];
  u32 warp_sum[BLOCK / WARP];
  u32 counter;
  u32 digit, above, inside;  // what raise_floor found
};

struct Top {
  const u64* keys;  // descending
  u32 count;
};

struct KeySource {
  const u64* keys;
  __device__ u64 operator()(u32 index) const { return keys[index]; }
};

// What at least k keys reach. Its first digits are those of the k-th largest key.
struct Floor {
  u64 key;
  u64 known;  // mask of these digits
  u32 shift;  // of the next digit
  u32 above;  // keys with larger digits
};

// Room for keys: the first `capacity` go to `keys`, and the first `spill_capacity` to `spill`.
struct List {
  u64* keys;
  u32 capacity;
  u64* spill;
  u32 spill_capacity;
};

// The value of this lane and of all before it.
__device__ __forceinline__ u32 sum_so_far(u32 value) {
  u32 lane = threadIdx.x % WARP;
  for (u32 step = 1; step < WARP; step *= 2) {
    u32 other = __shfl_up_sync(EVERY_LANE, value, step);
    if (lane >= step) value += other;
  }
  return value;
}

// Put the keys that reach a floor on the list, in any order, as far as there is room. The warp
// reserves it for all its keys at once.
__device__ __forceinline__ void append(const u64 (&keys)[AHEAD], u64 floor, const List& list,
                                       u32* counter) {
  u32 lane = threadIdx.x % WARP, votes[AHEAD], found = 0;
#pragma unroll
  for (u32 i = 0; i < AHEAD; i++) {
    votes[i] = __ballot_sync(EVERY_LANE, keys[i] >= floor);
    found += (u32)__popc(votes[i]);
  }
  if (found == 0) return;  // the whole warp agrees
  u32 first = 0;
  if (lane == 0) first = atomicAdd(counter, found);
  first = __shfl_sync(EVERY_LANE, first, 0);
#pragma unroll
  for (u32 i = 0; i < AHEAD; i++) {
    u32 place = first + (u32)__popc(votes[i] & ((1u << lane) - 1));
    if (keys[i] >= floor && place < list.capacity) list.keys[place] = keys[i];
    if (keys[i] >= floor && place < list.spill_capacity) list.spill[place] = keys[i];
    first += (u32)__popc(votes[i]);
  }
}

// Read the source once. Counts the keys that reach the floor and have its known digits, by their
// next digit. With `listed`, all that reach the floor go on the list; returns how many these are,
// which may be more than fit.
template <class Source>
__device__ __forceinline__ u32 read_keys(const Source& source, u32 total, const Floor& floor,
                                         bool listed, const List& list, Scratch& scratch) {
  for (u32 start = 0; start < total; start += BLOCK * AHEAD) {
    u64 keys[AHEAD];  // 0 where a thread has none
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) {
      u32 index = start + i * BLOCK + threadIdx.x;
      u64 key = source(min(index, total - 1));  // without a branch around the read
      keys[i] = index < total ? key : 0;
    }
    if (listed) append(keys, floor.key, list, &scratch.counter);
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) {
      if (keys[i] >= floor.key && ((keys[i] ^ floor.key) & floor.known) == 0)
        atomicAdd(&scratch.histogram[keys[i] >> floor.shift & (DIGITS - 1)], 1u);
    }
  }
  __syncthreads();
  return scratch.counter;
}

// Raise the floor to the digit that holds the k-th largest key, among those that read_keys has
// counted, which are forgotten; returns how many keys reach it.
__device__ __forceinline__ u32 raise_floor(Floor& floor, u32 k, Scratch& scratch) {
  constexpr u32 EACH = DIGITS / BLOCK;
  u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  u32 highest = DIGITS - 1 - threadIdx.x * EACH;  // thread 0 has the largest digits
  u32 inside[EACH], own = 0;
#pragma unroll
  for (u32 i = 0; i < EACH; i++) {
    own += inside[i] = scratch.histogram[highest - i];
    scratch.histogram[highest - i] = 0;
  }
  u32 sum = sum_so_far(own);
  if (lane == WARP - 1) scratch.warp_sum[warp] = sum;
  __syncthreads();
  if (threadIdx.x == 0) scratch.counter = 0;
  u32 sum_of_warp = scratch.warp_sum[lane];
  u32 above = floor.above + sum - own +
              __shfl_sync(EVERY_LANE, sum_so_far(sum_of_warp) - sum_of_warp, warp);
#pragma unroll
  for (u32 i = 0; i < EACH; i++) {
    if (above < k && k <= above + inside[i]) {  // true for one digit of one thread
      scratch.digit = highest - i;
      scratch.above = above;
      scratch.inside = inside[i];
    }
    above += inside[i];
  }
  __syncthreads();
  // Lower than the first floor while their digits are the same; but more than fit reach both.
  floor.key = (floor.key & floor.known) | (u64)scratch.digit << floor.shift;
  floor.known |= (u64)(DIGITS - 1) << floor.shift;
  floor.shift = floor.shift > DIGIT_BITS ? floor.shift - DIGIT_BITS : 0;  // the last may overlap
  floor.above = scratch.above;
  return scratch.above + scratch.inside;
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
// for the power of two from k up, and is used, and needed, where that is more than SHARED_LIST;
// otherwise `spill_capacity` is 0.
//
// A reading that cannot list its keys only counts them: without a floor all of a source reach it,
// and from then on raise_floor says how many do. A list of more than the power of two from k up is
// narrowed like a source.
template <class Source>
__device__ Top top(const Source& source, u32 total, u32 k, u64 floor_key, Scratch& scratch,
                   u64* spill, u32 spill_capacity) {
  __syncthreads();  // nobody still reads the list or the counter
  for (u32 digit = threadIdx.x; digit < DIGITS; digit += BLOCK) scratch.histogram[digit] = 0;
  if (threadIdx.x == 0) scratch.counter = 0;
  __syncthreads();
  Floor floor{floor_key, 0, 64 - DIGIT_BITS, 0};
  List list{scratch.list, SHARED_LIST, spill, spill_capacity};
  u32 room = max(SHARED_LIST, spill_capacity);
  bool listed = floor_key > ANYTHING || total <= room;
  u32 count = read_keys(source, total, floor, listed, list, scratch);
  while (!listed || count > room) {
    listed = raise_floor(floor, k, scratch) <= room;
    count = read_keys(source, total, floor, listed, list, scratch);
  }
  u64* keys = count > SHARED_LIST ? spill : scratch.list;
  u32 enough = 2 * WARP;  // which one warp sorts
  while (enough < k) enough *= 2;
  if (count > enough) {
    KeySource rest{keys};
    list = List{scratch.narrowed, SHARED_LIST / 2, nullptr, 0};
    for (u32 length = count; count > enough;) {
      raise_floor(floor, k, scratch);
      count = read_keys(rest, length, floor, true, list, scratch);
    }
    keys = scratch.narrowed;
  }
  sort_descending(keys, count);
  return Top{keys, count < k ? count : k};
}
