// kolo-train's flags and configuration files: what they mean, and what is said about those that mean nothing.

#include "apps/train/options/options.h"

#include <map>
#include <regex>
#include <sstream>

#include "apps/train/options/model_flags.h"
#include "apps/train/options/model_settings.h"
#include "models/checkpoint/checkpoint.h"
#include "models/layers/layered_model.h"
#include "models/layers/linear.h"
#include "models/layers/loss.h"
#include "tests/apps/train_testing.h"

namespace kolo::testing {
namespace {

using train::Options;

class TrainOptions : public ::testing::Test {
 protected:
  Options parse(const std::string& line) {
    std::vector<std::string> words{"kolo-train"};
    std::istringstream stream(line);
    for (std::string word; stream >> word;) words.push_back(word == "''" ? "" : word);
    std::vector<const char*> argv;
    for (const std::string& word : words) argv.push_back(word.c_str());
    return train::parse_options(static_cast<int>(argv.size()), argv.data());
  }

  std::string error(const std::string& line) {
    try {
      parse(line);
    } catch (const train::UsageError& problem) {
      return without_folder(problem.what());
    }
    return "no error";
  }

  std::string without_folder(std::string text) const { return without(folder_, std::move(text)); }

  /// --config with a file of these lines.
  std::string config(const std::string& lines) {
    write_file(folder_ / "run.conf", lines);
    return "--config " + (folder_ / "run.conf").string() + " ";
  }

  TempFolder folder_;
};

TEST_F(TrainOptions, TheModelsDefaults) {
  const Options options = parse("");
  EXPECT_EQ(options.model, "mlp");
  EXPECT_TRUE(options.epochs.has_value());
  EXPECT_FALSE(options.steps.has_value());
  EXPECT_GT(options.batch, 0);
  EXPECT_GT(options.lr, 0);
  EXPECT_GT(options.momentum, 0);
}

TEST_F(TrainOptions, StatesAreSharedOutByDefaultWhereThatIsCheap) {
  EXPECT_FALSE(parse("").zero.has_value());
  EXPECT_EQ(parse("--zero 0").zero, 0);
  EXPECT_EQ(parse("--zero 1").zero, 1);
  EXPECT_EQ(error("--zero 2"), "--zero is '2'; it takes a whole number from 0 to 1");
}

TEST_F(TrainOptions, EachModelHasItsRecipe) {
  const Options llama = parse("--model llama");
  EXPECT_EQ(llama.optimizer, "adamw");
  EXPECT_EQ(llama.schedule, models::Curve::cosine);
  EXPECT_EQ(llama.weight_decay, 0.1);
  EXPECT_EQ(llama.clip, 1);
  const Options cnn = parse("--model cnn --optimizer adam");
  EXPECT_EQ(cnn.lr, 1e-3) << "that of the optimizer";
  EXPECT_EQ(cnn.weight_decay, 0);
  EXPECT_EQ(cnn.schedule, models::Curve::constant);
  EXPECT_EQ(parse("--model llama --optimizer adamw --lr 1e-4 --weight-decay 0").weight_decay, 0);
}

/// The larger the model, the smaller the rate; flags win.
TEST_F(TrainOptions, TheRecipeFollowsThePreset) {
  const Options tiny = parse("--model llama --preset tiny"), usual = parse("--model llama"),
                small = parse("--model llama --preset small"), base = parse("--model llama --preset base");
  EXPECT_EQ(tiny.lr, 1e-2);
  EXPECT_EQ(small.lr, 2e-3);
  EXPECT_EQ(usual.lr, small.lr);
  EXPECT_EQ(base.lr, 6e-4) << "GPT-3 Small's";
  EXPECT_EQ(base.warmup, 750);
  EXPECT_EQ(small.warmup, 60);
  EXPECT_EQ(base.batch, 4);
  const Options given = parse("--model llama --preset base --lr 1e-3 --warmup 7 --batch 3");
  EXPECT_EQ(given.lr, 1e-3);
  EXPECT_EQ(given.warmup, 7);
  EXPECT_EQ(given.batch, 3);
  const auto help = std::regex_replace(train(folder_, 0, "--help").out, std::regex("\\s+"), " ");
  EXPECT_NE(help.find("0.01 for its preset tiny, 0.0006 for its preset base"), help.npos) << help;
  EXPECT_NE(help.find("750 for its preset base"), help.npos) << help;
}

TEST_F(TrainOptions, PresetHelpListsSizesAndMemory) {
  for (const char* flags : {"--model llama --preset help", "--preset=help --batch many"}) {
    const auto help = train(folder_, 2, flags);
    EXPECT_EQ(help.code, 0) << help.err;
    std::istringstream lines(help.out);
    std::map<std::string, std::string> rows;
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string name, rest;
      words >> name;
      std::getline(words >> std::ws, rest);
      rows[name] = std::regex_replace(rest, std::regex(" +"), " ");
    }
    // 16 bytes each with adamw, all of them on every rank: no parameter is worth sharing.
    EXPECT_EQ(rows["tiny"], "39584 618 KiB 618 KiB 618 KiB 0.01 60 8");
    EXPECT_EQ(rows["base"], "179448576 2.7 GiB 2.0 GiB 1.5 GiB 0.0006 750 4");
    EXPECT_NE(help.out.find("dim 768, layers 12, heads 12, kv-heads 3, ffn 3072, vocab 50000, positions 2048"),
              help.out.npos)
        << help.out;
  }
}

/// They are rows of the model's kind, and what they take depends on it.
TEST_F(TrainOptions, FlagsOfAModel) {
  const Options options = parse("--model llama --preset tiny --layers 3 --rope-theta 5e5 --tied-head");
  const models::ModelSettings settings = train::given_settings(options);
  EXPECT_EQ(settings.llama.layers, 3);
  EXPECT_EQ(settings.llama.dim, 32) << "the preset's";
  EXPECT_EQ(settings.llama.rope_theta, 5e5);
  EXPECT_TRUE(settings.llama.tied_head);
  EXPECT_EQ(train::given_settings(parse("--model cnn --filters 7")).cnn.filters, 7);
  EXPECT_FALSE(train::given_settings(parse(config("model = llama\ntied-head = no\n"))).llama.tied_head);
  EXPECT_EQ(train::given_settings(parse("--sizes 784,3,10")).sizes, (std::vector<std::int64_t>{784, 3, 10}));
  EXPECT_EQ(error("--model llama --heads -1"), "--heads is '-1'; it takes a whole number from 1 to 16777216");
  EXPECT_EQ(error("--model llama --norm-eps nan"),
            "--norm-eps is 'nan'; it takes a number above 0, such as 0.1 or 1e-3");
  EXPECT_EQ(error(config("model = llama\ntied-head = maybe\n")),
            "tied-head in DIR/run.conf is 'maybe'; it takes yes or no");
  EXPECT_EQ(error("--filters 3 --model llama"),
            "--filters means nothing to --model llama (it is for cnn); leave it out");
  EXPECT_EQ(error("--recompute"), "--recompute means nothing to --model mlp (it is for llama); leave it out");
  EXPECT_EQ(error("--preset tiny"), "--preset means nothing to --model mlp (it is for llama); leave it out");
  EXPECT_EQ(error("--model cnn --sample 3"), "--sample means nothing to --model cnn (it is for llama); leave it out");
  EXPECT_EQ(error("--model llama --augment"),
            "--augment means nothing to --model llama (it is for cnn and mlp); leave it out");
}

/// A model of somebody's own, of which nothing but its row is known.
class OwnModel final : public models::LayeredModel {
 public:
  explicit OwnModel(const std::string& layer) : LayeredModel({.image = {1, 2, 2}}, models::Precision::f32, {}) {
    add<models::Linear>(layer, 4, 3);
    end<models::CrossEntropy>(3);
  }
};

/// With tensors whose names are like those of no model that is known, or of another one.
TEST_F(TrainOptions, AModelOfOnesOwnIsInitialised) {
  models::ModelKind kind{.name = "own"};
  for (const std::string layer : {"encoder", "conv1", "layers.0", "model.embed_tokens"}) {
    SCOPED_TRACE(layer);
    Bound<OwnModel> saved(layer), loaded(layer);
    models::save_parameters(folder_ / "a", saved.model);
    std::ranges::fill(loaded.values, 0.0f);
    const models::Pretrained pretrained(folder_ / "a");
    models::ModelSettings settings{.sizes = {7}};
    kind.sizes = {};
    train::take_sizes(kind, "a", pretrained, settings);
    EXPECT_EQ(settings.sizes, std::vector<std::int64_t>{7}) << "nothing to take";
    kind.sizes = [&](const models::StoredExtent& extent, models::ModelSettings& all) {
      all.own["width"] = extent(layer + ".bias", 0);
    };
    train::take_sizes(kind, "a", pretrained, settings);
    EXPECT_EQ(settings.own.at("width"), 3);
    EXPECT_EQ(pretrained.load(loaded.model), "");
    EXPECT_EQ(loaded.values, saved.values);
  }
}

TEST_F(TrainOptions, FlagsThatContradictTheData) {
  const auto done = train(folder_, 2, "--model cnn --channels 3 --steps 1");
  EXPECT_EQ(done.code, 1);
  EXPECT_EQ(done.problems(),
            std::vector<std::string>{"--channels 3 contradicts the data (which have 1); leave --channels out"});
  EXPECT_EQ(train(folder_, 2, "--model cnn --channels 1 --filters 2 --dense 2 --steps 1").code, 0);
}

TEST_F(TrainOptions, SwitchesTakeNoValue) {
  EXPECT_TRUE(parse("--augment --batch 7").augment);
  EXPECT_FALSE(parse("--batch 7").augment);
  EXPECT_TRUE(parse(config("augment = yes\n")).augment);
  EXPECT_FALSE(parse(config("augment = no\n")).augment);
  EXPECT_EQ(error(config("augment = maybe\n")), "augment in DIR/run.conf is 'maybe'; it takes yes or no");
  EXPECT_EQ(error("--augment yes"), "'yes' belongs to no flag; write --flag value (--help lists the flags)");
}

TEST_F(TrainOptions, StepsAloneLiftTheLimitOfEpochs) {
  EXPECT_FALSE(parse("--steps 7").epochs.has_value());
  EXPECT_EQ(parse("--steps 7 --epochs 2").epochs, 2);
  EXPECT_EQ(parse("--steps 7 --epochs 2").steps, 7);
}

TEST_F(TrainOptions, ReadsEveryFlag) {
  const Options options = parse(
      "--model mlp --sizes 784,5,10 --init i --data d --order sequential --epochs 3 --steps 4 --batch=8 --optimizer "
      "sgd "
      "--lr 1e-2 --momentum 0 --seed 18446744073709551615 --save s --save-dtype bf16 --log l --eval-every 6");
  EXPECT_EQ(options.model_flags.at("sizes").value, "784,5,10");
  EXPECT_EQ(options.init, "i");
  EXPECT_EQ(options.data, "d");
  EXPECT_EQ(options.order, models::Order::sequential);
  EXPECT_EQ(options.batch, 8);
  EXPECT_EQ(options.lr, 0.01);
  EXPECT_EQ(options.momentum, 0);
  EXPECT_EQ(options.seed, 18446744073709551615u);
  EXPECT_EQ(options.save, "s");
  EXPECT_EQ(options.save_dtype, models::Precision::bf16);
  EXPECT_EQ(options.log, "l");
  EXPECT_EQ(options.eval_every, 6);
}

TEST_F(TrainOptions, TheCommandLineWinsOverTheFile) {
  const Options options = parse(config("# a run\nbatch = 16\n\nlr = 0.5   # high\neval-every=3\n") + "--lr 0.25");
  EXPECT_EQ(options.batch, 16);
  EXPECT_EQ(options.lr, 0.25);
  EXPECT_EQ(options.eval_every, 3);
}

TEST_F(TrainOptions, FilesThatMeanNothing) {
  EXPECT_EQ(error(config("bach = 16\n")),
            "DIR/run.conf has an unknown key 'bach'; --help lists the flags, whose names are the keys");
  EXPECT_EQ(error(config("config = other\n")),
            "DIR/run.conf has an unknown key 'config'; --help lists the flags, whose names are the keys");
  EXPECT_EQ(error(config("batch = many\n")),
            "batch in DIR/run.conf is 'many'; it takes a whole number from 1 to 1000000000");
  EXPECT_EQ(error(config("lr = 1\nlr = 2\n")), "lr in DIR/run.conf is given twice; keep one");
  EXPECT_EQ(
      error(config("batch 16\n")),
      "DIR/run.conf: the options configuration file contains an invalid line 'batch 16'; --help shows how to write it");
  EXPECT_EQ(error("--config " + (folder_ / "none").string()),
            "cannot read DIR/none (it is missing or not readable); give --config a file of lines 'flag = value'");
  EXPECT_EQ(error("--config " + folder_.path().string()),
            "cannot read DIR (it is a folder); give --config a file of lines 'flag = value'");
  EXPECT_EQ(error("--config ''"), "--config is ''; it takes a file of lines 'flag = value'");
}

TEST_F(TrainOptions, FilesThatAreNoConfiguration) {
  const std::string advice = "; give --config a file of lines 'flag = value'";
  EXPECT_EQ(error("--config /dev/zero"), "cannot read /dev/zero (it is not a regular file)" + advice);
  const auto refusal = [&](const std::string& reason) { return "cannot read DIR/run.conf (" + reason + ")" + advice; };
  EXPECT_EQ(error(config("batch = 1\nlr = \x1b[31m\n")), refusal("it is not text: line 2 has a byte 0x1b"));
  EXPECT_EQ(error(config(std::string("a\0b", 3))), refusal("it is not text: line 1 has a byte 0x00"));
  EXPECT_EQ(error(config(std::string((1 << 20) + 1, '#'))), refusal("it has more than 1048576 bytes"));
  EXPECT_EQ(parse(config("# \xc3\xa9\r\nbatch = 7\r\n")).batch, 7);
  EXPECT_EQ(parse(config("\xef\xbb\xbf# with a byte order mark\nbatch = 7\n")).batch, 7);
}

TEST_F(TrainOptions, FilesThatWouldOverwriteEachOther) {
  const auto path = [&](std::string_view name) { return (folder_ / name).string(); };
  write_file(folder_ / "a", "x");
  std::filesystem::create_symlink("a", folder_ / "link");
  std::filesystem::create_symlink("later", folder_ / "dangling");
  std::filesystem::create_hard_link(folder_ / "a", folder_ / "hard");
  std::filesystem::create_directory_symlink(folder_.path(), folder_ / "folder");
  const std::string advice = "; give each a file of its own";
  const auto same = [&](const std::string& one_flag, const std::string& one, const std::string& flag,
                        const std::string& other) {
    EXPECT_EQ(error(one_flag + " " + one + " " + flag + " " + other),
              without_folder(one_flag + " " + one + " and " + flag + " " + other + " are the same file" + advice));
  };
  for (const char* name : {"link", "hard", "./a", "folder/a"}) {
    same("--log", path("a"), "--save", path(name));
    same("--init", path("a"), "--save", path(name));
    same("--init", path("a"), "--log", path(name));
  }
  same("--log", path("new"), "--save", path("folder/new"));
  same("--log", path("dangling"), "--save", path("later"));
  EXPECT_EQ(error("--log " + path("a") + " --save " + path("a")), "--log and --save both name DIR/a" + advice);
  EXPECT_EQ(error(config("batch = 7\n") + "--log " + path("run.conf")),
            "--config and --log both name DIR/run.conf" + advice);
  EXPECT_EQ(error(config("save = " + path("run.conf") + "\n")), "--config and --save both name DIR/run.conf" + advice);
  EXPECT_EQ(error("--init " + path("a") + " --log " + path("b") + " --save " + path("c")), "no error");
}

TEST_F(TrainOptions, HelpAndVersionNeedNothingElse) {
  const auto help = train(folder_, 2, "--no-such-flag --help", "KOLO_BACKEND=nosuch");
  EXPECT_EQ(help.code, 0);
  EXPECT_EQ(help.err, "");
  for (std::string_view word :
       {"Model:", "Data:", "Training:", "Output:", "Runtime", "--sizes N,N,...", "KOLO_FUSION_BYTES"}) {
    const auto at = help.out.find(word);
    EXPECT_NE(at, std::string::npos) << word;
    if (word != "KOLO_FUSION_BYTES") {
      EXPECT_EQ(help.out.find(word, at + 1), std::string::npos) << word << " twice";
    }
  }
  const auto version = train(folder_, 2, "--version");
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.out.substr(0, 11), "kolo-train ");
  EXPECT_EQ(std::count(version.out.begin(), version.out.end(), '\n'), 1);
}

}  // namespace
}  // namespace kolo::testing
