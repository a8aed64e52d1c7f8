// The letterbox: pictures of any sizes into the network's input, in one launch.
//
// Grid (ceil(width / 32), ceil(height / 8), B), block 256: a thread for a pixel of the canvas, all
// three channels of it. A warp is 32 pixels of one row, so that each of its three writes is one
// unbroken piece of a plane. A pixel on the grey ground reads no picture.
#include "order.cuh"

constexpr u32 TILE_WIDTH = 32;
constexpr u32 TILE_HEIGHT = 8;
constexpr u32 LEVELS = 256;  // of a channel; also the threads of a block
constexpr u32 GREY = 114;

// Two neighbouring source pixels along an axis, and their weights in 1 / 2048: a row of a table
// that the host made. 16 bytes that are read at once.
struct alignas(16) Tap {
  u32 near, far, near_weight, far_weight;
};

// One picture, and where it lies on the canvas.
struct alignas(16) Picture {
  const u8* pixels;    // rows of BGR, without gaps
  const Tap* columns;  // `width` of them
  const Tap* rows;     // `height` of them
  u64 pitch;           // bytes of a row of pixels
  u32 left, top;       // of the resized picture on the canvas
  u32 width, height;   // of the resized picture
};
static_assert(sizeof(Tap) == 16 && sizeof(Picture) == 48, "as in letterbox.py");

// The three channels of one canvas pixel, each from 0 to 255.
struct Pixel {
  u32 blue, green, red;
};

// A channel from the four pixels around it: cv2.INTER_LINEAR, see backend/cuda/resize.py. Every
// step fits 32 bits: 255 * 2048 >> 4 is 15 bits wide, a weight 12.
__device__ __forceinline__ u32 blend(const u8* above, const u8* below, u32 near, u32 far,
                                     const Tap& column, const Tap& row) {
  u32 upper = above[near] * column.near_weight + above[far] * column.far_weight;
  u32 lower = below[near] * column.near_weight + below[far] * column.far_weight;
  u32 weighted = (row.near_weight * (upper >> 4) >> 16) + (row.far_weight * (lower >> 4) >> 16);
  return (weighted + 2) >> 2;
}

// What lies on the canvas at (x, y).
__device__ __forceinline__ Pixel canvas_pixel(const Picture& picture, u32 x, u32 y) {
  u32 column_index = x - picture.left, row_index = y - picture.top;  // huge where negative
  bool on_ground = (column_index >= picture.width) | (row_index >= picture.height);
  if (on_ground) return Pixel{GREY, GREY, GREY};
  Tap column = picture.columns[column_index], row = picture.rows[row_index];
  const u8* above = picture.pixels + row.near * picture.pitch;
  const u8* below = picture.pixels + row.far * picture.pitch;
  u32 near = 3 * column.near, far = 3 * column.far;
  return Pixel{blend(above, below, near, far, column, row),
               blend(above, below, near + 1, far + 1, column, row),
               blend(above, below, near + 2, far + 2, column, row)};
}

// `unit` holds the tensor's value for each of the 256 levels. The host made it, so no division is
// left here, nor a rounding to float16. Every thread brings one entry into shared memory.
template <class T>
__device__ __forceinline__ void letterbox(const Picture& picture, const T* unit, T* tensor,
                                          u32 height, u32 width, T (&value)[LEVELS]) {
  T entry = unit[threadIdx.x];  // waits for memory together with the pixels
  u32 x = blockIdx.x * TILE_WIDTH + threadIdx.x % TILE_WIDTH;
  u32 y = blockIdx.y * TILE_HEIGHT + threadIdx.x / TILE_WIDTH;
  Pixel pixel = canvas_pixel(picture, x, y);
  value[threadIdx.x] = entry;
  __syncthreads();
  if (x >= width || y >= height) return;
  u64 plane = (u64)height * width;
  T* red = tensor + 3 * plane * blockIdx.z + (u64)y * width + x;
  red[0] = value[pixel.red];
  red[plane] = value[pixel.green];
  red[2 * plane] = value[pixel.blue];
}

extern "C" __global__ void __launch_bounds__(256)
    letterbox_float32(const Picture* pictures, const float* unit, float* tensor, u32 height,
                      u32 width) {
  __shared__ float value[LEVELS];
  letterbox(pictures[blockIdx.z], unit, tensor, height, width, value);
}

extern "C" __global__ void __launch_bounds__(256)
    letterbox_float16(const Picture* pictures, const half* unit, half* tensor, u32 height,
                      u32 width) {
  __shared__ half value[LEVELS];
  letterbox(pictures[blockIdx.z], unit, tensor, height, width, value);
}
