// The k largest of each row of a matrix: detcli.top_k on the GPU.
//
// Block 1024. A short row is one block's work: top_k, grid (rows). A long one is cut into chunks:
// top_k_chunks, grid (chunks, rows), leaves the k largest keys of each chunk, and top_k chooses
// among those. As keys are unique, the k largest of the chunks' k largest are the row's.
#include "top.cuh"

template <class T>
struct RowSource {
  const T* values;
  u32 first;  // index of values[0] in the row
  __device__ u64 operator()(u32 index) const {
    return unique_key(order_key(to_float(values[index])), first + index);
  }
};

template <class T>
__device__ __forceinline__ void chunk(const T* values, u32 length, u32 chunk_length, u32 k,
                                      u64* keys, Scratch& scratch) {
  u32 first = blockIdx.x * chunk_length;
  u32 total = length - first < chunk_length ? length - first : chunk_length;
  const T* row = values + (u64)blockIdx.y * length;
  Top best = top(RowSource<T>{row + first, first}, total, k, ANYTHING, scratch, nullptr, 0);
  u64* out = keys + ((u64)blockIdx.y * gridDim.x + blockIdx.x) * k;
  for (u32 rank = threadIdx.x; rank < k; rank += BLOCK)
    out[rank] = rank < best.count ? best.keys[rank] : 0;
}

// With `keys`, (rows, key_count), they are what is left of the row; else the row is read itself.
// `spill`: see top.cuh.
template <class T>
__device__ __forceinline__ void row(const T* values, u32 length, const u64* keys, u32 key_count,
                                    u32 k, u32 sorted, T* out_values, i64* out_indices, u64* spill,
                                    u32 spill_capacity, Scratch& scratch) {
  u32 number = blockIdx.x;
  values += (u64)number * length;
  spill += (u64)number * spill_capacity;
  Top best =
      keys ? top(KeySource{keys + (u64)number * key_count}, key_count, k, ANYTHING, scratch, spill,
                 spill_capacity)
           : top(RowSource<T>{values, 0}, length, k, ANYTHING, scratch, spill, spill_capacity);
  u64* list = const_cast<u64*>(best.keys);
  if (!sorted) {
    // The low half of a key falls with the index: exchanged with the high half, it orders.
    for (u32 rank = threadIdx.x; rank < best.count; rank += BLOCK) {
      list[rank] = list[rank] << 32 | list[rank] >> 32;
    }
    sort_descending(list, best.count);
  }
  for (u32 rank = threadIdx.x; rank < best.count; rank += BLOCK) {
    u32 index = sorted ? index_of(list[rank]) : ~key_of(list[rank]);
    out_values[(u64)number * k + rank] = values[index];
    out_indices[(u64)number * k + rank] = index;
  }
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    top_k_chunks_float32(const float* values, u32 length, u32 chunk_length, u32 k, u64* keys) {
  __shared__ Scratch scratch;
  chunk(values, length, chunk_length, k, keys, scratch);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    top_k_float32(const float* values, u32 length, const u64* keys, u32 key_count, u32 k,
                  u32 sorted, float* out_values, i64* out_indices, u64* spill, u32 spill_capacity) {
  __shared__ Scratch scratch;
  row(values, length, keys, key_count, k, sorted, out_values, out_indices, spill, spill_capacity,
      scratch);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    top_k_chunks_float16(const half* values, u32 length, u32 chunk_length, u32 k, u64* keys) {
  __shared__ Scratch scratch;
  chunk(values, length, chunk_length, k, keys, scratch);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    top_k_float16(const half* values, u32 length, const u64* keys, u32 key_count, u32 k, u32 sorted,
                  half* out_values, i64* out_indices, u64* spill, u32 spill_capacity) {
  __shared__ Scratch scratch;
  row(values, length, keys, key_count, k, sorted, out_values, out_indices, spill, spill_capacity,
      scratch);
}
