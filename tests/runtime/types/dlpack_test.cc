// DLPack's layout, what is taken and what is refused, word for word, and who calls deleters.

// A program may have its own declarations of these names, such as dlpack.h's: first as here, and after kolo's below.
struct DLTensor {
  char not_ours;
};
struct DLDevice {
  char not_ours;
};

#include <kolo/dlpack.h>

struct DLManagedTensor {
  char not_ours;
};
struct DLManagedTensorVersioned {
  char not_ours;
};
struct DLDataType {
  char not_ours;
};
struct DLPackVersion {
  char not_ours;
};

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include <kolo/error.h>

#include "tests/ops/kernels/element_types.h"
#include "tests/support/thread_ranks.h"

namespace names_of_the_program {
using namespace kolo;  // NOLINT(google-build-using-namespace): what a program may write
static_assert(sizeof(DLTensor) == 1 && sizeof(DLDevice) == 1 && sizeof(DLManagedTensor) == 1 &&
              sizeof(DLDataType) == 1 && sizeof(DLManagedTensorVersioned) == 1 && sizeof(DLPackVersion) == 1);
}  // namespace names_of_the_program

namespace kolo {
namespace {

using dlpack::DeviceType;
using dlpack::TypeCode;
using testing::error_text;

using Extents = std::vector<std::int64_t>;

std::array<double, 32> memory;

/// A tensor as another library would describe it, with the arrays that it points to.
struct Foreign {
  explicit Foreign(Extents extents) : shape(std::move(extents)) {
    tensor.data = memory.data();
    tensor.ndim = static_cast<std::int32_t>(shape.size());
    tensor.shape = shape.data();
  }
  Foreign(Extents extents, Extents steps) : Foreign(std::move(extents)) {
    strides = std::move(steps);
    tensor.strides = strides.data();
  }
  Foreign(const Foreign&) = delete;
  Foreign& operator=(const Foreign&) = delete;

  std::string refusal() const {
    return error_text([&] { (void)from_dlpack(tensor); }, ErrorCode::invalid_argument);
  }

  Extents shape;
  Extents strides;
  dlpack::DLTensor tensor;
};

TEST(Dlpack, MapsEveryType) {
  const std::vector<std::pair<DType, dlpack::DLDataType>> types{
      {DType::f64, {TypeCode::floating_point, 64}},   {DType::f32, {TypeCode::floating_point, 32}},
      {DType::f16, {TypeCode::floating_point, 16}},   {DType::bf16, {TypeCode::bfloat, 16}},
      {DType::i64, {TypeCode::integer, 64}},          {DType::i32, {TypeCode::integer, 32}},
      {DType::i16, {TypeCode::integer, 16}},          {DType::i8, {TypeCode::integer, 8}},
      {DType::u64, {TypeCode::unsigned_integer, 64}}, {DType::u32, {TypeCode::unsigned_integer, 32}},
      {DType::u16, {TypeCode::unsigned_integer, 16}}, {DType::u8, {TypeCode::unsigned_integer, 8}},
      {DType::boolean, {TypeCode::boolean, 8}}};
  ASSERT_EQ(types.size(), static_cast<std::size_t>(dtype_count));
  for (const auto& [dtype, type] : types) {
    Foreign foreign({2, 3});
    foreign.tensor.dtype = type;
    const Tensor tensor = from_dlpack(foreign.tensor);
    EXPECT_EQ(tensor.dtype, dtype) << to_string(dtype);
    EXPECT_EQ(tensor.shape, (Shape{2, 3}));
    EXPECT_EQ(tensor.data, memory.data());
    EXPECT_EQ(tensor.device, Device{});
  }
  // The codes of the specification, as numbers.
  EXPECT_EQ(static_cast<int>(TypeCode::integer), 0);
  EXPECT_EQ(static_cast<int>(TypeCode::unsigned_integer), 1);
  EXPECT_EQ(static_cast<int>(TypeCode::floating_point), 2);
  EXPECT_EQ(static_cast<int>(TypeCode::bfloat), 4);
  EXPECT_EQ(static_cast<int>(TypeCode::boolean), 6);
}

TEST(Dlpack, RefusesOtherTypes) {
  Foreign foreign({2, 3});
  const auto refusal = [&](int code, int bits, int lanes = 1) {
    foreign.tensor.dtype = {static_cast<TypeCode>(code), static_cast<std::uint8_t>(bits),
                            static_cast<std::uint16_t>(lanes)};
    return foreign.refusal();
  };
  const auto elements_of = [](const std::string& type) {
    return "the DLPack tensor holds elements of " + type +
           " (no type of kolo's); convert it, or view it as one of another type";
  };
  EXPECT_EQ(refusal(0, 128), elements_of("int128"));
  EXPECT_EQ(refusal(1, 4), elements_of("uint4"));
  EXPECT_EQ(refusal(2, 8), elements_of("float8"));
  EXPECT_EQ(refusal(4, 32), elements_of("bfloat32"));
  EXPECT_EQ(refusal(5, 64), elements_of("complex64"));
  EXPECT_EQ(refusal(6, 1), elements_of("bool1"));
  EXPECT_EQ(refusal(10, 8), elements_of("type 10 of 8 bits"));
  EXPECT_EQ(refusal(2, 32, 4),
            "the DLPack tensor holds vectors of 4 lanes of float32 (only one lane works); make the lanes a dimension");
  EXPECT_EQ(refusal(2, 32, 0),
            "the DLPack tensor holds vectors of 0 lanes of float32 (only one lane works); make the lanes a dimension");
}

TEST(Dlpack, MapsDevices) {
  Foreign foreign({2});
  const auto device = [&](int type, int id) {
    foreign.tensor.device = {static_cast<DeviceType>(type), id};
    return from_dlpack(foreign.tensor).device;
  };
  EXPECT_EQ(device(1, 0), (Device{DeviceKind::cpu, 0}));
  EXPECT_EQ(device(1, 3), (Device{DeviceKind::cpu, 0})) << "the host has one memory";
  EXPECT_EQ(device(3, 1), (Device{DeviceKind::cpu, 0}));
  EXPECT_EQ(device(2, 0), (Device{DeviceKind::cuda, 0}));
  EXPECT_EQ(device(2, 5), (Device{DeviceKind::cuda, 5}));
  EXPECT_EQ(device(13, 1), (Device{DeviceKind::cuda, 1}));
  foreign.tensor.device = {DeviceType::cuda, -1};
  EXPECT_EQ(foreign.refusal(), "the DLPack tensor lies on CUDA device -1; pass one with a number from 0");
  for (const int type : {0, 4, 10, 17, -2}) {
    foreign.tensor.device = {static_cast<DeviceType>(type), 0};
    EXPECT_EQ(foreign.refusal(),
              fmt::format("the DLPack tensor lies on a device of type {} (only CPU 1, CUDA 2, pinned host 3 "
                          "and CUDA managed 13 work); copy it to the host",
                          type));
  }
}

TEST(Dlpack, ChecksShapes) {
  Foreign scalar(Extents{});
  scalar.tensor.shape = nullptr;
  EXPECT_EQ(from_dlpack(scalar.tensor).shape, Shape{});
  EXPECT_EQ(from_dlpack(scalar.tensor).elements(), 1);
  EXPECT_EQ(from_dlpack(Foreign({1, 2, 1, 2, 1, 2, 1, 2}).tensor).shape, (Shape{1, 2, 1, 2, 1, 2, 1, 2}));
  EXPECT_EQ(Foreign(Extents(9, 1)).refusal(), "the DLPack tensor has 9 dimensions (at most 8 work); reshape it");

  scalar.tensor.ndim = -1;
  EXPECT_EQ(scalar.refusal(), "the DLPack tensor has -1 dimensions; pass 0 for a scalar");
  scalar.tensor.ndim = 2;
  EXPECT_EQ(scalar.refusal(), "the DLPack tensor has 2 dimensions, but its shape is a null pointer; set it");
  EXPECT_EQ(Foreign({3, -1}).refusal(),
            "the DLPack tensor has the shape [3,-1], with a negative extent or too many elements; pass a smaller one");
  EXPECT_EQ(Foreign({std::int64_t{1} << 31, std::int64_t{1} << 31}).refusal(),
            "the DLPack tensor has the shape [2147483648,2147483648], with a negative extent or too many elements; "
            "pass a smaller one");
}

TEST(Dlpack, ChecksStrides) {
  const auto taken = [](Extents shape, Extents strides) {
    return from_dlpack(Foreign(std::move(shape), std::move(strides)).tensor).shape;
  };
  EXPECT_EQ(taken({5, 4}, {4, 1}), (Shape{5, 4}));
  EXPECT_EQ(taken({2, 3, 4}, {12, 4, 1}), (Shape{2, 3, 4}));
  EXPECT_EQ(taken({}, {}), Shape{});
  EXPECT_EQ(taken({5, 1, 4}, {4, -77, 1}), (Shape{5, 1, 4})) << "nobody takes a step along an extent of 1";
  EXPECT_EQ(taken({1}, {0}), Shape{1});
  EXPECT_EQ(taken({5, 0}, {1, 5}), (Shape{5, 0})) << "nobody takes a step in an empty tensor";

  const auto refusal = [](Extents shape, Extents strides) {
    return Foreign(std::move(shape), std::move(strides)).refusal();
  };
  EXPECT_EQ(refusal({5, 4}, {1, 5}),
            "the DLPack tensor has the strides [1,5] (for the shape [5,4] only [4,1] works, row-major "
            "without gaps); make it contiguous");
  EXPECT_EQ(refusal({5, 4}, {8, 1}),
            "the DLPack tensor has the strides [8,1] (for the shape [5,4] only [4,1] works, row-major "
            "without gaps); make it contiguous");
  EXPECT_EQ(refusal({5}, {0}),
            "the DLPack tensor has the strides [0] (for the shape [5] only [1] works, row-major without gaps); "
            "make it contiguous");
  EXPECT_EQ(refusal({5}, {-1}),
            "the DLPack tensor has the strides [-1] (for the shape [5] only [1] works, row-major without gaps); "
            "make it contiguous");
}

TEST(Dlpack, AppliesOffsetsAndWantsAlignment) {
  Foreign foreign({4});
  foreign.tensor.byte_offset = 8;
  EXPECT_EQ(from_dlpack(foreign.tensor).data, memory.data() + 1);
  foreign.tensor.byte_offset = 12;
  EXPECT_EQ(from_dlpack(foreign.tensor).data, reinterpret_cast<std::byte*>(memory.data()) + 12);
  foreign.tensor.byte_offset = 2;
  EXPECT_EQ(foreign.refusal(),
            "the DLPack tensor begins 2 bytes beyond a multiple of 4 (elements of f32 must be aligned; byte_offset "
            "is 2); copy it");
  foreign.tensor.data = reinterpret_cast<std::byte*>(memory.data()) + 3;
  EXPECT_EQ(foreign.refusal(),
            "the DLPack tensor begins 1 byte beyond a multiple of 4 (elements of f32 must be aligned; byte_offset "
            "is 2); copy it");
  foreign.tensor.byte_offset = 1;
  EXPECT_EQ(from_dlpack(foreign.tensor).data, reinterpret_cast<std::byte*>(memory.data()) + 4) << "only the sum counts";
  foreign.tensor.byte_offset = 0;
  foreign.tensor.dtype = {TypeCode::unsigned_integer, 8};
  EXPECT_EQ(from_dlpack(foreign.tensor).data, reinterpret_cast<std::byte*>(memory.data()) + 3);
}

TEST(Dlpack, OnlyEmptyTensorsHaveNoData) {
  Foreign empty({3, 0});
  empty.tensor.data = nullptr;
  empty.tensor.byte_offset = 16;
  EXPECT_EQ(from_dlpack(empty.tensor).data, nullptr);
  EXPECT_EQ(from_dlpack(empty.tensor).elements(), 0);
  Foreign full({3, 1});
  full.tensor.data = nullptr;
  EXPECT_EQ(full.refusal(), "the DLPack tensor has the shape [3,1], but its data is a null pointer; set it");
}

/// A managed tensor of either kind, whose deleter counts; it may be destroyed only when the deleter has been called.
template <class Managed>
struct Counted {
  Counted() {
    managed.dl_tensor.data = memory.data();
    managed.manager_ctx = &deleted;
    managed.deleter = [](Managed* self) { ++*static_cast<int*>(self->manager_ctx); };
    if constexpr (requires { managed.version; }) managed.version = {1, 0};
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  int deleted = 0;
  Managed managed;
};

template <class Managed>
class DlpackOwner : public ::testing::Test {};
using ManagedTypes = ::testing::Types<dlpack::DLManagedTensor, dlpack::DLManagedTensorVersioned>;
TYPED_TEST_SUITE(DlpackOwner, ManagedTypes);

TYPED_TEST(DlpackOwner, CallsTheDeleterOnceWhenItDies) {
  Counted<TypeParam> counted;
  {
    const DlpackTensor owner(&counted.managed);
    EXPECT_EQ(owner.tensor().data, memory.data());
    EXPECT_EQ(owner.tensor().dtype, DType::f32);
    EXPECT_FALSE(owner.read_only());
    EXPECT_EQ(counted.deleted, 0);
  }
  EXPECT_EQ(counted.deleted, 1);
}

TYPED_TEST(DlpackOwner, Moves) {
  static_assert(!std::is_copy_constructible_v<DlpackTensor> && !std::is_copy_assignable_v<DlpackTensor>);
  static_assert(std::is_nothrow_move_constructible_v<DlpackTensor> && std::is_nothrow_move_assignable_v<DlpackTensor>);
  Counted<TypeParam> first, second;
  second.managed.dl_tensor.data = memory.data() + 1;
  {
    DlpackTensor owner(&first.managed);
    DlpackTensor moved(std::move(owner));
    EXPECT_EQ(first.deleted, 0);
    moved = DlpackTensor(&second.managed);
    EXPECT_EQ(first.deleted, 1);
    EXPECT_EQ(second.deleted, 0);
    EXPECT_EQ(moved.tensor().data, memory.data() + 1);
  }
  EXPECT_EQ(first.deleted, 1);
  EXPECT_EQ(second.deleted, 1);
}

TYPED_TEST(DlpackOwner, CallsTheDeleterOfWhatItRefuses) {
  Counted<TypeParam> counted;
  counted.managed.dl_tensor.dtype = {TypeCode::complex, 64};
  EXPECT_EQ(error_text([&] { const DlpackTensor owner(&counted.managed); }, ErrorCode::invalid_argument),
            "the DLPack tensor holds elements of complex64 (no type of kolo's); convert it, or view it as one of "
            "another type");
  EXPECT_EQ(counted.deleted, 1);
}

TYPED_TEST(DlpackOwner, NeedsNoDeleter) {
  Counted<TypeParam> counted;
  counted.managed.deleter = nullptr;
  EXPECT_EQ(DlpackTensor(&counted.managed).tensor().data, memory.data());
  EXPECT_EQ(error_text([] { const DlpackTensor owner(static_cast<TypeParam*>(nullptr)); }, ErrorCode::invalid_argument),
            "the DLPack tensor is a null pointer; pass what the other library exported");
}

TEST(DlpackOwner, TakesOneMajorVersion) {
  for (const std::uint32_t minor : {0u, 1u, 3u, 99u}) {
    Counted<dlpack::DLManagedTensorVersioned> counted;
    counted.managed.version = {1, minor};
    EXPECT_EQ(DlpackTensor(&counted.managed).tensor().data, memory.data());
    EXPECT_EQ(counted.deleted, 1);
  }
  for (const std::uint32_t major : {0u, 2u}) {
    Counted<dlpack::DLManagedTensorVersioned> counted;
    counted.managed.version = {major, 7};
    counted.managed.dl_tensor.ndim = 1000;  // would be refused, and its shape read
    EXPECT_EQ(error_text([&] { const DlpackTensor owner(&counted.managed); }, ErrorCode::invalid_argument),
              fmt::format("the DLPack tensor has version {}.7 (only 1.x works); ask for one with max_version = (1, 2)",
                          major));
    EXPECT_EQ(counted.deleted, 1);
  }
}

TEST(DlpackOwner, KnowsWhatMayNotBeWritten) {
  for (const auto& [flags, read_only] :
       {std::pair<std::uint64_t, bool>{0, false}, {1, true}, {2, false}, {3, true}, {4, false}}) {
    Counted<dlpack::DLManagedTensorVersioned> counted;
    counted.managed.flags = flags;
    EXPECT_EQ(DlpackTensor(&counted.managed).read_only(), read_only) << flags;
  }
}

TEST(Dlpack, ExportsWhatItTakes) {
  for (const DType dtype : all_types) {
    for (const Shape& shape :
         {Shape{}, Shape{5}, Shape{2, 3, 4}, Shape{3, 1}, Shape{0, 7}, Shape{1, 2, 1, 2, 1, 2, 1, 2}}) {
      for (const Device device : {Device{}, Device{DeviceKind::cuda, 3}}) {
        const Tensor tensor{memory.data(), shape, dtype, device};
        const DlpackTensor back(to_dlpack(tensor, nullptr));
        EXPECT_EQ(back.tensor().data, tensor.data);
        EXPECT_EQ(back.tensor().shape, tensor.shape);
        EXPECT_EQ(back.tensor().dtype, tensor.dtype);
        EXPECT_EQ(back.tensor().device, tensor.device);
        EXPECT_FALSE(back.read_only());
      }
    }
  }
}

TEST(Dlpack, ExportsStridesAndAVersion) {
  const DlpackTensor owner = [] {
    auto* managed = to_dlpack({memory.data(), Shape{2, 1, 4}, DType::i16, {DeviceKind::cuda, 1}}, nullptr);
    EXPECT_EQ(managed->version.major, 1u);
    EXPECT_EQ(managed->version.minor, 2u);
    EXPECT_EQ(managed->flags, 0u);
    const dlpack::DLTensor& tensor = managed->dl_tensor;
    EXPECT_EQ(tensor.byte_offset, 0u);
    EXPECT_EQ(tensor.device.device_type, DeviceType::cuda);
    EXPECT_EQ(tensor.device.device_id, 1);
    EXPECT_EQ(tensor.dtype.bits, 16);
    EXPECT_EQ(tensor.dtype.lanes, 1);
    EXPECT_EQ(Extents(tensor.shape, tensor.shape + tensor.ndim), (Extents{2, 1, 4}));
    EXPECT_EQ(Extents(tensor.strides, tensor.strides + tensor.ndim), (Extents{4, 4, 1}));
    return DlpackTensor(managed);
  }();
  EXPECT_EQ(owner.tensor().shape, (Shape{2, 1, 4}));
}

TEST(Dlpack, WhatIsExportedLivesUntilItIsDeleted) {
  auto values = std::make_shared<std::vector<float>>(12, 3.0f);
  std::weak_ptr<std::vector<float>> alive = values;
  auto* managed = to_dlpack(view(*values), values);
  values.reset();
  ASSERT_FALSE(alive.expired());
  EXPECT_EQ(static_cast<float*>(managed->dl_tensor.data)[11], 3.0f);
  managed->deleter(managed);
  EXPECT_TRUE(alive.expired());
}

TEST(Dlpack, ExportsNothingThatCannotBe) {
  const auto refusal = [](const Tensor& tensor) {
    return error_text([&] { (void)to_dlpack(tensor, nullptr); }, ErrorCode::invalid_argument);
  };
  EXPECT_EQ(refusal({memory.data(), Shape{2, -1}, DType::f32, {}}),
            "cannot export a tensor of shape [2,-1] (a negative extent, too many elements, or more than 8 dimensions)");
  EXPECT_EQ(refusal({nullptr, Shape{2}, DType::f32, {}}),
            "cannot export a tensor whose memory is a null pointer (its shape is [2])");
}

}  // namespace
}  // namespace kolo
