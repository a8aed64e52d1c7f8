// K1: the best class of each anchor.
//
// Grid (ceil(N / 32), B), block 256: a lane for an anchor, eight warps that share the classes, so
// that a warp reads 32 neighbouring values of a channel-major head at once. Reads each score once.
#include "head.cuh"

constexpr u32 LANES = 32;
constexpr u32 WARPS = 8;

// The highest key, the second highest (equal to it for a tie), and the lowest class of the highest.
struct Best {
  u32 key, second, class_index;
};

struct Partial {
  Best best[WARPS][LANES];
};

template <class T>
__device__ __forceinline__ void class_max(const Head<T>& head, u32 picture, Partial& partial,
                                          u32* best_key, u32* second_key, u32* best_class,
                                          u32* nan_count) {
  u32 lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  u32 anchor = blockIdx.x * LANES + lane;
  Best best{0, 0, 0};
  if (anchor < head.anchors) {
    u32 nans = 0;
#pragma unroll 8
    for (u32 index = warp; index < head.classes; index += WARPS) {
      u32 key = order_key(head.score(index, anchor));
      nans += key == 0;
      if (key > best.key) {
        best = Best{key, best.key, index};
      } else if (key > best.second) {
        best.second = key;
      }
    }
    if (nans) atomicAdd(&nan_count[picture], nans);
  }
  partial.best[warp][lane] = best;
  __syncthreads();
  if (warp > 0 || anchor >= head.anchors) return;
  for (u32 other = 1; other < WARPS; other++) {
    Best rival = partial.best[other][lane];
    bool wins =
        rival.key > best.key || (rival.key == best.key && rival.class_index < best.class_index);
    u32 loser = wins ? best.key : rival.key;
    u32 second = wins ? rival.second : best.second;
    if (wins) best = rival;
    best.second = loser > second ? loser : second;
  }
  u64 place = (u64)picture * head.anchors + anchor;
  best_key[place] = best.key;
  second_key[place] = best.second;
  best_class[place] = best.class_index;
}

extern "C" __global__ void __launch_bounds__(256)
    class_max_float32(const float* heads, u32 rows, u32 anchors, u32 anchors_first,
                      const u32* class_ids, u32 classes, u32* best_key, u32* second_key,
                      u32* best_class, u32* nan_count) {
  __shared__ Partial partial;
  class_max(head_of(heads, blockIdx.y, rows, anchors, anchors_first, class_ids, classes),
            blockIdx.y, partial, best_key, second_key, best_class, nan_count);
}

extern "C" __global__ void __launch_bounds__(256)
    class_max_float16(const half* heads, u32 rows, u32 anchors, u32 anchors_first,
                      const u32* class_ids, u32 classes, u32* best_key, u32* second_key,
                      u32* best_class, u32* nan_count) {
  __shared__ Partial partial;
  class_max(head_of(heads, blockIdx.y, rows, anchors, anchors_first, class_ids, classes),
            blockIdx.y, partial, best_key, second_key, best_class, nan_count);
}
