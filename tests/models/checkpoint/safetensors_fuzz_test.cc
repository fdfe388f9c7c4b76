#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "models/checkpoint/safetensors.h"
#include "tests/models/models_testing.h"

// Mutated headers: whatever the input, a header that keeps the format's rules comes out, or a ModelError.

namespace kolo::models {
namespace {

constexpr std::uint64_t buffer_bytes = 84;
const std::string good =
    R"({"__metadata__":{"format":"pt"},"a.weight":{"dtype":"F32","shape":[3,4],"data_offsets":[0,48]},)"
    R"("b":{"dtype":"BF16","shape":[],"data_offsets":[48,50]},"c":{"dtype":"I64","shape":[2,2],"data_offsets":[52,84]},)"
    R"("d":{"dtype":"U8","shape":[2,1],"data_offsets":[50,52]}} )";

constexpr std::array<std::string_view, 26> pieces{"0",
                                                  "-1",
                                                  "18446744073709551615",
                                                  "18446744073709551616",
                                                  "4294967296",
                                                  "1e5",
                                                  "0.5",
                                                  "null",
                                                  "true",
                                                  "[",
                                                  "]",
                                                  "{",
                                                  "}",
                                                  ",",
                                                  ":",
                                                  "\"",
                                                  "\\u0000",
                                                  "\\ud800",
                                                  "\xff",
                                                  "[[[[[[[[",
                                                  "\"dtype\"",
                                                  "\"F64\"",
                                                  "\"shape\":[]",
                                                  "\"__metadata__\"",
                                                  "\"data_offsets\":[0,0]",
                                                  "\"a.weight\":{}"};

std::string mutated(std::mt19937_64& random) {
  std::string json = good;
  const std::uint64_t mutations = 1 + random() % 4;
  for (std::uint64_t i = 0; i < mutations && !json.empty(); ++i) {
    const std::size_t at = random() % json.size(), length = 1 + random() % std::min<std::size_t>(8, json.size() - at);
    switch (random() % 6) {
      case 0: json[at] = static_cast<char>(random()); break;
      case 1: json.erase(at, length); break;
      case 2: json.insert(at, pieces[random() % pieces.size()]); break;
      case 3: json.replace(at, length, pieces[random() % pieces.size()]); break;
      case 4: json.insert(random() % json.size(), json.substr(at, random() % 60)); break;
      default: json[at] = static_cast<char>('0' + random() % 10); break;
    }
  }
  return json;
}

void expect_rules(const SafetensorsHeader& header) {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < header.tensors.size(); ++i) {
    const StoredTensor& tensor = header.tensors[i];
    ASSERT_LE(tensor.begin, tensor.end);
    ASSERT_LE(tensor.end, buffer_bytes);
    bytes += tensor.end - tensor.begin;
    ASSERT_TRUE(i == 0 || header.tensors[i - 1].name < tensor.name);
    for (const StoredTensor& other : header.tensors) {
      ASSERT_TRUE(&other == &tensor || other.end <= tensor.begin || tensor.end <= other.begin);
    }
  }
  ASSERT_EQ(bytes, buffer_bytes);
}

TEST(SafetensorsFuzz, HeadersKeepTheRulesOrAreRejected) {
  ASSERT_EQ(parse_safetensors_header(good, buffer_bytes).tensors.size(), 4u);
  int accepted = 0;
  constexpr std::uint64_t seeds = 30000;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    const std::string json = mutated(random);
    try {
      expect_rules(parse_safetensors_header(json, buffer_bytes));
      ++accepted;
    } catch (const ModelError& error) {
      const std::string_view text = error.what();
      ASSERT_FALSE(text.empty());
      ASSERT_TRUE(std::ranges::none_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x20; })) << text;
    }
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, static_cast<int>(seeds) / 2);
}

TEST(SafetensorsFuzz, WholeFiles) {
  const testing::TempFolder folder;
  const auto path = folder / "x";
  std::string whole;
  for (int i = 0; i < 8; ++i) whole += static_cast<char>(good.size() >> (8 * i));
  whole += good + std::string(buffer_bytes, 'x');
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    std::string bytes = whole;
    bytes[random() % (seed % 2 == 0 ? 8 : bytes.size())] =
        static_cast<char>(random());  // every other time in the length
    if (seed % 3 == 0) bytes.resize(random() % bytes.size());
    if (seed % 7 == 0) bytes += "more";
    testing::write_file(path, bytes);
    const std::string text = testing::error_of(
        [&] {
          const SafetensorsFile file(path);
          for (const StoredTensor& tensor : file.tensors()) {
            if (tensor.dtype != "F32") continue;
            std::vector<float> values((tensor.end - tensor.begin) / 4);
            file.read(tensor, values);
          }
        },
        folder.path());
    ASSERT_TRUE(text == "no error" || text.starts_with("cannot read DIR/x (")) << text;
  }
}

TEST(SafetensorsFuzz, DeepAndLongHeaders) {
  const std::string deep = "{\"a\":" + std::string(1 << 20, '[');
  EXPECT_EQ(testing::error_of([&] { parse_safetensors_header(deep, 0); }), "'a' is an array, not an object");
  std::string many = "{";
  for (int i = 0; i < 50000; ++i) many += fmt::format(R"("{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}},)", i);
  many.back() = '}';
  EXPECT_EQ(parse_safetensors_header(many, 0).tensors.size(), 50000u);
  const std::string long_name = "{\"" + std::string(1 << 20, 'n') + "\":1}";
  EXPECT_LT(testing::error_of([&] { parse_safetensors_header(long_name, 0); }).size(), 200u);
}

}  // namespace
}  // namespace kolo::models
