// What library_test.py compares with the library `tokenizers`.

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "models/tokenizer/tokenizer.h"
#include "models/tokenizer/trainer.h"
#include "tests/models/tokenizer/mixed_text.h"

namespace kolo {
namespace {

std::string read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const char* path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

int run(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what == "text" && argc == 5) {  // SEED BYTES OUT
    write(argv[4], testing::MixedText(std::strtoull(argv[2], nullptr, 10)).text(std::strtoull(argv[3], nullptr, 10)));
  } else if (what == "encode" && argc == 6) {  // TOKENIZER TEXT IDS DECODED
    const models::Tokenizer tokenizer(argv[2]);
    const auto ids = tokenizer.encode(read(argv[3]));
    write(argv[4], {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof ids[0]});
    write(argv[5], tokenizer.decode(ids));
  } else if (what == "pieces" && argc == 5) {  // SPLIT TEXT LENGTHS
    const std::string text = read(argv[3]);
    std::vector<std::int32_t> lengths;
    for (std::size_t at = 0; at < text.size(); at += static_cast<std::size_t>(lengths.back())) {
      const std::size_t end = models::piece_end(models::split_patterns.parse(argv[2]), text, at, false);
      lengths.push_back(static_cast<std::int32_t>(end - at));
    }
    write(argv[4], {reinterpret_cast<const char*>(lengths.data()), lengths.size() * sizeof lengths[0]});
  } else if (what == "train" && argc == 7) {  // VOCABULARY MIN_FREQUENCY SPLIT TEXT OUT
    models::TokenizerTrainer trainer({.vocabulary = std::strtoll(argv[2], nullptr, 10),
                                      .min_frequency = std::strtoll(argv[3], nullptr, 10),
                                      .split = models::split_patterns.parse(argv[4])});
    trainer.add(read(argv[5]), true);
    write(argv[6], json_of(trainer.train()));
  } else {
    fmt::print(stderr, "usage: tokenizer_job text|encode|pieces|train ...\n");
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace kolo

int main(int argc, char** argv) {
  return kolo::run(argc, argv);
}
