#include "models/checkpoint.h"

#include <gtest/gtest.h>

#include "tests/models_testing.h"

namespace kolo::models {
namespace {

using testing::BoundMlp;
using testing::error_of;
using testing::TempFolder;

TEST(Checkpoint, RoundTripBitForBit) {
  const TempFolder folder;
  const BoundMlp saved({5, 4, 3}, 1);
  save_parameters(folder / "x", saved.model);
  BoundMlp loaded({5, 4, 3}, 2);
  load_parameters(SafetensorsFile(folder / "x"), loaded.model);
  EXPECT_EQ(loaded.values, saved.values);
  save_parameters(folder / "y", loaded.model);
  EXPECT_EQ(testing::read_file(folder / "x"), testing::read_file(folder / "y"));
}

TEST(Checkpoint, SizesFromShapes) {
  const TempFolder folder;
  save_parameters(folder / "x", BoundMlp({5, 4, 7, 3}).model);
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
