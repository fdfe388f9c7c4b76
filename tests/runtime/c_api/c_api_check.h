#pragma once

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <kolo/kolo_c.h>

/// Checks of the C tests: what fails is printed and counted, and the program goes on.

extern atomic_int failures;

/// Notes a failure unless `fine`; returns `fine`.
static inline int check(int fine, const char* file, int line, const char* text) {
  if (!fine) {
    fprintf(stderr, "%s:%d: FAILED: %s (last error: %s)\n", file, line, text, kolo_last_error());
    ++failures;
  }
  return fine;
}

/// Whether a call returned `status`, with a last error that contains `part`.
static inline int check_fails(int got, int status, const char* part, const char* file, int line, const char* text) {
  if (got == status && strstr(kolo_last_error(), part)) return 1;
  fprintf(stderr, "%s:%d: FAILED: %s returned %s (%s) instead of %s (…%s…)\n", file, line, text, kolo_status_name(got),
          got == KOLO_OK ? "" : kolo_last_error(), kolo_status_name(status), part);
  ++failures;
  return 0;
}

#define CHECK(condition) check((condition) != 0, __FILE__, __LINE__, #condition)
#define OK(call) check((call) == KOLO_OK, __FILE__, __LINE__, #call)
#define FAILS(call, status, part) check_fails((call), (status), (part), __FILE__, __LINE__, #call)
#define REFUSES(call, part) FAILS(call, KOLO_INVALID_ARGUMENT, part)
#define IS_NULL(call) REFUSES(call, "is a null pointer")
#define NEEDS_NAME(call) REFUSES(call, "the group matches operations by name; pass one")
#define HAS_NO_NAME(call) \
  REFUSES(call, "the group matches operations by their order, and they have no name; leave it out")

/// A tensor of i32 with two columns.
static inline kolo_tensor rows_of_two(int32_t* numbers, int64_t rows) {
  kolo_tensor tensor = {.data = numbers, .ndim = 2, .shape = {rows, 2}, .dtype = KOLO_I32};
  return tensor;
}

static inline kolo_tensor vector_of(int32_t* numbers, int64_t count) {
  kolo_tensor tensor = {.data = numbers, .ndim = 1, .shape = {count}, .dtype = KOLO_I32};
  return tensor;
}

/// The programs. Every rank of the session runs the same; `group` null is the world.
void run_collectives(kolo_session* session, const kolo_group* group);
void run_groups(kolo_session* session);
void run_errors(kolo_session* session);
void run_data_parallel(kolo_session* session);
void run_null_arguments(kolo_session* session);
/// Rank 0 leaves without a word; the others' operation fails. The session is gone afterwards.
void abandon_one(kolo_session* session);

/// What the programs' main() runs: what needs no other rank; ranks as threads, and as those that the launcher started.
void run_without_ranks(void);
void run_as_threads(int n);
void run_as_processes(void);
/// Settings with which nothing hangs.
kolo_config* with_time_outs(void);
