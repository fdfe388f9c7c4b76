#pragma once

/// Settings, worlds, sessions, groups and memory of the C API. Worlds from a store: kolo_c_store.h. Include
/// <kolo/kolo_c.h>.

#include <kolo/kolo_c_base.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- settings -------------------------------------------------------------------------------------------------------

/// Settings of a session. Use a config from one thread at a time; worlds and sessions copy it.
typedef struct kolo_config kolo_config;

/// The defaults, without the environment's settings.
int kolo_config_create(kolo_config** config);
/// The KOLO_* variables of the environment. KOLO_INVALID_ARGUMENT for a value that cannot be read; the text names the
/// variable and its accepted values. Unknown variables are reported when a world or a session is made.
int kolo_config_from_environment(kolo_config** config);
/// Null is allowed.
int kolo_config_destroy(kolo_config* config);

/// Sets a value by its variable's name: ("KOLO_FUSION_BYTES", "1MB").
int kolo_config_set(kolo_config* config, const char* variable, const char* value);
/// The value as text, valid until the next call with this config.
int kolo_config_get(const kolo_config* config, const char* variable, const char** value);
/// Sets the receiver of warnings and of reports of stalled operations: `report(user, line)`, called on any thread while
/// a session with these settings lives. Null: stderr, the default.
int kolo_config_set_report(kolo_config* config, void (*report)(void* user, const char* line), void* user);

/// Whether the watchdog may end the process after KOLO_STALL_ABORT_SECONDS: 1, 0, or -1, the default: only under MPI.
/// Where it may not, operations have that as their time-out unless they have another one.
int kolo_config_set_may_exit(kolo_config* config, int may_exit);
/// 1, 0 or -1.
int kolo_config_get_may_exit(const kolo_config* config, int* may_exit);
/// Passes one line to the receiver of kolo_config_set_report().
int kolo_config_report(const kolo_config* config, const char* line);

/// A row of the table of settings. The texts are never freed.
typedef struct kolo_setting {
  const char* variable;  ///< "KOLO_FUSION_BYTES"
  const char* type;      ///< "bytes", "seconds", "integer", "text", "flag"
  const char* unit;      ///< "" if none
  const char* doc;       ///< one line
  int must_agree;        ///< 1 if every rank needs the same value
} kolo_setting;

/// The number of settings, and setting `index` (from 0), in the documented order.
int kolo_setting_count(int* count);
int kolo_setting_at(int index, kolo_setting* setting);
/// The table of settings for `--help`, and in Markdown. The texts are never freed.
int kolo_settings_help(const char** text);
int kolo_settings_markdown(const char** text);
/// "67108864", "64MB", "1.5G" as a number of bytes; suffixes K, M, G, T count in 1024s. KOLO_INVALID_ARGUMENT for other
/// text.
int kolo_parse_bytes(const char* text, int64_t* bytes);

// ---- worlds ---------------------------------------------------------------------------------------------------------

/// The ranks of a session, and how they reach each other. Serves one session, and may be destroyed once that was made.
typedef struct kolo_world kolo_world;

/// All ranks that the launcher started; without a launcher a world of one. `config` null: the environment's
/// settings. Under torchrun the ranks meet through a store, and MPI is not called. Collective. KOLO_BACKEND if the
/// launcher started several ranks but MPI sees one, KOLO_STALLED if ranks do not come to the store,
/// KOLO_INVALID_ARGUMENT if the launcher's variables contradict each other. (Over a communicator: kolo_mpi_world() of
/// <kolo/kolo_c_mpi.h>.)
int kolo_launcher_world(const kolo_config* config, kolo_world** world);
/// A world of one rank, without launcher and MPI.
int kolo_solo_world(const kolo_config* config, kolo_world** world);
/// A world of `size` ranks in this process: worlds[r] belongs to the thread of rank r. `worlds` has room for `size`
/// pointers.
int kolo_thread_worlds(int size, const kolo_config* config, kolo_world** worlds);
/// Null is allowed.
int kolo_world_destroy(kolo_world* world);

// ---- sessions -------------------------------------------------------------------------------------------------------

/// One rank's membership in a world; all operations need one. Making and closing a session are collective; several may
/// live in one process. All functions that take a session are thread-safe, except those that destroy it.
typedef struct kolo_session kolo_session;

/// Joins the launcher's world. `config` null: the environment's settings. Errors as of kolo_launcher_world(), and
/// KOLO_MISMATCH on every rank if settings that must agree do not.
int kolo_session_create(const kolo_config* config, kolo_session** session);
/// Joins `world`, with the settings that it was made with. KOLO_INVALID_ARGUMENT if it has served a session already.
int kolo_session_create_in(kolo_world* world, kolo_session** session);

/// Leaves, collectively; operations submitted later return KOLO_CLOSED. The session must still be destroyed.
int kolo_session_close(kolo_session* session);
/// Closes the session unless that was done, which waits until every rank has left, and frees it. Its handles must have
/// been destroyed before; groups and memory may outlive it. Null is allowed.
int kolo_session_destroy(kolo_session* session);
/// Leaves without waiting for other ranks, for a program that ends early, and frees the session. Operations that other
/// ranks have in flight fail with KOLO_ABORTED. Null is allowed.
int kolo_session_abandon(kolo_session* session);

int kolo_session_rank(const kolo_session* session, int* rank);
int kolo_session_size(const kolo_session* session, int* size);
/// Index among the ranks of this node, and their number.
int kolo_session_local_rank(const kolo_session* session, int* local_rank);
int kolo_session_local_size(const kolo_session* session, int* local_size);
/// This rank's GPU, for device tensors; KOLO_CPU and 0 if they cannot be used.
int kolo_session_device(const kolo_session* session, int* device_kind, int* device_index);
/// A copy of the session's settings, to be destroyed by the caller.
int kolo_session_config(const kolo_session* session, kolo_config** config);

/// Counters of a session on this rank since it was made.
typedef struct kolo_stats {
  uint64_t agreements;          ///< decisions to run one bucket or several
  uint64_t tensors;             ///< tensors reduced, copied or exchanged
  uint64_t buckets;             ///< collectives run for these tensors
  uint64_t full_announcements;  ///< tensors announced with name and signature
  uint64_t control_bytes_sent;  ///< payload of control messages, all peers together
  uint64_t control_bytes_received;
  uint64_t control_messages_sent;
  uint64_t staged_bytes;  ///< copied into or out of a backend's staging memory
  uint64_t late_wakeups;  ///< times a thread found work that nobody had woken it for: 0 unless kolo has a bug
  double bucket_seconds;  ///< sum of the buckets' times from start to completion; with the setting KOLO_TIMINGS only
  const char* method;  ///< how the bytes of the last bucket travelled, where its backend has several ways; never null
  uint64_t device_peak_bytes;  ///< largest use of the GPU's memory that this function has seen; 0 without a GPU
} kolo_stats;

int kolo_session_stats(const kolo_session* session, kolo_stats* stats);

// ---- groups ---------------------------------------------------------------------------------------------------------

/// A set of ranks that run collectives together. As an argument null stands for the world of the session.
typedef struct kolo_group kolo_group;

/// How the operations of a group's members find each other.
typedef enum kolo_order {
  KOLO_ORDER_NAMES = 0,   ///< by name, whatever the order: the ranks negotiate
  KOLO_ORDER_PROGRAM = 1  ///< the n-th call of one member meets the n-th of the others; operations have no name
} kolo_order;

/// All zero: the defaults.
typedef struct kolo_group_options {
  int order;  ///< a kolo_order
} kolo_group_options;

/// The group of all ranks.
int kolo_group_world(const kolo_session* session, kolo_group** group);
/// Makes a group of `count` ranks of the session, listed in any order: in the group they are numbered from 0 in
/// ascending order. Called by the members; on any other rank the group has no use. Local: waits for nobody, and takes
/// nothing but a few hundred bytes until the group's first operation. The k-th group of some ranks on one member is the
/// k-th group of these ranks on the others. KOLO_INVALID_ARGUMENT if they are not distinct ranks of the session.
int kolo_group_create(kolo_session* session, const int* ranks, size_t count, kolo_group** group);
/// With options, the same on every member; null: the defaults.
int kolo_group_create_with(kolo_session* session, const int* ranks, size_t count, const kolo_group_options* options,
                           kolo_group** group);
/// Makes a group for each colour, of the ranks that passed it, and returns this rank's; a negative colour joins none,
/// and gets a group without ranks. Members are ordered by key, those with equal keys by session rank. Collective over
/// the session.
int kolo_group_split(kolo_session* session, int color, int key, kolo_group** group);
int kolo_group_split_with(kolo_session* session, int color, int key, const kolo_group_options* options,
                          kolo_group** group);
/// Removes the group once its members have nothing in flight in it; the object must still be destroyed. Collective over
/// its members; on other ranks it does nothing, nor to a group that was removed. KOLO_INVALID_ARGUMENT on every member
/// if one has something in flight.
int kolo_group_remove(kolo_session* session, const kolo_group* group);
/// Frees this rank's description of a group. Local: the group itself stays. Null is allowed.
int kolo_group_destroy(kolo_group* group);

/// This rank's index in the group; -1 if it is no member.
int kolo_group_rank(const kolo_group* group, int* rank);
int kolo_group_size(const kolo_group* group, int* size);
/// The members' session ranks, in the order of their ranks in the group. `ranks` has room for as many as the group has.
int kolo_group_ranks(const kolo_group* group, int* ranks);
/// What messages call it: "world", "of ranks 0-2". Valid until the group is destroyed.
int kolo_group_name(const kolo_group* group, const char** name);
/// The kolo_order of its operations.
int kolo_group_order(const kolo_group* group, int* order);

// ---- memory ---------------------------------------------------------------------------------------------------------

/// Memory that a session allocated.
typedef struct kolo_memory kolo_memory;

/// Bytes that this process can still allocate before the machine, or its control group, is out of memory, by the
/// kernel's figures; the largest number if there are none.
int kolo_available_memory(size_t* bytes);

/// Allocates `bytes` zeros, aligned to 64 bytes at least. Backends need the fewest copies for tensors there. Local:
/// other ranks need not do the same. KOLO_BACKEND if there is no such memory left, KOLO_INVALID_ARGUMENT for a device
/// that this build does not support.
int kolo_memory_allocate(kolo_session* session, size_t bytes, int device_kind, int device_index, kolo_memory** memory);
/// Makes the whole pages of memory of the program such memory, where it lies, until the session ends: they must stay
/// allocated until then, and no thread may write to them during this call and when the session ends. Local.
/// KOLO_INVALID_ARGUMENT, and nothing has changed, for memory of a device, a stack or read-only, or adopted already,
/// without XPMEM also shared, locked, a mapped file or of a reserve; KOLO_BACKEND if memory is short.
int kolo_memory_adopt(kolo_session* session, void* data, size_t bytes);
int kolo_memory_data(const kolo_memory* memory, void** data);
int kolo_memory_bytes(const kolo_memory* memory, size_t* bytes);
int kolo_memory_device(const kolo_memory* memory, int* device_kind, int* device_index);
/// Null is allowed.
int kolo_memory_free(kolo_memory* memory);

/// Tensors in one contiguous allocation of a session, in the order given and without gaps: a bucket of neighbours needs
/// no packing. Order gradients as they become ready.
typedef struct kolo_arena kolo_arena;

/// Reads the shapes of `count` tensors of one type on one device, and sets their `data`. Errors as of
/// kolo_memory_allocate(), and KOLO_INVALID_ARGUMENT for a shape that is not valid.
int kolo_arena_create(kolo_session* session, kolo_tensor* tensors, size_t count, kolo_arena** arena);
/// All of them as one tensor of one dimension.
int kolo_arena_whole(const kolo_arena* arena, kolo_tensor* tensor);
/// Frees the memory. Null is allowed.
int kolo_arena_destroy(kolo_arena* arena);

#ifdef __cplusplus
}
#endif
