// The model that models/README.md walks through, in a kolo-train that was built as it says.

#include <fmt/format.h>

#include <array>

#include "models/checkpoint/manifest.h"
#include "tests/apps/train_testing.h"

namespace kolo::testing {
namespace {

class TrainReadme : public ::testing::Test {
 protected:
  std::string path(std::string_view name) const { return fmt::format("'{}'", (folder_ / name).string()); }
  Finished run(int ranks, const std::string& flags) {
    auto done = train(folder_, ranks, "--model lenet --batch 16 " + flags);
    EXPECT_EQ(done.code, 0) << flags << ": " << done.err;
    return done;
  }
  std::string problem(const std::string& flags) {
    const auto done = train(folder_, 0, flags);
    EXPECT_EQ(done.code, 1) << flags;
    return done.problems().size() == 1 ? without(folder_, done.problems()[0]) : done.err;
  }

  TempFolder folder_;
};

TEST_F(TrainReadme, IsKnownByItsNameAndItsFlag) {
  const auto help = train(folder_, 0, "--help");
  EXPECT_NE(help.out.find("lenet: width of the hidden layer (default: 120)"), std::string::npos) << help.out;
  EXPECT_EQ(problem("--model alexnet"),
            "--model: unknown model 'alexnet' (known: convnet, lenet, decoder, mlp); choose one of them");
  EXPECT_EQ(problem("--features 9"), "--features means nothing to --model mlp (it is for lenet); leave it out");
  EXPECT_EQ(problem("--model lenet --features 0"), "--features is '0'; it takes a whole number from 1 to 16777216");
  EXPECT_EQ(problem("--model lenet --filters 3"),
            "--filters means nothing to --model lenet (it is for convnet); leave it out");
}

TEST_F(TrainReadme, LearnsOnTwoRanks) {
  for (const std::string flags : {"", "--optimizer adamw --precision bf16 --zero 1 --clip 1 --schedule cosine"}) {
    SCOPED_TRACE(flags);
    const auto done = run(2, "--steps 150 --log " + path("log") + " " + flags);
    EXPECT_NE(done.out.find("model     lenet, 51902 parameters, seed 1\n"), std::string::npos) << done.out;
    const auto losses = losses_in(folder_ / "log");
    ASSERT_EQ(losses.size(), 150u);
    EXPECT_LT(losses.back(), 0.5 * losses.front());
  }
  EXPECT_NE(run(0, "--steps 0").out.find("sgd, lr 0.05"), std::string::npos) << "the recipe of its row";
}

TEST_F(TrainReadme, ResumesWithTheSameBits) {
  const std::string flags = "--features 20 --save " + path("m.safetensors") + " --steps ";
  run(2, flags + "6");
  const std::string whole = read_file(folder_ / "m.safetensors");
  run(2, flags + "3 --checkpoint " + path("run"));
  EXPECT_NE(read_file(folder_ / "m.safetensors"), whole);
  run(2, flags + "6 --resume --checkpoint " + path("run"));
  EXPECT_EQ(read_file(folder_ / "m.safetensors"), whole);
}

TEST_F(TrainReadme, StartsFromWhatItSaved) {
  run(2, "--features 20 --steps 2 --save " + path("m.safetensors"));
  run(0, "--steps 0 --init " + path("m.safetensors") + " --save " + path("m"));
  const auto config = nlohmann::json::parse(read_file(folder_ / "m/config.json"));
  EXPECT_EQ(config, (nlohmann::json{{"model_type", "kolo_lenet"}, {"features", 20}}));
  run(2, "--steps 2 --init " + path("m") + " --save " + path("more.safetensors"));
  EXPECT_GT(apart(folder_ / "more.safetensors", folder_ / "m.safetensors", folder_ / "m.safetensors"), 0);
  EXPECT_EQ(problem("--model lenet --features 21 --init " + path("m.safetensors")),
            "--features 21 contradicts --init DIR/m.safetensors (which holds 20); leave --features out");
  ASSERT_EQ(train(folder_, 0, "--sizes 784,10 --steps 0 --save " + path("mlp.safetensors")).code, 0);
  EXPECT_EQ(problem("--model lenet --init " + path("mlp.safetensors")),
            "DIR/mlp.safetensors holds a model of the kind mlp; say --model mlp, or give another --init");
  for (const char* const mine : {"m", "m.safetensors"}) {
    EXPECT_EQ(problem(fmt::format("--model mlp --init {}", path(mine))),
              fmt::format("DIR/{} holds a model of the kind lenet; say --model lenet, or give another --init", mine));
  }
  const std::vector<float> number(1);
  const models::NamedValues one{"of somebody", Shape{1}, number};
  models::write_safetensors(folder_ / "other.safetensors", {&one, 1});
  EXPECT_EQ(problem("--model lenet --init " + path("other.safetensors")),
            "DIR/other.safetensors holds no model of the kind lenet (its tensors do not say --features); give another "
            "--init");
}

/// What was written when the kind had another name. Its row says which ones it had.
TEST_F(TrainReadme, GoesOnWithWhatHadItsFormerName) {
  const auto change = [&](std::string_view name, std::string_view text, std::string_view instead) {
    std::string changed = read_file(folder_ / name);
    const auto at = changed.find(text);
    ASSERT_NE(at, changed.npos) << changed;
    write_file(folder_ / name, changed.replace(at, text.size(), instead));
  };
  const std::string flags = "--features 20 --steps ";
  run(0, flags + "2 --checkpoint " + path("run") + " --save " + path("m"));
  change("m/config.json", "kolo_lenet", "kolo_lenet1");
  EXPECT_NE(run(0, "--steps 1 --init " + path("m")).out.find("lenet, 10802 parameters, from"), std::string::npos);
  EXPECT_EQ(problem("--model mlp --init " + path("m")),
            "DIR/m holds a model of the kind lenet1; say --model lenet, or give another --init");
  change("run/step-000000002/state.json", "\"lenet\"", "\"lecun\"");
  const auto manifest_file = folder_ / "run/step-000000002/manifest.json";
  models::Manifest manifest = models::parse_manifest(read_file(manifest_file));
  manifest.state = models::seal_of(folder_ / "run/step-000000002/state.json");
  write_file(manifest_file, to_text(manifest));
  const std::string resumed = " --resume --checkpoint " + path("run");
  EXPECT_EQ(problem("--sizes 784,10 --batch 16 --steps 3" + resumed).substr(0, 70),
            "the checkpoint is of another run: its --model was lecun, and now it is");
  const auto measured = run(0, "--eval-only --features 20" + resumed);
  EXPECT_NE(measured.out.find("from step 2"), std::string::npos);
  EXPECT_EQ(measured.out.find(" was "), std::string::npos) << measured.out;
  EXPECT_NE(run(0, flags + "3" + resumed).out.find("from step 2"), std::string::npos);
}

/// The kinds that kolo brings, too, whose files stay as others know them.
TEST_F(TrainReadme, RenamedOnesOfKoloTakeTheirSizes) {
  const std::string usual = fmt::format("'{}'", KOLO_USUAL_TRAIN);
  for (const auto& [name, renamed, sizes] :
       {std::array{"cnn", "convnet", "--filters 3 --dense 20 --sync-batch-norm"},
        std::array{"llama", "decoder", "--preset tiny --dim 16 --layers 1 --heads 2 --kv-heads 1 --ffn 24"}}) {
    for (const std::string suffix : {"", ".safetensors"}) {
      SCOPED_TRACE(renamed + suffix);
      const auto saved = path(name + suffix), between = path("between" + suffix), again = path(renamed + suffix);
      const auto before =
          run_shell(folder_, fmt::format("{} --model {} {} --steps 0 --save {}", usual, name, sizes, saved));
      ASSERT_EQ(before.code, 0) << before.err;
      for (const auto& [from, to] : {std::pair(saved, between), {between, again}}) {
        const auto done = train(folder_, 0, fmt::format("--model {} --init {} --steps 0 --save {}", renamed, from, to));
        EXPECT_EQ(done.code, 0) << done.err;
      }
      const std::string file = suffix.empty() ? "/model.safetensors" : suffix;
      EXPECT_TRUE(read_file(folder_ / (renamed + file)) == read_file(folder_ / (name + file)));
      if (suffix.empty()) {
        EXPECT_EQ(read_file(folder_ / renamed / "config.json"), read_file(folder_ / name / "config.json"));
      }
    }
  }
}

/// As it once wrote them: under its new name, and without sizes.
TEST_F(TrainReadme, RenamedOnesOfKoloTakeFilesOfTheirNewName) {
  const std::string flags = "--model convnet --filters 3 --dense 20 --steps 0 --save ";
  ASSERT_EQ(train(folder_, 0, flags + path("m")).code, 0);
  write_file(folder_ / "m/config.json", R"({"model_type": "kolo_convnet"})");
  const auto done = train(folder_, 0, flags + path("again") + " --init " + path("m"));
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_TRUE(read_file(folder_ / "again/model.safetensors") == read_file(folder_ / "m/model.safetensors"));
}

TEST_F(TrainReadme, OthersSayWhatTheyCannotRead) {
  run(0, "--steps 0 --save " + path("m.safetensors"));
  const std::string usual = fmt::format("'{}'", KOLO_USUAL_TRAIN);
  const auto done = run_shell(folder_, usual + " --init " + path("m.safetensors"));
  EXPECT_EQ(done.code, 1);
  ASSERT_EQ(done.problems().size(), 1u) << done.err;
  EXPECT_EQ(without(folder_, done.problems()[0]),
            "DIR/m.safetensors holds a model of the kind lenet; this kolo-train was built without it: give another "
            "--init, or, if you have renamed the kind, put .formerly = {\"lenet\"} into its row and build again");
}

}  // namespace
}  // namespace kolo::testing
