#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "models/cnn.h"
#include "models/data/dataset.h"
#include "models/llama/pretrained.h"
#include "models/optim/optimizer.h"
#include "tests/models/models_testing.h"
#include "tests/support/environment.h"

// Against numbers made with PyTorch; tolerances as the README beside them states.

namespace kolo::models {
namespace {

using testing::ignore_ready;
using BoundCnn = testing::Bound<Cnn>;

constexpr std::int64_t batch_size = 32;

class GoldenCnn : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto shared = testing::shared_dir();
    if (shared.empty()) GTEST_SKIP() << "no reference numbers on this machine (KOLO_SHARED_DIR)";
    folder_ = shared / "golden" / "cnn";
    data_ = read_idx(shared / "data/t10k-images-idx3-ubyte.gz", shared / "data/t10k-labels-idx1-ubyte.gz");
    trace_ = nlohmann::json::parse(testing::read_file(folder_ / "trace.json"));
  }

  /// The reference model, with the values of one of the files.
  std::unique_ptr<BoundCnn> model(const std::string& name) const {
    const Pretrained pretrained(folder_ / (name + ".safetensors"));
    ModelSettings settings;
    EXPECT_EQ(pretrained.model(), "cnn");
    pretrained.settings(settings);
    auto cnn = std::make_unique<BoundCnn>(settings.cnn);
    pretrained.load(cnn->model);
    return cnn;
  }

  std::filesystem::path folder_;
  Dataset data_;
  nlohmann::json trace_;
};

TEST_F(GoldenCnn, LogitsLossAndGradients) {
  const auto cnn = model("model"), expected = model("grads");
  testing::ImageBatches loader(data_);
  const Batch batch = loader.load({0, batch_size});
  const SafetensorsFile stored(folder_ / "logits.safetensors");
  std::vector<float> logits(batch_size * 10);
  stored.read(*stored.find("logits"), logits);
  EXPECT_LT(testing::relative_difference(cnn->model.logits(batch), logits), 1e-5);

  const BatchResult result = cnn->model.forward_backward(batch, ignore_ready);
  EXPECT_NEAR(result.loss_sum / batch_size / trace_["loss"].get<double>(), 1, 2e-5);
  for (float& value : cnn->gradients) value /= batch_size;
  for (std::size_t i = 0; i < cnn->model.parameters().size(); ++i) {
    const Parameter& parameter = cnn->model.parameters()[i];
    EXPECT_LT(testing::relative_difference(testing::floats_of(parameter.gradient),
                                           testing::floats_of(expected->model.parameters()[i].value)),
              1e-5)
        << parameter.name;
  }
}

TEST_F(GoldenCnn, TenStepsOfSgd) {
  const auto cnn = model("model"), start = model("model"), end = model("after_10_sgd");
  const auto losses = trace_["sgd"].get<std::vector<double>>();
  testing::ImageBatches loader(data_);
  Sgd sgd(cnn->model.parameters(), 0.9);
  for (std::int64_t step = 0; step < 10; ++step) {
    const double loss =
        cnn->model.forward_backward(loader.load({step * batch_size, batch_size}), ignore_ready).loss_sum / batch_size;
    EXPECT_NEAR(loss / losses[static_cast<std::size_t>(step)], 1, 2e-5) << step;
    sgd.step(0.05, 1.0 / batch_size);
  }
  for (std::size_t i = 0; i < start->values.size(); ++i) {
    cnn->values[i] -= start->values[i];
    end->values[i] -= start->values[i];
  }
  EXPECT_LT(testing::relative_difference(cnn->values, end->values), 1e-4);
}

}  // namespace
}  // namespace kolo::models
