// K2: the detections of each image, from what K1 (class_max) found.
//
// Grid (B), block 1024. Steps 2 and 3 of the specification (backend/postprocess.py), with its two
// exact short cuts and a third: where an anchor's second highest score cannot be kept, its other
// classes are not read.
#include "head.cuh"
#include "top.cuh"

// Where classes have confidences of their own (BY_CLASS), the scores that are not above them get no
// key here either; K1 has left them out already.

// Step 3: first the best score of each kept anchor, then, of the anchors listed as wide, every
// score. The index in a key is the position, rank of the anchor * C + class.
template <bool BY_CLASS, class T>
struct ScoreSource {
  Head<T> head;
  const u32 *ranked, *wide;  // anchors by rank; ranks that need all their classes
  const u32 *best_key, *second_key, *best_class;
  u32 kept, floor;
  bool unique;

  __device__ u64 operator()(u32 index) const {
    if (index < kept) {
      u32 anchor = ranked[index];
      if (!unique && second_key[anchor] >= floor) return 0;  // wide: its scores come below
      return unique_key(best_key[anchor], index * head.classes + best_class[anchor]);
    }
    u32 rank = wide[(index - kept) / head.classes], class_index = (index - kept) % head.classes;
    float score = head.score(class_index, ranked[rank]);
    u32 key = order_key(score);
    if (BY_CLASS && !head.counts(class_index, score)) key = 0;
    return unique_key(key, rank * head.classes + class_index);
  }
};

// What K1 wrote, and room for what K2 needs, for one image.
struct Workspace {
  const u32 *best_key, *second_key, *best_class;
  const u64* survivors;
  u32 *ranked, *wide;  // (K)
  u64* spill;          // (spill_capacity)
  u32 spill_capacity;
};

// Rows x1, y1, x2, y2, score, class id; returns how many.
template <bool BY_CLASS, class T>
__device__ __forceinline__ u32 select(const Head<T>& head, bool cxcywh, u32 max_det, bool unique,
                                      float confidence, u32 survivor_count, const Workspace& space,
                                      Scratch& scratch, float* rows) {
  u32 floor = order_key(confidence) + 1;  // strictly above
  Top anchors = top(KeySource{space.survivors}, survivor_count, max_det, (u64)floor << 32, scratch,
                    space.spill, space.spill_capacity);
  // Where max_det anchors are left, their best scores alone fill the result.
  if (anchors.count == max_det) floor = key_of(anchors.keys[max_det - 1]);
  if (threadIdx.x == 0) scratch.counter = 0;
  __syncthreads();
  for (u32 rank = threadIdx.x; rank < anchors.count; rank += BLOCK) {
    u32 anchor = index_of(anchors.keys[rank]);
    space.ranked[rank] = anchor;
    if (!unique && space.second_key[anchor] >= floor)
      space.wide[atomicAdd(&scratch.counter, 1u)] = rank;
  }
  __syncthreads();
  u32 wide = scratch.counter;
  ScoreSource<BY_CLASS, T> scores{
      head,          space.ranked, space.wide, space.best_key, space.second_key, space.best_class,
      anchors.count, floor,        unique};
  Top best = top(scores, anchors.count + wide * head.classes, max_det, (u64)floor << 32, scratch,
                 space.spill, space.spill_capacity);
  for (u32 place = threadIdx.x; place < best.count; place += BLOCK) {
    u32 position = index_of(best.keys[place]);
    Box box = box_of(head, space.ranked[position / head.classes], cxcywh);
    float* row = rows + (u64)place * 6;
    row[0] = box.x1, row[1] = box.y1, row[2] = box.x2, row[3] = box.y2;
    row[4] = score_of(key_of(best.keys[place]));
    row[5] = (float)head.class_id(position % head.classes);
  }
  return best.count;
}

// counts (B, 2): rows of the image, and NaN scores. The counters of K1 are left at 0 for the next
// run.
template <bool BY_CLASS, class T>
__device__ __forceinline__ void select_image(const Head<T>& head, u32 cxcywh, u32 max_det,
                                             u32 unique, float confidence, Workspace space,
                                             u32* survivor_count, u32* nan_count, u32* counts,
                                             float* rows, Scratch& scratch) {
  u32 image = blockIdx.x;
  u64 anchors = (u64)image * head.anchors, kept = (u64)image * max_det;
  space.best_key += anchors, space.second_key += anchors, space.best_class += anchors;
  space.survivors += anchors;
  space.ranked += kept, space.wide += kept;
  space.spill += (u64)image * space.spill_capacity;
  u32 count = select<BY_CLASS>(head, cxcywh != 0, max_det, unique != 0, confidence,
                               survivor_count[image], space, scratch, rows + kept * 6);
  if (threadIdx.x == 0) {
    counts[image * 2] = count;
    counts[image * 2 + 1] = nan_count[image];
    nan_count[image] = survivor_count[image] = 0;
  }
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    select_float32(const float* heads, u32 rows_in_head, u32 anchors, u32 anchors_first,
                   const u32* class_ids, u32 classes, u32 cxcywh, u32 max_det, u32 unique,
                   float confidence, const u32* best_key, const u32* second_key,
                   const u32* best_class, const u64* survivors, u32* ranked, u32* wide, u64* spill,
                   u32 spill_capacity, u32* survivor_count, u32* nan_count, u32* counts,
                   float* rows) {
  __shared__ Scratch scratch;
  Workspace space{best_key, second_key, best_class, survivors, ranked, wide, spill, spill_capacity};
  select_image<false>(
      head_of(heads, blockIdx.x, rows_in_head, anchors, anchors_first, class_ids, classes), cxcywh,
      max_det, unique, confidence, space, survivor_count, nan_count, counts, rows, scratch);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    select_float16(const half* heads, u32 rows_in_head, u32 anchors, u32 anchors_first,
                   const u32* class_ids, u32 classes, u32 cxcywh, u32 max_det, u32 unique,
                   float confidence, const u32* best_key, const u32* second_key,
                   const u32* best_class, const u64* survivors, u32* ranked, u32* wide, u64* spill,
                   u32 spill_capacity, u32* survivor_count, u32* nan_count, u32* counts,
                   float* rows) {
  __shared__ Scratch scratch;
  Workspace space{best_key, second_key, best_class, survivors, ranked, wide, spill, spill_capacity};
  select_image<false>(
      head_of(heads, blockIdx.x, rows_in_head, anchors, anchors_first, class_ids, classes), cxcywh,
      max_det, unique, confidence, space, survivor_count, nan_count, counts, rows, scratch);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    select_by_class_float32(const float* heads, u32 rows_in_head, u32 anchors, u32 anchors_first,
                            const u32* class_ids, u32 classes, const float* thresholds, u32 cxcywh,
                            u32 max_det, u32 unique, float confidence, const u32* best_key,
                            const u32* second_key, const u32* best_class, const u64* survivors,
                            u32* ranked, u32* wide, u64* spill, u32 spill_capacity,
                            u32* survivor_count, u32* nan_count, u32* counts, float* rows) {
  __shared__ Scratch scratch;
  Workspace space{best_key, second_key, best_class, survivors, ranked, wide, spill, spill_capacity};
  select_image<true>(head_of(heads, blockIdx.x, rows_in_head, anchors, anchors_first, class_ids,
                             classes, thresholds),
                     cxcywh, max_det, unique, confidence, space, survivor_count, nan_count, counts,
                     rows, scratch);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    select_by_class_float16(const half* heads, u32 rows_in_head, u32 anchors, u32 anchors_first,
                            const u32* class_ids, u32 classes, const float* thresholds, u32 cxcywh,
                            u32 max_det, u32 unique, float confidence, const u32* best_key,
                            const u32* second_key, const u32* best_class, const u64* survivors,
                            u32* ranked, u32* wide, u64* spill, u32 spill_capacity,
                            u32* survivor_count, u32* nan_count, u32* counts, float* rows) {
  __shared__ Scratch scratch;
  Workspace space{best_key, second_key, best_class, survivors, ranked, wide, spill, spill_capacity};
  select_image<true>(head_of(heads, blockIdx.x, rows_in_head, anchors, anchors_first, class_ids,
                             classes, thresholds),
                     cxcywh, max_det, unique, confidence, space, survivor_count, nan_count, counts,
                     rows, scratch);
}
