// The letterbox: images of any sizes into the network's input, in one launch.
//
// Grid (ceil(width / 32), ceil(height / 8), B), block 256: a thread for a pixel of the canvas, all
// three channels of it. A warp is 32 pixels of one row, so that each of its three writes is one
// unbroken piece of a plane. A pixel on the padded ground reads no image.
#include "order.cuh"

constexpr u32 TILE_WIDTH = 32;
constexpr u32 TILE_HEIGHT = 8;
constexpr u32 LEVELS = 256;  // of a channel; also the threads of a block
constexpr u32 CHANNELS = 3;

// Two neighbouring source pixels along an axis, and their weights in 1 / 2048: a row of a table
// that the host made. 16 bytes that are read at once.
struct alignas(16) Tap {
  u32 near, far, near_weight, far_weight;
};

// One image, and where it lies on the canvas.
struct alignas(16) Image {
  const u8* pixels;    // rows of BGR, without gaps
  const Tap* columns;  // `width` of them
  const Tap* rows;     // `height` of them
  u64 pitch;           // bytes of a row of pixels
  u32 left, top;       // of the resized image on the canvas
  u32 width, height;   // of the resized image
};
static_assert(sizeof(Tap) == 16 && sizeof(Image) == 48, "as in letterbox.py");

// The network's input.
struct Canvas {
  u32 height, width;
  u32 pad;         // level of the padding
  u32 red_plane;   // 0 where channels are red, green, blue; 2 where they are blue, green, red
  u32 table_step;  // from one channel's table to the next; 0 where all share one
};

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
__device__ __forceinline__ Pixel canvas_pixel(const Image& image, u32 pad, u32 x, u32 y) {
  u32 column_index = x - image.left, row_index = y - image.top;  // huge where negative
  bool on_ground = (column_index >= image.width) | (row_index >= image.height);
  if (on_ground) return Pixel{pad, pad, pad};
  Tap column = image.columns[column_index], row = image.rows[row_index];
  const u8* above = image.pixels + row.near * image.pitch;
  const u8* below = image.pixels + row.far * image.pitch;
  u32 near = 3 * column.near, far = 3 * column.far;
  return Pixel{blend(above, below, near, far, column, row),
               blend(above, below, near + 1, far + 1, column, row),
               blend(above, below, near + 2, far + 2, column, row)};
}

// `values` holds what the 256 levels are in the tensor, for blue, then green, then red, or once for
// all. The host made it, so no arithmetic is left here, nor a rounding to float16. Every thread
// brings one entry of each channel into shared memory; from a shared table, two of three reads hit
// the cache.
template <class T>
__device__ __forceinline__ void letterbox(const Image& image, const T* values, T* tensor,
                                          const Canvas& canvas, T (&value)[CHANNELS][LEVELS]) {
  T entry[CHANNELS];  // they wait for memory together with the pixels
  for (u32 channel = 0; channel < CHANNELS; ++channel)
    entry[channel] = values[channel * canvas.table_step + threadIdx.x];
  u32 x = blockIdx.x * TILE_WIDTH + threadIdx.x % TILE_WIDTH;
  u32 y = blockIdx.y * TILE_HEIGHT + threadIdx.x / TILE_WIDTH;
  Pixel pixel = canvas_pixel(image, canvas.pad, x, y);
  for (u32 channel = 0; channel < CHANNELS; ++channel) value[channel][threadIdx.x] = entry[channel];
  __syncthreads();
  if (x >= canvas.width || y >= canvas.height) return;
  u64 plane = (u64)canvas.height * canvas.width;
  T* first = tensor + 3 * plane * blockIdx.z + (u64)y * canvas.width + x;
  first[(2 - canvas.red_plane) * plane] = value[0][pixel.blue];
  first[plane] = value[1][pixel.green];
  first[canvas.red_plane * plane] = value[2][pixel.red];
}

extern "C" __global__ void __launch_bounds__(256)
    letterbox_float32(const Image* images, const float* values, float* tensor, u32 height,
                      u32 width, u32 pad, u32 red_plane, u32 table_step) {
  __shared__ float value[CHANNELS][LEVELS];
  Canvas canvas{height, width, pad, red_plane, table_step};
  letterbox(images[blockIdx.z], values, tensor, canvas, value);
}

extern "C" __global__ void __launch_bounds__(256)
    letterbox_float16(const Image* images, const half* values, half* tensor, u32 height, u32 width,
                      u32 pad, u32 red_plane, u32 table_step) {
  __shared__ half value[CHANNELS][LEVELS];
  Canvas canvas{height, width, pad, red_plane, table_step};
  letterbox(images[blockIdx.z], values, tensor, canvas, value);
}
