/* Runs an exported model on the tensors of a file: run_model WEIGHTS TENSORS > OUTPUTS
 * In both files a tensor is its dtype and its number of dims (int32), its sizes (int64) and its values. */
#include <stdio.h>
#include <stdlib.h>

#include "model.h"

static const int64_t kItemSizes[] = {4, 8, 4, 8, 2, 1, 1, 1, 2, 2};

static void* read_some(FILE* file, int64_t nbytes) {
  void* const made = malloc((size_t)(nbytes ? nbytes : 1));
  if (fread(made, 1, (size_t)nbytes, file) != (size_t)nbytes) exit(2);
  return made;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  gw_model* model;
  gw_error error;
  if (gw_model_open(argv[1], &model, &error)) return fprintf(stderr, "%s\n", error.message), 1;
  int32_t num_inputs, num_outputs;
  gw_model_inputs(&num_inputs);
  gw_model_outputs(&num_outputs);
  gw_tensor inputs[32] = {{0}};
  gw_output outputs[32] = {{0}};
  FILE* const file = fopen(argv[2], "rb");
  if (!file || num_inputs > 32 || num_outputs > 32) return 2;
  for (int32_t i = 0; i < num_inputs; ++i) {
    int32_t* const head = read_some(file, 8);
    int64_t* const sizes = read_some(file, 8 * head[1]);
    int64_t nbytes = kItemSizes[head[0]];
    for (int32_t d = 0; d < head[1]; ++d) nbytes *= sizes[d];
    inputs[i] = (gw_tensor){read_some(file, nbytes), head[0], head[1], sizes, NULL};
  }
  const gw_options options = {2, NULL};
  if (gw_model_run(model, inputs, outputs, &options, &error)) return fprintf(stderr, "%s\n", error.message), 1;
  for (int32_t i = 0; i < num_outputs; ++i) {
    fwrite(&outputs[i].dtype, 4, 1, stdout), fwrite(&outputs[i].ndim, 4, 1, stdout);
    fwrite(outputs[i].sizes, 8, (size_t)outputs[i].ndim, stdout);
    fwrite(outputs[i].data, 1, (size_t)outputs[i].nbytes, stdout);
    gw_free(outputs[i].data);
  }
  gw_model_close(model);
  return 0;
}
