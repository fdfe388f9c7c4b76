// main() of tests whose processes support/launch starts: their worlds are from a store. The launcher makes one verdict
// of theirs.

#include <optional>

#include <kolo/session.h>

#include "tests/support/processes.h"
#include "tests/support/thread_ranks.h"

namespace kolo::testing {
namespace {

/// Through a session that no test touches.
class SessionGathering final : public Gathering {
 public:
  explicit SessionGathering(Session& session) : session_(session) {}
  int rank() const override { return session_.rank(); }
  int size() const override { return session_.size(); }
  int lowest_on_node() override { return 0; }
  std::vector<std::vector<std::byte>> all(std::span<const std::byte> mine) override {
    std::vector<std::vector<std::byte>> result;
    for (const std::string& said :
         session_.all_gather_object("processes", {reinterpret_cast<const char*>(mine.data()), mine.size()})) {
      const auto bytes = std::as_bytes(std::span(said));
      result.emplace_back(bytes.begin(), bytes.end());
    }
    return result;
  }

 private:
  Session& session_;
};

std::optional<SessionGathering> all;

}  // namespace

Gathering& processes() {
  return *all;
}

bool over_mpi() {
  return false;
}

}  // namespace kolo::testing

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  kolo::Config config = kolo::testing::test_config();
  config.fake_nodes = "";
  kolo::Session session(config);
  kolo::testing::all.emplace(session);
  const int failed = kolo::testing::run_tests();
  kolo::testing::close(session);
  return failed;
}
