/* The C interface of a model that graphweave has exported as a shared library.
 *
 * A model is opened once and may then run on any number of threads at the same time. Nothing is kept between two runs
 * but what a gw_graph keeps. Inputs are read where they lie and never written. Functions that return an int32_t return a
 * gw_status; if that is not GW_OK and `error` is not NULL, *error says which argument is wrong and how. */
#ifndef GRAPHWEAVE_MODEL_H
#define GRAPHWEAVE_MODEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A library refuses a header of another major version. */
#define GW_MODEL_MAJOR 1
#define GW_MODEL_MINOR 0
#define GW_MAX_DIMS 8

typedef enum {
  GW_FLOAT32 = 0, GW_FLOAT64 = 1, GW_INT32 = 2, GW_INT64 = 3, GW_INT16 = 4, GW_INT8 = 5, GW_UINT8 = 6, GW_BOOL = 7,
  GW_FLOAT16 = 8, GW_BFLOAT16 = 9
} gw_dtype;

typedef enum {
  GW_OK = 0,
  GW_WRONG_ARGUMENT = 1, /* a dtype, a number of dims, a size, or a NULL that may not be one */
  GW_OUT_OF_RANGE = 2,   /* a value of an index names no row */
  GW_TOO_SMALL = 3,      /* an output does not fit the caller's memory; its sizes are written nevertheless */
  GW_NO_MEMORY = 4,
  GW_WRONG_FILE = 5,     /* the weights cannot be read, or are those of another model */
  GW_WRONG_VERSION = 6,  /* the caller was compiled with a header of another major version */
  GW_TOO_LARGE = 7,      /* more than 2^31 - 1 rows or edges */
  GW_WRONG_MACHINE = 8   /* no library of the model is for this processor, or that library cannot be opened */
} gw_status;

typedef struct {
  int32_t status;
  int32_t argument;             /* the position of the input or output that is wrong; -1 if it is none */
  int64_t position;             /* of the wrong value among those of the index; -1 if none is */
  int64_t value, first, behind; /* the value is not in first..behind-1 */
  char message[488];
} gw_error;

/* An input, on the caller's memory. Strides count elements; NULL stands for a tensor without gaps, rows first. */
typedef struct {
  const void* data;
  int32_t dtype, ndim;
  const int64_t* sizes;
  const int64_t* strides;
} gw_tensor;

/* An output. The caller gives `data` and its `nbytes`, or NULL, for which the library allocates memory that gw_free
 * frees. A run writes the values, rows first and without gaps, and all other fields. */
typedef struct {
  void* data;
  int64_t nbytes;
  int32_t dtype, ndim;
  int64_t sizes[GW_MAX_DIMS];
} gw_output;

/* What an input or output is. Sizes that vary from run to run are -1; the manifest says which of them are equal. */
typedef struct {
  const char* name;
  int32_t dtype, ndim;
  int64_t sizes[GW_MAX_DIMS];
} gw_value_info;

/* Calls task(data) on at most `threads` threads, of which the caller is one, and returns when all of them have. */
typedef void (*gw_parallel_function)(void (*task)(void*), void* data, unsigned threads, unsigned flags);

/* How a run is made; NULL stands for one thread. With several threads, `parallel` enters the caller's; if it is NULL,
 * the library starts threads of its own for the run of a kernel. */
typedef struct {
  int32_t threads;
  gw_parallel_function parallel;
} gw_options;

typedef struct gw_model gw_model;
typedef struct gw_graph gw_graph;

/* Opens the model with the weights of a safetensors file. gw_model_load reads other weights; no run may be under way. */
int32_t gw_model_open_version(int32_t major, const char* weights, gw_model** model, gw_error* error);
#define gw_model_open(weights, model, error) gw_model_open_version(GW_MODEL_MAJOR, weights, model, error)
int32_t gw_model_load(gw_model* model, const char* weights, gw_error* error);
void gw_model_close(gw_model* model);

/* What the model takes and gives, in order. The arrays live as long as the library. */
const gw_value_info* gw_model_inputs(int32_t* count);
const gw_value_info* gw_model_outputs(int32_t* count);

int32_t gw_model_run(const gw_model* model, const gw_tensor* inputs, gw_output* outputs, const gw_options* options,
                     gw_error* error);

/* Makes once what depends on the graph alone: the formats of its indices, and values that are computed of them. A run
 * with a graph must have inputs of the same sizes and the same indices, whose values it does not look at again. */
int32_t gw_graph_new(const gw_model* model, const gw_tensor* inputs, const gw_options* options, gw_graph** graph,
                     gw_error* error);
int32_t gw_graph_run(const gw_model* model, const gw_graph* graph, const gw_tensor* inputs, gw_output* outputs,
                     const gw_options* options, gw_error* error);
void gw_graph_free(gw_graph* graph);

void gw_free(void* data);

#ifdef __cplusplus
}
#endif
#endif
