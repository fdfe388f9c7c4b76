// To be loaded before MPI: large messages of which the first byte is spoilt, as by a bad network card; all of them, or
// the one whose number FLAWED_MESSAGE names, counted from 1. Or, with FLAWED_VERSION, what MPI says of itself;
// with FLAWED_THREADS, an MPI for one thread, which ends the process with code 77 when another one sends or asks.

#include <dlfcn.h>
#include <mpi.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace {

void check_thread() {
  static const bool for_one = std::getenv("FLAWED_THREADS") != nullptr;
  if (for_one && gettid() != getpid()) _exit(77);
}

}  // namespace

extern "C" int PMPI_Isend(const void* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                          MPI_Request* request) {
  static const auto real = reinterpret_cast<decltype(&PMPI_Isend)>(dlsym(RTLD_NEXT, "PMPI_Isend"));
  static const char* const chosen = std::getenv("FLAWED_MESSAGE");
  static int messages = 0;
  check_thread();
  if (count >= 4096 && !std::getenv("FLAWED_THREADS") && (!chosen || ++messages == std::atoi(chosen)))
    ++*static_cast<unsigned char*>(const_cast<void*>(buffer));
  return real(buffer, count, type, to, tag, comm, request);
}

extern "C" int PMPI_Iprobe(int from, int tag, MPI_Comm comm, int* found, MPI_Status* status) {
  static const auto real = reinterpret_cast<decltype(&PMPI_Iprobe)>(dlsym(RTLD_NEXT, "PMPI_Iprobe"));
  check_thread();
  return real(from, tag, comm, found, status);
}

extern "C" int PMPI_Get_library_version(char* version, int* length) {
  static const auto real =
      reinterpret_cast<decltype(&PMPI_Get_library_version)>(dlsym(RTLD_NEXT, "PMPI_Get_library_version"));
  const char* const other = std::getenv("FLAWED_VERSION");
  if (!other) return real(version, length);
  *length = static_cast<int>(std::strlen(other));
  std::memcpy(version, other, std::strlen(other) + 1);
  return MPI_SUCCESS;
}
