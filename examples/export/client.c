/* Runs an exported model on a ring of nodes: client MODEL.so WEIGHTS.safetensors NODES WIDTH
 * cc client.c -I MODEL -o client MODEL/model.so -Wl,-rpath,MODEL */
#include <stdio.h>
#include <stdlib.h>

#include "model.h"

int main(int argc, char** argv) {
  if (argc != 4) return fprintf(stderr, "client WEIGHTS NODES WIDTH\n"), 2;
  const int64_t nodes = atoll(argv[2]), width = atoll(argv[3]);
  float* x = malloc(sizeof(float) * nodes * width);
  int64_t* edges = malloc(sizeof(int64_t) * 2 * nodes); /* row 0: sources, row 1: destinations */
  for (int64_t i = 0; i < nodes * width; ++i) x[i] = (float)(i % 7) - 3;
  for (int64_t v = 0; v < nodes; ++v) edges[v] = v, edges[nodes + v] = (v + 1) % nodes;

  gw_model* model;
  gw_error error;
  if (gw_model_open(argv[1], &model, &error)) return fprintf(stderr, "%s\n", error.message), 1;
  const int64_t of_x[] = {nodes, width}, of_edges[] = {2, nodes};
  const gw_tensor inputs[] = {{x, GW_FLOAT32, 2, of_x, NULL}, {edges, GW_INT64, 2, of_edges, NULL}};
  gw_output out = {0}; /* no memory of ours: the library's */
  if (gw_model_run(model, inputs, &out, NULL, &error)) return fprintf(stderr, "%s\n", error.message), 1;
  for (int64_t i = 0; i < out.nbytes / (int64_t)sizeof(float); ++i) printf("%.9g\n", ((float*)out.data)[i]);
  gw_free(out.data);
  gw_model_close(model);
  return free(x), free(edges), 0;
}
