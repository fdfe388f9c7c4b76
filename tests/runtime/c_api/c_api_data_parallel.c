// The C API, from C: data-parallel training.

#include "tests/runtime/c_api/c_api_check.h"

enum { first_size = 40, second_size = 6 };

/// The parameters of a small model.
typedef struct Model {
  float first[first_size], second[second_size], d_first[first_size], d_second[second_size];
} Model;

static kolo_tensor floats(float* numbers, int64_t count) {
  kolo_tensor tensor = {.data = numbers, .ndim = 1, .shape = {count}, .dtype = KOLO_F32};
  return tensor;
}

static void fill(float* numbers, size_t count, float value) {
  for (size_t i = 0; i < count; ++i) numbers[i] = value;
}

static int all_are(const float* numbers, size_t count, float value) {
  for (size_t i = 0; i < count; ++i) {
    if (numbers[i] != value) return 0;
  }
  return 1;
}

/// That `count` gradients are ready, and which were first and last.
static void check_submitted(const kolo_data_parallel* parallel, size_t count, size_t first, size_t last) {
  const size_t* tensors = NULL;
  size_t found = 99;
  OK(kolo_data_parallel_submitted(parallel, &tensors, &found));
  CHECK(found == count && (tensors == NULL) == (count == 0));
  if (found == count && count > 0) CHECK(tensors[0] == first && tensors[count - 1] == last);
}

/// A step of two passes, whose gradients are all 1 on every rank; values become those of the rank that updates them.
static void train(kolo_session* session, const kolo_data_parallel_options* options, int rank, int size) {
  Model model;
  const kolo_trained_tensor tensors[2] = {
      {.name = "c.first", .value = floats(model.first, first_size), .gradient = floats(model.d_first, first_size)},
      {.name = "c.second",
       .value = floats(model.second, second_size),
       .gradient = floats(model.d_second, second_size)}};
  kolo_data_parallel* parallel = NULL;
  if (!OK(kolo_data_parallel_create(session, tensors, 2, options, &parallel))) return;
  fill(model.first, first_size, (float)rank);
  fill(model.second, second_size, (float)rank);
  OK(kolo_data_parallel_broadcast(parallel, size - 1, NULL));
  CHECK(all_are(model.first, first_size, (float)(size - 1)) && all_are(model.second, second_size, (float)(size - 1)));
  const int counts = options && options->counts;
  for (int step = 0; step < 3; ++step) {
    fill(model.d_first, first_size, 1);
    fill(model.d_second, second_size, 1);
    OK(kolo_data_parallel_skip_sync(parallel, 1));
    OK(kolo_data_parallel_ready(parallel, 0, NULL));
    OK(kolo_data_parallel_skip_sync(parallel, 0));
    if (counts) OK(kolo_data_parallel_count(parallel, 2, 0));
    OK(kolo_data_parallel_ready(parallel, 1, NULL));
    check_submitted(parallel, 1, 1, 1);
    if (step == 1) {
      OK(kolo_data_parallel_ready_rest(parallel, NULL));
      check_submitted(parallel, 2, 1, 0);
    }
    if (step == 2) {
      OK(kolo_data_parallel_wait(parallel, 1));
      OK(kolo_data_parallel_finish(parallel));
    } else {
      OK(kolo_data_parallel_wait_on_stream(parallel, 1, NULL));
      OK(kolo_data_parallel_finish_on_stream(parallel, NULL));
    }
    check_submitted(parallel, 0, 0, 0);
    double counted = 0, scale = 0, seconds = -1;
    OK(kolo_data_parallel_counted(parallel, &counted));
    CHECK(counted == (counts ? 2 : 1) * size);
    OK(kolo_data_parallel_gradient_scale(parallel, &scale));
    const float all = options && options->average ? 1 : (float)size;
    const int wire = options && options->wire;
    CHECK(all_are(model.d_second, second_size, wire && all != 1 ? 1 : all));
    CHECK(scale == (wire ? (double)size : (double)(options && options->average ? size : 1)) / counted);
    size_t first = 0, count = 0;
    int split = 0;
    OK(kolo_data_parallel_shard(parallel, 0, &first, &count, &split));
    CHECK(split == (options && options->shards_from && size > 1));
    CHECK(all_are(model.d_first + first, count, model.d_second[0]));
    fill(model.first + first, count, (float)(step + 10));
    OK(kolo_data_parallel_updated(parallel, 0, NULL));
    OK(kolo_data_parallel_updated(parallel, 1, NULL));
    if (step == 0) OK(kolo_data_parallel_use(parallel, 0));
    if (step == 1) OK(kolo_data_parallel_use_on_stream(parallel, 0, NULL));
    OK(kolo_data_parallel_use_all(parallel));
    CHECK(all_are(model.first, first_size, (float)(step + 10)));
    OK(kolo_data_parallel_wait_seconds(parallel, &seconds));
    CHECK(seconds >= 0);
  }
  OK(kolo_data_parallel_destroy(parallel));
}

/// Memory for what travels, from the session, kept by the program.
typedef struct Wire {
  kolo_session* session;
  kolo_memory* memory;
  size_t bytes;
  int fails;
} Wire;

static void* allocate_wire(void* user, size_t bytes, int device_kind, int device_index) {
  Wire* const wire = user;
  void* data = NULL;
  wire->bytes = bytes;
  if (wire->fails) return NULL;
  OK(kolo_memory_allocate(wire->session, bytes, device_kind, device_index, &wire->memory));
  OK(kolo_memory_data(wire->memory, &data));
  return data;
}

/// Gradients travel in the program's memory: the last step's sums are there, rounded.
static void train_in_own_memory(kolo_session* session, int rank, int size) {
  Wire wire = {.session = session};
  const kolo_data_parallel_options options = {.wire = KOLO_BF16, .allocate = allocate_wire, .allocate_user = &wire};
  train(session, &options, rank, size);
  CHECK(wire.bytes >= 2 * (first_size + second_size));
  void* data = NULL;
  OK(kolo_memory_data(wire.memory, &data));
  const uint16_t one = 0x3f80;  // in bf16: sums that are divided by the number of ranks
  CHECK(data != NULL && memcmp(data, &one, sizeof(one)) == 0);
  OK(kolo_memory_free(wire.memory));
  wire.fails = 1;
  float numbers[4] = {0};
  const kolo_trained_tensor tensor = {.name = "c.wire", .value = floats(numbers, 4), .gradient = floats(numbers, 4)};
  kolo_data_parallel* parallel = NULL;
  FAILS(kolo_data_parallel_create(session, &tensor, 1, &options, &parallel), KOLO_BACKEND,
        "options->allocate returned a null pointer");
  CHECK(parallel == NULL);
}

static void refuse_mistakes(kolo_session* session) {
  float numbers[4] = {0};
  kolo_trained_tensor tensor = {.name = "c.refused", .value = floats(numbers, 4), .gradient = floats(numbers, 4)};
  kolo_data_parallel* parallel = NULL;
  double number = 0;
  size_t size = 0;
  int integer = 0;
  IS_NULL(kolo_data_parallel_create(NULL, &tensor, 1, NULL, &parallel));
  IS_NULL(kolo_data_parallel_create(session, NULL, 1, NULL, &parallel));
  IS_NULL(kolo_data_parallel_create(session, &tensor, 1, NULL, NULL));
  const kolo_data_parallel_options bad_wire = {.wire = 99}, f32_wire = {.wire = KOLO_F32};
  REFUSES(kolo_data_parallel_create(session, &tensor, 1, &bad_wire, &parallel), "99 is no kolo_dtype");
  REFUSES(kolo_data_parallel_create(session, &tensor, 1, &f32_wire, &parallel), "cannot travel as f32");
  CHECK(parallel == NULL);
  kolo_trained_tensor unnamed = tensor;
  unnamed.name = NULL;
  IS_NULL(kolo_data_parallel_create(session, &unnamed, 1, NULL, &parallel));
  if (!OK(kolo_data_parallel_create(session, &tensor, 1, NULL, &parallel))) return;
  REFUSES(kolo_data_parallel_ready(parallel, 1, NULL), "there is no tensor 1");
  REFUSES(kolo_data_parallel_wait(parallel, 0), "before its ready()");
  REFUSES(kolo_data_parallel_count(parallel, 1, 0), "counts");
  REFUSES(kolo_data_parallel_shard(parallel, 7, &size, &size, &integer), "there is no tensor 7 of 1");
  IS_NULL(kolo_data_parallel_shard(parallel, 0, NULL, &size, &integer));
  const size_t* tensors = NULL;
  IS_NULL(kolo_data_parallel_submitted(parallel, NULL, &size));
  IS_NULL(kolo_data_parallel_submitted(parallel, &tensors, NULL));
  IS_NULL(kolo_data_parallel_submitted(NULL, &tensors, &size));
  IS_NULL(kolo_data_parallel_counted(parallel, NULL));
  IS_NULL(kolo_data_parallel_gradient_scale(parallel, NULL));
  IS_NULL(kolo_data_parallel_wait_seconds(parallel, NULL));
  IS_NULL(kolo_data_parallel_broadcast(NULL, 0, NULL));
  IS_NULL(kolo_data_parallel_skip_sync(NULL, 1));
  IS_NULL(kolo_data_parallel_count(NULL, 1, 1));
  IS_NULL(kolo_data_parallel_ready(NULL, 0, NULL));
  IS_NULL(kolo_data_parallel_ready_rest(NULL, NULL));
  IS_NULL(kolo_data_parallel_wait(NULL, 0));
  IS_NULL(kolo_data_parallel_wait_on_stream(NULL, 0, NULL));
  IS_NULL(kolo_data_parallel_finish(NULL));
  IS_NULL(kolo_data_parallel_finish_on_stream(NULL, NULL));
  IS_NULL(kolo_data_parallel_counted(NULL, &number));
  IS_NULL(kolo_data_parallel_gradient_scale(NULL, &number));
  IS_NULL(kolo_data_parallel_shard(NULL, 0, &size, &size, &integer));
  IS_NULL(kolo_data_parallel_updated(NULL, 0, NULL));
  IS_NULL(kolo_data_parallel_use(NULL, 0));
  IS_NULL(kolo_data_parallel_use_on_stream(NULL, 0, NULL));
  IS_NULL(kolo_data_parallel_use_all(NULL));
  IS_NULL(kolo_data_parallel_wait_seconds(NULL, &number));
  OK(kolo_data_parallel_destroy(parallel));
  OK(kolo_data_parallel_destroy(NULL));
}

void run_data_parallel(kolo_session* session) {
  int rank = 0, size = 0;
  OK(kolo_session_rank(session, &rank));
  OK(kolo_session_size(session, &size));
  const size_t order[2] = {0, 1};
  const kolo_data_parallel_options average = {.average = 1, .prefix = "average/", .order = order},
                                   shards = {.shards_from = 20, .counts = 1, .timeout_seconds = 30},
                                   wire = {.wire = KOLO_BF16, .counts = 1};
  train(session, NULL, rank, size);
  train(session, &average, rank, size);
  train(session, &shards, rank, size);
  train(session, &wire, rank, size);
  train_in_own_memory(session, rank, size);
  refuse_mistakes(session);
}
