#pragma once

/// Settings, worlds, sessions, groups and memory of the C API. Include <kolo/kolo_c.h>.

#include <kolo/kolo_c_base.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- settings -------------------------------------------------------------------------------------------------------

/// Settings of a session. To be used by one thread at a time; what is made with them has a copy.
typedef struct kolo_config kolo_config;

/// The defaults, whatever the environment says.
int kolo_config_create(kolo_config** config);
/// The KOLO_* variables of the environment. KOLO_INVALID_ARGUMENT names the variable that cannot be read, and what it
/// takes. Unknown ones are reported when a world or a session is made.
int kolo_config_from_environment(kolo_config** config);
/// Null is allowed.
int kolo_config_destroy(kolo_config* config);

/// Sets a value by its variable's name: ("KOLO_FUSION_BYTES", "1MB").
int kolo_config_set(kolo_config* config, const char* variable, const char* value);
/// The value as text, valid until the next call with this config.
int kolo_config_get(const kolo_config* config, const char* variable, const char** value);
/// `report(user, line)` gets each warning, and each operation that waits for too long: on any thread, as long as a
/// session lives that was made with these settings. Null: stderr, the default.
int kolo_config_set_report(kolo_config* config, void (*report)(void* user, const char* line), void* user);

/// A row of the table of settings. The texts are never freed.
typedef struct kolo_setting {
  const char* variable;  ///< "KOLO_FUSION_BYTES"
  const char* type;      ///< "bytes", "seconds", "integer", "text", "flag"
  const char* unit;      ///< "" if none
  const char* doc;       ///< one line
  int must_agree;        ///< 1 if every rank needs the same value
} kolo_setting;

/// How many settings there are; number `index` of them, from 0, in the order in which they are documented.
int kolo_setting_count(int* count);
int kolo_setting_at(int index, kolo_setting* setting);

// ---- worlds ---------------------------------------------------------------------------------------------------------

/// The ranks a session spans, and how they reach each other. Serves one session; to be destroyed at any time after that
/// was made.
typedef struct kolo_world kolo_world;

/// All ranks that the launcher started, and a world of one without a launcher. `config` null: the environment's
/// settings. Collective. KOLO_BACKEND if the launcher started several ranks but MPI sees one, KOLO_INVALID_ARGUMENT if
/// MPI is initialised with less than MPI_THREAD_SERIALIZED. (Over a communicator: kolo_mpi_world() of
/// <kolo/kolo_c_mpi.h>.)
int kolo_launcher_world(const kolo_config* config, kolo_world** world);
/// One rank, which needs no launcher and no MPI.
int kolo_solo_world(const kolo_config* config, kolo_world** world);
/// `size` ranks in this process: worlds[r] belongs to the thread that plays rank r. `worlds` has room for `size`
/// pointers.
int kolo_thread_worlds(int size, const kolo_config* config, kolo_world** worlds);
/// Null is allowed.
int kolo_world_destroy(kolo_world* world);

// ---- sessions -------------------------------------------------------------------------------------------------------

/// One rank's membership in a world: what all operations go through. Making and closing a session are collective;
/// several may live in one process. Functions that take a session may be called by several threads at a time, but for
/// those that destroy it.
typedef struct kolo_session kolo_session;

/// Joins the launcher's world. `config` null: the environment's settings. Errors as of kolo_launcher_world(), and
/// KOLO_MISMATCH on every rank if settings that must agree do not.
int kolo_session_create(const kolo_config* config, kolo_session** session);
/// Joins `world`, with the settings that it was made with. KOLO_INVALID_ARGUMENT if it has served a session already.
int kolo_session_create_in(kolo_world* world, kolo_session** session);

/// Leaves, collectively; operations submitted later return KOLO_CLOSED. The session remains to be destroyed.
int kolo_session_close(kolo_session* session);
/// Leaves unless that has happened, which waits until every rank has left, and frees the session. Its handles must have
/// been destroyed before; groups and memory may outlive it. Null is allowed.
int kolo_session_destroy(kolo_session* session);
/// Frees the session of a program that gives up: the departure is announced, and nobody is waited for. What other ranks
/// have in flight fails with KOLO_ABORTED. Null is allowed.
int kolo_session_abandon(kolo_session* session);

int kolo_session_rank(const kolo_session* session, int* rank);
int kolo_session_size(const kolo_session* session, int* size);
/// Index among the ranks of this node, and their number.
int kolo_session_local_rank(const kolo_session* session, int* local_rank);
int kolo_session_local_size(const kolo_session* session, int* local_size);
/// A copy of the session's settings, to be destroyed by the caller.
int kolo_session_config(const kolo_session* session, kolo_config** config);

/// What a session has done so far, on this rank.
typedef struct kolo_stats {
  uint64_t agreements;          ///< decisions to run something, be it one bucket or several
  uint64_t tensors;             ///< tensors reduced, copied or exchanged
  uint64_t buckets;             ///< collectives that served them
  uint64_t full_announcements;  ///< tensors announced with name and signature
  uint64_t control_bytes_sent;  ///< payload of control messages, all peers together
  uint64_t control_bytes_received;
  uint64_t control_messages_sent;
  uint64_t staged_bytes;  ///< copied into or out of a backend's staging memory
} kolo_stats;

int kolo_session_stats(const kolo_session* session, kolo_stats* stats);

// ---- groups ---------------------------------------------------------------------------------------------------------

/// A set of ranks that run collectives together. Where a function takes one, null is the world of the session.
typedef struct kolo_group kolo_group;

/// The group of all ranks.
int kolo_group_world(const kolo_session* session, kolo_group** group);
/// Makes a group of `count` ranks of the session, in any order. Collective over the session: every rank calls it,
/// member or not, with the same ranks, and in the same order as other calls that make or remove groups. KOLO_MISMATCH
/// on every rank if the ranks differ, KOLO_INVALID_ARGUMENT if they are not distinct ranks of the session.
int kolo_group_create(kolo_session* session, const int* ranks, size_t count, kolo_group** group);
/// Makes a group for each colour, of the ranks that passed it, and returns this rank's; a negative colour joins none,
/// and gets a group without ranks. Members are ordered by key, those with equal keys by session rank. Collective over
/// the session.
int kolo_group_split(kolo_session* session, int color, int key, kolo_group** group);
/// Removes the group when its members have nothing in flight in it any more; it remains to be destroyed. Collective
/// over the session.
int kolo_group_remove(kolo_session* session, const kolo_group* group);
/// Frees this rank's description of a group. Local: the group itself goes on. Null is allowed.
int kolo_group_destroy(kolo_group* group);

/// This rank's index in the group; -1 if it is no member.
int kolo_group_rank(const kolo_group* group, int* rank);
int kolo_group_size(const kolo_group* group, int* size);
/// The members' session ranks, in the order of their ranks in the group. `ranks` has room for as many as the group has.
int kolo_group_ranks(const kolo_group* group, int* ranks);

// ---- memory ---------------------------------------------------------------------------------------------------------

/// A piece of memory that a session allocated.
typedef struct kolo_memory kolo_memory;

/// Zeroed, aligned to 64 bytes at least. What lives there is reduced with as few copies as the backends can. Local:
/// other ranks need not do the same. KOLO_BACKEND if there is no such memory left, KOLO_INVALID_ARGUMENT for a device
/// that this build does not serve.
int kolo_memory_allocate(kolo_session* session, size_t bytes, int device_kind, int device_index, kolo_memory** memory);
int kolo_memory_data(const kolo_memory* memory, void** data);
int kolo_memory_bytes(const kolo_memory* memory, size_t* bytes);
/// Null is allowed.
int kolo_memory_free(kolo_memory* memory);

/// Tensors side by side in one piece of a session's memory, in the order given and without gaps: neighbours travel
/// without being packed. Give gradients the order in which they become ready.
typedef struct kolo_arena kolo_arena;

/// Reads the shapes of `count` tensors, whose types and devices are all alike, and sets their `data`. Errors as of
/// kolo_memory_allocate(), and KOLO_INVALID_ARGUMENT for a shape that is not valid.
int kolo_arena_create(kolo_session* session, kolo_tensor* tensors, size_t count, kolo_arena** arena);
/// All of them as one tensor of one dimension.
int kolo_arena_whole(const kolo_arena* arena, kolo_tensor* tensor);
/// Frees the memory. Null is allowed.
int kolo_arena_destroy(kolo_arena* arena);

#ifdef __cplusplus
}
#endif
