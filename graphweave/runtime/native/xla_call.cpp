// Kernels as a foreign call of XLA: on one graph (`gw_bound_run` of segment_runs.cpp), or on a graph that comes with the call (`Serve`). XLA_FFI_HEADER is the path of XLA's C interface.
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

// Makes formats of the edges that are among the operands `given`, and runs kernels on them. Returns 0, or one of XLA's
// codes of errors, with its text in `said`, which has `room` bytes.
typedef int64_t Serve(int64_t id, char* const* given, int32_t num_threads, char* said, int64_t room);

struct Table {   // the caller keeps what its addresses name
  Serve* serve;  // null where the graph is known; otherwise the next four are not used
  Run* run;
  const void* graph;
  const char* names;  // of the kernels, each ended by a zero
  int64_t num_values;
  char* const* fixed;  // the address of each value; null for operands and results, in this order
  int64_t num_given;   // operands and results of a call
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

bool find_table(const XLA_FFI_Attrs& attrs, int64_t* id, Table* table) {
  for (int64_t i = 0; i < attrs.size; ++i) {
    if (attrs.types[i] != XLA_FFI_AttrType_SCALAR) continue;
    if (std::string(attrs.names[i]->ptr, attrs.names[i]->len) != "table") continue;
    *id = *static_cast<const int64_t*>(static_cast<const XLA_FFI_Scalar*>(attrs.attrs[i])->value);
    const std::lock_guard<std::mutex> held(lock);
    const auto found = tables.find(*id);
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
  const int64_t num_given = 1 + std::count(fixed, fixed + num_values, nullptr);
  tables[id] = Table{nullptr, run, graph, names, num_values, fixed, num_given, num_threads, is_scheduled, nbytes};
}

extern "C" void gw_xla_add_served(int64_t id, Serve* serve, int64_t num_given, int32_t num_threads, bool is_scheduled,
                                  const int64_t* nbytes) {
  const std::lock_guard<std::mutex> held(lock);
  tables[id] = Table{serve, nullptr, nullptr, nullptr, 0, nullptr, num_given, num_threads, is_scheduled, nbytes};
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

namespace {

// The last of `given` is memory for values inside. The others are operands and results of the kernels.
XLA_FFI_Error* run_kernels(const XLA_FFI_Api* api, const Table& table, const std::vector<char*>& given) {
  std::vector<char*> values(table.fixed, table.fixed + table.num_values);
  auto next = given.begin();
  for (char*& value : values)
    if (!value) value = *next++;
  const int64_t step = table.run(table.graph, values.data(), given.back(), table.threads());
  if (step < 0) return nullptr;
  const char* name = table.names;
  for (int64_t i = 0; i < step; ++i) name += strlen(name) + 1;
  return failed(api, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
                std::string("graphweave: kernel ") + name +
                    " could not allocate its scratch memory. Free some, or take a smaller graph.");
}

XLA_FFI_Error* serve(const XLA_FFI_Api* api, int64_t id, const Table& table, const std::vector<char*>& given) {
  char said[2048] = "";
  const int64_t code = table.serve(id, given.data(), table.threads(), said, sizeof said);
  return code == 0 ? nullptr : failed(api, static_cast<XLA_FFI_Error_Code>(code), said);
}

}  // namespace

extern "C" XLA_FFI_Error* gw_xla_call(XLA_FFI_CallFrame* frame) {
  if (described(frame->extension_start)) return nullptr;
  if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return nullptr;
  int64_t id;
  Table table;
  if (!find_table(frame->attrs, &id, &table))
    return failed(frame->api, XLA_FFI_Error_Code_FAILED_PRECONDITION,
                  "graphweave: expected kernels of this process, but another one has compiled this function."
                  " Trace it again in this process: its graph and kernels are addresses in memory.");
  const int64_t num_given = frame->args.size + frame->rets.size;
  if (num_given != table.num_given)
    return failed(frame->api, XLA_FFI_Error_Code_INTERNAL,
                  "graphweave: expected " + std::to_string(table.num_given) + " operands and results (got " +
                      std::to_string(num_given) + "). Report this.");
  std::vector<char*> given;
  given.reserve(num_given);
  for (int64_t i = 0; i < frame->args.size; ++i)
    given.push_back(static_cast<char*>(static_cast<XLA_FFI_Buffer*>(frame->args.args[i])->data));
  for (int64_t i = 0; i < frame->rets.size; ++i) {
    given.push_back(static_cast<char*>(static_cast<XLA_FFI_Buffer*>(frame->rets.rets[i])->data));
    on_huge_pages(given.back(), table.nbytes[i]);
  }
  const Denormals kept;
  return table.serve ? serve(frame->api, id, table, given) : run_kernels(frame->api, table, given);
}
