// Types, and the total order of scores that every selection uses.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

constexpr u32 WARP = 32;
constexpr u32 EVERY_LANE = 0xFFFFFFFFu;

// A float16 as its bits: NVRTC from pip has no headers to take `__half` from.
struct half {
  u16 bits;
};

__device__ __forceinline__ float to_float(float value) { return value; }

// Exact. Moved to float32's place, the exponent is 112 too small, also for subnormals; the
// multiplication corrects that. Infinity and NaN keep their exponent of all ones.
__device__ __forceinline__ float to_float(half value) {
  u32 magnitude = (value.bits & 0x7FFFu) << 13;
  u32 sign = (value.bits & 0x8000u) << 16;
  u32 scaled = __float_as_uint(__uint_as_float(magnitude) * 0x1p112f);
  u32 special = magnitude | 0x7F800000u;
  return __uint_as_float(sign | (magnitude >= 0x0F800000u ? special : scaled));
}

// An integer in the order of the score: NaN 0, below -inf; -0 equals +0.
__device__ __forceinline__ u32 order_key(float score) {
  u32 bits = __float_as_uint(score + 0.0f);  // -0 + 0 = +0
  u32 key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return score != score ? 0 : key;
}

// The score of a key; exact but for the sign of zero.
__device__ __forceinline__ float score_of(u32 key) {
  return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

// Score first, then the lower index: unique, so nothing depends on the order in which threads run.
// The complement of the index also keeps 0 free, which stands for "none" in top.cuh.
__device__ __forceinline__ u64 unique_key(u32 key, u32 index) {
  return (u64)key << 32 | (u32)~index;
}

__device__ __forceinline__ u32 index_of(u64 unique) { return ~(u32)unique; }
__device__ __forceinline__ u32 key_of(u64 unique) { return (u32)(unique >> 32); }
