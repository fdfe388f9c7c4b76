#include "apps/cli/flag_values.h"

namespace kolo::train {

std::vector<Flag> data_flags() {
  return {
      path_flag(
          "data", "FILE_OR_DIR",
          "mlp, cnn: folder with MNIST's IDX files, gzipped or not: trains on train-*, holds out t10k-*; without "
          "train-*, trains on the first four fifths of t10k-* and holds out the rest (default: digits that the program "
          "renders). llama: file of text or tokens, or a folder of such files, which follow each other by name "
          "(default: "
          "the project's own sources)",
          &Options::data, "a file or folder"),
      flag("tokens", "TYPE", "llama: how tokens are stored: bytes, u16 or u32, little-endian (default: bytes)",
           &Options::tokens, [](const Given& given) { return models::token_type_of(given.value); }),
      count_flag("seq", "llama: tokens of a sequence (default: as many as the model has positions)", &Options::seq, 1,
                 1 << 24),
      path_flag(
          "val", "FILE",
          "llama: held-out tokens (default: the last tenth of --data if the order is shuffled, none if sequential)",
          &Options::val, "a file or folder"),
      flag("order", "ORDER",
           "shuffled: anew in each epoch; sequential: as in the file, step t taking the next batch x ranks x "
           "accumulate examples "
           "(default: shuffled)",
           &Options::order, [](const Given& given) { return models::order_of(given.value); }),
      switch_flag("augment", "mlp, cnn: show each image a little shifted, turned and scaled, anew in each epoch",
                  &Options::augment),
  };
}

}  // namespace kolo::train
