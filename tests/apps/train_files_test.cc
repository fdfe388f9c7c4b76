// What --save writes, file or folder, and what --init takes from it.

#include <unistd.h>

#include <map>

#include <kolo/float16.h>

#include "tests/apps/train_testing.h"

namespace kolo::testing {
namespace {

namespace fs = std::filesystem;

class TrainFiles : public ::testing::Test {
 protected:
  void SetUp() override { write_file(folder_ / "text", std::string(3000, 'a') + std::string(3000, 'b')); }

  std::string path(std::string_view name) const { return fmt::format("'{}'", (folder_ / name).string()); }
  std::string llama(const std::string& flags) const {
    return "--model llama --batch 2 --seq 16 --data " + path("text") + " " + flags;
  }
  void run(const std::string& flags) {
    const auto done = train(folder_, 0, flags);
    ASSERT_EQ(done.code, 0) << flags << ": " << done.err;
  }
  std::string problem(const std::string& flags) {
    const auto done = train(folder_, 0, flags);
    EXPECT_EQ(done.code, 1) << flags;
    const auto problems = done.problems();
    return problems.size() == 1 ? without_folder(problems.front()) : done.err;
  }
  std::string without_folder(std::string text) const { return without(folder_, std::move(text)); }
  std::vector<std::string> names_in(std::string_view name) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_ / name)) names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    return names;
  }
  nlohmann::json config_of(std::string_view name) const {
    return nlohmann::json::parse(read_file(folder_ / name / "config.json"));
  }

  TempFolder folder_;
};

using Names = std::vector<std::string>;

TEST_F(TrainFiles, EachModelAsAFolderAndBack) {
  const std::map<std::string, std::string> flags{
      {"mlp", "--model mlp --sizes 784,20,11 --steps 2 "},
      {"cnn", "--model cnn --filters 4 --dense 6 --sync-batch-norm --steps 2 "},
      {"llama", llama("--preset tiny --tied-head --rope-theta 20000 --norm-eps 1e-4 --steps 2 ")}};
  for (const auto& [model, train_it] : flags) {
    SCOPED_TRACE(model);
    run(train_it + "--save " + path(model));
    run(train_it + "--save " + path(model + ".safetensors"));
    EXPECT_EQ(names_in(model), model == "llama" ? (Names{"config.json", "generation_config.json", "model.safetensors"})
                                                : (Names{"config.json", "model.safetensors"}));
    const models::SafetensorsFile in_folder(folder_ / model / "model.safetensors");
    EXPECT_EQ(in_folder.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
    const models::SafetensorsFile file(folder_ / (model + ".safetensors"));
    EXPECT_EQ(nlohmann::json::parse(file.metadata().at("config.json")), config_of(model));
    const std::string data = model == "llama" ? llama("") : "--model " + model + " ";
    for (const std::string& from : {model, model + ".safetensors"}) {
      run(data + "--steps 0 --init " + path(from) + " --save " + path("again"));
      EXPECT_EQ(read_file(folder_ / "again/model.safetensors"), read_file(folder_ / model / "model.safetensors"));
      EXPECT_EQ(config_of("again"), config_of(model));
    }
  }
}

TEST_F(TrainFiles, Bf16IsRoundedOnce) {
  const std::string flags = "--sizes 784,20,10 --steps 2 --save ";
  run(flags + path("exact"));
  run(flags + path("rounded") + " --save-dtype bf16");
  const models::SafetensorsFile exact(folder_ / "exact/model.safetensors");
  const models::SafetensorsFile rounded(folder_ / "rounded/model.safetensors");
  for (const models::StoredTensor& tensor : exact.tensors()) {
    const models::StoredTensor& other = *rounded.find(tensor.name);
    EXPECT_EQ(other.dtype, "BF16");
    std::vector<float> before((tensor.end - tensor.begin) / 4), after(before.size());
    exact.read(tensor, before);
    rounded.read(other, after);
    for (std::size_t i = 0; i < before.size(); ++i)
      ASSERT_EQ(after[i], to_float(to_bfloat16(before[i]))) << tensor.name;
  }
  EXPECT_EQ(problem("--save x --save-dtype f16"), "--save-dtype is 'f16'; it takes f32 or bf16");
  EXPECT_EQ(problem("--save-dtype bf16"), "--save-dtype needs --save DIR_OR_FILE; add it");
}

/// Heads, theta and epsilon cannot be seen in shapes; a file says them.
TEST_F(TrainFiles, AFileSaysItsSizes) {
  run(llama("--preset tiny --rope-theta 20000 --norm-eps 1e-4 --steps 1 --save " + path("a.safetensors")));
  const std::string from = llama("--steps 0 --init " + path("a.safetensors") + " ");
  run(from + "--heads 4 --kv-heads 2 --rope-theta 20000 --norm-eps 1e-4");
  const auto refused = [&](const std::string& flag, const std::string& held) {
    const std::string name = flag.substr(0, flag.find(' '));
    EXPECT_EQ(problem(from + flag),
              flag + " contradicts --init DIR/a.safetensors (which holds " + held + "); leave " + name + " out");
  };
  refused("--heads 2", "4");
  refused("--kv-heads 1", "2");
  refused("--rope-theta 10000", "20000");
  refused("--norm-eps 1e-05", "0.0001");
  EXPECT_EQ(
      problem(from + "--preset tiny"),
      "--preset tiny (--rope-theta 10000) contradicts --init DIR/a.safetensors (which holds 20000); leave --preset "
      "out");
  run(llama("--preset tiny --heads 2 --steps 0 --save " + path("other")));
  fs::copy(folder_ / "other/config.json", folder_ / "config.json");
  EXPECT_EQ(problem(from),
            "cannot use DIR/config.json (DIR/a.safetensors says otherwise: heads 4 and not 2, rope-theta 20000 and not "
            "10000, norm-eps 0.0001 and not 1e-05); give the config.json of that file, or the file alone");
}

/// Known before the training, and nothing is touched.
TEST_F(TrainFiles, FoldersThatCannotBeReplaced) {
  const std::string flags = "--sizes 784,10 --steps 1 --save ";
  const std::string advice = "name a new folder, or a file that ends in .safetensors";
  fs::create_directory(folder_ / "full");
  write_file(folder_ / "full/letter.txt", "dear");
  EXPECT_EQ(problem(flags + path("full")),
            "cannot write DIR/full (it holds 'letter.txt', which is no file of a model); " + advice);
  EXPECT_EQ(read_file(folder_ / "full/letter.txt"), "dear");
  EXPECT_EQ(problem(flags + path("text")), "cannot write DIR/text (it is a file); " + advice);
  EXPECT_EQ(problem(flags + path("text/x")).substr(0, 24), "cannot write DIR/text/x ");
  for (const std::string output : {"--log", "--plot", "--checkpoint", "--tensorboard"}) {
    EXPECT_EQ(
        problem(flags + path("new") + " " + output + " " + path("new/x")),
        output + " DIR/new/x is in the folder of --save DIR/new, which is for the model alone; name another place");
  }
  if (::geteuid() != 0) {
    fs::create_directory(folder_ / "closed");
    fs::permissions(folder_ / "closed", fs::perms::owner_read | fs::perms::owner_exec);
    EXPECT_EQ(problem(flags + path("closed/x")),
              "cannot write DIR/closed/x (Permission denied); name a file in a folder that is writable and has room");
  }
  EXPECT_FALSE(fs::exists(folder_ / "new"));
}

/// An older model gives way to a newer one as a whole; a link to it stays one.
TEST_F(TrainFiles, AnOlderModelIsReplaced) {
  run("--sizes 784,12,10 --steps 0 --save " + path("m"));
  write_file(folder_ / "m/model-00001-of-00009.safetensors", "of an older one");
  write_file(folder_ / "m/tokenizer.json", "{}");
  fs::create_directory_symlink("m", folder_ / "link");
  run("--sizes 784,10 --steps 0 --save " + path("link/"));
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(names_in("m"), (Names{"config.json", "model.safetensors"}));
  EXPECT_EQ(config_of("m")["sizes"], (std::vector<int>{784, 10}));
  fs::create_directory(folder_ / "empty");
  run("--sizes 784,10 --steps 0 --save " + path("empty"));
  EXPECT_EQ(names_in("empty"), (Names{"config.json", "model.safetensors"}));
}

TEST_F(TrainFiles, AFullDiskLeavesTheOlderFolder) {
  run("--sizes 784,10 --steps 0 --save " + path("m"));
  const std::string before = read_file(folder_ / "m/model.safetensors");
  const auto done = run_shell(
      folder_, fmt::format("ulimit -f 32; {} --sizes 784,128,10 --steps 1 --save {}", kolo_train(0), path("m")));
  EXPECT_EQ(done.code, 1);
  ASSERT_EQ(done.problems().size(), 1u) << done.err;
  EXPECT_EQ(
      without_folder(done.problems()[0]),
      "cannot write DIR/.writing-m/model.safetensors (File too large); name a file in a folder that is writable and "
      "has room");
  EXPECT_EQ(read_file(folder_ / "m/model.safetensors"), before);
  EXPECT_EQ(config_of("m")["sizes"], (std::vector<int>{784, 10}));
  EXPECT_FALSE(fs::exists(folder_ / ".writing-m"));
}

/// Those of the first batch, by the model's own evaluation: their cross-entropy is the loss.
TEST_F(TrainFiles, LogitsOfHeldOutSequences) {
  write_file(folder_ / "val", read_file(folder_ / "text").substr(2980, 33));  // two sequences of 16
  run(llama("--preset tiny --steps 3 --save " + path("m")));
  for (const int ranks : {0, 2}) {
    const auto done = train(folder_, ranks,
                            llama("--init " + path("m") + " --val " + path("val") + " --eval-only --logits " +
                                  path("l.safetensors") + " --log " + path("log")));
    ASSERT_EQ(done.code, 0) << done.err;
    const models::SafetensorsFile file(folder_ / "l.safetensors");
    const models::StoredTensor& tensor = *file.find("logits");
    ASSERT_EQ(tensor.shape, (std::vector<std::uint64_t>{2, 16, 256}));
    std::vector<float> logits(2 * 16 * 256);
    file.read(tensor, logits);
    const std::string text = read_file(folder_ / "val");
    double loss = 0;
    for (std::size_t at = 0; at < 32; ++at) {
      double sum = 0;
      for (std::size_t token = 0; token < 256; ++token) sum += std::exp(static_cast<double>(logits[at * 256 + token]));
      loss += std::log(sum) - logits[at * 256 + static_cast<unsigned char>(text[at + 1])];
    }
    EXPECT_NEAR(events_in(folder_ / "log", "eval").at(0)["loss"].get<double>(), loss / 32, 1e-5);
  }
  EXPECT_EQ(problem(llama("--preset tiny --logits x")), "--logits needs --eval-only; add it");
  EXPECT_EQ(problem(llama("--preset tiny --eval-only --order sequential --logits " + path("x"))),
            "--logits is of held-out sequences, and there are none; give --val a file");
  EXPECT_EQ(problem("--eval-only --logits x"), "--logits means nothing to --model mlp (it is for llama); leave it out");
}

TEST_F(TrainFiles, ClassesComeFromTheData) {
  const auto put = [&](const std::string& set, int labels) {
    std::string images{0, 0, 8, 3, 0, 0, 0, 40, 0, 0, 0, 6, 0, 0, 0, 6}, of_images{0, 0, 8, 1, 0, 0, 0, 40};
    for (int i = 0; i < 40; ++i) {
      images += std::string(36, static_cast<char>(i));
      of_images += static_cast<char>(i % labels);
    }
    write_file(folder_ / "data" / (set + "-images-idx3-ubyte"), images);
    write_file(folder_ / "data" / (set + "-labels-idx1-ubyte"), of_images);
  };
  fs::create_directory(folder_ / "data");
  put("train", 25);
  put("t10k", 26);
  const std::string data = "--data " + path("data") + " --steps 2 --batch 20 ";
  run(data + "--save " + path("mlp"));
  EXPECT_EQ(config_of("mlp")["sizes"], (std::vector<int>{36, 1024, 1024, 26}));
  run(data + "--model cnn --filters 2 --dense 4 --save " + path("cnn"));
  EXPECT_EQ(config_of("cnn")["classes"], 26);
  EXPECT_EQ(
      problem(data + "--sizes 36,25"),
      "sizes 36,25 do not fit the data (36 inputs and 26 classes); the first size must be 36, the last at least 26");
  put("train", 3);
  put("t10k", 3);  // fewer than the model knows
  for (const std::string model : {"mlp", "cnn"}) run(data + "--model " + model + " --init " + path(model));
}

}  // namespace
}  // namespace kolo::testing
