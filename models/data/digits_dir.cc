#include "models/data/digits_dir.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <system_error>

#include "models/data/idx.h"
#include "models/util/error.h"

namespace kolo::models {
namespace {

namespace fs = std::filesystem;

struct Pair {
  fs::path images, labels;
};

std::optional<fs::path> find_file(const fs::path& folder, const std::string& name) {
  std::error_code error;
  for (const char* suffix : {"", ".gz"}) {
    const fs::path path = folder / (name + suffix);
    if (fs::exists(path, error)) return path;
  }
  return std::nullopt;
}

/// Nothing if neither file of the pair is there.
std::optional<Pair> find_pair(const fs::path& folder, const std::string& set) {
  const std::string images_name = set + "-images-idx3-ubyte", labels_name = set + "-labels-idx1-ubyte";
  const auto images = find_file(folder, images_name), labels = find_file(folder, labels_name);
  if (images && labels) return Pair{*images, *labels};
  if (!images && !labels) return std::nullopt;
  throw ModelError(fmt::format("{} has {} but not {}, plain or .gz; add it", folder.string(),
                               images ? images_name : labels_name, images ? labels_name : images_name));
}

void check_folder(const fs::path& folder) {
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (fs::is_directory(status)) {
    const fs::directory_iterator readable(folder, error);
    if (!error) return;
  }
  const std::string reason = fs::is_directory(status) || !fs::exists(status) ? error.message() : "it is not a folder";
  throw ModelError(fmt::format("cannot read {} ({}); name a folder with MNIST's IDX files", folder.string(), reason));
}

/// Examples first … last-1 of `all`.
Dataset part_of(const Dataset& all, std::int64_t first, std::int64_t last) {
  Dataset part{.channels = all.channels,
               .rows = all.rows,
               .columns = all.columns,
               .classes = all.classes,
               .inputs = {},
               .labels = {}};
  part.inputs.assign(all.inputs.begin() + first * all.input_size(), all.inputs.begin() + last * all.input_size());
  part.labels.assign(all.labels.begin() + first, all.labels.begin() + last);
  return part;
}

DataSplit split_one(const fs::path& folder, const Pair& files) {
  const Dataset all = read_idx(files.images, files.labels);
  const std::int64_t train = all.count() - all.count() / 5;
  return {part_of(all, 0, train), part_of(all, train, all.count()),
          fmt::format("t10k digits of {}: the first {} to train on, the last {} held out", folder.string(), train,
                      all.count() - train)};
}

}  // namespace

DataSplit read_digits(const fs::path& folder) {
  check_folder(folder);
  const auto train = find_pair(folder, "train"), test = find_pair(folder, "t10k");
  if (!test) {
    throw ModelError(
        fmt::format("{} has no digits to {} (looked for t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, plain or "
                    ".gz); name a folder with MNIST's IDX files",
                    folder.string(), train ? "hold out" : "train on"));
  }
  if (!train) return split_one(folder, *test);
  DataSplit split{read_idx(train->images, train->labels), read_idx(test->images, test->labels), {}};
  if (split.train.channels != split.held_out.channels || split.train.rows != split.held_out.rows ||
      split.train.columns != split.held_out.columns) {
    throw ModelError(fmt::format("{} has train images of {}x{} and t10k images of {}x{}; give sets of one size",
                                 folder.string(), split.train.rows, split.train.columns, split.held_out.rows,
                                 split.held_out.columns));
  }
  split.description = fmt::format("digits of {}: {} of train to train on, {} of t10k held out", folder.string(),
                                  split.train.count(), split.held_out.count());
  return split;
}

}  // namespace kolo::models
