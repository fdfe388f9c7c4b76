// The C API, from C: what programs do with it. Their main() is in c_api_store.c or c_api_mpi.c.

#define _POSIX_C_SOURCE 200809L  // setenv

#include <pthread.h>
#include <stdlib.h>

#include "tests/runtime/c_api/c_api_check.h"

atomic_int failures;

/// Of c_api_from_cpp.cc: throws an exception of that kind within a function of the API.
int fail_by_exception(int kind);

// ---- what needs no other rank ---------------------------------------------------------------------------------------

static void describe_statuses(void) {
  CHECK(strcmp(kolo_last_error(), "") == 0);
  CHECK(strcmp(kolo_status_name(KOLO_OK), "ok") == 0);
  CHECK(strcmp(kolo_status_name(KOLO_MISMATCH), "mismatch") == 0);
  CHECK(strcmp(kolo_status_name(KOLO_BACKEND), "backend") == 0);
  CHECK(strcmp(kolo_status_name(8), "unknown status") == 0);
  CHECK(strcmp(kolo_status_name(-1), "unknown status") == 0);
  size_t bytes = 0;
  OK(kolo_dtype_size(KOLO_BF16, &bytes));
  CHECK(bytes == 2);
  FAILS(fail_by_exception(0), KOLO_STALLED, "nobody came");
  FAILS(fail_by_exception(1), KOLO_BACKEND, "fail_by_exception: out of memory");
  FAILS(fail_by_exception(2), KOLO_BACKEND, "fail_by_exception: a bug");
  FAILS(fail_by_exception(3), KOLO_BACKEND, "an exception of an unknown type");
}

typedef struct Report {
  int lines;
  char last[256];
} Report;

static void note(void* user, const char* line) {
  Report* report = user;
  ++report->lines;
  snprintf(report->last, sizeof report->last, "%s", line);
}

static void change_settings(void) {
  int count = 0;
  OK(kolo_setting_count(&count));
  CHECK(count >= 7);
  kolo_setting setting;
  OK(kolo_setting_at(0, &setting));
  CHECK(strcmp(setting.variable, "KOLO_FUSION_BYTES") == 0 && strcmp(setting.type, "bytes") == 0);
  CHECK(strcmp(setting.unit, "bytes") == 0 && strlen(setting.doc) > 0 && setting.must_agree == 1);

  kolo_config* config = NULL;
  const char* value = NULL;
  OK(kolo_config_create(&config));
  OK(kolo_config_get(config, "KOLO_FUSION_BYTES", &value));
  CHECK(strcmp(value, "67108864") == 0);
  OK(kolo_config_set(config, "KOLO_FUSION_BYTES", "1MB"));
  OK(kolo_config_get(config, "KOLO_FUSION_BYTES", &value));
  CHECK(strcmp(value, "1048576") == 0);
  REFUSES(kolo_config_set(config, "KOLO_FUSION_BYTES", "many"), "KOLO_FUSION_BYTES is 'many'");
  REFUSES(kolo_config_set(config, "KOLO_FUSION_BITES", "1"), "did you mean KOLO_FUSION_BYTES?");
  REFUSES(kolo_config_get(config, "KOLO_FUSION_BITES", &value), "did you mean KOLO_FUSION_BYTES?");
  CHECK(value == NULL);
  int may_exit = 0;
  OK(kolo_config_get_may_exit(config, &may_exit));
  CHECK(may_exit == -1);
  for (int chosen = 1; chosen >= -1; --chosen) {
    OK(kolo_config_set_may_exit(config, chosen));
    OK(kolo_config_get_may_exit(config, &may_exit));
    CHECK(may_exit == chosen);
  }
  REFUSES(kolo_config_set_may_exit(config, 2), "pass 1, 0, or -1");
  IS_NULL(kolo_config_get_may_exit(config, NULL));
  Report report = {.lines = 0};
  OK(kolo_config_set_report(config, note, &report));
  OK(kolo_config_report(config, "a line"));
  CHECK(report.lines == 1 && strcmp(report.last, "a line") == 0);
  OK(kolo_config_destroy(config));

  const char* text = NULL;
  OK(kolo_settings_help(&text));
  CHECK(strstr(text, "KOLO_SPIN_US") != NULL && strstr(text, "| ") == NULL);
  OK(kolo_settings_markdown(&text));
  CHECK(strstr(text, "| `KOLO_SPIN_US` | 200 |") != NULL);
  int64_t bytes = 1;
  OK(kolo_parse_bytes("1.5K", &bytes));
  CHECK(bytes == 1536);
  REFUSES(kolo_parse_bytes("many", &bytes), "'many' is no number of bytes");
  CHECK(bytes == 0);

  setenv("KOLO_FUSION_BITES", "1", 1);
  report.lines = 0;
  kolo_world* world = NULL;
  OK(kolo_config_from_environment(&config));
  OK(kolo_config_set_report(config, note, &report));
  OK(kolo_solo_world(config, &world));
  CHECK(report.lines == 1 && strstr(report.last, "KOLO_FUSION_BITES is no setting") != NULL);
  OK(kolo_config_set_report(config, NULL, NULL));
  OK(kolo_world_destroy(world));
  OK(kolo_config_destroy(config));
  unsetenv("KOLO_FUSION_BITES");
  setenv("KOLO_SPIN_US", "fast", 1);
  REFUSES(kolo_config_from_environment(&config), "KOLO_SPIN_US is 'fast'");
  CHECK(config == NULL);
  REFUSES(kolo_solo_world(NULL, &world), "KOLO_SPIN_US is 'fast'");
  unsetenv("KOLO_SPIN_US");
}

static void run_alone(void) {
  kolo_config *config = NULL, *copy = NULL;
  kolo_world* world = NULL;
  kolo_session *session = NULL, *second = NULL;
  const char* value = NULL;
  int size = 0;
  OK(kolo_config_create(&config));
  OK(kolo_config_set(config, "KOLO_SPIN_US", "3"));
  OK(kolo_solo_world(config, &world));
  OK(kolo_config_destroy(config));
  OK(kolo_session_create_in(world, &session));
  REFUSES(kolo_session_create_in(world, &second), "has served a session already");
  OK(kolo_world_destroy(world));
  CHECK(second == NULL);
  OK(kolo_session_size(session, &size));
  CHECK(size == 1);
  OK(kolo_session_config(session, &copy));
  OK(kolo_config_get(copy, "KOLO_SPIN_US", &value));
  CHECK(strcmp(value, "3") == 0);
  OK(kolo_config_destroy(copy));

  double number = 2;
  const kolo_tensor scalar = {.data = &number};  // all zero but for the data: one f64
  OK(kolo_all_reduce(session, "c.alone", &scalar, &scalar, NULL));
  OK(kolo_session_close(session));
  FAILS(kolo_all_reduce(session, "c.alone", &scalar, &scalar, NULL), KOLO_CLOSED, "closed");
  OK(kolo_session_close(session));
  OK(kolo_session_destroy(session));
}

// ---- memory of others -----------------------------------------------------------------------------------------------

/// As in dlpack.h.
typedef struct DLTensor {
  void* data;
  struct {
    int32_t device_type, device_id;
  } device;
  int32_t ndim;
  struct {
    uint8_t code, bits;
    uint16_t lanes;
  } dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensorVersioned {
  struct {
    uint32_t major, minor;
  } version;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;

static void count_release(void* user) {
  ++*(int*)user;
}

static void exchange_with_dlpack(kolo_session* session, int n) {
  float values[6] = {1, 1, 1, 1, 1, 1};
  int64_t shape[2] = {2, 2};
  DLTensor lent = {.data = values, .device = {1, 0}, .ndim = 2, .dtype = {2, 32, 1}, .shape = shape, .byte_offset = 8};
  kolo_tensor tensor;
  OK(kolo_tensor_from_dlpack(&lent, &tensor));
  CHECK(tensor.data == values + 2 && tensor.ndim == 2 && tensor.shape[1] == 2);
  CHECK(tensor.dtype == KOLO_F32 && tensor.device_kind == KOLO_CPU && tensor.device_index == 0);
  OK(kolo_all_reduce(session, "c.lent", &tensor, &tensor, NULL));
  CHECK(values[1] == 1 && values[2] == (float)n && values[5] == (float)n);
  lent.dtype.lanes = 4;
  REFUSES(kolo_tensor_from_dlpack(&lent, &tensor), "vectors of 4 lanes");

  OK(kolo_tensor_from_dlpack((lent.dtype.lanes = 1, &lent), &tensor));
  int released = 0;
  void* exported = NULL;
  OK(kolo_tensor_to_dlpack(&tensor, count_release, &released, &exported));
  DLManagedTensorVersioned* managed = exported;
  CHECK(managed->version.major == 1 && managed->dl_tensor.data == values + 2 && managed->dl_tensor.ndim == 2);
  CHECK(managed->dl_tensor.shape[0] == 2 && managed->dl_tensor.dtype.bits == 32 && released == 0);
  managed->deleter(managed);
  CHECK(released == 1);
  tensor.shape[0] = -1;
  REFUSES(kolo_tensor_to_dlpack(&tensor, count_release, &released, &exported), "cannot export");
  CHECK(released == 2 && exported == NULL);
}

static void use_session_memory(kolo_session* session, int n) {
  kolo_memory* memory = NULL;
  void* data = NULL;
  size_t bytes = 0;
  static _Alignas(4096) char own[8192];
  const int adopted = kolo_memory_adopt(session, own, sizeof(own));  // it is a part of a mapped file, but for its end
  CHECK(adopted == KOLO_OK || adopted == KOLO_INVALID_ARGUMENT);
  OK(kolo_memory_allocate(session, 40, KOLO_CPU, 0, &memory));
  OK(kolo_memory_data(memory, &data));
  OK(kolo_memory_bytes(memory, &bytes));
  int kind = -1, index = -1;
  OK(kolo_memory_device(memory, &kind, &index));
  CHECK(kind == KOLO_CPU && index == 0);
  size_t available = 0;
  OK(kolo_available_memory(&available));
  CHECK(available > 0);
  int32_t* numbers = data;
  CHECK(bytes == 40 && (uintptr_t)data % 64 == 0 && numbers[9] == 0);
  numbers[9] = 1;
  const kolo_tensor tensor = vector_of(numbers, 10);
  OK(kolo_all_reduce(session, "c.memory", &tensor, &tensor, NULL));
  CHECK(numbers[9] == n);
  OK(kolo_memory_free(memory));

  kolo_tensor grads[2] = {{.ndim = 2, .shape = {2, 3}, .dtype = KOLO_F32},
                          {.ndim = 1, .shape = {4}, .dtype = KOLO_F32}};
  kolo_tensor whole;
  kolo_arena* arena = NULL;
  OK(kolo_arena_create(session, grads, 2, &arena));
  OK(kolo_arena_whole(arena, &whole));
  CHECK(whole.ndim == 1 && whole.shape[0] == 10 && whole.dtype == KOLO_F32 && whole.data == grads[0].data);
  CHECK((float*)grads[1].data == (float*)grads[0].data + 6);
  ((float*)grads[1].data)[3] = 1;
  OK(kolo_all_reduce(session, "c.arena", &whole, &whole, NULL));
  CHECK(((float*)whole.data)[9] == (float)n);
  OK(kolo_arena_destroy(arena));
  grads[1].dtype = KOLO_F64;
  REFUSES(kolo_arena_create(session, grads, 2, &arena), "tensor 1 is of another type");
  grads[1].dtype = KOLO_F32;
  grads[1].shape[0] = -4;
  REFUSES(kolo_arena_create(session, grads, 2, &arena), "negative extent");
}

// ---- several ranks --------------------------------------------------------------------------------------------------

void run_groups(kolo_session* session) {
  int rank = -1, n = 0, value = 0, members[8];
  OK(kolo_session_rank(session, &rank));
  OK(kolo_session_size(session, &n));
  kolo_group *world = NULL, *odd = NULL, *reversed = NULL, *none = NULL;
  OK(kolo_group_world(session, &world));
  OK(kolo_group_size(world, &value));
  CHECK(value == n);

  int odd_ranks[8], count = 0;  // those an odd way from the end: every size has some
  for (int r = 0; r < n; ++r)
    if ((n - r) % 2 == 1) odd_ranks[count++] = r;
  OK(kolo_group_create(session, odd_ranks, (size_t)count, &odd));
  OK(kolo_group_rank(odd, &value));
  CHECK(value == ((n - rank) % 2 == 1 ? rank / 2 : -1));
  run_collectives(session, odd);
  if (value < 0) {
    const kolo_tensor tensor = vector_of(&value, 1);
    const kolo_all_reduce_options in_odd = {.group = odd};
    REFUSES(kolo_all_reduce(session, "c.stranger", &tensor, &tensor, &in_odd), "is no member of group");
  }
  OK(kolo_group_remove(session, odd));
  OK(kolo_group_destroy(odd));

  OK(kolo_group_split(session, 3, -rank, &reversed));
  OK(kolo_group_ranks(reversed, members));
  for (int r = 0; r < n; ++r) CHECK(members[r] == n - 1 - r);
  run_collectives(session, reversed);
  OK(kolo_group_destroy(reversed));
  OK(kolo_group_split(session, -1, 0, &none));
  OK(kolo_group_rank(none, &value));
  CHECK(value == -1);
  OK(kolo_group_size(none, &value));
  CHECK(value == 0);
  OK(kolo_group_ranks(none, members));
  OK(kolo_group_destroy(none));

  const kolo_group_options by_order = {.order = KOLO_ORDER_PROGRAM};
  kolo_group* halves = NULL;
  OK(kolo_group_split_with(session, rank % 2, rank, &by_order, &halves));
  const char* name = NULL;
  OK(kolo_group_name(world, &name));
  CHECK(strcmp(name, "world") == 0);
  OK(kolo_group_name(halves, &name));
  CHECK(strncmp(name, "of rank", 7) == 0);
  OK(kolo_group_order(world, &value));
  CHECK(value == KOLO_ORDER_NAMES);
  OK(kolo_group_order(halves, &value));
  CHECK(value == KOLO_ORDER_PROGRAM);
  int32_t one = 1;
  const kolo_tensor tensor = vector_of(&one, 1);
  const kolo_all_reduce_options sum = {.group = halves};
  OK(kolo_all_reduce(session, NULL, &tensor, &tensor, &sum));
  CHECK(one == (n + 1 - rank % 2) / 2);
  OK(kolo_group_remove(session, halves));
  OK(kolo_group_destroy(halves));

  REFUSES(kolo_group_create(session, &n, 1, &none), "is not a rank of the session");
  REFUSES(kolo_group_create(session, NULL, 0, &none), "at least one rank");
  REFUSES(kolo_group_remove(session, world), "cannot be removed");
  OK(kolo_group_destroy(world));
}

static void run_everything(kolo_session* session) {
  int rank = -1, n = 0, local_rank = -1, local_size = 0;
  OK(kolo_session_rank(session, &rank));
  OK(kolo_session_size(session, &n));
  OK(kolo_session_local_rank(session, &local_rank));
  OK(kolo_session_local_size(session, &local_size));
  CHECK(rank >= 0 && rank < n && local_rank == rank && local_size == n);
  run_null_arguments(session);
  run_collectives(session, NULL);
  run_groups(session);
  run_data_parallel(session);
  run_errors(session);
  exchange_with_dlpack(session, n);
  use_session_memory(session, n);
  int device_kind = -1, device_index = -1;
  OK(kolo_session_device(session, &device_kind, &device_index));
  CHECK((device_kind == KOLO_CPU && device_index == 0) || (device_kind == KOLO_CUDA && device_index >= 0));
  int64_t one = 1;
  const kolo_tensor scalar = {.data = &one, .dtype = KOLO_I64};
  kolo_handle* handle = NULL;
  OK(kolo_all_reduce_async(session, "on a stream", &scalar, &scalar, NULL, &handle));
  OK(kolo_handle_wait_on_stream(handle, NULL));
  CHECK(one == n);
  OK(kolo_handle_destroy(handle));
  kolo_stats stats;
  OK(kolo_session_close(session));
  OK(kolo_session_stats(session, &stats));
  CHECK(stats.late_wakeups == 0 && stats.bucket_seconds == 0);
  CHECK(stats.tensors > 0 && stats.buckets > 0 && stats.agreements > 0 && stats.full_announcements > 0);
  CHECK(n == 1 ||
        (stats.control_bytes_sent > 0 && stats.control_bytes_received > 0 && stats.control_messages_sent > 0));
}

void abandon_one(kolo_session* session) {
  int rank = -1;
  int32_t number = 0;
  const kolo_tensor tensor = vector_of(&number, 1);
  OK(kolo_session_rank(session, &rank));
  if (rank != 0) FAILS(kolo_all_reduce(session, "c.abandoned", &tensor, &tensor, NULL), KOLO_ABORTED, "rank");
  OK(kolo_session_abandon(session));
}

// ---- ranks as threads, and as processes -----------------------------------------------------------------------------

kolo_config* with_time_outs(void) {
  kolo_config* config = NULL;
  OK(kolo_config_create(&config));
  OK(kolo_config_set(config, "KOLO_STALL_REPORT_SECONDS", "20"));
  OK(kolo_config_set(config, "KOLO_STALL_ABORT_SECONDS", "40"));
  return config;
}

static void* play_everything(void* world) {
  kolo_session* session = NULL;
  CHECK(strcmp(kolo_last_error(), "") == 0);
  if (!OK(kolo_session_create_in(world, &session))) return NULL;
  run_everything(session);
  OK(kolo_session_destroy(session));
  return NULL;
}

static void* play_abandoned(void* world) {
  kolo_session* session = NULL;
  if (OK(kolo_session_create_in(world, &session))) abandon_one(session);
  return NULL;
}

static void run_threads(int n, void* (*play)(void* world)) {
  kolo_world* worlds[8] = {NULL};
  pthread_t threads[8];
  kolo_config* config = with_time_outs();
  if (!OK(kolo_thread_worlds(n, config, worlds))) return;
  OK(kolo_config_destroy(config));
  for (int rank = 0; rank < n; ++rank) pthread_create(&threads[rank], NULL, play, worlds[rank]);
  for (int rank = 0; rank < n; ++rank) pthread_join(threads[rank], NULL);
  for (int rank = 0; rank < n; ++rank) OK(kolo_world_destroy(worlds[rank]));
}

void run_as_processes(void) {
  kolo_config* config = with_time_outs();
  kolo_session* session = NULL;
  kolo_world* world = NULL;
  if (!OK(kolo_session_create(config, &session))) return;
  run_everything(session);
  OK(kolo_session_destroy(session));

  if (OK(kolo_launcher_world(config, &world)) && OK(kolo_session_create_in(world, &session))) {
    OK(kolo_barrier(session, NULL));
    OK(kolo_session_destroy(session));
  }
  OK(kolo_world_destroy(world));
  OK(kolo_config_destroy(config));
}

void run_without_ranks(void) {
  describe_statuses();
  change_settings();
  run_alone();
}

void run_as_threads(int n) {
  run_threads(n, play_everything);
  run_threads(n, play_abandoned);
}
