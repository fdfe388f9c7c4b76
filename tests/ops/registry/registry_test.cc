#include "ops/registry/registry.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>

#include <kolo/error.h>

#include "ops/gpu/gpu.h"
#include "ops/local/backend.h"

namespace kolo {
namespace {

std::array<BackendOffer, 1> local_offer() {
  return {BackendOffer{"local", [] { return std::move(local_backends(1, {})[0]); }}};
}

std::string message_for(std::string_view setting) {
  try {
    (void)make_backends(setting, local_offer());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

TEST(BackendRegistry, AutoTakesAllOffersAndANameThatOne) {
  for (const char* setting : {"auto", "local"}) {
    const BackendList backends = make_backends(setting, local_offer());
    ASSERT_EQ(backends.size(), 1u);
    EXPECT_EQ(backends[0]->name(), "local");
  }
}

TEST(BackendRegistry, AutoDoesWithoutWhatIsOnlyByNameOrCannotBeHad) {
  const std::array<BackendOffer, 3> offers{
      BackendOffer{"shm", [] { return std::unique_ptr<Backend>(); }}, local_offer()[0],
      BackendOffer{"mpi", [] { return std::move(local_backends(1, {})[0]); }, true}};
  EXPECT_EQ(make_backends("auto", offers).size(), 1u);
  EXPECT_EQ(make_backends("mpi", offers).size(), 1u);
  EXPECT_THROW((void)make_backends("shm", offers), Error);
}

TEST(BackendRegistry, NamesWhatItKnows) {
  EXPECT_EQ(message_for("nccl"), "KOLO_BACKEND is 'nccl', which is no backend; set it to one of auto, local, shm, mpi");
  EXPECT_EQ(message_for("mpi"),
            "KOLO_BACKEND is 'mpi', which cannot serve this world (it serves processes that a launcher started, and "
            "these are not); set it to "
            "auto or local");
}

TEST(Registry, HostMemoryIsAligned) {
  for (const unsigned bytes : {0U, 1U, 1000U})
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(allocate_on({}, bytes, true).get()) % 64, 0u);
  EXPECT_THROW((void)allocate_on({}, std::numeric_limits<std::size_t>::max(), false), Error);
}

}  // namespace
}  // namespace kolo
