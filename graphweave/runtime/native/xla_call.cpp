// Kernels on one graph (`gw_bound_run` of segment_runs.cpp) as a foreign call of XLA. XLA_FFI_HEADER is the path of XLA's C interface.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include XLA_FFI_HEADER
#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace {

typedef int64_t Run(const void* graph, char* const* values, char* inside, int32_t num_threads);

struct Table {  // the caller keeps what its addresses name
  Run* run;
  const void* graph;
  const char* names;  // of the kernels, each ended by a zero
  int64_t num_values;
  char* const* fixed;  // the address of each value; null for operands and results, in this order
  int32_t num_threads;
  bool is_scheduled;      // whether a schedule says the number of threads, which then stays
  const int64_t* nbytes;  // sizes of the results

  int32_t threads() const;
};

std::mutex lock;
std::unordered_map<int64_t, Table> tables;
std::atomic<int32_t> wanted_threads{0};  // of calls from now on; 0 leaves to each table its own number

int32_t Table::threads() const {
  const int32_t wanted = wanted_threads.load(std::memory_order_relaxed);
  return wanted > 0 && !is_scheduled ? wanted : num_threads;
}

XLA_FFI_Error* failed(const XLA_FFI_Api* api, XLA_FFI_Error_Code code, const std::string& why) {
  XLA_FFI_Error_Create_Args args;
  args.struct_size = sizeof args;
  args.extension_start = nullptr;
  args.message = why.c_str();
  args.errc = code;
  return api->XLA_FFI_Error_Create(&args);
}

// Answers if XLA asks which version of its interface this is, and returns whether it has asked.
bool described(XLA_FFI_Extension_Base* extension) {
  if (extension == nullptr || extension->type != XLA_FFI_Extension_Metadata) return false;
  XLA_FFI_Metadata* const about = reinterpret_cast<XLA_FFI_Metadata_Extension*>(extension)->metadata;
  about->api_version.major_version = XLA_FFI_API_MAJOR;
  about->api_version.minor_version = XLA_FFI_API_MINOR;
  about->traits = 0;
  return true;
}

bool find_table(const XLA_FFI_Attrs& attrs, Table* table) {
  for (int64_t i = 0; i < attrs.size; ++i) {
    if (attrs.types[i] != XLA_FFI_AttrType_SCALAR) continue;
    if (std::string(attrs.names[i]->ptr, attrs.names[i]->len) != "table") continue;
    const int64_t id = *static_cast<const int64_t*>(static_cast<const XLA_FFI_Scalar*>(attrs.attrs[i])->value);
    const std::lock_guard<std::mutex> held(lock);
    const auto found = tables.find(id);
    if (found == tables.end()) return false;
    *table = found->second;
    return true;
  }
  return false;
}

// XLA lets its threads flush denormal numbers to zero. Kernels keep them, on whichever thread they run.
struct Denormals {
#if defined(__SSE__)
  unsigned before = _mm_getcsr();
  Denormals() { _mm_setcsr(before & ~0x8040u); }
  ~Denormals() { _mm_setcsr(before); }
#endif
};

// XLA allocates large results anew for each call, and faulting in each of their small pages costs more than writing
// them. So huge pages are requested, as in runtime/arena.py.
void on_huge_pages(void* data, int64_t nbytes) {
#if defined(MADV_HUGEPAGE)
  const uintptr_t huge = uintptr_t{2} << 20;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + huge - 1) / huge * huge;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(nbytes)) / huge * huge;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // a hint, which may be refused
#endif
}

}  // namespace

extern "C" void gw_xla_add(int64_t id, Run* run, const void* graph, const char* names, int64_t num_values,
                           char* const* fixed, int32_t num_threads, bool is_scheduled, const int64_t* nbytes) {
  const std::lock_guard<std::mutex> held(lock);
  tables[id] = Table{run, graph, names, num_values, fixed, num_threads, is_scheduled, nbytes};
}

extern "C" void gw_xla_set_threads(int32_t wanted) { wanted_threads.store(wanted, std::memory_order_relaxed); }

// The number of threads with which a call of the table would run now; 0 if there is no such table.
extern "C" int32_t gw_xla_threads(int64_t id) {
  const std::lock_guard<std::mutex> held(lock);
  const auto found = tables.find(id);
  return found == tables.end() ? 0 : found->second.threads();
}

extern "C" void gw_xla_remove(int64_t id) {
  const std::lock_guard<std::mutex> held(lock);
  tables.erase(id);
}

// The last result of the call is memory for values inside. The others are results of the kernels.
extern "C" XLA_FFI_Error* gw_xla_call(XLA_FFI_CallFrame* frame) {
  if (described(frame->extension_start)) return nullptr;
  if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return nullptr;
  Table table;
  if (!find_table(frame->attrs, &table))
    return failed(frame->api, XLA_FFI_Error_Code_FAILED_PRECONDITION,
                  "graphweave: expected kernels of this process, but another one has compiled this function."
                  " Trace it again in this process: its graph and kernels are addresses in memory.");
  const int64_t num_given = frame->args.size + frame->rets.size;
  const int64_t expected = 1 + std::count(table.fixed, table.fixed + table.num_values, nullptr);
  if (num_given != expected)
    return failed(frame->api, XLA_FFI_Error_Code_INTERNAL,
                  "graphweave: expected " + std::to_string(expected) + " operands and results (got " +
                      std::to_string(num_given) + "). Report this.");
  std::vector<char*> given;
  given.reserve(num_given);
  for (int64_t i = 0; i < frame->args.size; ++i)
    given.push_back(static_cast<char*>(static_cast<XLA_FFI_Buffer*>(frame->args.args[i])->data));
  for (int64_t i = 0; i < frame->rets.size; ++i) {
    given.push_back(static_cast<char*>(static_cast<XLA_FFI_Buffer*>(frame->rets.rets[i])->data));
    on_huge_pages(given.back(), table.nbytes[i]);
  }
  std::vector<char*> values(table.fixed, table.fixed + table.num_values);
  auto next = given.begin();
  for (char*& value : values)
    if (!value) value = *next++;
  int64_t step;
  {
    const Denormals kept;
    step = table.run(table.graph, values.data(), given.back(), table.threads());
  }
  if (step < 0) return nullptr;
  const char* name = table.names;
  for (int64_t i = 0; i < step; ++i) name += strlen(name) + 1;
  return failed(frame->api, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
                std::string("graphweave: kernel ") + name +
                    " could not allocate its scratch memory. Free some, or take a smaller graph.");
}
