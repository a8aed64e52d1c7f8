// K1: the best class of each anchor, and a list of those above the confidence.
//
// Grid (ceil(N / 32), B), block 256: a lane for an anchor, eight warps that share the classes, so
// that a warp reads 32 neighbouring values of a channel-major head at once. Reads each score once.
//
// Where classes have confidences of their own (BY_CLASS), a score that is not above that of its
// class gets the key of NaN, which nothing selects. Else that is not compiled in.
#include "head.cuh"

constexpr u32 WARPS = 8;
constexpr u32 AHEAD = 10;  // reads that a thread has in flight: 80 classes in one go

// The highest key, the second highest (equal to it for a tie), and the lowest class of the highest.
struct Best {
  u32 key, second, class_index;
};

// The anchors of each image whose best score is above the confidence, in any order.
struct Survivors {
  float confidence;
  u64* keys;   // (B, N)
  u32* count;  // (B), left at 0 for the next run by what reads it
};

struct Partial {
  Best best[WARPS][WARP];
};

template <bool BY_CLASS, class T>
__device__ __forceinline__ void class_max(const Head<T>& head, u32 image, Partial& partial,
                                          u32* best_key, u32* second_key, u32* best_class,
                                          u32* nan_count, const Survivors& survivors) {
  u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  u32 anchor = blockIdx.x * WARP + lane;
  Best best{0, 0, 0};
  if (anchor < head.anchors) {
    u32 nans = 0;
    for (u32 start = warp; start < head.classes; start += WARPS * AHEAD) {
      // All are asked for before the first is used. Past the end, the last class is read again: a
      // condition for each read would take more predicates than there are.
      u32 ids[AHEAD];
      T scores[AHEAD];
#pragma unroll
      for (u32 i = 0; i < AHEAD; i++) ids[i] = min(start + i * WARPS, head.classes - 1);
      if (head.class_ids) {
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) ids[i] = head.class_ids[ids[i]];
      }
#pragma unroll
      for (u32 i = 0; i < AHEAD; i++) scores[i] = head.stored(4 + ids[i], anchor);
#pragma unroll
      for (u32 i = 0; i < AHEAD; i++) {
        u32 index = start + i * WARPS;
        bool there = index < head.classes;
        float score = to_float(scores[i]);
        u32 key = there ? order_key(score) : 0;
        nans += there && key == 0;
        if (BY_CLASS && there && !head.counts(index, score)) key = 0;
        bool wins = key > best.key;
        u32 loser = wins ? best.key : key;
        best.second = loser > best.second ? loser : best.second;
        best.class_index = wins ? index : best.class_index;
        best.key = wins ? key : best.key;
      }
    }
    if (nans) atomicAdd(&nan_count[image], nans);
  }
  partial.best[warp][lane] = best;
  __syncthreads();
  if (warp > 0) return;
  for (u32 other = 1; other < WARPS; other++) {
    Best rival = partial.best[other][lane];
    bool wins =
        rival.key > best.key || (rival.key == best.key && rival.class_index < best.class_index);
    u32 loser = wins ? best.key : rival.key;
    u32 second = wins ? rival.second : best.second;
    if (wins) best = rival;
    best.second = loser > second ? loser : second;
  }
  u64 place = (u64)image * head.anchors + anchor;
  if (anchor < head.anchors) {
    best_key[place] = best.key;
    second_key[place] = best.second;
    best_class[place] = best.class_index;
  }
  bool stays = anchor < head.anchors && best.key > order_key(survivors.confidence);
  u32 votes = __ballot_sync(EVERY_LANE, stays);
  u32 first = 0;
  if (lane == 0 && votes) first = atomicAdd(&survivors.count[image], (u32)__popc(votes));
  first = __shfl_sync(EVERY_LANE, first, 0) + (u32)__popc(votes & ((1u << lane) - 1));
  if (stays) survivors.keys[(u64)image * head.anchors + first] = unique_key(best.key, anchor);
}

extern "C" __global__ void __launch_bounds__(256, 4)
    class_max_float32(const float* heads, u32 rows, u32 anchors, u32 anchors_first,
                      const u32* class_ids, u32 classes, u32* best_key, u32* second_key,
                      u32* best_class, u32* nan_count, float confidence, u64* survivors,
                      u32* survivor_count) {
  __shared__ Partial partial;
  class_max<false>(head_of(heads, blockIdx.y, rows, anchors, anchors_first, class_ids, classes),
                   blockIdx.y, partial, best_key, second_key, best_class, nan_count,
                   Survivors{confidence, survivors, survivor_count});
}

extern "C" __global__ void __launch_bounds__(256, 4)
    class_max_float16(const half* heads, u32 rows, u32 anchors, u32 anchors_first,
                      const u32* class_ids, u32 classes, u32* best_key, u32* second_key,
                      u32* best_class, u32* nan_count, float confidence, u64* survivors,
                      u32* survivor_count) {
  __shared__ Partial partial;
  class_max<false>(head_of(heads, blockIdx.y, rows, anchors, anchors_first, class_ids, classes),
                   blockIdx.y, partial, best_key, second_key, best_class, nan_count,
                   Survivors{confidence, survivors, survivor_count});
}

extern "C" __global__ void __launch_bounds__(256, 4)
    class_max_by_class_float32(const float* heads, u32 rows, u32 anchors, u32 anchors_first,
                               const u32* class_ids, u32 classes, const float* thresholds,
                               u32* best_key, u32* second_key, u32* best_class, u32* nan_count,
                               float confidence, u64* survivors, u32* survivor_count) {
  __shared__ Partial partial;
  class_max<true>(
      head_of(heads, blockIdx.y, rows, anchors, anchors_first, class_ids, classes, thresholds),
      blockIdx.y, partial, best_key, second_key, best_class, nan_count,
      Survivors{confidence, survivors, survivor_count});
}

extern "C" __global__ void __launch_bounds__(256, 4)
    class_max_by_class_float16(const half* heads, u32 rows, u32 anchors, u32 anchors_first,
                               const u32* class_ids, u32 classes, const float* thresholds,
                               u32* best_key, u32* second_key, u32* best_class, u32* nan_count,
                               float confidence, u64* survivors, u32* survivor_count) {
  __shared__ Partial partial;
  class_max<true>(
      head_of(heads, blockIdx.y, rows, anchors, anchors_first, class_ids, classes, thresholds),
      blockIdx.y, partial, best_key, second_key, best_class, nan_count,
      Survivors{confidence, survivors, survivor_count});
}
