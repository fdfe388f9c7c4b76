// The smallest program that embeds kolo: sums a vector over all ranks, and checks the result.

#include <cstdio>
#include <cstdlib>
#include <vector>

#include <kolo/kolo.h>

int main() {
  try {
    kolo::Session session;  // the ranks that mpirun started, or a world of one
    std::vector<float> values(1000, static_cast<float>(session.rank() + 1));
    session.all_reduce("values", kolo::view(values));

    const float expected = static_cast<float>(session.size() * (session.size() + 1)) / 2;  // 1 + 2 + ... + size
    for (const float value : values) {
      if (value != expected) {
        std::fprintf(stderr, "embed: rank %d got %g instead of %g\n", session.rank(), value, expected);
        return EXIT_FAILURE;
      }
    }
    std::printf("embed: rank %d of %d: the sum is %g\n", session.rank(), session.size(), expected);
  } catch (const kolo::Error& error) {
    std::fprintf(stderr, "embed: %s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
