// The library that programs open where a model has been exported for several instruction sets. It holds no model: it
// opens the first library in its own folder that is for this processor, and hands every call on to that.
//
// This text follows `kLevels`, the names of the instruction sets, from the largest to the smallest.

#include <cpuid.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

namespace {

#define GW_EACH_FUNCTION(DO) \
  DO(gw_model_open_version)  \
  DO(gw_model_load)          \
  DO(gw_model_close)         \
  DO(gw_model_inputs)        \
  DO(gw_model_outputs) DO(gw_model_run) DO(gw_graph_new) DO(gw_graph_run) DO(gw_graph_free) DO(gw_free)

struct Functions {
#define GW_DECLARE(name) decltype(&::name) name;
  GW_EACH_FUNCTION(GW_DECLARE)
#undef GW_DECLARE
};

Functions functions;
bool is_open = false;
char reason[400] = "";  // why none is open
pthread_once_t once = PTHREAD_ONCE_INIT;

// The registers of a leaf of CPUID; zeros where the processor has no such leaf.
struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  explicit Leaf(unsigned number) { __get_cpuid_count(number, 0, &eax, &ebx, &ecx, &edx); }
};

constexpr unsigned bits() { return 0; }
template <class... More>
constexpr unsigned bits(unsigned first, More... more) {
  return 1u << first | bits(more...);
}

bool has_all(unsigned given, unsigned wanted) { return (given & wanted) == wanted; }

// The parts of a processor's state that the operating system keeps for a program.
unsigned saved_state() {
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// Whether this processor has an instruction set, as the System V ABI for x86-64 defines it.
bool has(const char* level) {
  const int number = strcmp(level, "x86-64") == 0 ? 1 : level[strlen(level) - 1] - '0';
  const Leaf basic(1), extended(7), more(0x80000001u);
  // CMPXCHG16B, POPCNT, SSE3, SSSE3, SSE4.1, SSE4.2; LAHF
  if (number >= 2 && !(has_all(basic.ecx, bits(13, 23, 0, 9, 19, 20)) && has_all(more.ecx, bits(0)))) return false;
  // FMA, MOVBE, OSXSAVE, AVX, F16C; BMI1, AVX2, BMI2; LZCNT
  if (number >= 3 && !(has_all(basic.ecx, bits(12, 22, 27, 28, 29)) && has_all(extended.ebx, bits(3, 5, 8)) &&
                       has_all(more.ecx, bits(5)) && has_all(saved_state(), bits(1, 2))))
    return false;
  // AVX-512 F, DQ, CD, BW, VL
  return number < 4 || (has_all(extended.ebx, bits(16, 17, 28, 30, 31)) && has_all(saved_state(), bits(5, 6, 7)));
}

void open_level(const char* level) {
  Dl_info own;
  char path[4096];
  if (!dladdr(reinterpret_cast<void*>(&gw_free), &own)) own.dli_fname = "model.so";
  const char* const slash = strrchr(own.dli_fname, '/');
  const int folder = slash ? static_cast<int>(slash - own.dli_fname) : 1;
  snprintf(path, sizeof path, "%.*s/model-%s.so", folder, slash ? own.dli_fname : ".", level);
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(reason, sizeof reason, "%.200s. Keep all libraries of the model in one folder.", dlerror());
    return;
  }
#define GW_FIND(name) functions.name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name));
  GW_EACH_FUNCTION(GW_FIND)
#undef GW_FIND
  is_open = true;
}

void choose() {
  for (const char* const level : kLevels)
    if (has(level)) return open_level(level);
  snprintf(reason, sizeof reason, "the model was exported for processors with %s or more. Export it for this one.",
           kLevels[sizeof kLevels / sizeof *kLevels - 1]);
}

bool opened() {
  pthread_once(&once, choose);
  return is_open;
}

}  // namespace

extern "C" {

GW_API int32_t gw_model_open_version(int32_t major, const char* weights, gw_model** model, gw_error* error) {
  if (opened()) return functions.gw_model_open_version(major, weights, model, error);
  *model = nullptr;
  if (error) {
    memset(error, 0, sizeof *error);
    error->status = GW_WRONG_MACHINE, error->argument = -1, error->position = -1;
    snprintf(error->message, sizeof error->message, "%s", reason);
  }
  return GW_WRONG_MACHINE;
}

GW_API const gw_value_info* gw_model_inputs(int32_t* count) {
  return *count = 0, opened() ? functions.gw_model_inputs(count) : nullptr;
}

GW_API const gw_value_info* gw_model_outputs(int32_t* count) {
  return *count = 0, opened() ? functions.gw_model_outputs(count) : nullptr;
}

// Whoever calls these has opened a model.

GW_API int32_t gw_model_load(gw_model* model, const char* weights, gw_error* error) {
  return functions.gw_model_load(model, weights, error);
}

GW_API int32_t gw_model_run(const gw_model* model, const gw_tensor* inputs, gw_output* outputs,
                            const gw_options* options, gw_error* error) {
  return functions.gw_model_run(model, inputs, outputs, options, error);
}

GW_API int32_t gw_graph_new(const gw_model* model, const gw_tensor* inputs, const gw_options* options, gw_graph** graph,
                            gw_error* error) {
  return functions.gw_graph_new(model, inputs, options, graph, error);
}

GW_API int32_t gw_graph_run(const gw_model* model, const gw_graph* graph, const gw_tensor* inputs, gw_output* outputs,
                            const gw_options* options, gw_error* error) {
  return functions.gw_graph_run(model, graph, inputs, outputs, options, error);
}

// These may be given NULL by a program that has not opened one.

GW_API void gw_model_close(gw_model* model) {
  if (model) functions.gw_model_close(model);
}

GW_API void gw_graph_free(gw_graph* graph) {
  if (graph) functions.gw_graph_free(graph);
}

GW_API void gw_free(void* data) {
  if (data) functions.gw_free(data);
}

}  // extern "C"
