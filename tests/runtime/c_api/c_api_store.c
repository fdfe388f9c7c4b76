// Stores of the C API, and worlds from them: `c_api_test threads N` with N ranks as threads of this process,
// `c_api_test FOLDER` with those that tests/support/launch started; FOLDER is empty, and the same for all.

#include <stdlib.h>

#include "tests/runtime/c_api/c_api_check.h"

/// What the program offers as a store of its own: another one, whose calls it counts.
typedef struct Lent {
  kolo_store* store;
  atomic_int calls, destroyed, fails;
} Lent;

static int lent_set(void* user, const char* key, const void* value, size_t bytes) {
  Lent* lent = user;
  ++lent->calls;
  return lent->fails ? lent->fails : kolo_store_set(lent->store, key, value, bytes);
}
static int lent_get(void* user, const char* key, double seconds, void** value, size_t* bytes) {
  Lent* lent = user;
  ++lent->calls;
  return lent->fails ? lent->fails : kolo_store_get(lent->store, key, seconds, value, bytes);
}
static int lent_add(void* user, const char* key, int64_t n, int64_t* sum) {
  Lent* lent = user;
  ++lent->calls;
  return lent->fails ? lent->fails : kolo_store_add(lent->store, key, n, sum);
}
static int lent_remove(void* user, const char* key) {
  Lent* lent = user;
  ++lent->calls;
  return lent->fails ? lent->fails : kolo_store_remove(lent->store, key);
}
static void lent_destroy(void* user) {
  ++((Lent*)user)->destroyed;
}
static const kolo_store_functions lending = {lent_set, lent_get, lent_add, lent_remove, lent_destroy};

/// `other` is another user's object of the same store.
static void keep_values(kolo_store* store, kolo_store* other) {
  void* value = &value;
  size_t bytes = 7;
  int64_t sum = 7;
  FAILS(kolo_store_get(store, "c/a", 0, &value, &bytes), KOLO_STALLED, "'c/a'");
  CHECK(value == NULL && bytes == 0);
  OK(kolo_store_set(store, "c/a", "one\0two", 7));
  OK(kolo_store_get(other, "c/a", 20, &value, &bytes));
  CHECK(bytes == 7 && memcmp(value, "one\0two", 8) == 0);
  OK(kolo_free(value));
  OK(kolo_store_set(other, "c/a", NULL, 0));
  OK(kolo_store_get(store, "c/a", 0, &value, &bytes));
  CHECK(bytes == 0 && value != NULL);
  OK(kolo_free(value));
  OK(kolo_store_remove(store, "c/a"));
  OK(kolo_store_remove(store, "c/a"));
  FAILS(kolo_store_get(other, "c/a", 0, &value, &bytes), KOLO_STALLED, "'c/a'");
  OK(kolo_store_add(store, "c/n", 3, &sum));
  OK(kolo_store_add(other, "c/n", -5, &sum));
  CHECK(sum == -2);
  OK(kolo_store_set(store, "c/a", "abc", 3));
  REFUSES(kolo_store_add(store, "c/a", 1, &sum), "c/a");
  CHECK(sum == 0);
  REFUSES(kolo_store_set(store, "", "abc", 3), "");
  IS_NULL(kolo_store_set(store, NULL, "abc", 3));
  IS_NULL(kolo_store_set(store, "c/a", NULL, 3));
  IS_NULL(kolo_store_set(NULL, "c/a", "abc", 3));
  IS_NULL(kolo_store_get(store, "c/a", 0, NULL, &bytes));
  IS_NULL(kolo_store_get(store, "c/a", 0, &value, NULL));
  IS_NULL(kolo_store_add(store, "c/n", 1, NULL));
  IS_NULL(kolo_store_remove(store, NULL));
  OK(kolo_store_remove(store, "c/a"));
  OK(kolo_store_remove(store, "c/n"));
}

static void use_stores(const char* folder) {
  kolo_store *file = NULL, *server = NULL, *client = NULL, *own = NULL;
  uint16_t port = 0;
  if (!OK(kolo_file_store_create(folder, &file))) return;
  keep_values(file, file);
  REFUSES(kolo_tcp_store_port(file, &port), "the store has no port");
  IS_NULL(kolo_file_store_create(NULL, &own));
  FAILS(kolo_file_store_create("/dev/null/no folder", &own), KOLO_BACKEND, "/dev/null/no folder");
  CHECK(own == NULL);

  OK(kolo_tcp_store_create("127.0.0.1", 0, 1, 20, &server));
  OK(kolo_tcp_store_port(server, &port));
  OK(kolo_tcp_store_create("127.0.0.1", port, 0, 20, &client));
  keep_values(client, server);
  IS_NULL(kolo_tcp_store_create(NULL, 0, 1, 20, &own));

  Lent lent = {.store = client};
  kolo_store_functions incomplete = lending;
  incomplete.remove = NULL;
  REFUSES(kolo_store_from_functions(&incomplete, &lent, &own), "one of them is null");
  CHECK(own == NULL && lent.destroyed == 0);
  OK(kolo_store_from_functions(&lending, &lent, &own));
  keep_values(own, server);
  CHECK(lent.calls > 10);
  int64_t sum = 0;
  lent.fails = KOLO_CLOSED;
  FAILS(kolo_store_add(own, "c/n", 1, &sum), KOLO_CLOSED, "has not done add of 'c/n'");
  lent.fails = 99;
  FAILS(kolo_store_remove(own, "c/n"), KOLO_BACKEND, "returned 99");
  OK(kolo_store_destroy(own));
  CHECK(lent.destroyed == 1);
  OK(kolo_store_destroy(client));
  OK(kolo_store_destroy(server));
  OK(kolo_store_destroy(file));
  OK(kolo_store_destroy(NULL));
}

/// The first rank serves a store whose port the others find in the folder; a world from each kind of store.
static void use_worlds_of_stores(const char* folder, int rank, int size) {
  kolo_store *file = NULL, *tcp = NULL, *own = NULL;
  kolo_config* config = with_time_outs();
  uint16_t port = 0;
  void* value = NULL;
  size_t bytes = 0;
  if (!OK(kolo_file_store_create(folder, &file))) return;
  if (rank == 0) {
    OK(kolo_tcp_store_create("127.0.0.1", 0, 1, 20, &tcp));
    OK(kolo_tcp_store_port(tcp, &port));
    OK(kolo_store_set(file, "c/port", &port, sizeof port));
  } else {
    if (!OK(kolo_store_get(file, "c/port", 20, &value, &bytes)) || !CHECK(bytes == sizeof port)) return;
    memcpy(&port, value, sizeof port);
    OK(kolo_free(value));
    OK(kolo_tcp_store_create("127.0.0.1", port, 0, 20, &tcp));
  }
  Lent lent = {.store = tcp};
  OK(kolo_store_from_functions(&lending, &lent, &own));
  kolo_store* stores[4] = {file, tcp, own, own};
  for (int i = 0; i < 4; ++i) {
    kolo_world* world = NULL;
    kolo_session* session = NULL;
    int32_t one = 1;
    const kolo_tensor tensor = vector_of(&one, 1);
    if (!OK(kolo_store_world(stores[i], rank, size, config, &world))) return;
    if (!OK(kolo_session_create_in(world, &session))) return;
    OK(kolo_world_destroy(world));
    OK(kolo_all_reduce(session, "c.stored", &tensor, &tensor, NULL));
    CHECK(one == size);
    OK(kolo_session_destroy(session));
  }
  kolo_world* world = NULL;
  REFUSES(kolo_store_world(file, size, size, config, &world), "has no rank");
  CHECK(world == NULL);
  IS_NULL(kolo_store_world(NULL, rank, size, config, &world));
  IS_NULL(kolo_store_world(file, rank, size, config, NULL));
  OK(kolo_store_add(file, "c/done", 1, &(int64_t){0}));
  while (rank == 0) {  // the server lives until nobody needs it
    int64_t done = 0;
    if (!OK(kolo_store_add(file, "c/done", 0, &done)) || done == size) break;
  }
  OK(kolo_config_destroy(config));
  OK(kolo_store_destroy(own));
  OK(kolo_store_destroy(tcp));
  OK(kolo_store_destroy(file));
}

int main(int argc, char** argv) {
  run_without_ranks();
  if (argc == 3) {
    run_as_threads(atoi(argv[2]));
  } else {
    const int rank = atoi(getenv("RANK")), size = atoi(getenv("WORLD_SIZE"));
    char scratch[4096];
    snprintf(scratch, sizeof scratch, "%s/%d", argv[1], rank);
    use_stores(scratch);
    snprintf(scratch, sizeof scratch, "%s/all", argv[1]);
    use_worlds_of_stores(scratch, rank, size);
    run_as_processes();
  }
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
