// Non-maximum suppression among boxes of a class, or of all, for one-to-many heads
// (data/suppression.py).
//
// rank_anchors, grid (B), block 1024: the anchors above the confidence, best first.
// nms, grid (B), block 1024: greedy, 64 candidates at a time. Each is compared with the boxes that
// are kept already and with the others of the 64, whose overlaps are bits of a mask; one warp then
// walks the mask. So memory does not grow with the square of the candidates.
#include "head.cuh"
#include "top.cuh"

extern "C" __global__ void __launch_bounds__(1024, 1)
    rank_anchors(u32 anchors, const u64* survivors, u32* survivor_count, u32* ranked,
                 u32* ranked_count, u64* spill, u32 spill_capacity) {
  __shared__ Scratch scratch;
  u32 image = blockIdx.x;
  u64 first = (u64)image * anchors;
  Top best = top(KeySource{survivors + first}, survivor_count[image], anchors, ANYTHING, scratch,
                 spill + (u64)image * spill_capacity, spill_capacity);
  for (u32 rank = threadIdx.x; rank < best.count; rank += BLOCK) {
    ranked[first + rank] = index_of(best.keys[rank]);
  }
  if (threadIdx.x == 0) {
    ranked_count[image] = best.count;
    survivor_count[image] = 0;  // for the next run
  }
}

constexpr u32 CHUNK = 64;

struct Candidates {
  Box box[CHUNK];
  u32 class_index[CHUNK];
  float score[CHUNK];
  u32 overlaps[CHUNK][CHUNK / 32];  // bits of the later candidates that this one would drop
  u32 dropped[CHUNK / 32];          // bits of those that a kept box drops
  u64 stays;                        // bits of those that are kept in the end
};

// As NumPy's: NaN if either is NaN.
__device__ __forceinline__ float maximum(float a, float b) { return a >= b || a != a ? a : b; }
__device__ __forceinline__ float minimum(float a, float b) { return a <= b || a != a ? a : b; }

__device__ __forceinline__ float area(const Box& box) {
  return maximum(box.x2 - box.x1, 0.0f) * maximum(box.y2 - box.y1, 0.0f);
}

__device__ __forceinline__ bool overlap(const Box& kept, const Box& box, float threshold) {
  float width = maximum(minimum(kept.x2, box.x2) - maximum(kept.x1, box.x1), 0.0f);
  float height = maximum(minimum(kept.y2, box.y2) - maximum(kept.y1, box.y1), 0.0f);
  float intersection = width * height;
  float both = area(kept) + area(box) - intersection;
  return (both > 0.0f ? intersection / both : 0.0f) > threshold;
}

__device__ __forceinline__ void set_bit(u32* bits, u32 index) {
  atomicOr(&bits[index / 32], 1u << index % 32);
}

__device__ __forceinline__ u64 bits_of(const u32 (&words)[CHUNK / 32]) {
  return (u64)words[1] << 32 | words[0];
}

// Compare the candidates with the rows that are kept, and with each other.
__device__ __forceinline__ void compare(Candidates& chunk, u32 count, const float* rows,
                                        const u32* row_class, u32 kept, float threshold,
                                        bool together) {
  u32 mine = threadIdx.x % CHUNK;
  if (mine >= count) return;
  Box box = chunk.box[mine];
  for (u32 place = threadIdx.x / CHUNK; place < kept; place += BLOCK / CHUNK) {
    if (!together && row_class[place] != chunk.class_index[mine]) continue;
    const float* row = rows + (u64)place * 6;
    if (overlap(Box{row[0], row[1], row[2], row[3]}, box, threshold)) {
      set_bit(chunk.dropped, mine);
      break;
    }
  }
  for (u32 better = threadIdx.x / CHUNK; better < mine; better += BLOCK / CHUNK) {
    if (!together && chunk.class_index[better] != chunk.class_index[mine]) continue;
    if (overlap(chunk.box[better], box, threshold)) set_bit(chunk.overlaps[better], mine);
  }
}

// One warp: which candidates stay, at most `room`, from one to the next that the better ones leave.
// Each lane holds the overlaps of two candidates.
__device__ __forceinline__ u64 walk(const Candidates& chunk, u32 count, u32 room) {
  u32 lane = threadIdx.x % WARP;
  u64 low = lane < count ? bits_of(chunk.overlaps[lane]) : 0;
  u64 high = lane + WARP < count ? bits_of(chunk.overlaps[lane + WARP]) : 0;
  u64 left = ~0ull >> (CHUNK - count) & ~bits_of(chunk.dropped), stays = 0;
  for (; left != 0 && room > 0; room--) {
    u32 next = (u32)__ffsll((i64)left) - 1;
    stays |= 1ull << next;
    left &= left - 1;
    left &= ~__shfl_sync(EVERY_LANE, next < WARP ? low : high, (int)(next % WARP));
  }
  return stays;
}

template <class T>
__device__ __forceinline__ u32 suppress(const Head<T>& head, bool cxcywh, u32 max_det,
                                        float threshold, bool together, const u32* ranked,
                                        u32 ranked_count, const u32* best_key,
                                        const u32* best_class, u32* row_class, float* rows,
                                        Candidates& chunk) {
  u32 mine = threadIdx.x;
  u32 kept = 0;
  for (u32 start = 0; start < ranked_count && kept < max_det; start += CHUNK) {
    u32 count = ranked_count - start < CHUNK ? ranked_count - start : CHUNK;
    if (mine < count) {
      u32 anchor = ranked[start + mine];
      chunk.box[mine] = box_of(head, anchor, cxcywh);
      chunk.class_index[mine] = best_class[anchor];
      chunk.score[mine] = score_of(best_key[anchor]);
      for (u32 word = 0; word < CHUNK / 32; word++) chunk.overlaps[mine][word] = 0;
    }
    if (mine < CHUNK / 32) chunk.dropped[mine] = 0;
    __syncthreads();
    compare(chunk, count, rows, row_class, kept, threshold, together);
    __syncthreads();
    if (mine < WARP) {
      u64 stays = walk(chunk, count, max_det - kept);
      if (mine == 0) chunk.stays = stays;
    }
    __syncthreads();
    if (mine < count && chunk.stays >> mine & 1) {
      u32 place = kept + (u32)__popcll(chunk.stays & ((1ull << mine) - 1));
      Box box = chunk.box[mine];
      float* row = rows + (u64)place * 6;
      row[0] = box.x1, row[1] = box.y1, row[2] = box.x2, row[3] = box.y2;
      row[4] = chunk.score[mine];
      row[5] = (float)head.class_id(chunk.class_index[mine]);
      row_class[place] = chunk.class_index[mine];
    }
    kept += (u32)__popcll(chunk.stays);
  }
  return kept;
}

// counts (B, 2): rows of the image, and NaN scores, whose counter is left at 0 for the next run.
template <class T>
__device__ __forceinline__ void nms(const Head<T>& head, u32 cxcywh, u32 max_det, float threshold,
                                    u32 together, const u32* ranked, const u32* ranked_count,
                                    const u32* best_key, const u32* best_class, u32* row_class,
                                    u32* nan_count, u32* counts, float* rows, Candidates& chunk) {
  u32 image = blockIdx.x;
  u64 anchors = (u64)image * head.anchors, first = (u64)image * max_det;
  u32 kept = suppress(head, cxcywh != 0, max_det, threshold, together != 0, ranked + anchors,
                      ranked_count[image], best_key + anchors, best_class + anchors,
                      row_class + first, rows + first * 6, chunk);
  if (threadIdx.x == 0) {
    counts[image * 2] = kept;
    counts[image * 2 + 1] = nan_count[image];
    nan_count[image] = 0;
  }
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    nms_float32(const float* heads, u32 rows_in_head, u32 anchors, u32 anchors_first,
                const u32* class_ids, u32 classes, u32 cxcywh, u32 max_det, float threshold,
                u32 together, const u32* ranked, const u32* ranked_count, const u32* best_key,
                const u32* best_class, u32* row_class, u32* nan_count, u32* counts, float* rows) {
  __shared__ Candidates chunk;
  nms(head_of(heads, blockIdx.x, rows_in_head, anchors, anchors_first, class_ids, classes), cxcywh,
      max_det, threshold, together, ranked, ranked_count, best_key, best_class, row_class,
      nan_count, counts, rows, chunk);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    nms_float16(const half* heads, u32 rows_in_head, u32 anchors, u32 anchors_first,
                const u32* class_ids, u32 classes, u32 cxcywh, u32 max_det, float threshold,
                u32 together, const u32* ranked, const u32* ranked_count, const u32* best_key,
                const u32* best_class, u32* row_class, u32* nan_count, u32* counts, float* rows) {
  __shared__ Candidates chunk;
  nms(head_of(heads, blockIdx.x, rows_in_head, anchors, anchors_first, class_ids, classes), cxcywh,
      max_det, threshold, together, ranked, ranked_count, best_key, best_class, row_class,
      nan_count, counts, rows, chunk);
}
