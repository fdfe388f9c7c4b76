#pragma once

// What libxpmem.so.0 of the tests has beside XPMEM's own functions. A program that is linked with it has that library,
// whatever is installed.

/// Of this process, since it began: what succeeded.
struct FakeXpmemCounts {
  int made, removed, got, released, attached, detached;
  bool balanced() const { return made == removed && got == released && attached == detached; }
};

extern "C" {
FakeXpmemCounts fake_xpmem_counts();
/// From now on `call` ("make", …, "detach"; "pages": attached pages are missing) fails once it has succeeded so often.
/// Null: none fails.
void fake_xpmem_fail(const char* call, int successes);
}
