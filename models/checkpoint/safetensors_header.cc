#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "models/checkpoint/safetensors.h"
#include "models/util/error.h"

namespace kolo::models {
namespace {

using Json = nlohmann::json;

struct DTypeBits {
  std::string_view name;
  unsigned bits;
};
constexpr std::array dtypes{
    DTypeBits{"BOOL", 8},    DTypeBits{"F4", 4},          DTypeBits{"F6_E2M3", 6},     DTypeBits{"F6_E3M2", 6},
    DTypeBits{"U8", 8},      DTypeBits{"I8", 8},          DTypeBits{"F8_E5M2", 8},     DTypeBits{"F8_E4M3", 8},
    DTypeBits{"F8_E8M0", 8}, DTypeBits{"F8_E4M3FNUZ", 8}, DTypeBits{"F8_E5M2FNUZ", 8}, DTypeBits{"I16", 16},
    DTypeBits{"U16", 16},    DTypeBits{"F16", 16},        DTypeBits{"BF16", 16},       DTypeBits{"I32", 32},
    DTypeBits{"U32", 32},    DTypeBits{"F32", 32},        DTypeBits{"C64", 64},        DTypeBits{"F64", 64},
    DTypeBits{"I64", 64},    DTypeBits{"U64", 64}};

unsigned bits_of(const StoredTensor& tensor) {
  const auto* const found = std::ranges::find(dtypes, std::string_view(tensor.dtype), &DTypeBits::name);
  if (found != dtypes.end()) return found->bits;
  throw ModelError(fmt::format("tensor {} has the unknown dtype {}", in_quotes(tensor.name), in_quotes(tensor.dtype)));
}

/// A strict handler of the JSON parser's events: anything that the format does not allow throws at once, so that deep
/// or long input builds nothing.
class HeaderReader {
 public:
  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("true or false"); }
  bool number_integer(Json::number_integer_t) { return unexpected("a negative number"); }
  bool number_float(Json::number_float_t, const Json::string_t&) {
    return unexpected("a number that is not a 64-bit integer");
  }
  bool binary(Json::binary_t&) { return unexpected("binary data"); }

  bool number_unsigned(Json::number_unsigned_t value) {
    if (place_ != Place::shape && place_ != Place::offsets) return unexpected("a number");
    if (place_ == Place::offsets && offsets_.size() == 2) fail("has more than two data_offsets");
    (place_ == Place::shape ? tensor_.shape : offsets_).push_back(value);
    return true;
  }

  bool string(Json::string_t& value) {
    if (place_ == Place::metadata) {
      header_.metadata[key_] = value;
    } else if (place_ == Place::tensor && key_ == "dtype") {
      tensor_.dtype = value;
    } else {
      unexpected("a string");
    }
    return true;
  }

  bool start_object(std::size_t) {
    if (place_ == Place::outside) {
      place_ = Place::top;
    } else if (place_ == Place::top) {
      keys_.clear();
      place_ = key_ == "__metadata__" ? Place::metadata : Place::tensor;
      tensor_ = {.name = key_};
      offsets_.clear();
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(Json::string_t& value) {
    key_ = value;
    const bool fresh = place_ == Place::top ? names_.insert(value).second : keys_.insert(value).second;
    if (!fresh) throw ModelError(fmt::format("the key {} appears twice", in_quotes(value)));
    if (place_ == Place::tensor && value != "dtype" && value != "shape" && value != "data_offsets") {
      fail(fmt::format("has the unknown field {}", in_quotes(value)));
    }
    return true;
  }

  bool end_object() {
    if (place_ == Place::tensor) finish_tensor();
    place_ = place_ == Place::top ? Place::outside : Place::top;
    return true;
  }

  bool start_array(std::size_t) {
    if (place_ != Place::tensor || key_ == "dtype") return unexpected("an array");
    place_ = key_ == "shape" ? Place::shape : Place::offsets;
    return true;
  }

  bool end_array() {
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) {
    throw ModelError(fmt::format("the header is not valid JSON near its byte {}", position));
  }

  SafetensorsHeader take() { return std::move(header_); }

 private:
  enum class Place { outside, top, metadata, tensor, shape, offsets };

  [[noreturn]] void fail(std::string_view what) const {
    throw ModelError(fmt::format("tensor {} {}", in_quotes(tensor_.name), what));
  }

  [[noreturn]] bool unexpected(std::string_view what) const {
    switch (place_) {
      case Place::outside: throw ModelError("the header is not a JSON object");
      case Place::top: throw ModelError(fmt::format("{} is {}, not an object", in_quotes(key_), what));
      case Place::metadata: throw ModelError(fmt::format("metadata {} is {}, not a string", in_quotes(key_), what));
      case Place::shape: fail(fmt::format("has {} in its shape", what));
      case Place::offsets: fail(fmt::format("has {} in its data_offsets", what));
      case Place::tensor: break;
    }
    fail(fmt::format("has {} as its {}", what, key_));
  }

  void finish_tensor() {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!keys_.contains(field)) fail(fmt::format("has no {}", field));
    }
    if (offsets_.size() != 2) fail("has fewer than two data_offsets");
    tensor_.begin = offsets_[0];
    tensor_.end = offsets_[1];
    header_.tensors.push_back(std::move(tensor_));
  }

  Place place_ = Place::outside;
  std::string key_;
  std::set<std::string> names_, keys_;  // seen so far: of the whole header, and of the object inside it
  StoredTensor tensor_;
  std::vector<std::uint64_t> offsets_;
  SafetensorsHeader header_;
};

void check_size(const StoredTensor& tensor) {
  std::uint64_t bits = 1;
  bool overflow = false;
  for (const std::uint64_t extent : tensor.shape) overflow |= __builtin_mul_overflow(bits, extent, &bits);
  overflow |= __builtin_mul_overflow(bits, std::uint64_t{bits_of(tensor)}, &bits);
  if (overflow) throw ModelError(fmt::format("tensor {} has an impossible size", in_quotes(tensor.name)));
  if (tensor.end < tensor.begin)
    throw ModelError(fmt::format("tensor {} ends before it begins", in_quotes(tensor.name)));
  if (bits % 8 == 0 && tensor.end - tensor.begin == bits / 8) return;
  throw ModelError(fmt::format("tensor {} has {} bytes, which is not what its dtype and shape need",
                               in_quotes(tensor.name), tensor.end - tensor.begin));
}

void check_cover(std::vector<StoredTensor>& tensors, std::uint64_t buffer_bytes) {
  std::ranges::sort(tensors,
                    [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::uint64_t covered = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.begin != covered) {
      throw ModelError(fmt::format("tensor {} begins at byte {} of the data, where {} is due", in_quotes(tensor.name),
                                   tensor.begin, covered));
    }
    covered = tensor.end;
  }
  if (covered == buffer_bytes) return;
  throw ModelError(fmt::format("the tensors need {} bytes of data, and the file has {}", covered, buffer_bytes));
}

}  // namespace

std::uint64_t safetensors_header_bytes(std::string_view first_eight, std::uint64_t file_bytes) {
  if (first_eight.size() < 8 || file_bytes < 8) throw ModelError("it is shorter than 8 bytes");
  std::uint64_t bytes = 0;
  for (int i = 7; i >= 0; --i)
    bytes = bytes << 8 | static_cast<unsigned char>(first_eight[static_cast<std::size_t>(i)]);
  if (bytes > 100'000'000) throw ModelError(fmt::format("a header of {} bytes is more than the format allows", bytes));
  if (bytes > file_bytes - 8) {
    throw ModelError(fmt::format("a header of {} bytes does not fit into a file of {}", bytes, file_bytes));
  }
  return bytes;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t buffer_bytes) {
  if (json.empty() || json.front() != '{') throw ModelError("the header does not begin with '{'");
  HeaderReader reader;
  Json::sax_parse(json.begin(), json.end(), &reader);
  SafetensorsHeader header = reader.take();
  for (const StoredTensor& tensor : header.tensors) check_size(tensor);
  check_cover(header.tensors, buffer_bytes);
  std::ranges::sort(header.tensors, {}, &StoredTensor::name);
  return header;
}

}  // namespace kolo::models
