// The smallest C program that embeds kolo: sums a vector over all ranks, and checks the result.

#include <stdio.h>
#include <stdlib.h>

#include <kolo/kolo_c.h>

int main(void) {
  kolo_session* session = NULL;
  int rank = 0, size = 0;
  if (kolo_session_create(NULL, &session) || kolo_session_rank(session, &rank) || kolo_session_size(session, &size)) {
    fprintf(stderr, "embed_c: %s\n", kolo_last_error());
    return EXIT_FAILURE;
  }
  float values[1000];
  for (int i = 0; i < 1000; ++i) values[i] = (float)(rank + 1);
  const kolo_tensor tensor = {.data = values, .ndim = 1, .shape = {1000}, .dtype = KOLO_F32};
  const int status = kolo_all_reduce(session, "values", &tensor, &tensor, NULL);
  if (status) fprintf(stderr, "embed_c: %s: %s\n", kolo_status_name(status), kolo_last_error());

  const float expected = (float)(size * (size + 1)) / 2;  // 1 + 2 + ... + size
  int wrong = 0;
  for (int i = 0; i < 1000; ++i) wrong += values[i] != expected;
  if (wrong == 0) printf("embed_c: rank %d of %d: the sum is %g\n", rank, size, expected);
  kolo_session_destroy(session);
  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
