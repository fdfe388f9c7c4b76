// kolo-train on tokens: what is trained on and held out, what it writes, and what is said about tokens that mean
// nothing.

#include <cmath>
#include <span>

#include "models/tokenizer/tokenizer.h"
#include "tests/apps/train_testing.h"

namespace kolo::testing {
namespace {

class TrainTokens : public ::testing::Test {
 protected:
  std::string path(std::string_view name) const { return fmt::format("'{}'", (folder_ / name).string()); }

  /// Words of a language that is easy to learn.
  void SetUp() override {
    std::string text;
    for (int i = 0; text.size() < 20000; ++i) text += i % 7 == 3 ? "rustle " : i % 3 == 0 ? "the wind " : "and leaves ";
    write_file(folder_ / "text", text.substr(0, 20000));
  }

  Finished run(int ranks, const std::string& flags) {
    return train(folder_, ranks, "--model llama --preset tiny --seq 32 --data " + path("text") + " " + flags);
  }
  std::string problem(int ranks, const std::string& flags) {
    const std::string preset = flags.find("--preset") == flags.npos ? "--preset tiny " : "";
    const auto done = train(folder_, ranks, "--model llama " + preset + flags);
    EXPECT_EQ(done.code, 1);
    const auto problems = done.problems();
    return problems.size() == 1 ? without_folder(problems.front()) : done.err;
  }
  std::string without_folder(std::string text) const { return without(folder_, std::move(text)); }

  TempFolder folder_;
};

TEST_F(TrainTokens, TheLastTenthIsHeldOut) {
  const auto done = run(2, "--batch 4 --steps 30 --warmup 5 --lr 1e-2 --log " + path("log"));
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_NE(done.out.find("the first 18000 to train on, the last 2000 held out"), std::string::npos) << done.out;
  const auto steps = events_in(folder_ / "log", "step");
  ASSERT_EQ(steps.size(), 30u);
  EXPECT_GT(steps[0]["tokens_per_s"].get<double>(), steps[0]["samples_per_s"].get<double>());
  const auto eval = events_in(folder_ / "log", "eval");
  ASSERT_EQ(eval.size(), 1u);
  EXPECT_LT(eval[0]["loss"].get<double>(), 3);
  EXPECT_NE(done.out.find("tokens/s"), std::string::npos);
}

TEST_F(TrainTokens, InOrderNothingIsHeldOutUnlessItIsGiven) {
  const auto none = run(2, "--batch 4 --steps 2 --order sequential --log " + path("log"));
  EXPECT_NE(none.out.find("eval      none: nothing is held out"), std::string::npos) << none.out;
  EXPECT_TRUE(events_in(folder_ / "log", "eval").empty());
  write_file(folder_ / "val", std::string(330, 'x'));
  const auto some = run(2, "--batch 4 --steps 2 --order sequential --val " + path("val") + " --log " + path("log"));
  EXPECT_NE(some.out.find("the first 20000 to train on, 330 of "), std::string::npos) << some.out;
  EXPECT_EQ(events_in(folder_ / "log", "eval").size(), 1u);
}

/// 10 held-out windows over 1, 2, 3 and 4 ranks, in batches of 4 at most.
TEST_F(TrainTokens, EvaluationWeighsRanksRight) {
  std::vector<double> losses;
  for (const int ranks : {1, 2, 3, 4}) {
    write_file(folder_ / "val", read_file(folder_ / "text").substr(0, 321));
    ASSERT_EQ(run(ranks, "--batch 4 --steps 0 --val " + path("val") + " --log " + path("log")).code, 0);
    losses.push_back(events_in(folder_ / "log", "eval").at(0)["loss"].get<double>());
    EXPECT_NEAR(losses.back(), losses.front(), 1e-6);
  }
}

TEST_F(TrainTokens, PerplexityAndBitsPerByte) {
  const auto done = run(2, "--batch 4 --steps 3 --log " + path("log"));
  ASSERT_EQ(done.code, 0) << done.err;
  const auto eval = events_in(folder_ / "log", "eval").at(0);
  const double loss = eval["loss"].get<double>();
  EXPECT_NEAR(eval["perplexity"].get<double>(), std::exp(loss), 1e-9 * std::exp(loss));
  EXPECT_NEAR(eval["bits_per_byte"].get<double>(), loss / std::log(2), 1e-9) << "bytes are tokens";
  const std::string line =
      fmt::format("\ntext      perplexity {:.4g}, {:.4f} bits per byte held-out\n", std::exp(loss), loss / std::log(2));
  EXPECT_NE(done.out.find(line), done.out.npos) << line << done.out;

  write_file(folder_ / "u16", std::string(4000, '\0'));
  const auto numbers = train(folder_, 0,
                             "--model llama --preset tiny --seq 16 --batch 2 --steps 1 --tokens u16 --data " +
                                 path("u16") + " --log " + path("log"));
  ASSERT_EQ(numbers.code, 0) << numbers.err;
  const auto of_numbers = events_in(folder_ / "log", "eval").at(0);
  EXPECT_TRUE(of_numbers.contains("perplexity"));
  EXPECT_FALSE(of_numbers.contains("bits_per_byte")) << "nobody knows the text";
}

/// The held-out 2000 bytes make 62 sequences, 31 on each of two ranks, in 8 batches of 4.
TEST_F(TrainTokens, EvaluationsOfSomeBatches) {
  const auto evals = [&](int ranks, const std::string& flags) {
    const auto done = run(ranks, "--batch 4 --log " + path("log") + " " + flags);
    EXPECT_EQ(done.code, 0) << done.err;
    const bool said = done.out.find(" of 3/8 batches") != done.out.npos;
    EXPECT_EQ(said, flags.find("--eval-batches 3") != flags.npos && flags.find("only") == flags.npos) << done.out;
    return events_in(folder_ / "log", "eval");
  };
  const auto counts = [](const std::vector<nlohmann::json>& events) {
    std::vector<int> all;
    for (const auto& event : events) {
      all.push_back(event["batches"].get<int>());
      EXPECT_EQ(event["all_batches"], 8);
    }
    return all;
  };
  // Nothing is learnt, so equal batches have equal losses.
  const auto some = evals(2, "--eval-every 2 --steps 6 --eval-batches 3 --lr 1e-30");
  EXPECT_EQ(counts(some), (std::vector<int>{3, 3, 8}));
  EXPECT_EQ(some[0]["loss"], some[1]["loss"]);
  EXPECT_NE(some[0]["loss"], some[2]["loss"]);
  for (const char* all : {"0", "all"})
    EXPECT_EQ(counts(evals(2, fmt::format("--eval-every 2 --steps 4 --eval-batches {}", all))),
              (std::vector<int>{8, 8}));
  EXPECT_EQ(counts(evals(2, "--eval-only --eval-batches 3")).back(), 8);

  // A run that goes on evaluates the same batches, and its best checkpoint is found by these, not by all of them.
  const std::string to_folder = " --lr 1e-30 --checkpoint " + path("c");
  evals(2, "--eval-every 2 --steps 4 --eval-batches 3" + to_folder);
  const auto done = run(2, "--batch 4 --eval-every 2 --steps 8 --resume --log " + path("log") + to_folder);
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(counts(events_in(folder_ / "log", "eval")), (std::vector<int>{3, 8, 3, 8}));
  const auto manifest = nlohmann::json::parse(read_file(folder_ / "c" / "step-000000008" / "manifest.json"));
  EXPECT_EQ(manifest["held_out_loss"], some[0]["loss"]);
}

/// By default an evaluation takes no longer than the training before it: 180 kB are more than one step can pay for.
TEST_F(TrainTokens, EvaluationsTakeTheirShareOfTime) {
  std::string text;
  while (text.size() < 180000) text += read_file(folder_ / "text");
  write_file(folder_ / "val", text);
  const auto done = run(2, "--batch 4 --steps 5 --eval-every 2 --val " + path("val") + " --log " + path("log"));
  ASSERT_EQ(done.code, 0) << done.err;
  const auto evals = events_in(folder_ / "log", "eval");
  ASSERT_EQ(evals.size(), 3u);
  EXPECT_GE(evals[0]["batches"].get<int>(), 1);
  EXPECT_LT(evals[0]["batches"].get<int>(), evals[0]["all_batches"].get<int>() / 2);
  EXPECT_EQ(evals[1]["batches"], evals[0]["batches"]) << "so that losses compare";
  EXPECT_EQ(evals[2]["batches"], evals[2]["all_batches"]);
  EXPECT_NE(done.out.find(
                fmt::format(" of {}/{} batches", evals[0]["batches"].get<int>(), evals[0]["all_batches"].get<int>())),
            done.out.npos)
      << done.out;
  EXPECT_EQ(problem(0, "--eval-batches -1"),
            "--eval-batches is '-1'; it takes a whole number from 0 to 1000000000000, or all");
  EXPECT_EQ(problem(0, "--eval-batches most"),
            "--eval-batches is 'most'; it takes a whole number from 0 to 1000000000000, or all");
}

TEST_F(TrainTokens, WritesText) {
  const auto done = run(2, "--batch 4 --steps 60 --warmup 5 --lr 1e-2 --sample 40 --temperature 0 --prompt 'the win'");
  ASSERT_EQ(done.code, 0) << done.err;
  const auto at = done.out.find("\nthe win");
  ASSERT_NE(at, std::string::npos) << done.out;
  EXPECT_EQ(done.out.substr(at + 1).size(), 7u + 40 + 1);
  EXPECT_NE(done.out.find(" leaves ", at), std::string::npos) << done.out;
}

/// A prompt that is none is known before the training.
TEST_F(TrainTokens, BadPrompts) {
  write_file(folder_ / "u16", std::string(2000, '\0'));
  const std::string forever = "--seq 16 --steps 1000000000 --sample 5 --tokens u16 --data " + path("u16");
  EXPECT_EQ(problem(2, forever + " --prompt '17 abc'"),
            "--prompt is '17 abc', and the tokens are not bytes, but 'abc' is no number of one; give their numbers, "
            "such as '17 4', or --tokenizer");
  EXPECT_EQ(problem(0, forever + " --prompt '3 256'"),
            "the prompt's token 256 is out of range (the model's vocabulary has 256); choose others");
}

TEST_F(TrainTokens, TheProjectsOwnSourcesWillDo) {
  const auto done = train(folder_, 2, "--model llama --preset tiny --batch 2 --steps 2 --eval-every 100 --eval-only");
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_NE(done.out.find("bytes of the project's own sources, "), std::string::npos) << done.out;
}

/// Token 300 is in the second half: rank 1 meets it, in the middle of a step.
TEST_F(TrainTokens, ATokenOutOfTheVocabularyEndsAllRanks) {
  std::string tokens;
  for (int i = 0; i < 101; ++i) tokens += i == 70 ? std::string{44, 1} : std::string{5, 0};
  write_file(folder_ / "u16", tokens);
  EXPECT_EQ(problem(2, "--tokens u16 --seq 10 --batch 5 --steps 3 --order sequential --data " + path("u16")),
            "token 70 of DIR/u16 is 300, and the vocabulary ends at 255; give the model a larger vocabulary, or "
            "--tokens as they "
            "are in the "
            "file");
  const auto done = train(folder_, 2,
                          "--model llama --preset tiny --vocab 301 --tokens u16 --seq 10 --batch 5 --steps 3 --order "
                          "sequential --data " +
                              path("u16"));
  EXPECT_EQ(done.code, 0) << done.err;
}

TEST_F(TrainTokens, BadInput) {
  EXPECT_EQ(problem(2, "--data " + path("none")),
            "cannot use DIR/none (No such file or directory); give a file of tokens, or a folder of such files");
  EXPECT_EQ(problem(0, "--positions 20000 --data " + path("text")),
            "18000 tokens to train on are too few for a sequence of 20000 and one more; give more, or a smaller --seq");
  EXPECT_EQ(problem(0, "--tokens u16"), "--tokens is the dtype of --data; add --data");
  EXPECT_EQ(problem(0, "--sizes 3,4"), "--sizes means nothing to --model llama (it is for mlp); leave it out");
  EXPECT_EQ(problem(0, "--momentum 0.5"),
            "--momentum means nothing to --optimizer adamw (it is for sgd); leave it out");
  EXPECT_EQ(problem(0, "--every 5"), "--every needs --checkpoint DIR; add it");
  EXPECT_EQ(problem(0, "--prompt x"), "--prompt needs --sample N; add it");
  EXPECT_EQ(problem(0, "--schedule constant --min-lr 1e-4"),
            "--min-lr means nothing to --schedule constant; choose linear or cosine");
  EXPECT_EQ(problem(0, "--min-lr 1"), "--min-lr 1 is above --lr 0.01; give a smaller one");
  EXPECT_EQ(problem(0, "--eval-only --checkpoint " + path("c")),
            "--eval-only writes no checkpoints; add --resume to read the newest one in --checkpoint");
  EXPECT_EQ(problem(0, "--preset huge"),
            "--preset: unknown preset 'huge' (known: tiny, small, base); choose one of them");
  EXPECT_EQ(problem(0, "--data " + path("text") + " --save " + path("text")),
            "--data and --save both name DIR/text; give each a file of its own");
}

/// What encodes, trains and decodes: with a tokenizer that this program made.
class TrainTokenizer : public TrainTokens {
 protected:
  void SetUp() override {
    TrainTokens::SetUp();
    const auto made = command("tokenizer --vocab 300 --data " + path("text") + " --out " + path("made"));
    ASSERT_EQ(made.code, 0) << made.err;
    said_ = without_folder(made.out);
  }
  Finished command(const std::string& flags, int ranks = 0) {
    return train(folder_, ranks, flags, "XDG_CACHE_HOME=" + path("cache"));
  }
  Finished with_tokenizer(int ranks, const std::string& flags) {
    return command("--model llama --preset tiny --seq 16 --tokenizer " + path("made/tokenizer.json") + " " + flags,
                   ranks);
  }
  std::vector<std::filesystem::path> cached() const {
    return {std::filesystem::directory_iterator(folder_ / "cache/kolo/tokens"), {}};
  }

  std::string said_;
};

TEST_F(TrainTokenizer, TrainsOnTextAndDecodesSamples) {
  EXPECT_EQ(
      said_,
      "DIR/made/tokenizer.json: 277 tokens of 20000 bytes in 1 file, and no pair is left that occurs often enough "
      "for more\n");
  const std::string flags = "--batch 4 --steps 60 --warmup 5 --lr 1e-2 --sample 10 --temperature 0 --prompt 'the wind'";
  const auto done = with_tokenizer(2, flags + " --data " + path("text"));
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_NE(done.out.find(" tokens of "), std::string::npos) << done.out;
  const auto at = done.out.find("\nthe wind");
  ASSERT_NE(at, std::string::npos) << done.out;
  EXPECT_NE(done.out.find(" and leaves ", at), std::string::npos) << done.out;
  // Tokens of the cache are as good as the text, and told by their header.
  const auto files = cached();
  ASSERT_EQ(files.size(), 1u);
  const auto again = with_tokenizer(2, flags + fmt::format(" --data '{}'", files[0].string()));
  EXPECT_EQ(again.out.substr(again.out.find("\nloss ")).substr(0, 20),
            done.out.substr(done.out.find("\nloss ")).substr(0, 20));
  EXPECT_EQ(again.out.substr(again.out.find("\nthe wind")), done.out.substr(at));
  EXPECT_EQ(cached().size(), 1u);
}

TEST_F(TrainTokenizer, WhatDoesNotFit) {
  const auto problem = [&](const Finished& done) {
    EXPECT_EQ(done.code, 1);
    return done.problems().size() == 1 ? without_folder(done.problems().front()) : done.err;
  };
  EXPECT_EQ(
      problem(with_tokenizer(2, "--vocab 256 --data " + path("text"))),
      "a vocabulary of 256 has no room for the 277 tokens of --tokenizer DIR/made/tokenizer.json; leave --vocab out");
  EXPECT_EQ(problem(command("--model mlp --tokenizer " + path("made/tokenizer.json"))),
            "--tokenizer means nothing to --model mlp (it is for llama); leave it out");
  EXPECT_EQ(
      problem(command("--model llama --tokenizer " + path("text"), 2)),
      "cannot use DIR/text (it is not JSON, or damaged); give the tokenizer.json of byte-level BPE, such as Llama 3's "
      "or one that 'kolo-train tokenizer' writes");
  EXPECT_EQ(problem(with_tokenizer(0, "--steps 0 --data " + path("text") + " --log " + path("made/tokenizer.json"))),
            "--tokenizer and --log both name DIR/made/tokenizer.json; give each a file of its own");
  EXPECT_EQ(problem(train(folder_, 0, "--model llama --preset tiny --tokenizer " + path("made/tokenizer.json"),
                          "env -u HOME -u XDG_CACHE_HOME")),
            "there is no folder for encoded text (HOME is not set); set XDG_CACHE_HOME to one that is writable");
  EXPECT_EQ(problem(command("tokenizer --vocab 255 --data x --out y")),
            "--vocab is '255'; it takes a whole number from 256 to 16777216");
  EXPECT_EQ(problem(command("tokenizer --data " + path("text"))), "--out is missing; add it");
  EXPECT_EQ(problem(command("tokenizer --out " + path("made"))), "--data is missing; add it");
  EXPECT_EQ(
      problem(command("tokenizer --out " + path("text") + " --data " + path("text"))),
      "cannot write DIR/text/tokenizer.json (Not a directory); name a file in a folder that is writable and has room");
  EXPECT_EQ(problem(command("tokenizer --split gpt5 --out a --data b")),
            "--split: unknown split 'gpt5' (known: gpt2, llama3); choose one of them");
}

TEST_F(TrainTokenizer, IsSavedBesideItsModel) {
  const auto done = with_tokenizer(1, "--steps 0 --data " + path("text") + " --save " + path("model"));
  ASSERT_EQ(done.code, 0) << done.err;
  const auto same = command("--model llama --steps 0 --seq 16 --init " + path("model") + " --tokenizer " +
                            path("model/tokenizer.json") + " --data " + path("text"));
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "model/tokenizer_config.json"));
}

/// Loss over the bytes that the targets decode to, which are counted here one by one.
TEST_F(TrainTokenizer, BitsAreOfDecodedBytes) {
  write_file(folder_ / "val", read_file(folder_ / "text").substr(0, 3000));
  const auto done = with_tokenizer(
      2, "--batch 4 --steps 1 --data " + path("text") + " --val " + path("val") + " --log " + path("log"));
  ASSERT_EQ(done.code, 0) << done.err;
  const models::Tokenizer tokenizer(folder_ / "made/tokenizer.json");
  const auto ids = tokenizer.encode(read_file(folder_ / "val"));
  const std::size_t targets = (ids.size() - 1) / 16 * 16;
  const auto eval = events_in(folder_ / "log", "eval").at(0);
  const auto bytes = static_cast<double>(tokenizer.decode(std::span(ids).subspan(1, targets)).size());
  EXPECT_GT(bytes, 2 * static_cast<double>(targets)) << "tokens are words";
  EXPECT_NEAR(eval["bits_per_byte"].get<double>(),
              eval["loss"].get<double>() * static_cast<double>(targets) / std::log(2) / bytes, 1e-9);
}

TEST_F(TrainTokenizer, OfTheFolderToStartFrom) {
  const std::string on = " --steps 1 --data " + path("text");
  ASSERT_EQ(with_tokenizer(1, on + " --save " + path("model")).code, 0);
  const std::string from = "--model llama --seq 16 --init " + path("model") + on;
  const auto same = command(from + " --save " + path("again"), 2);
  ASSERT_EQ(same.code, 0) << same.err;
  EXPECT_NE(same.out.find(" tokens of "), same.out.npos) << same.out;
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
    EXPECT_EQ(read_file(folder_ / "again" / file), read_file(folder_ / "model" / file));
  EXPECT_NE(command(from + " --tokenizer none").out.find(" bytes of "), std::string::npos);
  write_file(folder_ / "model/tokenizer.json", "{}");
  const auto broken = command(from, 2);
  EXPECT_EQ(broken.code, 1);
  ASSERT_EQ(broken.problems().size(), 1u) << broken.err;
  EXPECT_NE(broken.problems()[0].find("model/tokenizer.json"), std::string::npos) << broken.problems()[0];
  const auto without = command(from + " --tokenizer none");
  EXPECT_EQ(without.code, 0) << without.err;
}

/// Each rank would make the same file.
TEST_F(TrainTokenizer, OneRankMakesATokenizer) {
  const auto done =
      command("tokenizer --vocab 260 --data " + path("text") + " " + path("text") + " --out " + path("two"), 2);
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(without_folder(done.out), "DIR/two/tokenizer.json: 260 tokens of 40000 bytes in 2 files\n");
}

/// Neither trained nor evaluated beyond what the model has positions for.
TEST_F(TrainTokens, SequencesLongerThanTheModelTakes) {
  const std::string data = " --steps 0 --data " + path("text");
  EXPECT_EQ(problem(0, "--seq 65" + data),
            "--seq 65 is longer than the 64 positions of the model; give a smaller one, or more --positions");
  const auto longer =
      train(folder_, 0, "--model llama --preset tiny --positions 65 --seq 65 --save " + path("a.safetensors") + data);
  ASSERT_EQ(longer.code, 0) << longer.err;
  EXPECT_EQ(train(folder_, 2, "--model llama --init " + path("a.safetensors") + " --seq 66" + data).problems(),
            std::vector<std::string>{"--seq 66 is longer than the 65 positions of the model; give a smaller one"});
  EXPECT_EQ(train(folder_, 0, "--model llama --init " + path("a.safetensors") + " --seq 65" + data).code, 0);
}

/// Of a file by another program, shapes do not say how many heads there are: a flag or a config must.
TEST_F(TrainTokens, SizesOfAFileAlone) {
  const std::string on = "--seq 16 --steps 0 --data " + path("text") + " ", tiny = "--model llama --preset tiny " + on;
  ASSERT_EQ(train(folder_, 0, tiny + "--save " + path("whole.safetensors")).code, 0);
  const models::SafetensorsFile whole(folder_ / "whole.safetensors");
  std::vector<std::vector<float>> values;
  std::vector<models::NamedValues> named;
  for (const models::StoredTensor& tensor : whole.tensors()) {
    values.emplace_back((tensor.end - tensor.begin) / sizeof(float));
    whole.read(tensor, values.back());
    named.push_back(
        {tensor.name, Shape(std::vector<std::int64_t>(tensor.shape.begin(), tensor.shape.end())), values.back()});
  }
  models::write_safetensors(folder_ / "a.safetensors", named);
  const std::string from = "--init " + path("a.safetensors") + " " + on;
  const auto alone = [&](const std::string& flags) { return train(folder_, 0, "--model llama " + from + flags); };
  const std::string no_preset =
      "DIR/a.safetensors holds a Llama of other sizes (dim 32 and not 256, layers 2 and not 4, numbers of a key 16 and "
      "not 128, ffn 88 and not 688), and there is no config.json beside it; give its --dim --layers --heads --kv-heads "
      "--ffn --vocab, or its --preset";
  for (const char* flags : {"", "--preset small"}) {
    const auto done = alone(flags);
    ASSERT_EQ(done.problems().size(), 1u) << done.err;
    EXPECT_EQ(without_folder(done.problems()[0]), no_preset);
  }
  EXPECT_EQ(alone("--preset tiny").code, 0);
  EXPECT_EQ(alone("--dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 88").code, 0);
  write_file(folder_ / "config.json",
             R"({"hidden_size":32,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,)"
             R"("intermediate_size":88,"vocab_size":256,"max_position_embeddings":64})");
  EXPECT_EQ(alone("").code, 0);
  EXPECT_EQ(without_folder(alone("--preset small").problems().at(0)),
            "--preset small (--dim 256) contradicts --init DIR/a.safetensors (which holds 32); leave --preset out");
  EXPECT_EQ(without_folder(alone("--heads 8").problems().at(0)),
            "--heads 8 contradicts --init DIR/a.safetensors (which holds 4); leave --heads out");
  EXPECT_EQ(without_folder(alone("--tied-head").problems().at(0)),
            "--tied-head contradicts --init DIR/a.safetensors (which holds a head of its own); leave --tied-head out");
}

}  // namespace
}  // namespace kolo::testing
