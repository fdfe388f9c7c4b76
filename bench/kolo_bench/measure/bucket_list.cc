#include "bench/kolo_bench/measure/bucket_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <string_view>

#include "bench/kolo_bench/options.h"

namespace kolo::bench {
namespace {

// Element counts of two models' gradients, in the order in which backprop produces them: ResNet-50, and a Llama of 110
// M parameters (768 wide, 12 layers, feed-forward 2048, vocabulary 32000, embedding tied).

constexpr std::array<std::int32_t, 161> resnet50{
    1000, 2048000, 2048, 2048, 1048576, 512,  512,  2359296, 512,  512,  1048576, 2048, 2048, 1048576, 512,
    512,  2359296, 512,  512,  1048576, 2048, 2048, 2097152, 2048, 2048, 1048576, 512,  512,  2359296, 512,
    512,  524288,  1024, 1024, 262144,  256,  256,  589824,  256,  256,  262144,  1024, 1024, 262144,  256,
    256,  589824,  256,  256,  262144,  1024, 1024, 262144,  256,  256,  589824,  256,  256,  262144,  1024,
    1024, 262144,  256,  256,  589824,  256,  256,  262144,  1024, 1024, 262144,  256,  256,  589824,  256,
    256,  262144,  1024, 1024, 524288,  1024, 1024, 262144,  256,  256,  589824,  256,  256,  131072,  512,
    512,  65536,   128,  128,  147456,  128,  128,  65536,   512,  512,  65536,   128,  128,  147456,  128,
    128,  65536,   512,  512,  65536,   128,  128,  147456,  128,  128,  65536,   512,  512,  131072,  512,
    512,  65536,   128,  128,  147456,  128,  128,  32768,   256,  256,  16384,   64,   64,   36864,   64,
    64,   16384,   256,  256,  16384,   64,   64,   36864,   64,   64,   16384,   256,  256,  16384,   256,
    256,  16384,   64,   64,   36864,   64,   64,   4096,    64,   64,   9408};

std::vector<std::int64_t> llama() {
  std::vector<std::int64_t> elements{768};
  for (int layer = 0; layer < 12; ++layer) {
    elements.insert(elements.end(), {1572864, 1572864, 1572864, 768, 589824, 589824, 589824, 589824, 768});
  }
  elements.push_back(24576000);
  return elements;
}

constexpr std::int64_t most_elements = std::int64_t{1} << 40;
constexpr std::size_t most_tensors = 1'000'000;

std::int64_t count_in(std::string_view line, const std::string& path, std::size_t number) {
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), count);
  if (error != std::errc() || end != line.data() + line.size() || count < 1 || count > most_elements) {
    throw UsageError(fmt::format("line {} of {} is '{}'; each line takes a tensor's number of elements, from 1 to {}",
                                 number, path, line.substr(0, 60), most_elements));
  }
  return count;
}

std::string_view trimmed(std::string_view line) {
  const auto first = line.find_first_not_of(" \t\r"), last = line.find_last_not_of(" \t\r");
  return first == line.npos ? std::string_view() : line.substr(first, last - first + 1);
}

}  // namespace

std::int64_t BucketList::total() const {
  return std::accumulate(elements.begin(), elements.end(), std::int64_t{0});
}

BucketList bucket_list(const std::string& name_or_file) {
  if (name_or_file == "resnet50") return {name_or_file, {resnet50.begin(), resnet50.end()}};
  if (name_or_file == "llama") return {name_or_file, llama()};
  std::error_code ignored;
  std::ifstream file(name_or_file);
  if (!file || std::filesystem::is_directory(name_or_file, ignored)) {
    throw UsageError(fmt::format(
        "--buckets is '{}', which is neither a list (resnet50, llama) nor a readable file; give one of them",
        name_or_file));
  }
  BucketList list{std::filesystem::path(name_or_file).filename().string(), {}};
  std::string text;
  for (std::size_t number = 1; std::getline(file, text); ++number) {
    const auto line = trimmed(text);
    if (line.empty() || line.front() == '#') continue;
    list.elements.push_back(count_in(line, name_or_file, number));
    if (list.elements.size() > most_tensors || list.total() > most_elements) {
      throw UsageError(fmt::format("{} has more than {} tensors or {} elements; use a smaller list", name_or_file,
                                   most_tensors, most_elements));
    }
  }
  if (list.elements.empty())
    throw UsageError(fmt::format("{} names no tensor; each line takes a tensor's number of elements", name_or_file));
  return list;
}

}  // namespace kolo::bench
