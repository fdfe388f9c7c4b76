#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <kolo/session.h>

#include "tests/runtime/property/property_program.h"
#include "tests/runtime/property/property_shared.h"

namespace kolo::testing {

/// Settings for the program: those it draws, and deadlines that end the process and name the seed if anything hangs.
Config config_of(const PropertyProgram& program);

/// Plays one rank of a program.
void play(Session& session, const PropertyProgram& program, SharedState& shared);

/// Plays all ranks as threads. `prepare` may change a rank's world before its session is made. Returns what is wrong.
std::vector<std::string> run_program(const PropertyProgram& program, const Config& config,
                                     const std::function<void(int rank, World&)>& prepare = {},
                                     Checks checks = Checks::model);

/// Gets a rank's world ready, or does nothing; made for each program, which it may place on other nodes.
using Prepare = std::function<void(int rank, World&)>;
using MakePrepare = std::function<Prepare(const PropertyProgram&, Config&)>;

/// Plays those of `count` random programs whose seed leaves the remainder `part` when divided by `parts`. Fails the
/// test at the first one that does not do what the model does, and names its seed.
void play_programs(std::uint64_t count, int part, int parts, const MakePrepare& make_prepare = {});

}  // namespace kolo::testing
