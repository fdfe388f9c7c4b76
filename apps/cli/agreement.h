#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <kolo/session.h>

#include "apps/cli/terminal.h"

namespace kolo::cli {

/// The ranks of a program, and their exchange of a few bytes.
class RankGroup {
 public:
  virtual ~RankGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The least of all ranks' numbers. Collective.
  virtual int least(int mine) const = 0;
  /// Every rank's text, by rank. Collective.
  virtual std::vector<std::string> gather(const std::string& mine) const = 0;
};

/// The text of an exception for print_problem().
std::string problem_of(const std::exception& error);

/// Runs `work` on this rank, and returns once every rank has done so without an exception. Otherwise the lowest rank on
/// which it threw prints why, and UsageError::reported() is thrown on every rank, so that the session can be closed in
/// the ordinary way. Collective; `work` is not. Errors: Error if the ranks cannot exchange bytes.
void collectively(const RankGroup& ranks, const std::function<void()>& work);
void collectively(Session& session, const std::function<void()>& work);

/// Something that must be equal on all ranks.
struct Agreed {
  std::string name;   ///< "--lr"
  std::string value;  ///< "0.1"
};

/// Makes sure that `mine` is equal on all ranks, which pass the same names. Otherwise rank 0 prints the first that
/// differs and the ranks with each value, and UsageError::reported() is thrown on every rank. Collective.
void check_same(const RankGroup& ranks, std::span<const Agreed> mine);
void check_same(Session& session, std::span<const Agreed> mine);

}  // namespace kolo::cli
