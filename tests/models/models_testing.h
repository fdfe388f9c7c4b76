#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/compute/buffer.h"
#include "models/compute/random.h"
#include "models/data/images.h"
#include "models/mlp.h"
#include "models/model/model.h"
#include "models/util/error.h"
#include "tests/support/environment.h"

namespace kolo::testing {

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The text of the ModelError that `call` throws, with `folder` in it replaced by "DIR"; "no error" if it throws none.
template <class Call>
std::string error_of(Call call, const std::filesystem::path& folder = {}) {
  try {
    call();
  } catch (const models::ModelError& error) {
    std::string text = error.what();
    for (std::size_t at = 0; !folder.empty() && (at = text.find(folder.string())) != std::string::npos;) {
      text.replace(at, folder.string().size(), "DIR");
    }
    return text;
  }
  return "no error";
}

/// The numbers of an f32 tensor of the host.
inline std::span<float> floats_of(const Tensor& tensor) {
  return {static_cast<float*>(tensor.data), static_cast<std::size_t>(tensor.elements())};
}

inline std::size_t size_of_values(const models::Model& model) {
  return static_cast<std::size_t>(value_elements(model));
}
inline std::size_t size_of_gradients(const models::Model& model) {
  return static_cast<std::size_t>(gradient_elements(model));
}

/// A model with storage and its first weights.
template <class M>
struct Bound {
  template <class... Arguments>
  explicit Bound(Arguments&&... arguments)
      : model(std::forward<Arguments>(arguments)...),
        values(size_of_values(model)),
        gradients(size_of_gradients(model)) {
    model.bind(view(std::span(values)), view(std::span(gradients)));
    model.initialise(1);
  }

  M model;
  models::AlignedFloats values, gradients;
};

struct BoundMlp : Bound<models::Mlp> {
  explicit BoundMlp(std::vector<std::int64_t> sizes, std::uint64_t seed = 1) : Bound(std::move(sizes)) {
    model.initialise(seed);
  }
};

/// Random examples for a model of these inputs and classes.
struct RandomExamples {
  RandomExamples(std::int64_t count, std::int64_t width, std::uint64_t classes) : inputs_each(width) {
    models::Random random(5);
    for (std::int64_t i = 0; i < count * width; ++i) inputs.push_back(random.uniform());
    for (std::int64_t i = 0; i < count; ++i) targets.push_back(static_cast<std::int32_t>(random.below(classes)));
  }
  models::Batch batch(std::int64_t first, std::int64_t count) const {
    const auto from = static_cast<std::size_t>(first), number = static_cast<std::size_t>(count);
    const auto width = static_cast<std::size_t>(inputs_each);
    return {.examples = count,
            .inputs = std::span(inputs).subspan(from * width, number * width),
            .targets = std::span(targets).subspan(from, number)};
  }

  std::int64_t inputs_each;
  std::vector<float> inputs;
  std::vector<std::int32_t> targets;
};

/// Batches of a data set's images; each is valid until the next.
class ImageBatches {
 public:
  explicit ImageBatches(const models::Dataset& data) : images_(data) {}

  models::Batch gather(std::span<const std::int64_t> examples) {
    images_.gather(examples, 0, storage_);
    return storage_.view();
  }
  models::Batch load(const models::Range& range) {
    std::vector<std::int64_t> examples(static_cast<std::size_t>(range.count));
    std::iota(examples.begin(), examples.end(), range.first);
    return gather(examples);
  }

 private:
  models::Images images_;
  models::BatchStorage storage_;
};

/// The 2-norm of a - b over that of b.
inline double relative_difference(std::span<const float> a, std::span<const float> b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

inline void ignore_ready(std::size_t) {}

}  // namespace kolo::testing
