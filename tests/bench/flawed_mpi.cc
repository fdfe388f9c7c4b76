// To be loaded before MPI: large messages of which the first byte is spoilt, as by a bad network card.

#include <dlfcn.h>
#include <mpi.h>

extern "C" int PMPI_Isend(const void* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                          MPI_Request* request) {
  static const auto real = reinterpret_cast<decltype(&PMPI_Isend)>(dlsym(RTLD_NEXT, "PMPI_Isend"));
  if (count >= 4096) ++*static_cast<unsigned char*>(const_cast<void*>(buffer));
  return real(buffer, count, type, to, tag, comm, request);
}
