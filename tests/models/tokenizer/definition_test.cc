// Reading and writing of tokenizer.json.

#include "models/tokenizer/definition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "models/tokenizer/tokenizer.h"
#include "models/tokenizer/trainer.h"
#include "tests/models/models_testing.h"
#include "tests/models/tokenizer/mixed_text.h"

namespace kolo::models {
namespace {

using nlohmann::json;
using testing::error_of;
using testing::read_file;
using testing::TempFolder;
using testing::write_file;

std::string stored_text(const std::string& name) {
  return read_file(std::filesystem::path(KOLO_SOURCE_DIR) / "tests/models/tokenizer" / (name + ".json"));
}

class Definition : public ::testing::Test {
 protected:
  TokenizerDefinition read(const std::string& text) const {
    write_file(folder_ / "t.json", text);
    return read_tokenizer(folder_ / "t.json");
  }
  /// Why a file is refused.
  std::string why(const std::string& text) const {
    const std::string before = "cannot use DIR/t.json (", behind =
                                                              "); give the tokenizer.json of byte-level BPE, such as "
                                                              "Llama 3's or one that 'kolo-train tokenizer' writes";
    std::string error = error_of([&] { (void)read(text); }, folder_.path());
    if (!error.starts_with(before) || !error.ends_with(behind)) return error;
    return error.substr(before.size(), error.size() - before.size() - behind.size());
  }
  template <class Change>
  std::string why_changed(const std::string& name, Change change) const {
    json file = json::parse(stored_text(name));
    change(file);
    return why(file.dump());
  }

  TempFolder folder_;
};

TEST_F(Definition, WhatIsWrittenIsRead) {
  const std::string text = testing::MixedText(3).text(20'000);
  for (const char* name : {"gpt2", "llama3"}) {
    const TokenizerDefinition first = read(stored_text(name)), again = read(json_of(first));
    EXPECT_EQ(again.vocabulary, first.vocabulary);
    EXPECT_EQ(again.merges, first.merges);
    EXPECT_EQ(Tokenizer(again).fingerprint(), Tokenizer(first).fingerprint());
    EXPECT_EQ(Tokenizer(again).encode(text), Tokenizer(first).encode(text));
    EXPECT_EQ(json_of(again), json_of(first));
  }
  const TokenizerDefinition llama3 = read(stored_text("llama3"));
  EXPECT_EQ(llama3.split, SplitPattern::llama3);
  EXPECT_TRUE(llama3.ignore_merges);
  EXPECT_EQ(llama3.before, (std::vector<std::int32_t>{900}));
  EXPECT_EQ(llama3.size(), 903);
}

TEST_F(Definition, BadFiles) {
  EXPECT_EQ(
      error_of([&] { (void)read_tokenizer(folder_ / "none"); }, folder_.path()),
      "cannot use DIR/none (No such file or directory); give the tokenizer.json of byte-level BPE, such as Llama 3's "
      "or one that 'kolo-train tokenizer' writes");
  for (const char* text : {"no json", "{", "[]", "3", "\xff\xfe"}) EXPECT_EQ(why(text), "it is not JSON, or damaged");
  EXPECT_EQ(why(""), "it is empty");
  EXPECT_EQ(why("{}"), "it has no object with 'type'");
  const auto changed = [&](auto change) { return why_changed("gpt2", change); };
  EXPECT_EQ(changed([](json& f) { f["model"]["type"] = "WordPiece"; }),
            "its model is of the type 'WordPiece', and only BPE is known");
  EXPECT_EQ(changed([](json& f) { f["model"]["byte_fallback"] = true; }), "it has 'byte_fallback', which is not known");
  EXPECT_EQ(changed([](json& f) { f["model"]["dropout"] = 0.1; }), "it has 'dropout', which is not known");
  EXPECT_EQ(changed([](json& f) { f["model"]["unk_token"] = "<unk>"; }), "it has 'unk_token', which is not known");
  EXPECT_EQ(changed([](json& f) { f["model"].erase("vocab"); }), "its 'vocab' is missing or no object");
  EXPECT_EQ(changed([](json& f) { f["model"]["merges"] = 3; }), "its 'merges' is missing or no list");
  EXPECT_EQ(changed([](json& f) { f["model"]["merges"][2] = "ab"; }), "merge 2 has no two tokens");
  EXPECT_EQ(changed([](json& f) { f["model"]["merges"][2] = {"a", "b", "c"}; }), "merge 2 has no two tokens");
  EXPECT_EQ(changed([](json& f) { f["model"]["merges"][2] = "a \xe4\xb8\xad"; }),
            "merge 2 is of '\xe4\xb8\xad', which is no token");
  EXPECT_EQ(changed([](json& f) { f["model"]["merges"][2] = {"z", "q"}; }), "merge 2 is of 'zq', which is no token");
  EXPECT_EQ(changed([](json& f) { f["model"]["vocab"]["new"] = 901; }),
            "the id of its token 'new' is 901, and it has 901 tokens: ids have holes");
  EXPECT_EQ(changed([](json& f) { f["model"]["vocab"]["\xe4\xb8\xad"] = 66; }),
            "its tokens 'b' and '\xe4\xb8\xad' have the id 66");
  EXPECT_EQ(changed([](json& f) { f["model"]["vocab"]["new"] = -1; }),
            "the id of its token 'new' is not a number from 0 to 16777215");
  EXPECT_EQ(changed([](json& f) { f["model"]["vocab"]["new"] = 4294967296; }),
            "the id of its token 'new' is not a number from 0 to 16777215");
  EXPECT_EQ(changed([](json& f) {
              f["model"]["vocab"].erase("\xc4\x80");
              f["model"]["vocab"]["new"] = json::parse(stored_text("gpt2"))["model"]["vocab"]["\xc4\x80"];
            }),
            "it has no token for the byte 0x00");
  EXPECT_EQ(changed([](json& f) { f["added_tokens"][0]["id"] = 7; }), "its token '<|endoftext|>' has the ids 0 and 7");
  EXPECT_EQ(changed([](json& f) { f["added_tokens"][0]["lstrip"] = true; }),
            "its token '<|endoftext|>' has 'lstrip', which is not known");
  EXPECT_EQ(changed([](json& f) { f["added_tokens"][0]["content"] = ""; }), "it has an added token without text");
  EXPECT_EQ(changed([](json& f) {
              f["normalizer"] = {{"type", "NFC"}};
            }),
            "its normalizer is 'NFC', and none is known");
  EXPECT_EQ(changed([](json& f) { f["decoder"]["type"] = "Fuse"; }), "its decoder is not ByteLevel");
  const std::string splitting =
      "its 'pre_tokenizer' is neither ByteLevel nor a Split and ByteLevel, as GPT-2 and Llama 3 have it";
  EXPECT_EQ(changed([](json& f) { f["pre_tokenizer"] = nullptr; }), "its 'pre_tokenizer' is missing");
  EXPECT_EQ(changed([](json& f) { f["pre_tokenizer"]["type"] = "Whitespace"; }), splitting);
  EXPECT_EQ(changed([](json& f) { f["pre_tokenizer"]["use_regex"] = false; }), splitting);
  EXPECT_EQ(changed([](json& f) {
              f["post_processor"] = {{"type", "Bert"}};
            }),
            "its 'post_processor' is 'Bert', which is not known");
  const auto llama3 = [&](auto change) { return why_changed("llama3", change); };
  EXPECT_EQ(llama3([](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "x"; }),
            "it splits text by another pattern than GPT-2 and Llama 3");
  EXPECT_EQ(llama3([](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }),
            "it splits text by another pattern than GPT-2 and Llama 3");
  EXPECT_EQ(llama3([](json& f) { f["pre_tokenizer"]["pretokenizers"] = json::array(); }), splitting);
  EXPECT_EQ(llama3([](json& f) {
              f["post_processor"]["processors"][1]["special_tokens"]["<|begin_of_text|>"]["ids"] = {5000};
            }),
            "its template has an id without a token");
  EXPECT_EQ(llama3([](json& f) { f["post_processor"]["processors"][1]["single"] = json::array(); }),
            "its template has not one text");
}

/// Whatever the input: a definition that a tokenizer can be made of, or a ModelError.
TEST_F(Definition, DamagedFiles) {
  constexpr std::array<std::string_view, 14> pieces{"0", "-1", "99999999999", "null", "true",    "[",          "]",
                                                    "{", "}",  ",",           "\"",   "\\ud800", "\"vocab\":", "\xff"};
  std::size_t usable = 0, refused = 0;
  // A small file, so that changes reach its parts.
  const std::string small = json_of(TokenizerTrainer({.vocabulary = 257}).train());
  for (const std::uint64_t seed : testing::seeds(300)) {
    std::mt19937_64 random(seed);
    std::string text = small;
    for (std::uint64_t i = 1 + random() % 4; i > 0; --i) {
      // Half of the changes in front of the vocabulary.
      const std::size_t range = random() % 2 == 0 ? text.size() : std::min<std::size_t>(text.size(), 900);
      const std::size_t at = random() % range, length = 1 + random() % 6;
      switch (random() % 4) {
        case 0: text[at] = static_cast<char>(random()); break;
        case 1: text.erase(at, length); break;
        case 2: text.insert(at, pieces[random() % pieces.size()]); break;
        default: text.replace(at, length, pieces[random() % pieces.size()]); break;
      }
    }
    try {
      const Tokenizer tokenizer(read(text));
      (void)tokenizer.encode("any text <|endoftext|> will do");
      ++usable;
    } catch (const ModelError&) {
      ++refused;
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << ", seed " << seed;
    }
  }
  EXPECT_GT(refused, usable);
}

}  // namespace
}  // namespace kolo::models
