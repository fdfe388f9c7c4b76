#pragma once

#include <exception>
#include <functional>
#include <span>
#include <string>

#include <kolo/session.h>

namespace kolo::train {

/// All ranks end, on account of a problem that one of them has printed. Thrown on every rank alike, so that the session
/// can be closed in the ordinary way.
struct Stopped {};

/// What print_problem() is to say of an exception.
std::string problem_of(const std::exception& error);

/// Runs `work` on this rank, and returns once every rank has done so without an exception. Otherwise the lowest rank on
/// which it threw prints why, and Stopped is thrown on every rank. Collective; `work` is not. Errors: Error if the
/// ranks cannot talk.
void together(Session& session, const std::function<void()>& work);

/// Something that must be equal on all ranks.
struct Agreed {
  std::string name;   ///< "--lr"
  std::string value;  ///< "0.1"
};

/// Makes sure that `mine` is equal on all ranks, which pass the same names. Otherwise rank 0 prints the first that
/// differs and the ranks with each value, and Stopped is thrown on every rank. Collective.
void check_same(Session& session, std::span<const Agreed> mine);

}  // namespace kolo::train
