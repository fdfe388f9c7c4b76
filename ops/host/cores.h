#pragma once

namespace kolo {

/// Whether `ranks` ranks on this node, placed like this process, outnumber the cores they may run on: then a thread
/// that spins keeps a peer from running. A process bound to one core is taken to have it for itself, as mpirun binds.
bool more_ranks_than_cores(int ranks);

}  // namespace kolo
