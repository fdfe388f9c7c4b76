// What kolo-train saves beside a model's parameters: the files of its tokenizer.

#include "tests/apps/train_testing.h"

namespace kolo::testing {
namespace {

using Names = std::vector<std::string>;

class TrainCompanions : public ::testing::Test {
 protected:
  /// A model with a tokenizer, and all that may lie beside one, in "old"; another tokenizer in "new".
  void SetUp() override {
    std::string text;
    while (text.size() < 4000) text += "the wind and leaves rustle ";
    write_file(folder_ / "text", text);
    run("tokenizer --vocab 270 --data " + path("text") + " --out " + path("made"));
    run("tokenizer --vocab 260 --data " + path("text") + " --out " + path("new"));
    run(llama("--preset tiny --tokenizer " + path("made/tokenizer.json") + " --save " + path("old")));
    for (const char* name : {"special_tokens_map.json", "chat_template.jinja", "tokenizer.model"})
      write_file(folder_ / "old" / name, std::string("old ") + name);
  }

  std::string path(std::string_view name) const { return fmt::format("'{}'", (folder_ / name).string()); }
  std::string llama(const std::string& flags) const {
    return "--model llama --seq 16 --steps 0 --data " + path("text") + " " + flags;
  }
  void run(const std::string& flags) {
    const auto done = train(folder_, 0, flags, "XDG_CACHE_HOME=" + path("cache"));
    ASSERT_EQ(done.code, 0) << flags << ": " << done.err;
  }
  /// What a model that starts from "old" has beside it.
  Names saved_with(const std::string& flags) {
    run(llama("--init " + path("old") + " --save " + path("saved") + flags));
    Names names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "saved")) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("tokenizer") || name.starts_with("special") || name.starts_with("chat"))
        names.push_back(name);
    }
    std::ranges::sort(names);
    return names;
  }
  std::string saved(std::string_view name) const { return read_file(folder_ / "saved" / name); }

  const Names all_{"chat_template.jinja", "special_tokens_map.json", "tokenizer.json", "tokenizer.model",
                   "tokenizer_config.json"};
  TempFolder folder_;
};

TEST_F(TrainCompanions, StayWithTheirTokenizer) {
  EXPECT_EQ(saved_with(""), all_);
  EXPECT_EQ(saved("chat_template.jinja"), "old chat_template.jinja");
  EXPECT_EQ(saved_with(" --tokenizer " + path("old/tokenizer.json")), all_) << "the same by its name";
  EXPECT_EQ(saved("chat_template.jinja"), "old chat_template.jinja");
}

/// The same ids as those of the cache; a file stands where its folder is to be.
TEST_F(TrainCompanions, ACacheThatCannotBeWritten) {
  const std::string flags = "--model llama --preset tiny --seq 16 --steps 3 --tokenizer " +
                            path("made/tokenizer.json") + " --data " + path("text");
  const auto cached = train(folder_, 2, flags, "XDG_CACHE_HOME=" + path("cache"));
  std::filesystem::create_directory(folder_ / "tmp");
  const auto done = train(folder_, 2, flags, "TMPDIR=" + path("tmp") + " XDG_CACHE_HOME=" + path("text"));
  ASSERT_EQ(done.code, 0) << done.err;
  ASSERT_EQ(done.problems().size(), 1u) << done.err;
  EXPECT_EQ(without(folder_, done.problems()[0]),
            "cannot write DIR/text/kolo/tokens (Not a directory): going on with tokens that are not cached");
  EXPECT_EQ(done.out.substr(done.out.find("\nloss ")).substr(0, 20),
            cached.out.substr(cached.out.find("\nloss ")).substr(0, 20));
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "tmp"))
    EXPECT_FALSE(entry.path().filename().string().starts_with("kolo-tokens")) << entry.path();
}

TEST_F(TrainCompanions, GoWithTheirTokenizer) {
  write_file(folder_ / "old/tokenizer_config.json", "{\"old\": 1}");
  const std::string other = " --tokenizer " + path("new/tokenizer.json");
  EXPECT_EQ(saved_with(other), (Names{"tokenizer.json", "tokenizer_config.json"}));
  EXPECT_EQ(saved("tokenizer.json"), read_file(folder_ / "new/tokenizer.json"));
  EXPECT_EQ(saved("tokenizer_config.json").find("old"), std::string::npos);
  EXPECT_EQ(saved_with(" --tokenizer none"), Names{}) << "bytes are tokens";
}

TEST_F(TrainCompanions, ComeWithTheirTokenizer) {
  write_file(folder_ / "new/tokenizer_config.json", "{\"new\": 1}");
  write_file(folder_ / "new/special_tokens_map.json", "{}");
  EXPECT_EQ(saved_with(" --tokenizer " + path("new/tokenizer.json")),
            (Names{"special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"}));
  EXPECT_EQ(saved("tokenizer_config.json"), "{\"new\": 1}");
  EXPECT_EQ(saved("special_tokens_map.json"), "{}");
  std::filesystem::rename(folder_ / "new/tokenizer.json", folder_ / "new/mine.json");
  EXPECT_EQ(saved_with(" --tokenizer " + path("new/mine.json")), (Names{"tokenizer.json", "tokenizer_config.json"}))
      << "what lies there may be another one's";
  EXPECT_EQ(saved("tokenizer_config.json").find("new"), std::string::npos);
}

/// The file of a model in its folder is that model, with all that belongs to it; alone it is just parameters.
TEST_F(TrainCompanions, AreThoseOfAFileInItsFolder) {
  const auto start = [&](std::string_view init) {
    const auto done = train(folder_, 2, llama("--init " + path(init) + " --save " + path("saved")),
                            "XDG_CACHE_HOME=" + path("cache"));
    EXPECT_EQ(done.code, 0) << done.err;
    return done.out.substr(done.out.find("\ndata  "), done.out.find("\ntraining") - done.out.find("\ndata  "));
  };
  const std::string of_folder = start("old");
  EXPECT_EQ(start("old/model.safetensors"), of_folder) << "tokens of its tokenizer";
  EXPECT_EQ(saved("tokenizer.json"), read_file(folder_ / "old/tokenizer.json"));
  EXPECT_EQ(saved("chat_template.jinja"), "old chat_template.jinja");
  run(llama("--preset tiny --vocab 270 --tokenizer none --save " + path("made/alone.safetensors")));
  EXPECT_NE(start("made/alone.safetensors"), of_folder) << "what lies there may be another one's";
  EXPECT_FALSE(std::filesystem::exists(folder_ / "saved/tokenizer.json"));
}

/// Those of the tokenizer that is written, whoever names its tokens; of one that is the same, they stay as they are.
TEST_F(TrainCompanions, IdsAreThoseOfTheirTokenizer) {
  const auto json = [&](std::string_view name) { return nlohmann::json::parse(read_file(folder_ / name)); };
  auto config = json("old/config.json");
  config.update({{"bos_token_id", 7}, {"eos_token_id", {7, 8}}, {"pad_token_id", 9}, {"my_own", "kept"}});
  write_file(folder_ / "old/config.json", config.dump());
  write_file(folder_ / "old/generation_config.json",
             R"({"eos_token_id": [7, 8], "bad_words_ids": [[7]], "temperature": 0.6})");
  const auto ids = [&](const nlohmann::json& in) {
    return nlohmann::json{in.value("bos_token_id", nlohmann::json("none")),
                          in.value("eos_token_id", nlohmann::json("none")),
                          in.value("pad_token_id", nlohmann::json("none"))};
  };
  const auto saved_ids = [&](const std::string& flags) {
    saved_with(flags);
    const auto saved_config = json("saved/config.json"), generation = json("saved/generation_config.json");
    EXPECT_EQ(saved_config["my_own"], "kept");
    EXPECT_EQ(saved_config["vocab_size"], 270);
    EXPECT_EQ(generation["temperature"], 0.6);
    EXPECT_EQ(generation["eos_token_id"], saved_config["eos_token_id"]);
    return ids(saved_config);
  };
  const nlohmann::json null, before{7, {7, 8}, 9};
  EXPECT_EQ(saved_ids(""), before);
  EXPECT_EQ(saved_ids(" --tokenizer " + path("old/tokenizer.json")), before);
  std::filesystem::create_directory(folder_ / "tidy");
  write_file(folder_ / "tidy/tokenizer.json", json("old/tokenizer.json").dump(7));  // which sorts keys
  EXPECT_EQ(saved_ids(" --tokenizer " + path("tidy/tokenizer.json")), before) << "the same, written otherwise";
  const std::string other = " --tokenizer " + path("new/tokenizer.json");
  EXPECT_EQ(saved_ids(other), (nlohmann::json{null, null, null})) << "nothing says which tokens they are";
  EXPECT_FALSE(json("saved/generation_config.json").contains("bad_words_ids"));
  EXPECT_EQ(saved_ids(" --tokenizer none"), (nlohmann::json{null, null, null}));

  auto tokenizer = json("new/tokenizer.json");
  const auto end = tokenizer["added_tokens"][0];
  ASSERT_EQ(end["content"], "<|endoftext|>");
  const std::string a_token = tokenizer["model"]["vocab"].items().begin().key();
  write_file(folder_ / "new/tokenizer_config.json",
             nlohmann::json{{"eos_token", {{"content", "<|endoftext|>"}}}, {"bos_token", a_token}}.dump());
  write_file(folder_ / "new/special_tokens_map.json",
             R"({"pad_token": "<|endoftext|>", "bos_token": "<|endoftext|>"})");
  EXPECT_EQ(saved_ids(other), (nlohmann::json{tokenizer["model"]["vocab"][a_token], end["id"], end["id"]}));

  std::filesystem::remove(folder_ / "new/tokenizer_config.json");
  std::filesystem::remove(folder_ / "new/special_tokens_map.json");
  tokenizer["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, {{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}}}},
      {"pair", nlohmann::json::array()},
      {"special_tokens",
       {{"<|endoftext|>", {{"id", "<|endoftext|>"}, {"ids", {end["id"]}}, {"tokens", {"<|endoftext|>"}}}}}}};
  write_file(folder_ / "new/tokenizer.json", tokenizer.dump());
  EXPECT_EQ(saved_ids(other), (nlohmann::json{null, end["id"], null})) << "of its template";

  run(llama("--preset tiny --save " + path("fresh") + other));
  EXPECT_EQ(ids(json("fresh/config.json")), (nlohmann::json{null, end["id"], "none"})) << "of a new model, too";
}

}  // namespace
}  // namespace kolo::testing
