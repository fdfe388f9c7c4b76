#include "models/data/dataset.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <optional>
#include <system_error>

#include "models/util/error.h"

namespace kolo::models {
namespace {

namespace fs = std::filesystem;

struct GzClose {
  void operator()(gzFile_s* file) const noexcept { (void)gzclose(file); }
};

/// An IDX file being read; zlib passes through what is not gzipped.
class IdxFile {
 public:
  explicit IdxFile(const fs::path& path) : path_(path) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (fs::is_directory(status)) unreadable("it is a folder");
    if (fs::exists(status) && !fs::is_regular_file(status)) unreadable("it is not a regular file");  // such as a pipe
    file_.reset(gzopen(path.c_str(), "rb"));
    if (!file_) unreadable(std::generic_category().message(errno));
  }

  [[noreturn]] void fail(std::string_view reason, std::string_view advice) const {
    throw ModelError(fmt::format("cannot use {} ({}); {}", path_.string(), reason, advice));
  }

  /// Up to `bytes`, fewer only at the end of the file.
  std::size_t read(void* out, std::size_t bytes) {
    const int got = gzread(file_.get(), out, static_cast<unsigned>(bytes));
    int code = Z_OK;
    const char* const text = gzerror(file_.get(), &code);
    if (code == Z_ERRNO) unreadable(std::generic_category().message(errno));
    if (code == Z_BUF_ERROR) fail("its gzip stream is cut off", "fetch it again");
    if (got < 0) {
      const std::string_view words(text), path(path_.native());  // zlib puts "path: " before its words
      const bool prefixed = words.starts_with(path) && words.substr(path.size()).starts_with(": ");
      fail(fmt::format("its gzip stream is damaged: {}", prefixed ? words.substr(path.size() + 2) : words),
           "fetch it again");
    }
    return static_cast<std::size_t>(got);
  }

  /// A big-endian number of the header.
  std::uint32_t number() {
    std::array<unsigned char, 4> bytes{};
    if (read(bytes.data(), bytes.size()) != bytes.size()) fail("it ends within its header", "fetch it again");
    return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 | bytes[3];
  }

  void expect_magic(std::uint32_t magic, std::string_view what) { expect(number(), magic, what); }

  void expect(std::uint32_t found, std::uint32_t magic, std::string_view what) const {
    if (found == magic) return;
    fail(fmt::format("it begins with 0x{:08x}, an IDX file of {} with 0x{:08x}", found, what, magic),
         fmt::format("give MNIST's {} file, gzipped or not", what));
  }

  /// All that is left, which must be `bytes`.
  std::vector<std::uint8_t> rest(std::uint64_t bytes, std::string_view content) {
    constexpr std::uint64_t chunk = 1 << 20;
    std::vector<std::uint8_t> data;
    for (std::uint64_t before = 0; before < bytes; before = data.size()) {
      data.resize(before + std::min(chunk, bytes - before));
      const std::size_t got = read(data.data() + before, data.size() - before);
      data.resize(before + got);
      if (got == 0)
        fail(fmt::format("{} of the {} bytes of its {} are missing", bytes - before, bytes, content), "fetch it again");
    }
    std::uint8_t more = 0;
    if (read(&more, 1) != 0) fail(fmt::format("bytes follow its {}", content), "fetch it again");
    return data;
  }

 private:
  [[noreturn]] void unreadable(std::string_view reason) const { fail(reason, "check the path and its permissions"); }

  fs::path path_;
  std::unique_ptr<gzFile_s, GzClose> file_;
};

void read_images(const fs::path& path, Dataset& data) {
  IdxFile file(path);
  const std::uint32_t magic = file.number();
  const bool has_channels = magic == 0x804;
  if (!has_channels) file.expect(magic, 0x803, "images");
  const std::uint64_t count = file.number(), channels = has_channels ? file.number() : 1;
  const std::uint64_t rows = file.number(), columns = file.number();
  constexpr std::uint64_t widest = 4096;  // one image has at most 2^36 bytes
  const std::uint64_t each = channels * rows * columns;
  std::uint64_t bytes = 0;
  if (count == 0 || each == 0 || channels > widest || rows > widest || columns > widest ||
      __builtin_mul_overflow(count, each, &bytes)) {
    file.fail(fmt::format("it holds {} images of {}{}x{} pixels", count,
                          has_channels ? fmt::format("{}x", channels) : "", rows, columns),
              "give MNIST's images file, gzipped or not");
  }
  data.channels = static_cast<std::int64_t>(channels);
  data.rows = static_cast<std::int64_t>(rows);
  data.columns = static_cast<std::int64_t>(columns);
  data.inputs = file.rest(bytes, fmt::format("{} images", count));
}

void read_labels(const fs::path& path, std::uint64_t images, Dataset& data) {
  IdxFile file(path);
  file.expect_magic(0x801, "labels");
  const std::uint64_t count = file.number();
  if (count != images) {
    file.fail(fmt::format("it holds {} labels for {} images", count, images),
              "give the labels that belong to the images");
  }
  const std::vector<std::uint8_t> bytes = file.rest(count, fmt::format("{} labels", count));
  data.labels.assign(bytes.begin(), bytes.end());
  data.classes = std::ranges::max(data.labels) + 1;
}

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

Dataset read_idx(const fs::path& images, const fs::path& labels) {
  Dataset data;
  read_images(images, data);
  read_labels(labels, data.inputs.size() / static_cast<std::uint64_t>(data.input_size()), data);
  return data;
}

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
  split.train.classes = split.held_out.classes = std::max(split.train.classes, split.held_out.classes);
  split.description = fmt::format("digits of {}: {} of train to train on, {} of t10k held out", folder.string(),
                                  split.train.count(), split.held_out.count());
  return split;
}

}  // namespace kolo::models
