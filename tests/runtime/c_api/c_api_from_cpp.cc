// What C cannot test: that the headers are C++20, too, with every warning an error, and that no exception gets through.

#include <new>
#include <stdexcept>
#include <type_traits>

#include <kolo/kolo_c.h>

#include "runtime/c_api/parts.h"

static_assert(std::is_standard_layout_v<kolo_tensor> && std::is_trivial_v<kolo_tensor>);
static_assert(std::is_trivial_v<kolo_all_to_all_options>);

extern "C" int fail_by_exception(int kind) {
  return kolo::c_api::guarded([&] {
    switch (kind) {
      case 0: throw kolo::Error(kolo::ErrorCode::stalled, "nobody came");
      case 1: throw std::bad_alloc();
      case 2: throw std::logic_error("a bug");
      default: throw kind;
    }
  });
}
