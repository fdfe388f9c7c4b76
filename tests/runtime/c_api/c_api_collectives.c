// Every operation of the C API, with results in closed form. Rank r of a group of n has r in what it sends.

#include <stdatomic.h>
#include <stdlib.h>

#include "tests/runtime/c_api/c_api_check.h"

enum { MOST_RANKS = 8, MOST_ROWS = 64 };

/// A place in a group.
typedef struct Place {
  kolo_session* session;
  const kolo_group* group;
  int rank, n;
} Place;

static Place place_in(kolo_session* session, const kolo_group* group) {
  Place place = {.session = session, .group = group};
  kolo_group* world = NULL;
  OK(kolo_group_world(session, &world));
  OK(kolo_group_rank(group ? group : world, &place.rank));
  OK(kolo_group_size(group ? group : world, &place.n));
  OK(kolo_group_destroy(world));
  return place;
}

static int wait_and_destroy(kolo_handle* handle) {
  const int status = kolo_handle_wait(handle);
  OK(kolo_handle_wait(handle));  // is empty now
  OK(kolo_handle_destroy(handle));
  return status;
}

/// 10 * rank + i at i.
static void fill(int32_t* numbers, int count, int rank) {
  for (int i = 0; i < count; ++i) numbers[i] = 10 * rank + i;
}

/// The sum of fill() over n ranks at i.
static int32_t sum_at(int n, int i) {
  return n * i + 10 * (n * (n - 1) / 2);
}

static void all_reduces(Place at) {
  int32_t in[10], out[10];
  const kolo_tensor in_tensor = vector_of(in, 10), out_tensor = vector_of(out, 10);
  const kolo_all_reduce_options sum = {.group = at.group}, most = {.op = KOLO_MAX, .group = at.group};
  fill(in, 10, at.rank);
  OK(kolo_all_reduce(at.session, "c.sum", &in_tensor, &out_tensor, &sum));
  for (int i = 0; i < 10; ++i) CHECK(in[i] == 10 * at.rank + i && out[i] == sum_at(at.n, i));
  OK(kolo_all_reduce(at.session, "c.max", &in_tensor, &in_tensor, &most));
  for (int i = 0; i < 10; ++i) CHECK(in[i] == 10 * (at.n - 1) + i);

  kolo_handle *first = NULL, *second = NULL;
  int done = 0;
  fill(in, 10, at.rank);
  int32_t in_place[10];
  const kolo_tensor in_place_tensor = vector_of(in_place, 10);
  fill(in_place, 10, at.rank);
  OK(kolo_all_reduce_async(at.session, "c.apart", &in_tensor, &out_tensor, &sum, &first));
  OK(kolo_all_reduce_async(at.session, "c.in place", &in_place_tensor, &in_place_tensor, &sum, &second));
  while (!done) OK(kolo_handle_poll(second, &done));
  OK(wait_and_destroy(second));
  OK(wait_and_destroy(first));
  for (int i = 0; i < 10; ++i) CHECK(in_place[i] == sum_at(at.n, i) && out[i] == sum_at(at.n, i));

  kolo_tensor_id id = 0, again = 0;
  OK(kolo_declare(at.session, "c.declared", &id));
  OK(kolo_declare(at.session, "c.declared", &again));
  CHECK(id != 0 && id == again);
  const kolo_all_reduce_options declared = {.group = at.group, .tensor = id};
  OK(kolo_all_reduce(at.session, NULL, &in_tensor, &out_tensor, &declared));
  CHECK(out[9] == sum_at(at.n, 9));
  OK(kolo_all_reduce_async(at.session, NULL, &in_tensor, &in_tensor, &declared, &first));
  OK(wait_and_destroy(first));
  CHECK(in[9] == sum_at(at.n, 9));
}

static void scales(Place at) {
  const double twice = 2, third = 1.0 / 3, none = 0;
  double value = 3 * at.rank;
  const kolo_tensor tensor = {.data = &value, .dtype = KOLO_F64};
  const kolo_all_reduce_options average = {.op = KOLO_AVERAGE,
                                           .group = at.group,
                                           .prescale = &twice,
                                           .postscale = &third,
                                           .divide_by_group = 1,
                                           .priority = 1};
  OK(kolo_all_reduce(at.session, "c.scaled", &tensor, &tensor, &average));
  CHECK(value > at.n - 1 - 1e-9 && value < at.n - 1 + 1e-9);  // 2/3 of the average of 0, 3, … 3 (n - 1)
  const kolo_all_reduce_options zeroed = {.group = at.group, .prescale = &none};
  value = 1;
  OK(kolo_all_reduce(at.session, "c.zeroed", &tensor, &tensor, &zeroed));
  CHECK(value == 0);
}

static void reduces(Place at) {
  for (int root = 0; root < at.n; ++root) {
    int32_t in[6], out[6] = {0};
    const kolo_tensor in_tensor = vector_of(in, 6), out_tensor = vector_of(out, 6);
    const kolo_reduce_options to_root = {.root = root, .group = at.group};
    fill(in, 6, at.rank);
    OK(kolo_reduce(at.session, "c.reduce", &in_tensor, at.rank == root ? &out_tensor : NULL, &to_root));
    for (int i = 0; i < 6; ++i) CHECK(out[i] == (at.rank == root ? sum_at(at.n, i) : 0) && in[i] == 10 * at.rank + i);
    kolo_handle* handle = NULL;
    OK(kolo_reduce_async(at.session, "c.reduce in place", &in_tensor, &in_tensor, &to_root, &handle));
    OK(wait_and_destroy(handle));
    for (int i = 0; i < 6; ++i) CHECK(in[i] == (at.rank == root ? sum_at(at.n, i) : 10 * at.rank + i));
  }
}

static void deal_rows(Place at) {
  const int64_t rows = 2 * at.n + 1;
  int64_t begin = -1, end = -1;
  OK(kolo_rows_of_rank(rows, at.n, at.rank, &begin, &end));
  CHECK(begin == (at.rank == 0 ? 0 : 2 * at.rank + 1) && end == 2 * at.rank + 3);
  int32_t in[2 * MOST_ROWS], out[2 * MOST_ROWS];
  const kolo_tensor in_tensor = rows_of_two(in, rows), out_tensor = rows_of_two(out, end - begin);
  const kolo_tensor own = rows_of_two(in + 2 * begin, end - begin);
  const kolo_reduce_scatter_options sum = {.group = at.group};
  kolo_handle* handle = NULL;
  fill(in, 2 * (int)rows, at.rank);
  OK(kolo_reduce_scatter(at.session, "c.reduce_scatter", &in_tensor, &out_tensor, &sum));
  OK(kolo_reduce_scatter_async(at.session, "c.reduce_scatter in place", &in_tensor, &own, &sum, &handle));
  OK(wait_and_destroy(handle));
  for (int i = 0; i < 2 * (end - begin); ++i) {
    const int32_t expected = sum_at(at.n, (int)(2 * begin) + i);
    CHECK(out[i] == expected && in[2 * begin + i] == expected);
  }

  for (int root = 0; root < at.n; ++root) {
    const kolo_scatter_options from_root = {.root = root, .group = at.group};
    fill(in, 2 * (int)rows, root);
    memset(out, 0, sizeof out);
    const kolo_tensor described = rows_of_two(at.rank == root ? in : NULL, rows);
    OK(kolo_scatter(at.session, "c.scatter", &described, &out_tensor, &from_root));
    for (int i = 0; i < 2 * (end - begin); ++i) CHECK(out[i] == 10 * root + (int)(2 * begin) + i);
    memset(out, 0, sizeof out);
    OK(kolo_scatter_async(at.session, "c.scatter async", &described, &out_tensor, &from_root, &handle));
    OK(wait_and_destroy(handle));
    for (int i = 0; i < 2 * (end - begin); ++i) CHECK(out[i] == 10 * root + (int)(2 * begin) + i);
  }
}

static void broadcasts(Place at) {
  for (int root = 0; root < at.n; ++root) {
    int32_t numbers[5];
    const kolo_tensor tensor = vector_of(numbers, 5);
    const kolo_broadcast_options from_root = {.root = root, .group = at.group};
    kolo_handle* handle = NULL;
    fill(numbers, 5, at.rank);
    OK(kolo_broadcast(at.session, "c.broadcast", &tensor, &from_root));
    for (int i = 0; i < 5; ++i) CHECK(numbers[i] == 10 * root + i);
    fill(numbers, 5, at.rank);
    OK(kolo_broadcast_async(at.session, "c.broadcast async", &tensor, &from_root, &handle));
    OK(wait_and_destroy(handle));
    for (int i = 0; i < 5; ++i) CHECK(numbers[i] == 10 * root + i);
  }
}

/// Memory that allocate() gave, for one output.
typedef struct Output {
  int32_t numbers[2 * MOST_ROWS];
  int calls, ndim;
  int64_t rows, columns;
} Output;

static void* allocate(void* user, int ndim, const int64_t* shape) {
  Output* output = user;
  ++output->calls;
  output->ndim = ndim;
  output->rows = shape[0];
  output->columns = shape[1];
  return output->numbers;
}

static void* refuse_to_allocate(void* user, int ndim, const int64_t* shape) {
  (void)user, (void)ndim, (void)shape;
  return NULL;
}

/// Rank r's block is r + 1 rows of fill(): what all have afterwards.
static void check_blocks(const Output* output, const int64_t* rows, int n) {
  int at = 0;
  CHECK(output->calls == 1 && output->ndim == 2 && output->rows == n * (n + 1) / 2 && output->columns == 2);
  for (int rank = 0; rank < n; ++rank) {
    CHECK(rows[rank] == rank + 1);
    for (int i = 0; i < 2 * (rank + 1); ++i) CHECK(output->numbers[at++] == 10 * rank + i);
  }
}

static void gathers(Place at) {
  int32_t in[2 * MOST_RANKS], all[2 * MOST_RANKS];
  int64_t rows[MOST_RANKS] = {0};
  Output output = {.calls = 0};
  kolo_handle* handle = NULL;
  fill(in, 2 * MOST_RANKS, at.rank);
  const kolo_tensor one = rows_of_two(in, 1), uneven = rows_of_two(in, at.rank + 1),
                    all_tensor = rows_of_two(all, at.n);
  const kolo_all_gather_options known = {.group = at.group};
  OK(kolo_all_gather(at.session, "c.all_gather", &one, &all_tensor, &known));
  for (int rank = 0; rank < at.n; ++rank) CHECK(all[2 * rank] == 10 * rank && all[2 * rank + 1] == 10 * rank + 1);

  const kolo_all_gather_options unknown = {
      .group = at.group, .allocate = allocate, .allocate_user = &output, .rows = rows};
  OK(kolo_all_gather(at.session, "c.all_gather uneven", &uneven, NULL, &unknown));
  check_blocks(&output, rows, at.n);
  memset(rows, 0, sizeof rows);
  output.calls = 0;
  OK(kolo_all_gather_async(at.session, "c.all_gather uneven", &uneven, NULL, &unknown, &handle));
  OK(wait_and_destroy(handle));
  check_blocks(&output, rows, at.n);

  for (int root = 0; root < at.n; ++root) {
    const int is_root = at.rank == root;
    const kolo_gather_options to_root = {.root = root, .group = at.group};
    memset(all, 0, sizeof all);
    OK(kolo_gather(at.session, "c.gather", &one, is_root ? &all_tensor : NULL, &to_root));
    for (int rank = 0; rank < at.n; ++rank) CHECK(all[2 * rank + 1] == (is_root ? 10 * rank + 1 : 0));
    memset(rows, 0, sizeof rows);
    output.calls = 0;
    const kolo_gather_options uneven_to_root = {
        .root = root, .group = at.group, .allocate = allocate, .allocate_user = &output, .rows = rows};
    OK(kolo_gather_async(at.session, "c.gather uneven", &uneven, NULL, &uneven_to_root, &handle));
    OK(wait_and_destroy(handle));
    if (is_root) check_blocks(&output, rows, at.n);
    if (!is_root) CHECK(output.calls == 0 && rows[0] == 0);
  }

  const kolo_all_gather_options refusing = {
      .group = at.group, .allocate = at.rank == at.n - 1 ? refuse_to_allocate : allocate, .allocate_user = &output};
  FAILS(kolo_all_gather(at.session, "c.refused", &one, NULL, &refusing), KOLO_BACKEND,
        "its function returned a null pointer");
}

static void exchanges(Place at) {
  int32_t blocks[2 * MOST_RANKS];
  const kolo_tensor tensor = rows_of_two(blocks, at.n);
  const kolo_all_to_all_options equal = {.group = at.group};
  fill(blocks, 2 * at.n, at.rank);
  OK(kolo_all_to_all(at.session, "c.all_to_all", &tensor, &tensor, &equal));
  for (int rank = 0; rank < at.n; ++rank) CHECK(blocks[2 * rank] == 10 * rank + 2 * at.rank);

  // Rank r sends rank d d + 1 rows of (r, d), so each rank gets as many rows from all.
  int32_t in[2 * MOST_ROWS], out[2 * MOST_ROWS];
  int64_t splits[MOST_RANKS], rows[MOST_RANKS] = {0};
  int row = 0;
  for (int to = 0; to < at.n; ++to) {
    splits[to] = to + 1;
    for (int i = 0; i <= to; ++i, ++row) in[2 * row] = at.rank, in[2 * row + 1] = to;
  }
  const int received = at.n * (at.rank + 1);
  const kolo_tensor in_tensor = rows_of_two(in, row), out_tensor = rows_of_two(out, received);
  const kolo_all_to_all_options uneven = {.group = at.group, .splits = splits, .rows = rows};
  kolo_handle* handle = NULL;
  OK(kolo_all_to_all_async(at.session, "c.splits", &in_tensor, &out_tensor, &uneven, &handle));
  OK(wait_and_destroy(handle));
  for (int from = 0; from < at.n; ++from) CHECK(rows[from] == at.rank + 1);
  for (int i = 0; i < received; ++i) CHECK(out[2 * i] == i / (at.rank + 1) && out[2 * i + 1] == at.rank);
  Output output = {.calls = 0};
  const kolo_all_to_all_options unknown = {
      .group = at.group, .splits = splits, .allocate = allocate, .allocate_user = &output};
  OK(kolo_all_to_all(at.session, "c.splits", &in_tensor, NULL, &unknown));
  CHECK(output.calls == 1 && output.rows == received &&
        memcmp(output.numbers, out, sizeof(int32_t) * 2 * (size_t)received) == 0);
}

static void pairs(Place at) {
  int32_t sent = 7 + at.rank, got = -1;
  const kolo_tensor from = vector_of(&sent, 1), to = vector_of(&got, 1);
  const kolo_pair_options in_group = {.group = at.group};
  REFUSES(kolo_send(at.session, "c.ring", &from, at.rank, &in_group), "is not another rank of the group");
  if (at.n == 1) return;
  const int next = (at.rank + 1) % at.n, previous = (at.rank + at.n - 1) % at.n;
  kolo_handle *sending = NULL, *receiving = NULL;
  OK(kolo_recv_async(at.session, "c.ring", &to, previous, &in_group, &receiving));
  OK(kolo_send_async(at.session, "c.ring", &from, next, &in_group, &sending));
  OK(wait_and_destroy(sending));
  OK(wait_and_destroy(receiving));
  CHECK(got == 7 + previous);
  if (at.rank == 0) OK(kolo_send(at.session, "c.pair", &from, 1, &in_group));
  if (at.rank == 1) OK(kolo_recv(at.session, "c.pair", &to, 0, &in_group));
  CHECK(at.rank != 1 || got == 7);
}

/// A group of the same ranks, whose operations are matched by their order.
static kolo_group* ordered_group(Place at) {
  int ranks[MOST_RANKS];
  for (int i = 0; i < at.n; ++i) ranks[i] = i;
  if (at.group) OK(kolo_group_ranks(at.group, ranks));
  const kolo_group_options by_order = {.order = KOLO_ORDER_PROGRAM};
  kolo_group* group = NULL;
  OK(kolo_group_create_with(at.session, ranks, (size_t)at.n, &by_order, &group));
  return group;
}

static void pairs_by_tag(Place at) {
  if (at.n == 1) return;
  kolo_group* group = ordered_group(at);
  int rank = 0;
  OK(kolo_group_rank(group, &rank));
  int32_t sent = 70 + rank, got = -1;
  const kolo_tensor from = vector_of(&sent, 1), to = vector_of(&got, 1);
  const kolo_pair_options options = {.group = group, .tag = 3};
  const int next = (rank + 1) % at.n, previous = (rank + at.n - 1) % at.n;
  REFUSES(kolo_send(at.session, "c.name", &from, next, &options), "is ordered");
  kolo_handle* receiving = NULL;
  OK(kolo_recv_async(at.session, NULL, &to, previous, &options, &receiving));
  OK(kolo_send(at.session, NULL, &from, next, &options));
  OK(wait_and_destroy(receiving));
  CHECK(got == 70 + previous);
  const kolo_pair_operation both[] = {{.sends = 1, .tensor = &from, .peer = next, .tag = 4},
                                      {.tensor = &to, .peer = previous, .tag = 4}};
  kolo_handle* handles[2];
  got = -1;
  OK(kolo_batch_async(at.session, both, 2, &options, handles));
  OK(wait_and_destroy(handles[0]));
  OK(wait_and_destroy(handles[1]));
  CHECK(got == 70 + previous);
  got = -1;
  OK(kolo_batch(at.session, both, 2, &options));
  CHECK(got == 70 + previous);
  const int tags[] = {1, 5};
  kolo_received received = {.source = -1};
  kolo_handle* sending = NULL;
  const kolo_pair_options with_five = {.group = group, .tag = 5};
  OK(kolo_send_async(at.session, NULL, &from, next, &with_five, &sending));
  OK(kolo_recv_any(at.session, &to, tags, 2, &options, &received));
  OK(wait_and_destroy(sending));
  CHECK(received.source == previous && received.tag == 5 && received.bytes == 4);
  received.source = -1;
  OK(kolo_recv_any_async(at.session, &to, NULL, 0, &options, &received, &receiving));
  OK(kolo_send(at.session, NULL, &from, next, &with_five));
  OK(wait_and_destroy(receiving));
  CHECK(received.source == previous && received.tag == 5 && received.bytes == 4);
  OK(kolo_group_remove(at.session, group));
  OK(kolo_group_destroy(group));
}

static void several_at_once(Place at) {
  int32_t a[4], b[2 * MOST_RANKS], out[2 * MOST_RANKS];
  float f = (float)at.rank;
  const kolo_tensor a_tensor = vector_of(a, 4), b_tensor = rows_of_two(b, at.n), out_tensor = rows_of_two(out, at.n);
  const kolo_tensor f_tensor = {.data = &f, .dtype = KOLO_F32}, row = rows_of_two(b, 1), out_row = rows_of_two(out, 1);
  kolo_handle* handle = NULL;
  fill(a, 4, at.rank);
  fill(b, 2 * at.n, at.rank);

  const kolo_all_reduce_options sum = {.group = at.group};
  const kolo_named_tensor reduced[] = {
      {"c.a", &a_tensor, &a_tensor}, {"c.b", &b_tensor, &out_tensor}, {"c.f", &f_tensor, &f_tensor}};
  OK(kolo_grouped_all_reduce_async(at.session, "c.grouped", reduced, 3, &sum, &handle));
  OK(wait_and_destroy(handle));
  CHECK(a[3] == sum_at(at.n, 3) && out[1] == sum_at(at.n, 1) && f == (float)(at.n * (at.n - 1) / 2));

  const kolo_broadcast_options from_last = {.root = at.n - 1, .group = at.group};
  const kolo_named_tensor copied[] = {{"c.b", &b_tensor, NULL}, {"c.f", &f_tensor, NULL}};
  f = (float)at.rank;
  OK(kolo_grouped_broadcast_async(at.session, "c.grouped", copied, 2, &from_last, &handle));
  OK(wait_and_destroy(handle));
  CHECK(b[1] == 10 * (at.n - 1) + 1 && f == (float)(at.n - 1));

  fill(b, 2 * at.n, at.rank);
  const kolo_reduce_scatter_options dealt = {.group = at.group};
  const kolo_named_tensor scattered[] = {{"c.b", &b_tensor, &out_row}};
  OK(kolo_grouped_reduce_scatter_async(at.session, "c.grouped", scattered, 1, &dealt, &handle));
  OK(wait_and_destroy(handle));
  CHECK(out[1] == sum_at(at.n, 2 * at.rank + 1));

  const kolo_all_gather_options blocks = {.group = at.group};
  const kolo_named_tensor gathered[] = {{"c.b", &row, &out_tensor}};
  OK(kolo_grouped_all_gather_async(at.session, "c.grouped", gathered, 1, &blocks, &handle));
  OK(wait_and_destroy(handle));
  for (int rank = 0; rank < at.n; ++rank) CHECK(out[2 * rank + 1] == 10 * rank + 1);

  const kolo_named_tensor twice[] = {{"c.same", &a_tensor, &a_tensor}, {"c.same", &f_tensor, &f_tensor}};
  FAILS(kolo_grouped_all_reduce_async(at.session, "c.grouped", twice, 2, &sum, &handle), KOLO_IN_FLIGHT, "c.same");
  CHECK(handle == NULL);
}

static void objects(Place at) {
  char text[32];
  void* object = NULL;
  size_t bytes = 0, sizes[MOST_RANKS];
  const int length = snprintf(text, sizeof text, "rank %d%.*s", at.rank, at.rank, "!!!!!!!!");
  const kolo_broadcast_options from_last = {.root = at.n - 1, .group = at.group};
  const int is_root = at.rank == at.n - 1;
  OK(kolo_broadcast_object(at.session, "c.object", is_root ? text : NULL, is_root ? (size_t)length : 0, &from_last,
                           &object, &bytes));
  char expected[32];
  const int expected_length = snprintf(expected, sizeof expected, "rank %d%.*s", at.n - 1, at.n - 1, "!!!!!!!!");
  CHECK(bytes == (size_t)expected_length && object && strcmp(object, expected) == 0);
  OK(kolo_free(object));

  OK(kolo_all_gather_object(at.session, "c.objects", text, at.rank == 0 ? 0 : (size_t)length, at.group, 0, &object,
                            sizes));
  const char* next = object;
  for (int rank = 0; rank < at.n; ++rank) {
    const int wanted = rank == 0 ? 0 : snprintf(expected, sizeof expected, "rank %d%.*s", rank, rank, "!!!!!!!!");
    CHECK(sizes[rank] == (size_t)wanted && memcmp(next, expected, (size_t)wanted) == 0);
    next += sizes[rank];
  }
  CHECK(*next == 0);
  OK(kolo_free(object));
}

/// Every operation without a name, then what has one and what is left out where one is needed.
static void in_order(Place from) {
  kolo_group* group = ordered_group(from);
  const Place at = place_in(from.session, group);
  const int last = at.n - 1;
  int32_t a[2 * MOST_RANKS], b[2 * MOST_RANKS], one[2];
  int64_t rows[MOST_RANKS] = {0};
  const kolo_tensor a_tensor = rows_of_two(a, at.n), b_tensor = rows_of_two(b, at.n), row = rows_of_two(one, 1);
  const kolo_all_reduce_options sum = {.group = group};
  kolo_handle* handle = NULL;
  fill(a, 2 * at.n, at.rank);
  OK(kolo_all_reduce(at.session, NULL, &a_tensor, &b_tensor, &sum));
  CHECK(a[1] == 10 * at.rank + 1 && b[1] == sum_at(at.n, 1));
  OK(kolo_all_reduce_async(at.session, NULL, &b_tensor, &b_tensor, &sum, &handle));
  OK(wait_and_destroy(handle));
  CHECK(b[1] == at.n * sum_at(at.n, 1));
  fill(b, 2 * at.n, at.rank);
  OK(kolo_all_reduce(at.session, NULL, &b_tensor, &b_tensor, &sum));
  CHECK(b[1] == sum_at(at.n, 1));

  const kolo_reduce_options to_last = {.root = last, .group = group};
  memset(b, 0, sizeof b);
  OK(kolo_reduce(at.session, NULL, &a_tensor, at.rank == last ? &b_tensor : NULL, &to_last));
  CHECK(b[1] == (at.rank == last ? sum_at(at.n, 1) : 0));
  const kolo_broadcast_options from_last = {.root = last, .group = group};
  OK(kolo_broadcast(at.session, NULL, &b_tensor, &from_last));
  CHECK(b[1] == sum_at(at.n, 1));
  OK(kolo_barrier(at.session, group));
  fill(one, 2, at.rank);
  const kolo_all_gather_options blocks = {.group = group, .rows = rows};
  OK(kolo_all_gather(at.session, NULL, &row, &b_tensor, &blocks));
  for (int rank = 0; rank < at.n; ++rank) CHECK(b[2 * rank + 1] == 10 * rank + 1 && rows[rank] == 1);
  const kolo_reduce_scatter_options dealt = {.group = group};
  OK(kolo_reduce_scatter(at.session, NULL, &a_tensor, &row, &dealt));
  CHECK(one[1] == sum_at(at.n, 2 * at.rank + 1));
  const kolo_gather_options to_first = {.group = group};
  OK(kolo_gather(at.session, NULL, &row, at.rank == 0 ? &b_tensor : NULL, &to_first));
  CHECK(at.rank != 0 || b[2 * last + 1] == sum_at(at.n, 2 * last + 1));
  const kolo_scatter_options from_first = {.group = group};
  OK(kolo_scatter(at.session, NULL, &a_tensor, &row, &from_first));
  CHECK(one[1] == 2 * at.rank + 1);
  const kolo_all_to_all_options equal = {.group = group};
  OK(kolo_all_to_all(at.session, NULL, &a_tensor, &b_tensor, &equal));
  for (int rank = 0; rank < at.n; ++rank) CHECK(b[2 * rank] == 10 * rank + 2 * at.rank);

  const kolo_named_tensor reduced[] = {{NULL, &a_tensor, &b_tensor}, {NULL, &row, &row}};
  OK(kolo_grouped_all_reduce_async(at.session, NULL, reduced, 2, &sum, &handle));
  OK(wait_and_destroy(handle));
  CHECK(b[1] == sum_at(at.n, 1) && one[1] == at.n * at.n);  // 1 + 3 + …
  const kolo_named_tensor copied[] = {{"ignored", &row, NULL}, {"ignored", &a_tensor, NULL}};
  OK(kolo_grouped_broadcast_async(at.session, NULL, copied, 2, &from_last, &handle));
  OK(wait_and_destroy(handle));
  CHECK(a[1] == 10 * last + 1);
  const kolo_named_tensor scattered[] = {{NULL, &a_tensor, &row}};
  OK(kolo_grouped_reduce_scatter_async(at.session, NULL, scattered, 1, &dealt, &handle));
  OK(wait_and_destroy(handle));
  CHECK(one[1] == at.n * (10 * last + 2 * at.rank + 1));
  const kolo_all_gather_options all = {.group = group};
  const kolo_named_tensor gathered[] = {{NULL, &row, &b_tensor}};
  OK(kolo_grouped_all_gather_async(at.session, NULL, gathered, 1, &all, &handle));
  OK(wait_and_destroy(handle));
  CHECK(b[2 * last + 1] == at.n * (10 * last + 2 * last + 1));

  void* object = NULL;
  size_t bytes = 0, sizes[MOST_RANKS];
  OK(kolo_broadcast_object(at.session, NULL, at.rank == last ? "words" : NULL, at.rank == last ? 5 : 0, &from_last,
                           &object, &bytes));
  CHECK(bytes == 5 && object && memcmp(object, "words", 6) == 0);
  OK(kolo_free(object));
  OK(kolo_all_gather_object(at.session, NULL, "12345678", (size_t)at.rank, group, 0, &object, sizes));
  for (int rank = 0; rank < at.n; ++rank) CHECK(sizes[rank] == (size_t)rank);
  OK(kolo_free(object));

  kolo_tensor_id id = 0;
  OK(kolo_declare(at.session, "c.declared", &id));
  const kolo_all_reduce_options declared = {.group = group, .tensor = id}, named = {.group = from.group};
  HAS_NO_NAME(kolo_all_reduce(at.session, "c.name", &row, &row, &sum));
  HAS_NO_NAME(kolo_all_reduce(at.session, NULL, &row, &row, &declared));
  HAS_NO_NAME(kolo_reduce(at.session, "c.name", &row, &row, &to_last));
  HAS_NO_NAME(kolo_broadcast_async(at.session, "c.name", &row, &from_last, &handle));
  HAS_NO_NAME(kolo_all_gather(at.session, "c.name", &row, &b_tensor, &all));
  HAS_NO_NAME(kolo_reduce_scatter(at.session, "c.name", &a_tensor, &row, &dealt));
  HAS_NO_NAME(kolo_gather(at.session, "c.name", &row, &b_tensor, &to_first));
  HAS_NO_NAME(kolo_scatter(at.session, "c.name", &a_tensor, &row, &from_first));
  HAS_NO_NAME(kolo_all_to_all(at.session, "c.name", &a_tensor, &b_tensor, &equal));
  const kolo_named_tensor with_name[] = {{"c.name", &row, &row}};
  HAS_NO_NAME(kolo_grouped_all_reduce_async(at.session, "c.names", with_name, 1, &sum, &handle));
  HAS_NO_NAME(kolo_broadcast_object(at.session, "c.name", "x", 1, &from_last, &object, &bytes));
  HAS_NO_NAME(kolo_all_gather_object(at.session, "c.name", "x", 1, group, 0, &object, sizes));
  NEEDS_NAME(kolo_all_reduce(at.session, NULL, &row, &row, &named));
  NEEDS_NAME(kolo_grouped_all_reduce_async(at.session, NULL, reduced, 2, &named, &handle));
  NEEDS_NAME(kolo_all_gather_object(at.session, NULL, "x", 1, from.group, 0, &object, sizes));
  REFUSES(kolo_join(at.session, group, NULL), "matched by name");
  fill(one, 2, at.rank);
  OK(kolo_all_reduce(at.session, NULL, &row, &row, &sum));  // the wrong calls have taken no places
  CHECK(one[1] == sum_at(at.n, 1));
  OK(kolo_group_remove(at.session, group));
  OK(kolo_group_destroy(group));
}

/// What follows an operation.
typedef struct Told {
  atomic_int calls, releases;
  int status;
} Told;

static void tell(kolo_status status, const char* message, void* context) {
  Told* told = context;
  told->status = status;
  CHECK((status == KOLO_OK) == (message[0] == 0));
  atomic_fetch_add(&told->calls, 1);
}

static void let_go(void* user) {
  atomic_fetch_add(&((Told*)user)->releases, 1);
}

static void completions(Place at) {
  Told told = {.status = -1};
  int32_t a = 1, b = 1;
  const kolo_tensor first = vector_of(&a, 1), second = vector_of(&b, 1);
  const kolo_all_reduce_options sum = {.group = at.group};
  kolo_handle* handles[2] = {NULL, NULL};
  OK(kolo_all_reduce_async(at.session, "c.first", &first, &first, &sum, &handles[0]));
  OK(kolo_all_reduce_async(at.session, "c.second", &second, &second, &sum, &handles[1]));
  OK(kolo_handle_on_done(handles[0], tell, &told));
  size_t index = 2;
  OK(kolo_handle_wait_any(handles, 2, &index));
  CHECK(index < 2);
  int done = 0;
  OK(kolo_handle_wait_until(handles[index], 60, &done));
  CHECK(done == 1);
  int empty[2] = {0, 1};
  OK(kolo_handle_is_empty(handles[index], &empty[0]));
  OK(kolo_handle_is_empty(handles[1 - index], &empty[1]));
  CHECK(empty[0] == 1 && empty[1] == 0);
  OK(kolo_handle_wait_all(handles, 2));
  CHECK(a == at.n && b == at.n);
  OK(kolo_handle_destroy(handles[0]));
  OK(kolo_handle_destroy(handles[1]));
  OK(kolo_all_reduce_async(at.session, "c.first", &first, &first, &sum, &handles[0]));
  OK(kolo_handle_on_done(handles[0], tell, &told));
  OK(kolo_handle_detach(handles[0], let_go, &told));
  while (atomic_load(&told.releases) == 0) continue;
  CHECK(atomic_load(&told.calls) == 2 && told.status == KOLO_OK && a == at.n * at.n);

  if (at.n == 1) return;  // the ranks' tensors differ: the first of two fails
  const kolo_tensor differs = vector_of(&b, at.rank == 0 ? 1 : 0);
  OK(kolo_all_reduce_async(at.session, "c.differs", &differs, &differs, &sum, &handles[0]));
  OK(kolo_all_reduce_async(at.session, "c.first", &first, &first, &sum, &handles[1]));
  OK(kolo_handle_on_done(handles[0], tell, &told));
  FAILS(kolo_handle_wait_all(handles, 2), KOLO_MISMATCH, "c.differs");
  OK(kolo_handle_wait_all(handles, 2));
  CHECK(a == at.n * at.n * at.n);
  while (atomic_load(&told.calls) < 3) continue;
  CHECK(told.status == KOLO_MISMATCH);
  REFUSES(kolo_handle_on_done(handles[0], tell, &told), "empty handle");
  CHECK(kolo_handle_detach(NULL, let_go, &told) == KOLO_INVALID_ARGUMENT && atomic_load(&told.releases) == 1);
  for (int i = 0; i < 2; ++i) OK(kolo_handle_detach(handles[i], let_go, &told));  // at once
  CHECK(atomic_load(&told.releases) == 3);
  int32_t go = 0;
  const kolo_tensor token = vector_of(&go, 1);
  const kolo_pair_options pair = {.group = at.group};
  if (at.rank != 0) OK(kolo_recv(at.session, "c.go", &token, 0, &pair));
  OK(kolo_all_reduce_async(at.session, "c.second", &second, &second, &sum, &handles[0]));
  if (at.rank == 0) {
    OK(kolo_handle_wait_until(handles[0], -1, &done));
    CHECK(done == 0);
    for (int rank = 1; rank < at.n; ++rank) OK(kolo_send(at.session, "c.go", &token, rank, &pair));
  }
  OK(wait_and_destroy(handles[0]));
}

/// Rank r has r + 1 steps.
static void barriers_and_join(Place at) {
  kolo_handle *first = NULL, *second = NULL;
  OK(kolo_barrier_async(at.session, at.group, &first));
  OK(kolo_barrier_async(at.session, at.group, &second));
  OK(wait_and_destroy(second));
  OK(wait_and_destroy(first));
  OK(kolo_barrier(at.session, at.group));
  const kolo_barrier_options urgent = {.group = at.group, .timeout_seconds = 30, .priority = 2};
  OK(kolo_barrier_with_async(at.session, &urgent, &first));
  OK(wait_and_destroy(first));
  OK(kolo_barrier_with(at.session, &urgent));
  OK(kolo_monitored_barrier(at.session, 30, at.group));
  kolo_handle* third = NULL;
  OK(kolo_monitored_barrier_async(at.session, 30, at.group, &third));
  OK(kolo_handle_wait(third));
  OK(kolo_handle_destroy(third));

  const kolo_all_reduce_options sum = {.group = at.group};
  for (int step = 0; step <= at.rank; ++step) {
    int32_t count = 1;
    const kolo_tensor tensor = vector_of(&count, 1);
    OK(kolo_all_reduce(at.session, "c.step", &tensor, &tensor, &sum));
    CHECK(count == at.n - step);
  }
  int last = -1;
  OK(kolo_join(at.session, at.group, &last));
  CHECK(last == at.n - 1);
  OK(kolo_join(at.session, at.group, NULL));
}

void run_collectives(kolo_session* session, const kolo_group* group) {
  const Place at = place_in(session, group);
  if (at.rank < 0) return;
  all_reduces(at);
  scales(at);
  reduces(at);
  deal_rows(at);
  broadcasts(at);
  gathers(at);
  exchanges(at);
  pairs_by_tag(at);
  pairs(at);
  several_at_once(at);
  objects(at);
  in_order(at);
  completions(at);
  barriers_and_join(at);
}
