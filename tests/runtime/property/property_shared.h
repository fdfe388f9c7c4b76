#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <kolo/error.h>

#include "tests/runtime/property/property_program.h"

namespace kolo::testing {

/// What is held against the serial model: all, or, where something fails that it does not know of, results only.
enum class Checks : std::uint8_t { model, agreement };

/// Marks that ranks leave for each other, in memory of their process or, of ranks that are processes, of all: a mark
/// holds the number of the program that made it.
struct Marks {
  std::atomic<std::uint64_t> given_up{0};
  std::atomic<int> patience{20};                           ///< seconds for which a rank waits for another's mark
  std::array<std::atomic<std::uint64_t>, 1000> reached{};  // by operation
};

/// What the ranks of one program share: what went wrong, the errors they were given, and who has come where others wait
/// for it. Ranks that are processes have one each, with the same marks, and add them up at the end.
class SharedState {
 public:
  SharedState(const PropertyProgram& program, Checks checks, std::shared_ptr<Marks> marks = std::make_shared<Marks>());

  /// Something is not as the model says.
  void problem(const std::string& text);
  /// Whether nothing fails that the model does not know of.
  bool knows_all() const { return checks_ == Checks::model; }
  /// The same, unless something fails that the model does not know of.
  void unexpected(const std::string& text) {
    if (knows_all()) problem(text);
  }
  std::vector<std::string> problems() const;

  /// The error of an operation on a rank of its group.
  void failed(const PropertyOp& op, int rank, const Error& error);
  /// What join() returned, a rank of the group.
  void joined(int step, int last);
  /// Adds what the errors and the joins have in common, or have not, to the problems.
  void check();

  /// What this process knows, and adding what another one does.
  std::string to_text() const;
  void add(const std::string& text);

  /// The odd rank of an operation has done what it does first, or, of one that comes late, the others have.
  void reach(const PropertyOp& op) { marks_->reached.at(static_cast<std::size_t>(op.id)) = program_.seed + 1; }
  /// Waits for that. Throws if a rank's program has ended by an exception.
  void await(const PropertyOp& op);
  void give_up(const std::string& why);
  /// A rank's program has ended, as planned; so does whoever waits for its marks.
  void leave() { marks_->given_up = program_.seed + 1; }

  MemorySource* adopted = nullptr;  ///< where some tensors of this process lie; null: none

 private:
  void check(const PropertyOp& op);
  void check_agreement();
  bool is_abandoned(int group) const;
  bool says_abandoned(const PropertyOp& op, const std::string& text) const;

  const PropertyProgram& program_;
  const Checks checks_;
  mutable std::mutex mutex_;
  std::vector<std::string> problems_;
  struct Errors {
    std::set<std::string> texts;
    std::set<ErrorCode> codes;
    std::set<int> ranks;
  };
  std::map<int, Errors> errors_;           // by operation
  std::map<int, std::vector<int>> joins_;  // by step
  const std::shared_ptr<Marks> marks_;
};

}  // namespace kolo::testing
