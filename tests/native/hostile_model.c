/* Runs an exported model with inputs that a careless program might give: hostile WEIGHTS WIDTH RUNS
 * Every run must end with one of the states of model.h. Prints how many ended well, and how many were refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

static uint64_t state = 88172645463325252u;

static int64_t below(int64_t bound) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (int64_t)(state % (uint64_t)bound);
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int64_t width = atoll(argv[2]), runs = atoll(argv[3]);
  gw_model* model;
  gw_error error;
  if (gw_model_open(argv[1], &model, &error)) return fprintf(stderr, "%s\n", error.message), 1;
  int32_t num_outputs;
  gw_model_outputs(&num_outputs);
  int64_t well = 0, refused = 0;
  for (int64_t run = 0; run < runs; ++run) {
    const int64_t nodes = below(4) ? below(30) : below(3), edges = below(4) ? below(120) : 0, hostile = below(12);
    float* x = malloc(sizeof(float) * (size_t)(nodes * width * 2 + 1));
    int64_t* index = malloc(sizeof(int64_t) * (size_t)(2 * edges + 1));
    for (int64_t i = 0; i < nodes * width * 2; ++i) x[i] = (float)below(1000) - 500;
    for (int64_t i = 0; i < 2 * edges; ++i) index[i] = nodes ? below(nodes) : 0;
    int64_t of_x[GW_MAX_DIMS] = {nodes, width}, of_index[GW_MAX_DIMS] = {2, edges};
    int64_t strides[GW_MAX_DIMS] = {2 * width, 2}; /* every second number */
    gw_tensor inputs[] = {{x, GW_FLOAT32, 2, of_x, below(2) ? NULL : strides}, {index, GW_INT64, 2, of_index, NULL}};
    if (hostile == 0 && edges) index[below(2 * edges)] = (int64_t)(state >> 1) * (below(2) ? 1 : -1);
    if (hostile == 1 && edges) index[below(2 * edges)] = nodes;
    if (hostile == 2) inputs[below(2)].data = NULL;
    if (hostile == 3) inputs[below(2)].dtype = (int32_t)below(40) - 20;
    if (hostile == 4) inputs[below(2)].ndim = (int32_t)below(20) - 5;
    if (hostile == 5) of_x[1] = width + 1 + below(3);
    if (hostile == 6) of_index[below(2)] = -1 - below(1000);
    if (hostile == 7) inputs[below(2)].sizes = NULL;
    gw_output outputs[8];
    memset(outputs, 0, sizeof outputs);
    char little[4];
    if (hostile == 8) outputs[0].data = little, outputs[0].nbytes = 4;
    const gw_options options = {(int32_t)below(5) - 1, NULL};
    gw_graph* graph = NULL;
    int32_t status;
    if (below(3) == 0 && hostile != 8) {
      status = gw_graph_new(model, inputs, &options, &graph, &error);
      if (!status) status = gw_graph_run(model, graph, inputs, outputs, &options, below(2) ? &error : NULL);
    } else {
      status = gw_model_run(model, inputs, outputs, below(2) ? &options : NULL, &error);
    }
    if (status < GW_OK || status > GW_WRONG_MACHINE) return fprintf(stderr, "status %d\n", status), 1;
    well += status == GW_OK, refused += status != GW_OK;
    for (int32_t i = 0; i < num_outputs; ++i)
      if (outputs[i].data != little) gw_free(outputs[i].data);
    gw_graph_free(graph);
    free(x), free(index);
  }
  gw_model_close(model);
  return printf("%lld %lld\n", (long long)well, (long long)refused), 0;
}
