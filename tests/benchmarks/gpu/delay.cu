// What measuring needs besides the work that is measured.

// Keeps the stream busy, so that what is enqueued behind it starts without waiting for the host.
extern "C" __global__ void delay(unsigned long long cycles) {
  long long start = clock64();
  while (clock64() - start < (long long)cycles) {
  }
}

// Reads memory that is larger than the L2 cache, so that nothing else is left in there. Reading
// leaves nothing to be written back later, as a memset would. The sum is never negative.
extern "C" __global__ void flush(const float* memory, unsigned long long count, float* never) {
  unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
  unsigned long long first = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
  float sum = 0;
  for (unsigned long long index = first; index < count; index += step) sum += memory[index];
  if (sum < 0) *never = sum;
}
