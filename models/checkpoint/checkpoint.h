#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "models/checkpoint/safetensors.h"
#include "models/compute/views.h"
#include "models/model/model.h"
#include "models/model/settings.h"

namespace kolo::models {

/// Reads every value of a bound model from a file, by name. Errors: ModelError naming the parameters that the file
/// lacks, the tensors that the model lacks, and those of another shape; or a tensor that holds a number that is not
/// finite (in f32), or cannot be read. Then no value was touched.
void load_parameters(const SafetensorsFile& file, Model& model);

/// The same from several files that hold parts of the parameters; errors name `path`.
///
/// ignored  whether a tensor of that name that the model lacks is left out; empty: none is
void load_parameters(std::span<const SafetensorsFile> files, const std::filesystem::path& path, Model& model,
                     const std::function<bool(std::string_view)>& ignored = {});

/// The check of load_parameters() for tensors that errors say are in `path`: each parameter's name and shape is there
/// once, and nothing else but what is ignored.
void check_tensors(std::span<const StoredTensor> stored, const std::filesystem::path& path,
                   std::span<const Parameter> parameters, const std::function<bool(std::string_view)>& ignored = {});

/// A tensor and the file that holds it; null if none has it.
struct Found {
  const SafetensorsFile* file = nullptr;
  const StoredTensor* tensor = nullptr;
};
Found find_in(std::span<const SafetensorsFile> files, std::string_view name);

/// The values of a bound model on the host, by their parameters' names: to be written. Views of the model's own memory,
/// and copies of what lies elsewhere.
class HostValues {
 public:
  explicit HostValues(Model& model);
  std::span<const NamedValues> all() const { return named_; }

 private:
  std::vector<OnHost> memory_;
  std::vector<NamedValues> named_;
};

/// Writes every value of a bound model, under the parameters' names. Errors: as write_safetensors.
void save_parameters(const std::filesystem::path& path, Model& model);

/// Sizes of the MLP whose "layers.0.weight", "layers.1.weight", … a file holds. Errors: ModelError if it holds none, or
/// if one layer's outputs are not the next one's inputs.
std::vector<std::int64_t> mlp_sizes(const SafetensorsFile& file);

/// Sizes of the CNN whose "conv1.weight", "dense1.weight", "dense2.weight" a file holds; of the image the file
/// determines only the number of places after the pooling: height and width stay as given if they fit, else the image
/// is square. Errors: ModelError if it holds none.
CnnSettings cnn_sizes(const SafetensorsFile& file, CnnSettings given);

}  // namespace kolo::models
