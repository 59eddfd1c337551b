/* An exported potential in a simulation code: energy and forces for a neighbour list, as a pair_style computes them.
 *
 *   pair_style WEIGHTS.safetensors CUTOFF STEPS < ATOMS
 *   cc pair_style.c -I MODEL -o pair_style MODEL/model.so -Wl,-rpath,MODEL -lm
 *
 * The model is an exported EnergyAndForces(..., virial=True) of float64 that takes offsets. ATOMS has their number, the
 * edge of the cubic box and the time of a step, and a line for each atom: atomic number, mass, x, y, z. Prints the
 * energy and the forces at the start, and the total and the kinetic energy after STEPS of velocity Verlet. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "model.h"

/* What a pair_style keeps. The edges of the list are in both directions, j to i; where j is the ghost of an atom, j is
 * the number of this atom, and the offset of the edge is x[i] - x[ghost], less x[i] - x[j]. */
typedef struct {
  gw_model* model;
  gw_graph* graph; /* made once a list */
  int64_t atoms, edges;
  int64_t *numbers, *edge_index;
  double* offsets;
} pair;

static void check(const gw_error* error) {
  if (error->status) fprintf(stderr, "%s\n", error->message), exit(1);
}

static void* need(void* memory) {
  if (memory == NULL) fprintf(stderr, "no memory\n"), exit(1);
  return memory;
}

/* Energy of all atoms, and the force on each. Atoms of the list that are further apart than the model's cutoff count
 * nothing, so the list may have a skin and serve many steps. */
static double pair_compute(pair* p, const double* x, double* forces) {
  const int64_t of_atoms[] = {p->atoms}, of_x[] = {p->atoms, 3}, of_edges[] = {2, p->edges},
                of_offsets[] = {p->edges, 3};
  const gw_tensor inputs[] = {{p->numbers, GW_INT64, 1, of_atoms, NULL},
                              {x, GW_FLOAT64, 2, of_x, NULL},
                              {p->edge_index, GW_INT64, 2, of_edges, NULL},
                              {p->offsets, GW_FLOAT64, 2, of_offsets, NULL}};
  double energy, virial[9];
  gw_output outputs[] = {{.data = &energy, .nbytes = sizeof energy},
                         {.data = forces, .nbytes = 3 * p->atoms * (int64_t)sizeof(double)},
                         {.data = virial, .nbytes = sizeof virial}};
  gw_error error = {0};
  if (p->graph == NULL && gw_graph_new(p->model, inputs, NULL, &p->graph, &error)) check(&error);
  if (gw_graph_run(p->model, p->graph, inputs, outputs, NULL, &error)) check(&error);
  return energy;
}

/* What the host does anyway: pairs in a box that repeats, each atom with the nearest image of the others. */
static void make_list(pair* p, const double* x, double box, double reach) {
  gw_graph_free(p->graph), p->graph = NULL, p->edges = 0;
  for (int pass = 0; pass < 2; ++pass) {
    int64_t e = 0;
    for (int64_t j = 0; j < p->atoms; ++j)
      for (int64_t i = 0; i < p->atoms; ++i) {
        double offset[3], square = 0;
        for (int k = 0; k < 3; ++k) {
          const double gap = x[3 * i + k] - x[3 * j + k];
          offset[k] = -box * round(gap / box), square += (gap + offset[k]) * (gap + offset[k]);
        }
        if (i == j || square > reach * reach) continue;
        if (pass) {
          p->edge_index[e] = j, p->edge_index[p->edges + e] = i;
          for (int k = 0; k < 3; ++k) p->offsets[3 * e + k] = offset[k];
        }
        ++e;
      }
    if (pass) break;
    p->edges = e;
    p->edge_index = need(realloc(p->edge_index, sizeof(int64_t) * (2 * e + 1)));
    p->offsets = need(realloc(p->offsets, sizeof(double) * (3 * e + 1)));
  }
}

int main(int argc, char** argv) {
  if (argc != 4) return fprintf(stderr, "pair_style WEIGHTS CUTOFF STEPS < ATOMS\n"), 2;
  const double cutoff = atof(argv[2]), skin = 0.5;
  pair p = {0};
  double box, dt;
  if (scanf("%lld %lf %lf", (long long*)&p.atoms, &box, &dt) != 3) return fprintf(stderr, "no number of atoms\n"), 2;
  p.numbers = need(malloc(sizeof(int64_t) * (p.atoms + 1)));
  double* x = need(calloc(13 * p.atoms + 1, sizeof(double)));
  double *v = x + 3 * p.atoms, *f = v + 3 * p.atoms, *listed = f + 3 * p.atoms, *mass = listed + 3 * p.atoms;
  for (int64_t i = 0; i < p.atoms; ++i)
    if (scanf("%lld %lf %lf %lf %lf", (long long*)&p.numbers[i], &mass[i], x + 3 * i, x + 3 * i + 1, x + 3 * i + 2) !=
        5)
      return fprintf(stderr, "atom %lld: five numbers expected\n", (long long)i), 2;
  gw_error error = {0};
  if (gw_model_open(argv[1], &p.model, &error)) check(&error);

  double energy = 0, kinetic = 0, moved = INFINITY;
  for (long step = 0; step <= atol(argv[3]); ++step) {
    for (int64_t i = 0; i < 3 * p.atoms && step; ++i) v[i] += dt / 2 * f[i] / mass[i / 3], x[i] += dt * v[i];
    for (int64_t i = 0; i < p.atoms && step; ++i)
      moved = fmax(moved, hypot(hypot(x[3 * i] - listed[3 * i], x[3 * i + 1] - listed[3 * i + 1]),
                                x[3 * i + 2] - listed[3 * i + 2]));
    if (moved > skin / 2) {
      make_list(&p, x, box, cutoff + skin), moved = 0;
      for (int64_t i = 0; i < 3 * p.atoms; ++i) listed[i] = x[i];
    }
    energy = pair_compute(&p, x, f), kinetic = 0;
    for (int64_t i = 0; i < 3 * p.atoms && step; ++i)
      v[i] += dt / 2 * f[i] / mass[i / 3], kinetic += mass[i / 3] * v[i] * v[i] / 2;
    if (step == 0) {
      printf("%.17g\n", energy);
      for (int64_t i = 0; i < p.atoms; ++i) printf("%.17g %.17g %.17g\n", f[3 * i], f[3 * i + 1], f[3 * i + 2]);
    }
  }
  printf("%.17g %.17g\n", energy + kinetic, kinetic);
  gw_graph_free(p.graph), gw_model_close(p.model);
  return free(x), free(p.numbers), free(p.edge_index), free(p.offsets), 0;
}
