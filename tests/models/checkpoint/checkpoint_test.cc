#include "models/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <limits>

#include "tests/models/models_testing.h"

namespace kolo::models {
namespace {

using testing::BoundMlp;
using testing::error_of;
using testing::TempFolder;

TEST(Checkpoint, RoundTripBitForBit) {
  const TempFolder folder;
  BoundMlp saved({5, 4, 3}, 1);
  save_parameters(folder / "x", saved.model);
  BoundMlp loaded({5, 4, 3}, 2);
  load_parameters(SafetensorsFile(folder / "x"), loaded.model);
  EXPECT_EQ(loaded.values, saved.values);
  save_parameters(folder / "y", loaded.model);
  EXPECT_EQ(testing::read_file(folder / "x"), testing::read_file(folder / "y"));
}

TEST(Checkpoint, SizesFromShapes) {
  const TempFolder folder;
  BoundMlp saved({5, 4, 7, 3});
  save_parameters(folder / "x", saved.model);
  EXPECT_EQ(mlp_sizes(SafetensorsFile(folder / "x")), (std::vector<std::int64_t>{5, 4, 7, 3}));
  const std::vector<float> values(12);
  const auto error = [&](const std::vector<NamedValues>& tensors) {
    write_safetensors(folder / "y", tensors);
    return error_of([&] { mlp_sizes(SafetensorsFile(folder / "y")); }, folder.path());
  };
  EXPECT_EQ(error({{"conv.weight", {12}, values}}),
            "DIR/y holds no MLP (there is no 'layers.0.weight'); give a file of an MLP's parameters");
  EXPECT_EQ(error({{"layers.0.weight", {12}, values}}),
            "DIR/y holds no MLP ('layers.0.weight' has shape [12]); give a file of an MLP's parameters");
  EXPECT_EQ(error({{"layers.0.weight", {3, 4}, values}, {"layers.1.weight", {2, 6}, values}}),
            "DIR/y holds no MLP ('layers.1.weight' has shape [2,6] behind a layer of 3 units); give a file of an MLP's "
            "parameters");
}

TEST(Checkpoint, NamesWhatDoesNotFit) {
  const TempFolder folder;
  BoundMlp mlp({5, 4, 3});
  const AlignedFloats before = mlp.values;
  const std::vector<float> values(20);
  const std::vector<NamedValues> tensors{{"layers.0.weight", {4, 5}, values},
                                         {"layers.0.bias", {4}, std::span(values).first(4)},
                                         {"layers.1.weight", {4, 3}, std::span(values).first(12)},
                                         {"extra", {1}, std::span(values).first(1)}};
  write_safetensors(folder / "x", tensors);
  EXPECT_EQ(
      error_of([&] { load_parameters(SafetensorsFile(folder / "x"), mlp.model); }, folder.path()),
      "DIR/x does not fit the model (missing: 'layers.1.bias'; wrong shape: 'layers.1.weight' is [4,3] instead of "
      "[3,4]; not in the model: 'extra'); give a file of this model's parameters");
  EXPECT_EQ(mlp.values, before);
}

TEST(Checkpoint, ANumberThatIsNoneLeavesAllAsItWas) {
  const TempFolder folder;
  BoundMlp mlp({5, 4, 3}, 1), bad({5, 4, 3}, 2);
  testing::floats_of(bad.model.parameters().back().value).back() = std::numeric_limits<float>::infinity();
  save_parameters(folder / "x", bad.model);
  const AlignedFloats before = mlp.values;
  EXPECT_EQ(error_of([&] { load_parameters(SafetensorsFile(folder / "x"), mlp.model); }, folder.path()),
            "DIR/x holds numbers that are infinite or NaN (1 of the 3 of 'layers.1.bias'); give a file of "
            "sound parameters");
  EXPECT_EQ(mlp.values, before);
}

/// Files of 16-bit numbers, written by hand: 1, -2.5, 0.15625 are the same in both.
TEST(Checkpoint, LoadsNumbersOf16Bits) {
  const TempFolder folder;
  const auto write = [&](const std::string& dtype, const std::array<std::uint16_t, 3>& numbers) {
    std::string header = R"({"layers.0.weight":{"dtype":")" + dtype + R"(","shape":[1,2],"data_offsets":[0,4]},)" +
                         R"("layers.0.bias":{"dtype":")" + dtype + R"(","shape":[1],"data_offsets":[4,6]}})";
    std::string file(8, '\0');
    const std::uint64_t bytes = header.size();
    std::memcpy(file.data(), &bytes, sizeof bytes);
    file += header + std::string(reinterpret_cast<const char*>(numbers.data()), 6);
    testing::write_file(folder / dtype, file);
  };
  write("F16", {0x3c00, 0xc100, 0x3100});
  write("BF16", {0x3f80, 0xc020, 0x3e20});
  for (const std::string dtype : {"F16", "BF16"}) {
    BoundMlp mlp({2, 1});
    load_parameters(SafetensorsFile(folder / dtype), mlp.model);
    EXPECT_EQ(mlp.values, (AlignedFloats{1, -2.5, 0.15625})) << dtype;
  }
}

TEST(Checkpoint, ListsTheFirstOfManyNames) {
  const TempFolder folder;
  BoundMlp mlp({5, 4, 4, 3});
  write_safetensors(folder / "x", {});
  EXPECT_EQ(
      error_of([&] { load_parameters(SafetensorsFile(folder / "x"), mlp.model); }, folder.path()),
      "DIR/x does not fit the model (missing: 'layers.0.weight', 'layers.0.bias', 'layers.1.weight', 'layers.1.bias', "
      "...); give a file of this model's parameters");
}

}  // namespace
}  // namespace kolo::models
