#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "models/checkpoint/safetensors.h"
#include "models/model/model.h"
#include "models/model/settings.h"

namespace kolo::models {

/// Reads every value of a bound model from a file, by name. Errors: ModelError naming the parameters that the file
/// lacks, the tensors that the model lacks, and those of another shape; or a tensor that holds a number that is not
/// finite (in f32), or cannot be read. Then no value was touched.
void load_parameters(const SafetensorsFile& file, const Model& model);

/// The same from several files that hold parts of the parameters; errors name `path`.
void load_parameters(std::span<const SafetensorsFile> files, const std::filesystem::path& path, const Model& model);

/// Writes every value of a bound model, under the parameters' names. Errors: as write_safetensors.
void save_parameters(const std::filesystem::path& path, const Model& model);

/// Sizes of the MLP whose "layers.0.weight", "layers.1.weight", … a file holds. Errors: ModelError if it holds none, or
/// if one layer's outputs are not the next one's inputs.
std::vector<std::int64_t> mlp_sizes(const SafetensorsFile& file);

/// Sizes of the CNN whose "conv1.weight", "dense1.weight", "dense2.weight" a file holds; of the image the file
/// determines only the number of places after the pooling: height and width stay as given if they fit, else the image
/// is square. Errors: ModelError if it holds none.
CnnSettings cnn_sizes(const SafetensorsFile& file, CnnSettings given);

}  // namespace kolo::models
