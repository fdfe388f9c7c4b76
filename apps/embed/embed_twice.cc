// Sessions come and go: session, none, session again, and two at once.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include <kolo/kolo.h>

namespace {

/// The number of ranks, counted with an all_reduce.
int count_ranks(kolo::Session& session) {
  std::int32_t ranks = 1;
  session.all_reduce("ranks", kolo::view_scalar(ranks));
  if (ranks != session.size()) throw std::runtime_error("the sum over ranks is wrong");
  return ranks;
}

}  // namespace

int main() {
  try {
    {
      kolo::Session first;
      count_ranks(first);
    }
    kolo::Session second;
    kolo::Session third;
    const int ranks = count_ranks(second);
    count_ranks(third);
    std::printf("embed_twice: rank %d of %d: the sum is %d\n", third.rank(), third.size(), ranks);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "embed_twice: %s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
