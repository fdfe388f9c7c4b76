// What the C API says when it is used wrongly, and that the session goes on afterwards.

#include "tests/runtime/c_api/c_api_check.h"

static void mismatches(kolo_session* session, int rank, int n) {
  int32_t numbers[4] = {0};
  const kolo_tensor three = vector_of(numbers, 3), four = vector_of(numbers, 4);
  if (n > 1) {
    const kolo_tensor* mine = rank == n - 1 ? &three : &four;
    FAILS(kolo_all_reduce(session, "c.differs", mine, mine, NULL), KOLO_MISMATCH, "'c.differs'");
    CHECK(strstr(kolo_last_error(), "i32[4]") && strstr(kolo_last_error(), "i32[3]"));
  }
  // What only one rank does wrong is everybody's error.
  const kolo_tensor no_memory = vector_of(rank == n - 1 ? NULL : numbers, 4);
  FAILS(kolo_all_reduce(session, "c.null", &no_memory, &no_memory, NULL), KOLO_INVALID_ARGUMENT, "null pointer");
  CHECK(strstr(kolo_last_error(), "'c.null'") != NULL);
  kolo_handle* handle = NULL;
  OK(kolo_all_reduce_async(session, "c.null", &no_memory, &no_memory, NULL, &handle));
  REFUSES(kolo_handle_wait(handle), "'c.null'");
  OK(kolo_handle_destroy(handle));
  const kolo_reduce_options out_of_range = {.root = n};
  REFUSES(kolo_reduce(session, "c.root", &four, &four, &out_of_range), "is not a rank of the group");
  REFUSES(kolo_reduce(session, "c.no output", &four, NULL, NULL), "input and output differ");
  const int64_t splits[8] = {1, 1, 1, 1, 1, 1, 1, 7};
  const kolo_all_to_all_options wrong_splits = {.splits = splits};
  if (n != 4) REFUSES(kolo_all_to_all(session, "c.splits", &four, &four, &wrong_splits), "do not cut the 4 rows");

  OK(kolo_all_reduce(session, "c.differs", &four, &four, NULL));
  CHECK(strstr(kolo_last_error(), "c.") != NULL);  // what succeeds leaves the text alone
}

static void names_in_flight(kolo_session* session, int rank, int n) {
  int32_t number = 1;
  const kolo_tensor tensor = vector_of(&number, 1);
  kolo_handle *handle = NULL, *second = NULL;
  if (rank == 0 && n > 1) {  // nobody else submits it before the barrier
    OK(kolo_all_reduce_async(session, "c.twice", &tensor, &tensor, NULL, &handle));
    FAILS(kolo_all_reduce_async(session, "c.twice", &tensor, &tensor, NULL, &second), KOLO_IN_FLIGHT, "'c.twice'");
    CHECK(second == NULL);
    int done = 1;
    OK(kolo_handle_poll(handle, &done));
    CHECK(done == 0);
  }
  OK(kolo_barrier(session, NULL));
  if (!handle) OK(kolo_all_reduce_async(session, "c.twice", &tensor, &tensor, NULL, &handle));
  OK(kolo_handle_wait(handle));
  OK(kolo_handle_destroy(handle));
  CHECK(number == n);

  if (rank == 0 && n > 1) {  // withdrawn: as if it had not been submitted
    OK(kolo_all_reduce_async(session, "c.withdrawn", &tensor, &tensor, NULL, &handle));
    OK(kolo_handle_destroy(handle));
  }
  OK(kolo_barrier(session, NULL));
}

static void numbers_out_of_range(kolo_session* session) {
  int32_t number = 0;
  kolo_tensor tensor = vector_of(&number, 1);
  kolo_all_reduce_options options = {.op = 11};
  REFUSES(kolo_all_reduce(session, "c.x", &tensor, &tensor, &options),
          "kolo_all_reduce: 11 is no kolo_reduce_op (they go from 0 to 10)");
  options.op = -1;
  REFUSES(kolo_all_reduce(session, "c.x", &tensor, &tensor, &options), "-1 is no kolo_reduce_op");
  tensor.dtype = 13;
  REFUSES(kolo_all_reduce(session, "c.x", &tensor, &tensor, NULL), "13 is no kolo_dtype");
  tensor.dtype = KOLO_I32;
  tensor.device_kind = 2;
  REFUSES(kolo_broadcast(session, "c.x", &tensor, NULL), "kolo_broadcast: 2 is no kolo_device_kind");
  tensor.device_kind = KOLO_CPU;
  tensor.ndim = KOLO_MAX_DIMS + 1;
  REFUSES(kolo_send(session, "c.x", &tensor, 0, NULL), "has 9 dimensions (0 to 8 work)");
  tensor.ndim = -1;
  REFUSES(kolo_all_gather(session, "c.x", &tensor, &tensor, NULL), "has -1 dimensions");
  tensor.ndim = 1;
  REFUSES(kolo_all_reduce(session, "kolo.x", &tensor, &tensor, NULL), "the runtime's own");
  const kolo_all_reduce_options unknown = {.tensor = 1u << 30}, declared = {.tensor = 1};
  REFUSES(kolo_all_reduce(session, NULL, &tensor, &tensor, &unknown), "declare() did not return");
  REFUSES(kolo_all_reduce(session, "c.x", &tensor, &tensor, &declared), "both a name and options->tensor");
  REFUSES(kolo_all_reduce(session, NULL, &tensor, &tensor, NULL),
          "all_reduce in group world: the group matches operations by name; pass one, or make an ordered group");
  REFUSES(kolo_monitored_barrier(session, -1, NULL), "is no time to wait");
  size_t bytes = 0;
  REFUSES(kolo_dtype_size(-1, &bytes), "-1 is no kolo_dtype");
  int64_t begin, end;
  REFUSES(kolo_rows_of_rank(3, 2, 2, &begin, &end), "rank 2 of 2");
  kolo_setting setting;
  REFUSES(kolo_setting_at(-1, &setting), "there is no setting -1");
  kolo_memory* memory = NULL;
  REFUSES(kolo_memory_allocate(session, 1, 5, 0, &memory), "5 is no kolo_device_kind");
  CHECK(memory == NULL);
  kolo_world* worlds[1];
  REFUSES(kolo_thread_worlds(0, NULL, worlds), "");
  kolo_named_tensor named = {"c.x", &tensor, &tensor};
  kolo_handle* handle = NULL;
  REFUSES(kolo_grouped_all_reduce_async(session, "c.grouped", &named, 1, &declared, &handle),
          "the id of a single tensor");
  const kolo_broadcast_options declared_object = {.tensor = 1};
  void* object = NULL;
  REFUSES(kolo_broadcast_object(session, "c.object", "x", 1, &declared_object, &object, &bytes), "not of an object");
  FAILS(kolo_all_gather_object(session, "c.object", "x", SIZE_MAX, NULL, 0, &object, &bytes), KOLO_BACKEND,
        "kolo_all_gather_object: ");
}

static void a_rank_is_late(kolo_session* session, int rank, int n) {
  if (n == 1) return;
  int32_t number = 0;
  const kolo_tensor tensor = vector_of(&number, 1);
  if (rank == n - 1) {  // comes when the others have given up, and says so
    const kolo_pair_options none = {.group = NULL};
    OK(kolo_recv(session, "c.given up", &tensor, 0, &none));
  }
  FAILS(kolo_monitored_barrier(session, 0.1, NULL), KOLO_STALLED, "rank");
  const kolo_all_reduce_options options = {.timeout_seconds = rank == n - 1 ? -1 : 0.1};
  FAILS(kolo_all_reduce(session, "c.late", &tensor, &tensor, &options), KOLO_STALLED, "not submitted by rank");
  if (rank == 0) OK(kolo_send(session, "c.given up", &tensor, n - 1, NULL));
  if (rank == n - 1) OK(kolo_recv(session, "c.given up", &tensor, 0, NULL));
  void* objects = NULL;
  size_t sizes[8];
  FAILS(kolo_all_gather_object(session, "c.late object", "x", 1, NULL, rank == n - 1 ? -1 : 0.1, &objects, sizes),
        KOLO_STALLED, "not submitted by rank");
  CHECK(objects == NULL);
  if (rank == 0) OK(kolo_send(session, "c.given up", &tensor, n - 1, NULL));
  OK(kolo_barrier(session, NULL));
}

void run_errors(kolo_session* session) {
  int rank = -1, n = 0;
  OK(kolo_session_rank(session, &rank));
  OK(kolo_session_size(session, &n));
  mismatches(session, rank, n);
  names_in_flight(session, rank, n);
  numbers_out_of_range(session);
  a_rank_is_late(session, rank, n);
}

/// Nothing here reaches another rank.
void run_null_arguments(kolo_session* session) {
  int32_t number = 0;
  int integer = 0;
  size_t size = 0;
  void* data = NULL;
  const char* text = NULL;
  const kolo_tensor t = vector_of(&number, 1);
  kolo_tensor target;
  kolo_handle* handle = NULL;
  kolo_group* group = NULL;
  kolo_config* config = NULL;
  kolo_tensor_id id = 0;
  int64_t bytes64 = 0;
  OK(kolo_config_create(&config));
  OK(kolo_group_world(session, &group));

  IS_NULL(kolo_dtype_size(KOLO_F32, NULL));
  IS_NULL(kolo_rows_of_rank(1, 1, 0, NULL, NULL));
  IS_NULL(kolo_tensor_from_dlpack(NULL, &target));
  IS_NULL(kolo_tensor_from_dlpack(&t, NULL));
  IS_NULL(kolo_tensor_to_dlpack(NULL, NULL, NULL, &data));
  IS_NULL(kolo_tensor_to_dlpack(&t, NULL, NULL, NULL));
  IS_NULL(kolo_handle_wait(NULL));
  IS_NULL(kolo_handle_wait_on_stream(NULL, NULL));
  IS_NULL(kolo_handle_poll(NULL, &integer));
  IS_NULL(kolo_handle_wait_until(NULL, 0, &integer));
  IS_NULL(kolo_handle_wait_any(NULL, 1, &size));
  IS_NULL(kolo_handle_wait_any(&handle, 1, &size));
  IS_NULL(kolo_handle_wait_any(&handle, 1, NULL));
  IS_NULL(kolo_handle_wait_all(NULL, 1));
  IS_NULL(kolo_handle_wait_all(&handle, 1));
  OK(kolo_handle_wait_all(NULL, 0));
  REFUSES(kolo_handle_wait_any(NULL, 0, &size), "wait_any");
  IS_NULL(kolo_handle_is_empty(NULL, &integer));
  IS_NULL(kolo_handle_on_done(NULL, NULL, NULL));
  IS_NULL(kolo_handle_detach(NULL, NULL, NULL));

  IS_NULL(kolo_config_create(NULL));
  IS_NULL(kolo_config_from_environment(NULL));
  IS_NULL(kolo_config_set(NULL, "KOLO_SPIN_US", "1"));
  IS_NULL(kolo_config_set(config, NULL, "1"));
  IS_NULL(kolo_config_set(config, "KOLO_SPIN_US", NULL));
  IS_NULL(kolo_config_get(NULL, "KOLO_SPIN_US", &text));
  IS_NULL(kolo_config_get(config, NULL, &text));
  IS_NULL(kolo_config_get(config, "KOLO_SPIN_US", NULL));
  IS_NULL(kolo_config_set_report(NULL, NULL, NULL));
  IS_NULL(kolo_setting_count(NULL));
  IS_NULL(kolo_setting_at(0, NULL));
  IS_NULL(kolo_launcher_world(config, NULL));
  IS_NULL(kolo_solo_world(config, NULL));
  IS_NULL(kolo_thread_worlds(1, config, NULL));

  kolo_session* made = NULL;
  kolo_stats stats;
  IS_NULL(kolo_session_create(config, NULL));
  IS_NULL(kolo_session_create_in(NULL, &made));
  IS_NULL(kolo_session_close(NULL));
  IS_NULL(kolo_session_rank(NULL, &integer));
  REFUSES(kolo_session_rank(session, NULL), "kolo_session_rank: rank is a null pointer");
  REFUSES(kolo_session_size(NULL, &integer), "kolo_session_size: session is a null pointer");
  IS_NULL(kolo_session_size(session, NULL));
  IS_NULL(kolo_session_local_rank(NULL, &integer));
  IS_NULL(kolo_session_local_rank(session, NULL));
  IS_NULL(kolo_session_local_size(NULL, &integer));
  IS_NULL(kolo_session_local_size(session, NULL));
  IS_NULL(kolo_session_device(NULL, &integer, &integer));
  IS_NULL(kolo_session_device(session, NULL, &integer));
  IS_NULL(kolo_session_device(session, &integer, NULL));
  kolo_config* copy = config;
  IS_NULL(kolo_session_config(NULL, &copy));
  CHECK(copy == NULL);
  IS_NULL(kolo_session_config(session, NULL));
  IS_NULL(kolo_session_stats(NULL, &stats));
  IS_NULL(kolo_session_stats(session, NULL));

  kolo_group* other = NULL;
  const int ranks[1] = {0};
  IS_NULL(kolo_group_world(NULL, &other));
  IS_NULL(kolo_group_world(session, NULL));
  IS_NULL(kolo_group_create(NULL, ranks, 1, &other));
  IS_NULL(kolo_group_create(session, NULL, 1, &other));
  IS_NULL(kolo_group_create(session, ranks, 1, NULL));
  IS_NULL(kolo_group_create_with(NULL, ranks, 1, NULL, &other));
  REFUSES(kolo_group_create_with(session, NULL, 1, NULL, &other), "kolo_group_create_with: ranks is a null pointer");
  IS_NULL(kolo_group_create_with(session, ranks, 1, NULL, NULL));
  IS_NULL(kolo_group_split(NULL, 0, 0, &other));
  IS_NULL(kolo_group_split(session, 0, 0, NULL));
  IS_NULL(kolo_group_split_with(NULL, 0, 0, NULL, &other));
  IS_NULL(kolo_group_split_with(session, 0, 0, NULL, NULL));
  const kolo_group_options no_order = {.order = 2};
  REFUSES(kolo_group_create_with(session, ranks, 1, &no_order, &other), "2 is no kolo_order (they go from 0 to 1)");
  REFUSES(kolo_group_split_with(session, 0, 0, &no_order, &other), "kolo_group_split_with: 2 is no kolo_order");
  IS_NULL(kolo_group_remove(NULL, group));
  IS_NULL(kolo_group_remove(session, NULL));
  IS_NULL(kolo_group_rank(NULL, &integer));
  IS_NULL(kolo_group_rank(group, NULL));
  IS_NULL(kolo_group_size(NULL, &integer));
  IS_NULL(kolo_group_size(group, NULL));
  IS_NULL(kolo_group_ranks(NULL, &integer));
  IS_NULL(kolo_group_ranks(group, NULL));
  IS_NULL(kolo_group_name(NULL, &text));
  IS_NULL(kolo_group_name(group, NULL));
  IS_NULL(kolo_group_order(NULL, &integer));
  IS_NULL(kolo_group_order(group, NULL));

  kolo_memory* memory = NULL;
  kolo_arena* arena = NULL;
  IS_NULL(kolo_memory_allocate(NULL, 1, KOLO_CPU, 0, &memory));
  IS_NULL(kolo_memory_allocate(session, 1, KOLO_CPU, 0, NULL));
  IS_NULL(kolo_memory_data(NULL, &data));
  IS_NULL(kolo_memory_bytes(NULL, &size));
  IS_NULL(kolo_memory_device(NULL, &integer, &integer));
  IS_NULL(kolo_available_memory(NULL));
  IS_NULL(kolo_config_set_may_exit(NULL, 1));
  IS_NULL(kolo_config_report(NULL, "c"));
  IS_NULL(kolo_parse_bytes(NULL, &bytes64));
  IS_NULL(kolo_settings_help(NULL));
  IS_NULL(kolo_settings_markdown(NULL));
  IS_NULL(kolo_arena_create(NULL, &target, 0, &arena));
  IS_NULL(kolo_arena_create(session, NULL, 1, &arena));
  IS_NULL(kolo_arena_create(session, &target, 0, NULL));
  IS_NULL(kolo_arena_whole(NULL, &target));

  IS_NULL(kolo_declare(NULL, "c.x", &id));
  IS_NULL(kolo_declare(session, NULL, &id));
  IS_NULL(kolo_declare(session, "c.x", NULL));
  IS_NULL(kolo_all_reduce(NULL, "c.x", &t, &t, NULL));
  IS_NULL(kolo_all_reduce(session, "c.x", NULL, &t, NULL));
  IS_NULL(kolo_all_reduce(session, "c.x", &t, NULL, NULL));
  NEEDS_NAME(kolo_all_reduce(session, NULL, &t, &t, NULL));
  IS_NULL(kolo_all_reduce_async(session, "c.x", &t, &t, NULL, NULL));
  IS_NULL(kolo_all_reduce_async(session, "c.x", NULL, &t, NULL, &handle));
  IS_NULL(kolo_reduce(session, "c.x", NULL, &t, NULL));
  NEEDS_NAME(kolo_reduce_async(session, NULL, &t, &t, NULL, &handle));
  IS_NULL(kolo_reduce_scatter(session, "c.x", &t, NULL, NULL));
  NEEDS_NAME(kolo_reduce_scatter_async(session, NULL, &t, &t, NULL, &handle));
  IS_NULL(kolo_broadcast(session, "c.x", NULL, NULL));
  NEEDS_NAME(kolo_broadcast_async(session, NULL, &t, NULL, &handle));
  IS_NULL(kolo_all_gather(session, "c.x", NULL, &t, NULL));
  NEEDS_NAME(kolo_all_gather_async(session, NULL, &t, &t, NULL, &handle));
  IS_NULL(kolo_gather(session, "c.x", NULL, &t, NULL));
  NEEDS_NAME(kolo_gather_async(session, NULL, &t, &t, NULL, &handle));
  IS_NULL(kolo_scatter(session, "c.x", &t, NULL, NULL));
  NEEDS_NAME(kolo_scatter_async(session, NULL, &t, &t, NULL, &handle));
  IS_NULL(kolo_all_to_all(session, "c.x", NULL, &t, NULL));
  NEEDS_NAME(kolo_all_to_all_async(session, NULL, &t, &t, NULL, &handle));
  REFUSES(kolo_send(session, NULL, &t, 0, NULL), "is not ordered; pass a name");
  IS_NULL(kolo_send_async(session, "c.x", NULL, 0, NULL, &handle));
  REFUSES(kolo_recv(session, NULL, &t, 0, NULL), "is not ordered; pass a name");
  IS_NULL(kolo_recv_async(session, "c.x", NULL, 0, NULL, &handle));

  const kolo_named_tensor no_input = {"c.x", NULL, &t}, no_output = {"c.x", &t, NULL}, no_name = {NULL, &t, &t};
  IS_NULL(kolo_grouped_all_reduce_async(session, "c.x", NULL, 1, NULL, &handle));
  NEEDS_NAME(kolo_grouped_all_reduce_async(session, NULL, &no_name, 1, NULL, &handle));
  REFUSES(kolo_grouped_all_reduce_async(session, "c.x", &no_output, 1, NULL, &handle),
          "kolo_grouped_all_reduce_async: the output of a tensor");
  IS_NULL(kolo_grouped_broadcast_async(session, "c.x", &no_name, 1, NULL, &handle));
  IS_NULL(kolo_grouped_reduce_scatter_async(session, "c.x", &no_input, 1, NULL, &handle));
  IS_NULL(kolo_grouped_all_gather_async(session, "c.x", &no_output, 1, NULL, &handle));
  int64_t rows[8];
  const kolo_all_gather_options with_rows = {.rows = rows};
  REFUSES(kolo_grouped_all_gather_async(session, "c.x", NULL, 0, &with_rows, &handle), "for a single tensor");
  NEEDS_NAME(kolo_broadcast_object(session, NULL, "x", 1, NULL, &data, &size));
  IS_NULL(kolo_broadcast_object(session, "c.x", NULL, 1, NULL, &data, &size));
  IS_NULL(kolo_broadcast_object(session, "c.x", "x", 1, NULL, NULL, &size));
  IS_NULL(kolo_broadcast_object(session, "c.x", "x", 1, NULL, &data, NULL));
  NEEDS_NAME(kolo_all_gather_object(session, NULL, "x", 1, NULL, 0, &data, &size));
  IS_NULL(kolo_all_gather_object(session, "c.x", NULL, 1, NULL, 0, &data, &size));
  IS_NULL(kolo_all_gather_object(session, "c.x", "x", 1, NULL, 0, &data, NULL));
  IS_NULL(kolo_barrier(NULL, NULL));
  IS_NULL(kolo_barrier_async(session, NULL, NULL));
  IS_NULL(kolo_barrier_with(NULL, NULL));
  IS_NULL(kolo_barrier_with_async(session, NULL, NULL));
  IS_NULL(kolo_monitored_barrier(NULL, 1, NULL));
  IS_NULL(kolo_monitored_barrier_async(session, 1, NULL, NULL));
  IS_NULL(kolo_join(NULL, NULL, &integer));

  CHECK(!handle && !made && !other && !memory && !arena && !data && id == 0);
  OK(kolo_config_destroy(NULL));
  OK(kolo_world_destroy(NULL));
  OK(kolo_session_destroy(NULL));
  OK(kolo_session_abandon(NULL));
  OK(kolo_group_destroy(NULL));
  OK(kolo_memory_free(NULL));
  OK(kolo_arena_destroy(NULL));
  OK(kolo_handle_destroy(NULL));
  OK(kolo_free(NULL));
  OK(kolo_group_destroy(group));
  OK(kolo_config_destroy(config));
}
