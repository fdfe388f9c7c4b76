// Memory of the program that becomes shared where it lies, and private again.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include <kolo/error.h>

#include "ops/host/mappings.h"
#include "ops/host/region.h"

namespace kolo {
namespace {

const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));

/// Pages of a kind; unmapped at the end.
class Pages {
 public:
  explicit Pages(std::size_t count, int protection = PROT_READ | PROT_WRITE, int flags = MAP_PRIVATE | MAP_ANONYMOUS,
                 int file = -1)
      : bytes_(count * page), data_(static_cast<std::byte*>(mmap(nullptr, bytes_, protection, flags, file, 0))) {
    EXPECT_NE(static_cast<void*>(data_), MAP_FAILED);
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  void fill() {
    for (std::size_t i = 0; i < bytes_; ++i) data_[i] = value(i);
  }
  bool filled() const {
    for (std::size_t i = 0; i < bytes_; ++i) {
      if (data_[i] != value(i)) return false;
    }
    return true;
  }
  bool shared() const { return mappings_of(data_, page, false).front().permissions == "rw-s"; }

 private:
  static std::byte value(std::size_t i) { return static_cast<std::byte>(i * 2654435761U >> 13); }

  std::size_t bytes_;
  std::byte* data_;
};

std::string refusal(std::byte* data, std::size_t bytes) {
  try {
    SharedRegion::adopt(data, bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

TEST(AdoptedRegion, KeepsWhatIsThereAndIsSeenByOthers) {
  Pages pages(50);
  pages.fill();
  {
    const auto adopted = SharedRegion::adopt(pages.data(), pages.bytes());
    EXPECT_EQ(adopted->data(), pages.data());
    EXPECT_TRUE(pages.filled());
    EXPECT_TRUE(pages.shared());
    const auto other = SharedRegion::open(getpid(), adopted->descriptor(), adopted->file(), pages.bytes());
    EXPECT_EQ(std::memcmp(other->data(), pages.data(), pages.bytes()), 0);
    pages.data()[page] = std::byte{77};
    EXPECT_EQ(other->data()[page], std::byte{77});
    other->data()[page] = std::byte{78};
    EXPECT_EQ(pages.data()[page], std::byte{78});
    pages.fill();
  }
  EXPECT_FALSE(pages.shared());
  EXPECT_TRUE(pages.filled());
  EXPECT_TRUE(SharedRegion::adopt(pages.data(), pages.bytes())) << "again";
}

TEST(AdoptedRegion, IsAPartOfWhatTheProgramHas) {
  Pages pages(9);
  pages.fill();
  {
    const auto adopted = SharedRegion::adopt(pages.data() + 3 * page, 2 * page);
    EXPECT_TRUE(pages.filled());
    EXPECT_FALSE(pages.shared());
  }
  EXPECT_TRUE(pages.filled());
}

TEST(AdoptedRegion, OfTheHeap) {
  const std::size_t bytes = 30 * page;  // less than what malloc maps by itself
  auto memory = std::make_unique<char[]>(bytes);
  std::ranges::fill_n(memory.get(), static_cast<std::ptrdiff_t>(bytes), 'x');
  const auto begin = (reinterpret_cast<std::uintptr_t>(memory.get()) + page - 1) / page * page;
  { const auto adopted = SharedRegion::adopt(reinterpret_cast<std::byte*>(begin), 28 * page); }
  EXPECT_TRUE(std::all_of(memory.get(), memory.get() + bytes, [](char c) { return c == 'x'; }));
}

TEST(AdoptedRegion, WhatTheProgramHasPutThereStays) {
  Pages pages(6);
  pages.fill();
  auto adopted = SharedRegion::adopt(pages.data(), pages.bytes());
  ASSERT_NE(
      mmap(pages.data() + 2 * page, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
      MAP_FAILED);
  std::memset(pages.data() + 2 * page, 5, 2 * page);
  adopted.reset();
  EXPECT_EQ(pages.data()[3 * page], std::byte{5});
  EXPECT_FALSE(pages.shared());
  std::memcpy(pages.data() + 4 * page, pages.data(), page);  // all can be read and written
}

TEST(AdoptedRegion, RefusesWhatIsNoOrdinaryMemory) {
  const Pages shared(4, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS), read_only(4, PROT_READ);
  EXPECT_EQ(
      refusal(shared.data(), shared.bytes()),
      "cannot adopt 16384 bytes: some of this memory is shared already; adopt ordinary memory of the program, or use "
      "what the session allocates");
  EXPECT_NE(refusal(read_only.data(), page).find("cannot be read and written"), std::string::npos);
  std::FILE* const file = std::tmpfile();
  ASSERT_EQ(ftruncate(fileno(file), static_cast<off_t>(4 * page)), 0);
  const Pages of_file(4, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(file));
  std::fclose(file);
  EXPECT_NE(refusal(of_file.data(), page).find("is a mapped file"), std::string::npos);
  Pages locked(4);
  const bool is_locked =  // sanitizers do as if
      mlock(locked.data() + page, page) == 0 &&
      mappings_of(locked.data() + page, page, true).front().flags.find("lo") != std::string::npos;
  if (is_locked) {
    EXPECT_NE(refusal(locked.data(), locked.bytes()).find("is locked in memory"), std::string::npos);
  }
  Pages with_a_hole(4);
  munmap(with_a_hole.data() + 2 * page, page);
  EXPECT_NE(refusal(with_a_hole.data(), with_a_hole.bytes()).find("is not mapped"), std::string::npos);
  std::byte on_stack[3 * 65536];
  const auto begin = (reinterpret_cast<std::uintptr_t>(on_stack) + page - 1) / page * page;
  EXPECT_NE(refusal(reinterpret_cast<std::byte*>(begin), page).find("is a stack"), std::string::npos);
}

TEST(AdoptedRegion, RefusedMemoryHasNotChanged) {
  Pages pages(4);
  pages.fill();
  ASSERT_EQ(mprotect(pages.data() + 3 * page, page, PROT_READ), 0);
  EXPECT_NE(refusal(pages.data(), pages.bytes()), "");
  EXPECT_TRUE(pages.filled());
  EXPECT_FALSE(pages.shared());
}

}  // namespace
}  // namespace kolo
