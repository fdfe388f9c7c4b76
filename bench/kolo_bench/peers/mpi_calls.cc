// Counts MPI calls through MPI's profiling interface: each function has a second name that begins with P, so that a
// program may define the first. Before count_mpi_calls() each costs one comparison. A test checks that every function
// that the program uses is here.

#include "bench/kolo_bench/peers/peer.h"

#include <mpi.h>

#include <atomic>

namespace kolo::bench {
namespace {

std::atomic<bool> counting{false};
std::atomic<std::int64_t> calls{0};

template <class... Parameters, class... Arguments>
int counted(int (*function)(Parameters...), Arguments... arguments) {
  if (counting.load(std::memory_order_relaxed)) calls.fetch_add(1, std::memory_order_relaxed);
  return function(arguments...);
}

}  // namespace

std::int64_t mpi_calls() {
  return calls.load();
}
void count_mpi_calls() {
  counting.store(true);
}

}  // namespace kolo::bench

using kolo::bench::counted;

extern "C" {

int MPI_Abort(MPI_Comm comm, int errorcode) {
  return counted(PMPI_Abort, comm, errorcode);
}
int MPI_Allgather(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
                  MPI_Datatype recvtype, MPI_Comm comm) {
  return counted(PMPI_Allgather, sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
}
int MPI_Allgatherv(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, const int recvcounts[],
                   const int displs[], MPI_Datatype recvtype, MPI_Comm comm) {
  return counted(PMPI_Allgatherv, sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm);
}
int MPI_Allreduce(const void* sendbuf, void* recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm) {
  return counted(PMPI_Allreduce, sendbuf, recvbuf, count, datatype, op, comm);
}
int MPI_Alltoall(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
                 MPI_Datatype recvtype, MPI_Comm comm) {
  return counted(PMPI_Alltoall, sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
}
int MPI_Barrier(MPI_Comm comm) {
  return counted(PMPI_Barrier, comm);
}
int MPI_Bcast(void* buffer, int count, MPI_Datatype datatype, int root, MPI_Comm comm) {
  return counted(PMPI_Bcast, buffer, count, datatype, root, comm);
}
int MPI_Cancel(MPI_Request* request) {
  return counted(PMPI_Cancel, request);
}
int MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm* newcomm) {
  return counted(PMPI_Comm_create_group, comm, group, tag, newcomm);
}
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* newcomm) {
  return counted(PMPI_Comm_dup, comm, newcomm);
}
int MPI_Comm_free(MPI_Comm* comm) {
  return counted(PMPI_Comm_free, comm);
}
int MPI_Comm_get_attr(MPI_Comm comm, int comm_keyval, void* attribute_val, int* flag) {
  return counted(PMPI_Comm_get_attr, comm, comm_keyval, attribute_val, flag);
}
int MPI_Comm_group(MPI_Comm comm, MPI_Group* group) {
  return counted(PMPI_Comm_group, comm, group);
}
int MPI_Comm_rank(MPI_Comm comm, int* rank) {
  return counted(PMPI_Comm_rank, comm, rank);
}
int MPI_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler errhandler) {
  return counted(PMPI_Comm_set_errhandler, comm, errhandler);
}
int MPI_Comm_size(MPI_Comm comm, int* size) {
  return counted(PMPI_Comm_size, comm, size);
}
int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* newcomm) {
  return counted(PMPI_Comm_split, comm, color, key, newcomm);
}
int MPI_Comm_split_type(MPI_Comm comm, int split_type, int key, MPI_Info info, MPI_Comm* newcomm) {
  return counted(PMPI_Comm_split_type, comm, split_type, key, info, newcomm);
}
int MPI_Error_string(int errorcode, char* string, int* resultlen) {
  return counted(PMPI_Error_string, errorcode, string, resultlen);
}
int MPI_Finalize() {
  return counted(PMPI_Finalize);
}
int MPI_Finalized(int* flag) {
  return counted(PMPI_Finalized, flag);
}
int MPI_Gather(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
               MPI_Datatype recvtype, int root, MPI_Comm comm) {
  return counted(PMPI_Gather, sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm);
}
int MPI_Get_count(const MPI_Status* status, MPI_Datatype datatype, int* count) {
  return counted(PMPI_Get_count, status, datatype, count);
}
int MPI_Get_library_version(char* version, int* resultlen) {
  return counted(PMPI_Get_library_version, version, resultlen);
}
int MPI_Group_free(MPI_Group* group) {
  return counted(PMPI_Group_free, group);
}
int MPI_Group_incl(MPI_Group group, int n, const int ranks[], MPI_Group* newgroup) {
  return counted(PMPI_Group_incl, group, n, ranks, newgroup);
}
int MPI_Group_translate_ranks(MPI_Group group1, int n, const int ranks1[], MPI_Group group2, int ranks2[]) {
  return counted(PMPI_Group_translate_ranks, group1, n, ranks1, group2, ranks2);
}
int MPI_Iallgather(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
                   MPI_Datatype recvtype, MPI_Comm comm, MPI_Request* request) {
  return counted(PMPI_Iallgather, sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm, request);
}
int MPI_Iallreduce(const void* sendbuf, void* recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
                   MPI_Request* request) {
  return counted(PMPI_Iallreduce, sendbuf, recvbuf, count, datatype, op, comm, request);
}
int MPI_Ialltoall(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
                  MPI_Datatype recvtype, MPI_Comm comm, MPI_Request* request) {
  return counted(PMPI_Ialltoall, sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm, request);
}
int MPI_Ibarrier(MPI_Comm comm, MPI_Request* request) {
  return counted(PMPI_Ibarrier, comm, request);
}
int MPI_Ibcast(void* buffer, int count, MPI_Datatype datatype, int root, MPI_Comm comm, MPI_Request* request) {
  return counted(PMPI_Ibcast, buffer, count, datatype, root, comm, request);
}
int MPI_Igather(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
                MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Request* request) {
  return counted(PMPI_Igather, sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm, request);
}
int MPI_Improbe(int source, int tag, MPI_Comm comm, int* flag, MPI_Message* message, MPI_Status* status) {
  return counted(PMPI_Improbe, source, tag, comm, flag, message, status);
}
int MPI_Imrecv(void* buf, int count, MPI_Datatype type, MPI_Message* message, MPI_Request* request) {
  return counted(PMPI_Imrecv, buf, count, type, message, request);
}
int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  return counted(PMPI_Init_thread, argc, argv, required, provided);
}
int MPI_Initialized(int* flag) {
  return counted(PMPI_Initialized, flag);
}
int MPI_Iprobe(int source, int tag, MPI_Comm comm, int* flag, MPI_Status* status) {
  return counted(PMPI_Iprobe, source, tag, comm, flag, status);
}
int MPI_Irecv(void* buf, int count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm, MPI_Request* request) {
  return counted(PMPI_Irecv, buf, count, datatype, source, tag, comm, request);
}
int MPI_Ireduce(const void* sendbuf, void* recvbuf, int count, MPI_Datatype datatype, MPI_Op op, int root,
                MPI_Comm comm, MPI_Request* request) {
  return counted(PMPI_Ireduce, sendbuf, recvbuf, count, datatype, op, root, comm, request);
}
int MPI_Ireduce_scatter_block(const void* sendbuf, void* recvbuf, int recvcount, MPI_Datatype datatype, MPI_Op op,
                              MPI_Comm comm, MPI_Request* request) {
  return counted(PMPI_Ireduce_scatter_block, sendbuf, recvbuf, recvcount, datatype, op, comm, request);
}
int MPI_Iscatter(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
                 MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Request* request) {
  return counted(PMPI_Iscatter, sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm, request);
}
int MPI_Isend(const void* buf, int count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm,
              MPI_Request* request) {
  return counted(PMPI_Isend, buf, count, datatype, dest, tag, comm, request);
}
int MPI_Probe(int source, int tag, MPI_Comm comm, MPI_Status* status) {
  return counted(PMPI_Probe, source, tag, comm, status);
}
int MPI_Query_thread(int* provided) {
  return counted(PMPI_Query_thread, provided);
}
int MPI_Recv(void* buf, int count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm, MPI_Status* status) {
  return counted(PMPI_Recv, buf, count, datatype, source, tag, comm, status);
}
int MPI_Reduce(const void* sendbuf, void* recvbuf, int count, MPI_Datatype datatype, MPI_Op op, int root,
               MPI_Comm comm) {
  return counted(PMPI_Reduce, sendbuf, recvbuf, count, datatype, op, root, comm);
}
int MPI_Reduce_scatter_block(const void* sendbuf, void* recvbuf, int recvcount, MPI_Datatype datatype, MPI_Op op,
                             MPI_Comm comm) {
  return counted(PMPI_Reduce_scatter_block, sendbuf, recvbuf, recvcount, datatype, op, comm);
}
int MPI_Scatter(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
                MPI_Datatype recvtype, int root, MPI_Comm comm) {
  return counted(PMPI_Scatter, sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm);
}
int MPI_Send(const void* buf, int count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm) {
  return counted(PMPI_Send, buf, count, datatype, dest, tag, comm);
}
int MPI_Sendrecv(const void* sendbuf, int sendcount, MPI_Datatype sendtype, int dest, int sendtag, void* recvbuf,
                 int recvcount, MPI_Datatype recvtype, int source, int recvtag, MPI_Comm comm, MPI_Status* status) {
  return counted(PMPI_Sendrecv, sendbuf, sendcount, sendtype, dest, sendtag, recvbuf, recvcount, recvtype, source,
                 recvtag, comm, status);
}
int MPI_Test(MPI_Request* request, int* flag, MPI_Status* status) {
  return counted(PMPI_Test, request, flag, status);
}
int MPI_Testall(int count, MPI_Request array_of_requests[], int* flag, MPI_Status array_of_statuses[]) {
  return counted(PMPI_Testall, count, array_of_requests, flag, array_of_statuses);
}
int MPI_Testany(int count, MPI_Request array_of_requests[], int* index, int* flag, MPI_Status* status) {
  return counted(PMPI_Testany, count, array_of_requests, index, flag, status);
}
int MPI_Testsome(int incount, MPI_Request array_of_requests[], int* outcount, int array_of_indices[],
                 MPI_Status array_of_statuses[]) {
  return counted(PMPI_Testsome, incount, array_of_requests, outcount, array_of_indices, array_of_statuses);
}
int MPI_Wait(MPI_Request* request, MPI_Status* status) {
  return counted(PMPI_Wait, request, status);
}
int MPI_Waitall(int count, MPI_Request array_of_requests[], MPI_Status* array_of_statuses) {
  return counted(PMPI_Waitall, count, array_of_requests, array_of_statuses);
}
int MPI_Waitany(int count, MPI_Request array_of_requests[], int* index, MPI_Status* status) {
  return counted(PMPI_Waitany, count, array_of_requests, index, status);
}
int MPI_Waitsome(int incount, MPI_Request array_of_requests[], int* outcount, int array_of_indices[],
                 MPI_Status array_of_statuses[]) {
  return counted(PMPI_Waitsome, incount, array_of_requests, outcount, array_of_indices, array_of_statuses);
}

}  // extern "C"
