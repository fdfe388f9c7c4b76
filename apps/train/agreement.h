#pragma once

#include <cstdint>
#include <exception>
#include <functional>
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

/// Whether every rank passes the same number. Collective.
bool same_everywhere(Session& session, std::uint64_t number);

}  // namespace kolo::train
