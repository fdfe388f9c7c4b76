#pragma once

/// Stores of the C API, and worlds from them. Include <kolo/kolo_c.h>.

#include <kolo/kolo_c_session.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Bytes by key, which the processes of a job see alike: by them they can find each other without MPI.
///
/// Keys are 1 to 512 bytes, values at most 16 MiB, KOLO_INVALID_ARGUMENT for others. Every function but
/// kolo_store_destroy() may be called by any thread; each sees what those that returned before it, on any process, did.
/// KOLO_BACKEND if the store cannot be reached any more.
typedef struct kolo_store kolo_store;

/// A store in a folder, for the processes of one node (or of several, on a file system that has locks and atomic
/// renames for all of them). A job needs a folder of its own; it is made if it is missing, and stays.
int kolo_file_store_create(const char* path, kolo_store** store);

/// A store that one process serves, in a thread of its own, and others reach over TCP; not encrypted. The server's
/// store must live until nobody needs it.
///
/// host             name or address; the server listens there if the host has that address, else at all of its own
/// port             of the server; 0, there: any, which kolo_tcp_store_port() tells
/// is_server        1 in the process that serves, else 0
/// timeout_seconds  for everything but kolo_store_get(), and for the server to begin
int kolo_tcp_store_create(const char* host, uint16_t port, int is_server, double timeout_seconds, kolo_store** store);
/// KOLO_INVALID_ARGUMENT of another kind of store.
int kolo_tcp_store_port(const kolo_store* store, uint16_t* port);

/// Another library's store. Each function may be called by several threads at once, and returns a kolo_status, which
/// is that of the call which needed it. They do what those of the same names below do, with keys that end in a zero.
typedef struct kolo_store_functions {
  int (*set)(void* user, const char* key, const void* value, size_t bytes);
  /// `*value` receives memory of malloc(), which kolo frees; null if the value has no bytes.
  int (*get)(void* user, const char* key, double seconds, void** value, size_t* bytes);
  int (*add)(void* user, const char* key, int64_t n, int64_t* sum);
  int (*remove)(void* user, const char* key);
  void (*destroy)(void* user);  ///< called by kolo_store_destroy(); may be null
} kolo_store_functions;

/// `functions` is copied. If this fails, `destroy` is not called.
int kolo_store_from_functions(const kolo_store_functions* functions, void* user, kolo_store** store);

/// Null is allowed. Worlds from the store may outlive it once all ranks have their sessions.
int kolo_store_destroy(kolo_store* store);

/// Sets or replaces the value. `value` may be null if `bytes` is 0.
int kolo_store_set(kolo_store* store, const char* key, const void* value, size_t bytes);
/// The value, as soon as there is one: `*value` receives `*bytes` bytes and a terminating zero, to be freed with
/// kolo_free(). KOLO_STALLED if there is none in `seconds` from now; 0 asks whether there is one.
int kolo_store_get(kolo_store* store, const char* key, double seconds, void** value, size_t* bytes);
/// Adds to a number, which is 0 where the key has no value; `*sum` receives the new one. KOLO_INVALID_ARGUMENT if the
/// value is no number of kolo_store_add().
int kolo_store_add(kolo_store* store, const char* key, int64_t n, int64_t* sum);
/// Removes the value, if there is one.
int kolo_store_remove(kolo_store* store, const char* key);

/// A world of the processes that call this with one store, each as another rank of 0 to size - 1; MPI is not called.
/// Collective. `config` null: the environment's settings. The store may be used again, for another world of the same
/// ranks in the same order, and is not needed any more when all have their sessions. Tensors in host memory travel
/// within nodes only.
///
/// KOLO_STALLED, naming them, if ranks have not come for KOLO_STALL_ABORT_SECONDS; then another world needs another
/// store. Whoever can read the store can take part.
int kolo_store_world(kolo_store* store, int rank, int size, const kolo_config* config, kolo_world** world);

#ifdef __cplusplus
}
#endif
