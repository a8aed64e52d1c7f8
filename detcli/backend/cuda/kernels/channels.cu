// Frames of a video as the letterbox reads them: red, green, blue becomes blue, green, red.
//
// Grid (ceil(width / 256), height), block 256: a thread for a pixel. It is a copy as well: the
// decoder fills the memory that it is given from with later frames.
#include "order.cuh"

extern "C" __global__ void __launch_bounds__(256)
    bgr_from_rgb(const u8* rgb, u32 pitch, u8* bgr, u32 width) {
  u32 x = blockIdx.x * 256 + threadIdx.x;
  if (x >= width) return;
  const u8* source = rgb + (u64)blockIdx.y * pitch + 3 * x;
  u8* target = bgr + 3 * ((u64)blockIdx.y * width + x);
  u8 red = source[0], green = source[1], blue = source[2];
  target[0] = blue;
  target[1] = green;
  target[2] = red;
}
