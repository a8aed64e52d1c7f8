// NVIDIA's driver without a GPU: as much of libcuda.so.1 as cuda-core asks for. Kernels run by the
// shim on the CPU, memory is the host's.
//
// A real GPU may do work at any moment between two: when the events that its stream waits for have
// come, and when somebody waits for it. This one does the work of a stream at the latest, or at the
// earliest where a test asks for that. What is read too early, or filled again too early, is then
// wrong every time instead of once in a while.
//
// Memory lies between guards, holds rubbish at first, and again once it is freed. What a program
// gets wrong without being told by an error code stands in `faults`. libcuda.py controls all this.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

enum Result {  // as in cuda.h
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201,
  NOT_FOUND = 500,
  NOT_SUPPORTED = 801,
};

namespace {

constexpr size_t kGuard = 256, kFirstContext = 0x1000, kContextStep = 16;
constexpr size_t kMemory = size_t(1) << 33;
constexpr int kRubbish = 0xCD;

using Launch = const char* (*)(const unsigned*, unsigned, int, void**);

struct Kernel {
  std::string name, signature;
  Launch launch;
};

struct Block {  // of memory, of the device or page-locked
  char* whole;
  size_t size;
  bool pinned;
  int device, test;
};

struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  uintptr_t stream;
};

struct KernelNode {
  const Kernel* function;
  unsigned grid[3], block[3], shared_bytes;
  void **arguments, **more;
  const Kernel* kernel;
  size_t context;
};

struct MemorySide {  // of a copy: a host's or a device's
  size_t x, y, z, detail;
  int type;
  char *host, *device;
  void *array, *reserved;
  size_t pitch, height;
};

struct MemcpyNode {
  MemorySide source, target;
  size_t width, height, depth;
};

struct MemsetNode {
  char* target;
  size_t pitch;
  unsigned value, element;
  size_t width, height;
};

struct UserObject {  // what cuda-core wants to live as long as a graph
  void* data;
  void (*destroy)(void*);
  ~UserObject() { destroy(data); }
};

struct Graph {
  std::vector<std::function<void()>> nodes;  // each depends on the one before it
  std::vector<std::shared_ptr<UserObject>> kept;

  Result append(size_t* node, size_t before, std::function<void()> work) {
    if (!work) return INVALID_VALUE;
    if ((before != 0) != !nodes.empty()) return NOT_SUPPORTED;
    nodes.push_back(std::move(work));
    return *node = nodes.size(), SUCCESS;
  }
};

struct Stream;

struct Event {  // a point in a stream's work; before all of it where the stream is null
  Stream* stream;
  size_t position;
};

struct Work {  // the work, or an event that the rest of the stream waits for
  std::function<void()> run;
  Event awaited;
};

struct Stream {
  bool early;
  std::deque<Work> queue;
  size_t issued, done;
  bool busy;
};

std::recursive_mutex turn;
std::deque<Stream> streams(1);  // never destroyed; the first is the legacy default stream
size_t first_stream;            // of the test
uint64_t early;                 // a bit for each stream of the test
std::map<uintptr_t, Block> held;
std::vector<Block> freed;  // kept: work in flight may still point there
std::map<std::string, Kernel> kernels;
std::string faults, calls, launched, failing;
int failure, devices, recording, idle, test;
size_t capacity = ~size_t(0), in_use;
bool (*reversed)() = [] { return false; };
void (*resolve)(const char*);  // asks libcuda.py to bring a kernel
// Of checks.cpp, where kernels are watched.
void (*checks_memory)(uintptr_t, size_t, int);
void (*checks_forget)(uintptr_t, size_t);
void (*checks_copied)(uintptr_t, uintptr_t, size_t);
thread_local size_t current;
thread_local int capture_mode;

void fault(const std::string& what) { faults += what + "\n"; }

bool reached(const Event& event) { return !event.stream || event.stream->done >= event.position; }

void run_until(const Event& event);

void step(Stream& stream) {
  Work work = std::move(stream.queue.front());
  stream.queue.pop_front();
  stream.busy = true;
  run_until(work.awaited);
  if (work.run) work.run();
  stream.busy = false;
  stream.done++;
}

void run_until(const Event& event) {
  while (!reached(event) && !event.stream->busy) step(*event.stream);
}

void run_early() {
  for (bool moved = true; moved;) {
    moved = false;
    for (Stream& stream : streams)
      while (stream.early && !stream.busy && !stream.queue.empty() &&
             reached(stream.queue.front().awaited))
        step(stream), moved = true;
  }
}

Result wait_for(const Event& event) { return run_until(event), run_early(), SUCCESS; }

Result wait_for_all() {
  for (Stream& stream : streams) run_until({&stream, stream.issued});
  return SUCCESS;
}

Stream& stream_of(uintptr_t handle) {  // CUDA's own streams have small numbers
  return handle < 16 ? streams.front() : *reinterpret_cast<Stream*>(handle);
}

Result enqueue(uintptr_t handle, std::function<void()> work, Event awaited = {}) {
  if (idle) return SUCCESS;
  Stream& stream = stream_of(handle);
  stream.queue.push_back({std::move(work), awaited});
  stream.issued++;
  return run_early(), SUCCESS;
}

// What a call does first: it is written down, and may be told to fail.
void note(const std::string& name, const std::string& detail) {
  calls += name + (detail.empty() ? "" : " " + detail) + "\n";
}

// All that is done where Python drops something, which may be at any time.
#define LOCKED std::lock_guard<std::recursive_mutex> guard(turn)
#define BEGIN(detail)                    \
  LOCKED;                                \
  if (recording) note(__func__, detail); \
  if (failing == __func__) return Result(failure)
#define NEEDS_CONTEXT \
  if (!current) return INVALID_CONTEXT

Result allocate(uintptr_t* address, size_t size, bool pinned) {
  if (size == 0) return INVALID_VALUE;
  if (!pinned && (size > capacity || in_use > capacity - size)) return OUT_OF_MEMORY;
  char* whole = static_cast<char*>(aligned_alloc(kGuard, (size / kGuard + 3) * kGuard));
  if (!whole) return OUT_OF_MEMORY;
  memset(whole, kRubbish, (size / kGuard + 3) * kGuard);
  *address = reinterpret_cast<uintptr_t>(whole + kGuard);
  held[*address] = {whole, size, pinned, int((current - kFirstContext) / kContextStep), test};
  if (!pinned) in_use += size;
  if (checks_memory) checks_memory(*address, size, pinned);  // the host writes there as it likes
  return SUCCESS;
}

void release(uintptr_t address) {
  auto found = held.find(address);
  if (found == held.end()) return fault("memory is freed that nobody allocated");
  Block block = found->second;
  held.erase(found);
  if (!block.pinned && block.test == test) in_use -= block.size;
  if (checks_forget) checks_forget(address, block.size);
  memset(block.whole + kGuard, kRubbish, block.size);
  for (size_t at = 0; at < (block.size / kGuard + 3) * kGuard; at++) {
    if (static_cast<unsigned char>(block.whole[at]) == kRubbish) continue;
    fault("byte " + std::to_string(long(at) - long(kGuard)) + " of memory of " +
          std::to_string(block.size) + " bytes was written");
    break;
  }
  freed.push_back(block);
}

std::function<void()> copy(char* target, const char* source, size_t size) {
  return [=] {
    memcpy(target, source, size);
    if (checks_copied) checks_copied(uintptr_t(target), uintptr_t(source), size);
  };
}

std::function<void()> fill(char* target, unsigned char value, size_t size) {
  return [=] {
    memset(target, value, size);
    if (checks_copied) checks_copied(uintptr_t(target), 0, size);
  };
}

// The launch as work, which holds the arguments as they are now; none if CUDA refuses it.
std::function<void()> launch(const Kernel& kernel, const unsigned* grid, unsigned block,
                             void** arguments) {
  std::vector<uint64_t> values(kernel.signature.size());
  for (size_t i = 0; i < values.size(); i++)
    memcpy(&values[i], arguments[i], strchr("PqQ", kernel.signature[i]) ? 8 : 4);
  std::array<unsigned, 3> blocks{grid[0], grid[1], grid[2]};
  if (!blocks[0] || !blocks[1] || !blocks[2] || !block) return nullptr;
  return [&kernel, blocks, block, values]() mutable {
    launched += kernel.name + " ";
    std::vector<void*> pointers;
    for (uint64_t& value : values) pointers.push_back(&value);
    if (const char* wrong = kernel.launch(blocks.data(), block, reversed(), pointers.data()))
      fault(kernel.name + ": " + wrong);
  };
}

}  // namespace

// ---------------------------------------------------------------- for libcuda.py

API void fake_reset(int count, uint64_t early_streams, size_t bytes, bool (*order)()) {
  std::lock_guard<std::recursive_mutex> guard(turn);
  devices = count, early = early_streams, capacity = bytes, reversed = order;
  first_stream = streams.size();
  for (Stream& stream : streams) stream.early = !~early;
  test++, in_use = 0;  // what an earlier test has not freed is not counted
  failing = "", recording = 0, idle = 0, calls = launched = faults = "";
}
API void fake_finish() {
  std::lock_guard<std::recursive_mutex> guard(turn);
  wait_for_all();
}
API void fake_fail(const char* name, int error) { failing = name, failure = error; }
API void fake_checks(void (*memory)(uintptr_t, size_t, int), void (*forget)(uintptr_t, size_t),
                     void (*copied)(uintptr_t, uintptr_t, size_t)) {
  checks_memory = memory, checks_forget = forget, checks_copied = copied;
}
API void fake_idle(int on) { idle = on; }
API void fake_record(int on) { recording = on, calls = ""; }
API void fake_resolver(void (*ask)(const char*)) { resolve = ask; }
API void fake_kernel(const char* name, const char* signature, Launch launch) {
  kernels[name] = {name, signature, launch};
}
API const char* fake_calls() { return calls.c_str(); }
API const char* fake_launched() { return launched.c_str(); }
API const char* fake_faults() { return faults.c_str(); }
API size_t fake_held() {
  return size_t(
      std::count_if(held.begin(), held.end(), [](auto& one) { return one.second.test == test; }));
}
API size_t fake_waiting() {
  size_t waiting = 0;
  for (Stream& stream : streams) waiting += stream.issued - stream.done;
  return waiting;
}
API void fake_free_kept() {
  for (Block& block : freed) free(block.whole);
  freed.clear();
}

// ---------------------------------------------------------------- the driver: device and context

API Result cuInit(unsigned) { return devices ? SUCCESS : NO_DEVICE; }
API Result cuDriverGetVersion(int* version) { return *version = 13000, SUCCESS; }
API Result cuDeviceGetCount(int* count) { return *count = devices, SUCCESS; }
API Result cuDeviceGet(int* device, int ordinal) {
  return *device = ordinal, ordinal < devices ? SUCCESS : INVALID_DEVICE;
}
API Result cuDeviceGetName(char* name, int length, int) {
  return snprintf(name, size_t(length), "CPU in disguise"), SUCCESS;
}
API Result cuDeviceTotalMem(size_t* bytes, int) { return *bytes = kMemory, SUCCESS; }
API Result cuDeviceTotalMem_v2(size_t* bytes, int device) {
  return cuDeviceTotalMem(bytes, device);
}
API Result cuDeviceGetUuid(void* uuid, int device) { return memset(uuid, device, 16), SUCCESS; }
API Result cuDeviceGetAttribute(int* value, int attribute, int) {
  constexpr int kMultiprocessors = 16, kUnifiedAddressing = 41, kMajor = 75, kMinor = 76,
                kMemoryPools = 115;
  *value = attribute == kMultiprocessors                                  ? 64
           : attribute == kMajor                                          ? 7
           : attribute == kMinor                                          ? 5
           : attribute == kUnifiedAddressing || attribute == kMemoryPools ? 1
                                                                          : 0;
  return SUCCESS;
}
API Result cuDevicePrimaryCtxRetain(size_t* context, int device) {
  return *context = kFirstContext + size_t(device) * kContextStep, SUCCESS;
}
API Result cuDevicePrimaryCtxRelease(int) { return SUCCESS; }
API Result cuCtxGetCurrent(size_t* context) { return *context = current, SUCCESS; }
API Result cuCtxSetCurrent(size_t context) {
  BEGIN(std::to_string((context - kFirstContext) / kContextStep));
  return current = context, SUCCESS;
}
API Result cuCtxPushCurrent(size_t context) { return current = context, SUCCESS; }
API Result cuCtxPopCurrent(size_t* context) { return *context = current, current = 0, SUCCESS; }
API Result cuCtxGetDevice(int* device) {
  NEEDS_CONTEXT;
  return *device = int((current - kFirstContext) / kContextStep), SUCCESS;
}
API Result cuCtxGetId(size_t context, uint64_t* id) { return *id = context, SUCCESS; }
API Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -5, SUCCESS;
}
API Result cuCtxSynchronize() {
  BEGIN("");
  NEEDS_CONTEXT;
  return wait_for_all();
}
API Result cuThreadExchangeStreamCaptureMode(int* mode) {
  BEGIN(std::to_string(*mode));
  return std::swap(*mode, capture_mode), SUCCESS;
}

// ---------------------------------------------------------------- streams and events

API Result cuStreamCreateWithPriority(Stream** stream, unsigned, int) {
  BEGIN("");
  NEEDS_CONTEXT;
  size_t number = streams.size() - first_stream;
  streams.emplace_back();
  streams.back().early = number < 64 ? early >> number & 1 : !~early;
  return *stream = &streams.back(), SUCCESS;
}
API Result cuStreamCreate(Stream** stream, unsigned flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}
API Result cuStreamDestroy(size_t) {
  BEGIN("");
  return SUCCESS;
}
API Result cuStreamSynchronize(uintptr_t stream) {
  BEGIN("");
  return wait_for({&stream_of(stream), stream_of(stream).issued});
}
API Result cuStreamGetCtx(size_t, size_t* context) { return *context = current, SUCCESS; }
API Result cuStreamIsCapturing(size_t, int* status) { return *status = 0, SUCCESS; }
API Result cuStreamWaitEvent(uintptr_t stream, const Event* event, unsigned) {
  BEGIN("");
  return enqueue(stream, nullptr, *event);  // as it is now: it may be recorded again
}
API Result cuLaunchHostFunc(uintptr_t stream, void (*function)(void*), void* data) {
  BEGIN("");
  return enqueue(stream, [=] { function(data); });
}
API Result cuEventCreate(Event** event, unsigned flags) {
  BEGIN(std::to_string(flags));
  NEEDS_CONTEXT;
  return *event = new Event{}, SUCCESS;
}
API Result cuEventDestroy(Event* event) {
  LOCKED;
  return delete event, SUCCESS;
}
API Result cuEventRecord(Event* event, uintptr_t stream) {
  BEGIN("");
  return *event = {&stream_of(stream), stream_of(stream).issued}, SUCCESS;
}
API Result cuEventSynchronize(const Event* event) {
  BEGIN("");
  return wait_for(*event);
}
API Result cuEventElapsedTime(float* milliseconds, Event*, Event*) {
  return *milliseconds = 1, SUCCESS;
}

// ---------------------------------------------------------------- memory

// The memory is the stream's: what another one writes there too early is overwritten.
API Result cuMemAllocAsync(uintptr_t* address, size_t size, uintptr_t stream) {
  BEGIN("");
  if (Result refused = allocate(address, size, false)) return refused;
  char* memory = reinterpret_cast<char*>(*address);
  return enqueue(stream, [=] { memset(memory, kRubbish, size); });
}
API Result cuMemAllocFromPoolAsync(uintptr_t* address, size_t size, size_t, size_t stream) {
  return cuMemAllocAsync(address, size, stream);
}
API Result cuMemFreeAsync(uintptr_t address, uintptr_t stream) {
  LOCKED;
  auto found = held.find(address);
  if (found != held.end() && found->second.test != test) return release(address), SUCCESS;
  return enqueue(stream, [=] { release(address); });
}
API Result cuMemAlloc(uintptr_t* address, size_t size) {
  BEGIN("");
  NEEDS_CONTEXT;
  return allocate(address, size, false);
}
API Result cuMemFree(uintptr_t address) {
  LOCKED;
  wait_for_all();
  return release(address), SUCCESS;
}
API Result cuMemAllocHost(uintptr_t* address, size_t size) {
  BEGIN("");
  NEEDS_CONTEXT;
  return allocate(address, size, true);
}
API Result cuMemFreeHost(uintptr_t address) {
  LOCKED;
  NEEDS_CONTEXT;
  return release(address), SUCCESS;
}
API Result cuMemcpyAsync(char* target, const char* source, size_t size, uintptr_t stream) {
  BEGIN("");
  NEEDS_CONTEXT;
  return enqueue(stream, copy(target, source, size));
}
API Result cuMemsetD8Async(char* target, unsigned char value, size_t size, uintptr_t stream) {
  BEGIN("");
  NEEDS_CONTEXT;
  return enqueue(stream, fill(target, value, size));
}
API Result cuPointerGetAttribute(int* value, int attribute, uintptr_t address) {
  constexpr int kMemoryType = 2, kHost = 1, kDevice = 2;
  BEGIN("");
  for (auto& [start, block] : held) {
    if (address < start || address >= start + block.size) continue;
    *value = attribute != kMemoryType ? block.device : block.pinned ? kHost : kDevice;
    return SUCCESS;
  }
  return INVALID_VALUE;
}
API Result cuMemGetInfo(size_t* free, size_t* total) {
  BEGIN("");
  NEEDS_CONTEXT;
  *total = kMemory, *free = std::min(capacity, kMemory) - in_use;
  return SUCCESS;
}
API Result cuDeviceGetMemPool(size_t* pool, int) { return *pool = 7, SUCCESS; }
API Result cuDeviceGetDefaultMemPool(size_t* pool, int) { return *pool = 7, SUCCESS; }
API Result cuMemGetMemPool(size_t* pool, void*, int) { return *pool = 7, SUCCESS; }
API Result cuMemPoolGetAttribute(size_t, int, uint64_t* value) { return *value = 0, SUCCESS; }
API Result cuMemPoolSetAttribute(size_t, int attribute, uint64_t* value) {
  BEGIN(std::to_string(attribute) + " " + std::to_string(*value));
  return SUCCESS;
}

// ---------------------------------------------------------------- kernels

API Result cuLibraryLoadData(size_t* library, const void* code, void*, void*, unsigned, void*,
                             void*, unsigned) {
  BEGIN("");
  return *library = 9, memcmp(code,
                              "\x7f"
                              "ELF",
                              4)
                           ? INVALID_VALUE
                           : SUCCESS;
}
API Result cuLibraryUnload(size_t) { return SUCCESS; }
API Result cuLibraryGetKernel(const Kernel** kernel, size_t, const char* name) {
  if (!kernels.count(name)) resolve(name);
  if (!kernels.count(name)) return NOT_FOUND;
  return *kernel = &kernels[name], SUCCESS;
}
API Result cuKernelGetFunction(const Kernel** function, const Kernel* kernel) {
  return *function = kernel, SUCCESS;
}
API Result cuLaunchKernelEx(const LaunchConfig* config, const Kernel* kernel, void** arguments,
                            void**) {
  BEGIN(kernel->name);
  NEEDS_CONTEXT;
  auto work = launch(*kernel, config->grid, config->block[0], arguments);
  return work ? enqueue(config->stream, std::move(work)) : INVALID_VALUE;
}

API Result cuLaunchKernel(const Kernel* kernel, unsigned x, unsigned y, unsigned z, unsigned block,
                          unsigned, unsigned, unsigned, uintptr_t stream, void** arguments,
                          void**) {
  BEGIN(kernel->name);
  NEEDS_CONTEXT;
  const unsigned grid[] = {x, y, z};
  auto work = launch(*kernel, grid, block, arguments);
  return work ? enqueue(stream, std::move(work)) : INVALID_VALUE;
}

// ---------------------------------------------------------------- graphs of kernels

API Result cuGraphCreate(Graph** graph, unsigned) {
  BEGIN("");
  return *graph = new Graph, SUCCESS;
}
API Result cuGraphAddKernelNode(size_t* node, Graph* graph, const size_t*, size_t before,
                                const KernelNode* given) {
  const Kernel* kernel = given->kernel ? given->kernel : given->function;
  BEGIN(kernel->name);
  NEEDS_CONTEXT;
  return graph->append(node, before,
                       launch(*kernel, given->grid, given->block[0], given->arguments));
}
API Result cuGraphAddMemcpyNode(size_t* node, Graph* graph, const size_t*, size_t before,
                                const MemcpyNode* given, size_t) {
  BEGIN("");
  const MemorySide &to = given->target, &from = given->source;
  char *target = to.host ? to.host : to.device, *source = from.host ? from.host : from.device;
  return graph->append(node, before, copy(target, source, given->width));
}
API Result cuGraphAddMemsetNode(size_t* node, Graph* graph, const size_t*, size_t before,
                                const MemsetNode* given, size_t) {
  BEGIN("");
  if (given->element != 1) return NOT_SUPPORTED;
  return graph->append(node, before, fill(given->target, given->value, given->width));
}
API Result cuGraphInstantiateWithParams(Graph** built, const Graph* graph, void*) {
  BEGIN("");
  NEEDS_CONTEXT;
  return *built = new Graph(*graph), SUCCESS;
}
API Result cuGraphLaunch(const Graph* graph, uintptr_t stream) {
  BEGIN("");
  for (auto& work : graph->nodes) enqueue(stream, work);
  return SUCCESS;
}
API Result cuUserObjectCreate(UserObject** object, void* data, void (*destroy)(void*), unsigned,
                              unsigned) {
  return *object = new UserObject{data, destroy}, SUCCESS;
}
API Result cuGraphRetainUserObject(Graph* graph, UserObject* object, unsigned, unsigned) {
  return graph->kept.emplace_back(object), SUCCESS;  // the caller's only reference
}
API Result cuGraphReleaseUserObject(Graph* graph, UserObject* object, unsigned) {
  auto is_it = [=](auto& one) { return one.get() == object; };
  auto& kept = graph->kept;
  return kept.erase(std::remove_if(kept.begin(), kept.end(), is_it), kept.end()), SUCCESS;
}
API Result cuGraphDestroy(Graph* graph) { return delete graph, SUCCESS; }
API Result cuGraphExecDestroy(Graph* graph) {
  LOCKED;
  return delete graph, SUCCESS;
}

// ---------------------------------------------------------------- the rest

API Result cuGetErrorName(int error, const char** name) {
  static const std::map<int, const char*> names = {
      {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
      {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
      {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
      {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
      {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
      {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
      {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
      {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
  };
  auto found = names.find(error);
  return *name = found == names.end() ? "CUDA_ERROR_UNKNOWN" : found->second, SUCCESS;
}
API Result cuGetErrorString(int, const char** text) { return *text = "by the fake", SUCCESS; }
API Result cuGetExportTable(const void** table, const void*) { return *table = nullptr, NOT_FOUND; }
static Result unsupported() { return NOT_SUPPORTED; }
API Result cuGetProcAddress_v2(const char* name, void** address, int, uint64_t, int* status) {
  if (status) *status = 0;
  static void* self = [] {
    Dl_info info;
    dladdr(reinterpret_cast<void*>(cuInit), &info);
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  bool itself = !strcmp(name, "cuGetProcAddress");
  *address = itself ? reinterpret_cast<void*>(cuGetProcAddress_v2) : dlsym(self, name);
  if (!*address) *address = reinterpret_cast<void*>(unsupported);
  return SUCCESS;
}
