// Prints what Philox makes of each seed and position on stdin: two words, a float and a double.
#include <graphweave/random.h>

#include <cinttypes>

#include "check.h"

int main() {
  int64_t seed, position;
  while (std::scanf("%" SCNd64 " %" SCNd64, &seed, &position) == 2) {
    const auto words = gw_philox(seed, position);
    const uint32_t a = (uint32_t)words.a, b = (uint32_t)words.b;
    const float single = gw_uniform_f32(seed, position);
    const double twice = gw_uniform_f64(seed, position);
    CHECK(0 <= single && single < 1 && 0 <= twice && twice < 1, "in [0, 1)");
    std::printf("%" PRIu32 " %" PRIu32 " %.9g %.17g\n", a, b, single, twice);
  }
}
