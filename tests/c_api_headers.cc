// The headers of the C API are C++20, too, with every warning an error, and what they declare is what C sees.

#include <type_traits>

#include <kolo/kolo_c.h>
#include <kolo/kolo_c_mpi.h>

static_assert(std::is_standard_layout_v<kolo_tensor> && std::is_trivial_v<kolo_tensor>);
static_assert(std::is_trivial_v<kolo_all_to_all_options>);
static_assert(std::is_same_v<decltype(kolo_last_error()), const char*>);

const auto kolo_c_mpi_in_cpp = &kolo_mpi_world;  // links: it has C's linkage
