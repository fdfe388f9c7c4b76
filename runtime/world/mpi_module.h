#pragma once

#include <optional>

#include <kolo/config.h>
#include <kolo/world.h>

#include "runtime/world/launcher.h"

/// What libkolo_mpi.so gives to a libkolo that was built without MPI, from the same sources: mpi_launcher_world().
extern "C" void kolo_mpi_module_world(const kolo::Launched& launched, const kolo::Config& config,
                                      std::optional<kolo::World>& made);
