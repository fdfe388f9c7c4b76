#include "models/checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <csignal>
#include <limits>

#include "tests/models/models_testing.h"

namespace kolo::models {
namespace {

using testing::error_of;
using testing::read_file;
using testing::TempFolder;
using testing::write_file;

std::string length_of(std::size_t bytes) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(bytes >> (8 * i));
  return text;
}

std::string parse_error(std::string_view json, std::uint64_t buffer_bytes) {
  return error_of([&] { parse_safetensors_header(json, buffer_bytes); });
}

/// A header of one tensor "w" with these fields.
std::string tensor(const std::string& fields) {
  return "{\"w\":{" + fields + "}}";
}

TEST(SafetensorsHeader, FormatsExample) {
  const std::string json = R"({"test":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}})";
  EXPECT_EQ(safetensors_header_bytes(std::string("\x3c\0\0\0\0\0\0\0", 8), 8 + 60 + 16), 60u);
  ASSERT_EQ(json.size(), 60u);
  const SafetensorsHeader header = parse_safetensors_header(json, 16);
  ASSERT_EQ(header.tensors.size(), 1u);
  EXPECT_EQ(header.tensors[0].name, "test");
  EXPECT_EQ(header.tensors[0].dtype, "I32");
  EXPECT_EQ(header.tensors[0].shape, (std::vector<std::uint64_t>{2, 2}));
  EXPECT_EQ(header.tensors[0].end, 16u);
}

TEST(SafetensorsHeader, WhatIsAllowed) {
  EXPECT_TRUE(parse_safetensors_header("{}", 0).tensors.empty());
  EXPECT_TRUE(parse_safetensors_header("{}      ", 0).tensors.empty());
  const auto scalar = parse_safetensors_header(tensor(R"("dtype":"F32","shape":[],"data_offsets":[0,4])"), 4);
  EXPECT_TRUE(scalar.tensors[0].shape.empty());
  EXPECT_EQ(parse_error(tensor(R"("dtype":"F32","shape":[0,5],"data_offsets":[0,0])"), 0), "no error");
  EXPECT_EQ(parse_error(tensor(R"("data_offsets":[0,3],"dtype":"F4","shape":[3,2])"), 3), "no error");
  const auto meta = parse_safetensors_header(R"({"__metadata__":{"a":"b","c":""}})", 0);
  EXPECT_EQ(meta.metadata, (std::map<std::string, std::string>{{"a", "b"}, {"c", ""}}));
  const auto two = parse_safetensors_header(
      R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
      3);
  EXPECT_EQ(two.tensors[0].name, "a");
  EXPECT_EQ(two.tensors[1].name, "b");
}

TEST(SafetensorsHeader, Length) {
  EXPECT_EQ(error_of([] { safetensors_header_bytes("abc", 3); }), "it is shorter than 8 bytes");
  EXPECT_EQ(error_of([] { safetensors_header_bytes(length_of(100'000'001), 200'000'000); }),
            "a header of 100000001 bytes is more than the format allows");
  EXPECT_EQ(error_of([] { safetensors_header_bytes(std::string(8, '\xff'), 100); }),
            "a header of 18446744073709551615 bytes is more than the format allows");
  EXPECT_EQ(error_of([] { safetensors_header_bytes(length_of(93), 100); }),
            "a header of 93 bytes does not fit into a file of 100");
  EXPECT_EQ(safetensors_header_bytes(length_of(92), 100), 92u);
}

TEST(SafetensorsHeader, NotAHeader) {
  EXPECT_EQ(parse_error("", 0), "the header does not begin with '{'");
  EXPECT_EQ(parse_error(" {}", 0), "the header does not begin with '{'");
  EXPECT_EQ(parse_error("[]", 0), "the header does not begin with '{'");
  EXPECT_EQ(parse_error("{", 0), "the header is not valid JSON near its byte 2");
  EXPECT_EQ(parse_error("{}x", 0), "the header is not valid JSON near its byte 3");
  EXPECT_EQ(parse_error("{\"\xff\":1}", 0), "the header is not valid JSON near its byte 3");
  EXPECT_EQ(parse_error(R"({"w":5})", 0), "'w' is a number, not an object");
  EXPECT_EQ(parse_error(R"({"w":[[[[[[)", 0), "'w' is an array, not an object");
  EXPECT_EQ(parse_error(R"({"__metadata__":{"a":1}})", 0), "metadata 'a' is a number, not a string");
  EXPECT_EQ(parse_error(R"({"__metadata__":{"a":{}}})", 0), "metadata 'a' is an object, not a string");
  EXPECT_EQ(parse_error(R"({"__metadata__":null})", 0), "'__metadata__' is null, not an object");
}

TEST(SafetensorsHeader, Keys) {
  const std::string one = R"("w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_EQ(parse_error("{" + one + "," + one + "}", 0), "the key 'w' appears twice");
  EXPECT_EQ(parse_error(R"({"__metadata__":{},"__metadata__":{}})", 0), "the key '__metadata__' appears twice");
  EXPECT_EQ(parse_error(R"({"__metadata__":{"a":"","a":""}})", 0), "the key 'a' appears twice");
  EXPECT_EQ(parse_error(tensor(R"("dtype":"U8","dtype":"U8")"), 0), "the key 'dtype' appears twice");
  EXPECT_EQ(parse_error(tensor(R"("dtype":"U8","strides":[1])"), 0), "tensor 'w' has the unknown field 'strides'");
  EXPECT_EQ(parse_error(tensor(R"("dtype":"U8","shape":[0])"), 0), "tensor 'w' has no data_offsets");
  EXPECT_EQ(parse_error(tensor(R"("shape":[0],"data_offsets":[0,0])"), 0), "tensor 'w' has no dtype");
  EXPECT_EQ(parse_error(tensor(R"("dtype":"U8","data_offsets":[0,0])"), 0), "tensor 'w' has no shape");
  EXPECT_EQ(parse_error("{\"a\\nb\":1}", 0), "'a?b' is a number, not an object");
}

TEST(SafetensorsHeader, FieldsOfOtherTypes) {
  EXPECT_EQ(parse_error(tensor(R"("dtype":5)"), 0), "tensor 'w' has a number as its dtype");
  EXPECT_EQ(parse_error(tensor(R"("dtype":["U8"])"), 0), "tensor 'w' has an array as its dtype");
  EXPECT_EQ(parse_error(tensor(R"("shape":4)"), 0), "tensor 'w' has a number as its shape");
  EXPECT_EQ(parse_error(tensor(R"("shape":"4")"), 0), "tensor 'w' has a string as its shape");
  EXPECT_EQ(parse_error(tensor(R"("shape":[-1])"), 0), "tensor 'w' has a negative number in its shape");
  EXPECT_EQ(parse_error(tensor(R"("shape":[1.5])"), 0),
            "tensor 'w' has a number that is not a 64-bit integer in its shape");
  EXPECT_EQ(parse_error(tensor(R"("shape":[18446744073709551616])"), 0),
            "tensor 'w' has a number that is not a 64-bit integer in its shape");
  EXPECT_EQ(parse_error(tensor(R"("shape":[[1]])"), 0), "tensor 'w' has an array in its shape");
  EXPECT_EQ(parse_error(tensor(R"("shape":[true])"), 0), "tensor 'w' has true or false in its shape");
  EXPECT_EQ(parse_error(tensor(R"("data_offsets":[0,-4])"), 0), "tensor 'w' has a negative number in its data_offsets");
  EXPECT_EQ(parse_error(tensor(R"("data_offsets":[0,1,2])"), 0), "tensor 'w' has more than two data_offsets");
  EXPECT_EQ(parse_error(tensor(R"("dtype":"U8","shape":[],"data_offsets":[0])"), 0),
            "tensor 'w' has fewer than two data_offsets");
}

TEST(SafetensorsHeader, SizesAndOffsets) {
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return tensor("\"dtype\":\"" + dtype + "\",\"shape\":[" + shape + "],\"data_offsets\":[" + offsets + "]");
  };
  EXPECT_EQ(parse_error(one("F33", "1", "0,4"), 4), "tensor 'w' has the unknown dtype 'F33'");
  EXPECT_EQ(parse_error(one("F32", "2", "0,4"), 4),
            "tensor 'w' has 4 bytes, which is not what its dtype and shape need");
  EXPECT_EQ(parse_error(one("F4", "3", "0,1"), 1),
            "tensor 'w' has 1 bytes, which is not what its dtype and shape need");
  EXPECT_EQ(parse_error(one("U8", "4", "4,0"), 4), "tensor 'w' ends before it begins");
  EXPECT_EQ(parse_error(one("F32", "4294967296,4294967296", "0,0"), 0), "tensor 'w' has an impossible size");
  EXPECT_EQ(parse_error(one("F32", "4611686018427387904", "0,0"), 0), "tensor 'w' has an impossible size");
  EXPECT_EQ(parse_error(one("U8", "4", "0,4"), 5), "the tensors need 4 bytes of data, and the file has 5");
  EXPECT_EQ(parse_error(one("U8", "4", "0,4"), 3), "the tensors need 4 bytes of data, and the file has 3");
  EXPECT_EQ(parse_error(one("U8", "4", "1,5"), 5), "tensor 'w' begins at byte 1 of the data, where 0 is due");
  EXPECT_EQ(parse_error("{}", 1), "the tensors need 0 bytes of data, and the file has 1");
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[)" + a +
           R"(]},"b":{"dtype":"U8","shape":[4],"data_offsets":[)" + b + "]}}";
  };
  EXPECT_EQ(parse_error(two("0,4", "4,8"), 8), "no error");
  EXPECT_EQ(parse_error(two("4,8", "0,4"), 8), "no error");
  EXPECT_EQ(parse_error(two("0,4", "2,6"), 6), "tensor 'b' begins at byte 2 of the data, where 4 is due");
  EXPECT_EQ(parse_error(two("0,4", "0,4"), 4), "tensor 'b' begins at byte 0 of the data, where 4 is due");
  EXPECT_EQ(parse_error(two("0,4", "6,10"), 10), "tensor 'b' begins at byte 6 of the data, where 4 is due");
}

TEST(SafetensorsFile, RoundTrip) {
  const TempFolder folder;
  const std::vector<float> a{1, -2, 0.5f, std::numeric_limits<float>::infinity(), 1e-42f, -0.0f}, b{7}, none;
  const std::vector<NamedValues> tensors{
      {"b", Shape{}, b}, {"a \"quoted\" ä", Shape{2, 3}, a}, {"none", Shape{3, 0}, none}};
  write_safetensors(folder / "x.safetensors", tensors, {{"step", "12"}});
  const SafetensorsFile file(folder / "x.safetensors");
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"step", "12"}}));
  ASSERT_EQ(file.tensors().size(), 3u);
  for (const NamedValues& tensor : tensors) {
    const StoredTensor* const stored = file.find(tensor.name);
    ASSERT_NE(stored, nullptr);
    std::vector<float> values(tensor.values.size());
    file.read(*stored, values);
    const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
    EXPECT_TRUE(std::ranges::equal(values, tensor.values, {}, bits, bits)) << tensor.name;
  }
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);  // no temporary file is left
}

TEST(SafetensorsFile, Bytes) {
  const TempFolder folder;
  const std::vector<float> b{1, 2}, a{3};
  write_safetensors(folder / "x", std::vector<NamedValues>{{"b", {2}, b}, {"a", {1, 1}, a}});
  const std::string json =
      R"({"a":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})";
  const std::string padded = json + std::string((8 - json.size() % 8) % 8, ' ');
  EXPECT_EQ(read_file(folder / "x"),
            length_of(padded.size()) + padded + std::string("\0\0\x40\x40\0\0\x80\x3f\0\0\0\x40", 12));
  write_safetensors(folder / "empty", {});
  EXPECT_EQ(read_file(folder / "empty"), length_of(8) + "{}      ");
}

void write_stored(const std::filesystem::path& path, const std::string& dtype, int elements, const std::string& data) {
  const std::string json =
      fmt::format(R"({{"w":{{"dtype":"{}","shape":[{}],"data_offsets":[0,{}]}}}})", dtype, elements, data.size());
  write_file(path, length_of(json.size()) + json + data);
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::vector<float> read_all(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  std::vector<float> values(file.tensors()[0].shape[0]);
  file.read(file.tensors()[0], values);
  return values;
}

TEST(SafetensorsFile, ConvertsOtherFloats) {
  const TempFolder folder;
  const float infinity = std::numeric_limits<float>::infinity();
  write_stored(folder / "f16", "F16", 8,
               bytes_of(std::vector<std::uint16_t>{0x3c00, 0xc000, 0x7bff, 0x0001, 0x83ff, 0x7c00, 0x8000, 0x3555}));
  const std::vector<float> f16 = read_all(folder / "f16");
  EXPECT_EQ(f16, (std::vector<float>{1, -2, 65504, 0x1p-24f, -1023 * 0x1p-24f, infinity, -0.0f, 0.333251953125f}));
  EXPECT_TRUE(std::signbit(f16[6]));
  write_stored(folder / "nan", "F16", 1, bytes_of(std::vector<std::uint16_t>{0x7e00}));
  EXPECT_TRUE(std::isnan(read_all(folder / "nan")[0]));
  write_stored(folder / "bf16", "BF16", 3, bytes_of(std::vector<std::uint16_t>{0x3f80, 0xff80, 0x4049}));
  EXPECT_EQ(read_all(folder / "bf16"), (std::vector<float>{1, -infinity, 3.140625f}));
  write_stored(folder / "f64", "F64", 2, bytes_of(std::vector<double>{0.1, -3}));
  EXPECT_EQ(read_all(folder / "f64"), (std::vector<float>{0.1f, -3}));
  write_stored(folder / "i32", "I32", 1, bytes_of(std::vector<std::int32_t>{1}));
  EXPECT_EQ(
      error_of([&] { read_all(folder / "i32"); }, folder.path()),
      "cannot read DIR/i32 (tensor 'w' is I32, which is not converted to f32); give a complete .safetensors file");
}

TEST(SafetensorsFile, BadFiles) {
  const TempFolder folder;
  const auto error = [&](const std::string& name) {
    return error_of([&] { SafetensorsFile file(folder / name); }, folder.path());
  };
  EXPECT_EQ(error("none"), "cannot read DIR/none (No such file or directory); give a complete .safetensors file");
  EXPECT_EQ(error("."), "cannot read DIR/. (Is a directory); give a complete .safetensors file");
  write_file(folder / "short", "abc");
  EXPECT_EQ(error("short"), "cannot read DIR/short (it is shorter than 8 bytes); give a complete .safetensors file");
  write_stored(folder / "cut", "U8", 5, "12345");
  std::filesystem::resize_file(folder / "cut", std::filesystem::file_size(folder / "cut") - 2);
  EXPECT_EQ(
      error("cut"),
      "cannot read DIR/cut (the tensors need 5 bytes of data, and the file has 3); give a complete .safetensors file");
}

TEST(SafetensorsFile, WrongSizeAndVanishedData) {
  const TempFolder folder;
  write_stored(folder / "x", "F32", 2, bytes_of(std::vector<float>{1, 2}));
  const SafetensorsFile file(folder / "x");
  std::vector<float> three(3), two(2);
  EXPECT_EQ(error_of([&] { file.read(file.tensors()[0], three); }, folder.path()),
            "cannot read DIR/x (tensor 'w' has 2 elements, not 3); give a complete .safetensors file");
  std::filesystem::resize_file(folder / "x", 20);
  EXPECT_TRUE(error_of([&] { file.read(file.tensors()[0], two); }).find("are not there any more") != std::string::npos);
}

TEST(WriteSafetensors, ReplacesTheOldFileOrLeavesIt) {
  const TempFolder folder;
  const std::vector<float> values{1};
  write_file(folder / "x", "old");
  const std::vector<NamedValues> bad{{"w", {2}, values}};
  EXPECT_EQ(
      error_of([&] { write_safetensors(folder / "x", bad); }, folder.path()),
      "cannot write DIR/x (tensor 'w' has 1 values, which is not what its shape needs); name a file in a folder that "
      "is writable and has room");
  EXPECT_EQ(read_file(folder / "x"), "old");
  write_safetensors(folder / "x", std::vector<NamedValues>{{"w", {1}, values}});
  EXPECT_EQ(read_all(folder / "x"), values);
}

TEST(WriteSafetensors, BadTargets) {
  const TempFolder folder;
  const std::vector<float> values{1};
  const std::vector<NamedValues> tensors{{"w", {1}, values}};
  const std::string advice = "; name a file in a folder that is writable and has room";
  EXPECT_EQ(error_of([&] { write_safetensors(folder / "no/x", tensors); }, folder.path()),
            "cannot write DIR/no/x (No such file or directory)" + advice);
  EXPECT_EQ(error_of([&] { write_safetensors(folder.path(), tensors); }, folder.path()),
            "cannot write DIR (it exists and is not a regular file)" + advice);
  EXPECT_EQ(error_of([&] { write_safetensors("/dev/null", tensors); }),
            "cannot write /dev/null (it exists and is not a regular file)" + advice);
  EXPECT_EQ(error_of([&] { check_writable(folder / "no/x"); }, folder.path()),
            "cannot write DIR/no/x (No such file or directory)" + advice);
  check_writable(folder / "x");
  EXPECT_FALSE(std::filesystem::exists(folder / "x"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(WriteSafetensors, BadNames) {
  const TempFolder folder;
  const std::vector<float> values{1};
  const auto error = [&](std::string_view first, std::string_view second) {
    const std::vector<NamedValues> tensors{{first, {1}, values}, {second, {1}, values}};
    const std::string text = error_of([&] { write_safetensors(folder / "x", tensors); }, folder.path());
    return text.substr(0, text.find(';'));
  };
  EXPECT_EQ(error("w", "w"), "cannot write DIR/x (two tensors are named 'w')");
  EXPECT_EQ(error("w", "__metadata__"), "cannot write DIR/x (a tensor is named '__metadata__')");
  EXPECT_EQ(error("w", "\xff"), "cannot write DIR/x (a name or the metadata is not UTF-8)");
}

TEST(WriteSafetensors, FullDiskLeavesTheOldFile) {
  const TempFolder folder;
  write_file(folder / "x", "old");
  const std::vector<float> values(100000);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes acts like a disk that is full
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string text = error_of(
      [&] {
        write_safetensors(folder / "x", std::vector<NamedValues>{{"w", {100000}, values}});
      },
      folder.path());
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, ignored);
  EXPECT_EQ(text, "cannot write DIR/x (File too large); name a file in a folder that is writable and has room");
  EXPECT_EQ(read_file(folder / "x"), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

}  // namespace
}  // namespace kolo::models
