// The head of one image, as the network wrote it.
#pragma once
#include "order.cuh"

// Four box rows, then the scores of each class; (4 + C, N) or (N, 4 + C), told by the strides.
template <class T>
struct Head {
  const T* values;
  u32 row_stride, anchor_stride;  // in elements
  const u32* class_ids;           // the classes that count, ascending; null for all
  u32 anchors, classes;           // N, and how many classes are wanted
  const float* thresholds;        // one for each of these; null where one confidence is for all

  __device__ T stored(u32 row, u32 anchor) const {
    return values[(u64)row * row_stride + (u64)anchor * anchor_stride];
  }
  __device__ float at(u32 row, u32 anchor) const { return to_float(stored(row, anchor)); }
  __device__ u32 class_id(u32 index) const { return class_ids ? class_ids[index] : index; }
  __device__ float score(u32 class_index, u32 anchor) const {
    return at(4 + class_id(class_index), anchor);
  }
  // Whether a score is above the confidence of its class; NaN is not.
  __device__ bool counts(u32 class_index, float score) const {
    return score > thresholds[class_index];
  }
};

template <class T>
__device__ __forceinline__ Head<T> head_of(const T* heads, u32 image, u32 rows, u32 anchors,
                                           u32 anchors_first, const u32* class_ids, u32 classes,
                                           const float* thresholds = nullptr) {
  return Head<T>{heads + (u64)image * rows * anchors,
                 anchors_first ? 1 : anchors,
                 anchors_first ? rows : 1,
                 class_ids,
                 anchors,
                 classes,
                 thresholds};
}

struct Box {
  float x1, y1, x2, y2;
};

template <class T>
__device__ __forceinline__ Box box_of(const Head<T>& head, u32 anchor, bool cxcywh) {
  float a = head.at(0, anchor), b = head.at(1, anchor);
  float c = head.at(2, anchor), d = head.at(3, anchor);
  if (!cxcywh) return Box{a, b, c, d};
  float half_width = c / 2.0f, half_height = d / 2.0f;
  return Box{a - half_width, b - half_height, a + half_width, b + half_height};
}
