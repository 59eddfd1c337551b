// The functions of the public header.
//
// This text follows that of model.cpp and what is generated for the model's forms.

namespace {

// The first form that is for inputs of these sizes. If none is, the error is that of the first one.
const Form* form_for(Run& run, const Value* given, int64_t* sizes) {
  gw_error unseen{GW_OK, -1, -1, 0, 0, 0, ""};
  for (int32_t i = 0; i < kNumForms; ++i) {
    Run tried{i == 0 ? run.error : &unseen, 1};
    std::fill(sizes, sizes + kNumSizes, 0);
    kForms[i].read_sizes(tried, given, sizes);
    if (tried.failed) continue;
    *run.error = gw_error{GW_OK, -1, -1, 0, 0, 0, ""};
    return &kForms[i];
  }
  run.failed = true;
  return nullptr;
}

int32_t run_once(const gw_model* model, const gw_tensor* inputs, gw_output* outputs, const gw_options* options,
                 gw_graph* graph, bool fills, gw_error* error) {
  gw_error unseen;
  if (!error) error = &unseen;
  *error = gw_error{GW_OK, -1, -1, 0, 0, 0, ""};
  const ThreadsOfRun threads(options, &model->pool);
  Followed run{{error, std::max<int32_t>(1, options ? options->threads : 1)}, *model, graph, fills};
  Value given[kNumInputs + 1], made[kNumOutputs + 1];
  for (int32_t i = 0; i < kNumInputs && !run.failed; ++i) given[i] = input_of(run, inputs[i], i);
  if (kSeed >= 0 && !run.failed) std::memcpy(&run.seed, given[kSeed].data, sizeof run.seed);
  int64_t sizes[kNumSizes + 1] = {};
  const Form* const form = run.failed ? nullptr : form_for(run, given, sizes);
  if (!run.failed && graph && !fills && (form != graph->form || !std::equal(sizes, sizes + kNumSizes, graph->sizes)))
    run.fail(GW_WRONG_ARGUMENT, -1,
             "the sizes are not those of the graph. Make a graph for these, or run without one.");
  if (graph && fills) std::copy(sizes, sizes + kNumSizes, graph->sizes), graph->form = form;
  if (!run.failed) form->follow(run, given, sizes, made);
  for (int32_t i = 0; outputs && i < kNumOutputs && !run.failed; ++i) give(run, made[i], outputs[i], i);
  return error->status;
}

}  // namespace

extern "C" {

GW_API int32_t gw_model_load(gw_model* model, const char* weights, gw_error* error) {
  gw_error unseen;
  if (!error) error = &unseen;
  *error = gw_error{GW_OK, -1, -1, 0, 0, 0, ""};
  Run run{error, 1};
  List<Value> read = read_weights(run, weights, kWeights, kNumWeights), prepared;
  for (const Form& form : kForms)
    if (!run.failed) form.prepare(run, read, prepared);
  if (!run.failed) model->weights.swap(read), model->prepared.swap(prepared);
  return error->status;
}

GW_API int32_t gw_model_open_version(int32_t major, const char* weights, gw_model** model, gw_error* error) {
  *model = nullptr;
  if (major != GW_MODEL_MAJOR) {
    if (error)
      *error = gw_error{GW_WRONG_VERSION,
                        -1,
                        -1,
                        major,
                        GW_MODEL_MAJOR,
                        GW_MODEL_MAJOR + 1,
                        "the header is of another major version. Compile with the library's own model.h."};
    return GW_WRONG_VERSION;
  }
  auto* const made = new gw_model;
  for (const Form& form : kForms) form.make_segments(*made);
  const int32_t status = gw_model_load(made, weights, error);
  if (status == GW_OK)
    *model = made;
  else
    delete made;
  return status;
}

GW_API void gw_model_close(gw_model* model) { delete model; }

GW_API const gw_value_info* gw_model_inputs(int32_t* count) { return *count = kNumInputs, kInputs; }

GW_API const gw_value_info* gw_model_outputs(int32_t* count) { return *count = kNumOutputs, kOutputs; }

GW_API int32_t gw_model_run(const gw_model* model, const gw_tensor* inputs, gw_output* outputs,
                            const gw_options* options, gw_error* error) {
  return run_once(model, inputs, outputs, options, nullptr, false, error);
}

GW_API int32_t gw_graph_new(const gw_model* model, const gw_tensor* inputs, const gw_options* options, gw_graph** graph,
                            gw_error* error) {
  *graph = nullptr;
  auto* const made = new gw_graph;
  const int32_t status = run_once(model, inputs, nullptr, options, made, true, error);
  if (status == GW_OK)
    *graph = made;
  else
    delete made;
  return status;
}

GW_API int32_t gw_graph_run(const gw_model* model, const gw_graph* graph, const gw_tensor* inputs, gw_output* outputs,
                            const gw_options* options, gw_error* error) {
  return run_once(model, inputs, outputs, options, const_cast<gw_graph*>(graph), false, error);
}

GW_API void gw_graph_free(gw_graph* graph) { delete graph; }

GW_API void gw_free(void* data) { std::free(data); }

}  // extern "C"
