// Checkpoints on disk that are damaged are never believed.

#include <sys/resource.h>

#include <cstdlib>
#include <limits>

#include "models/checkpoint/crc32c.h"
#include "tests/models/checkpoint/store_testing.h"
#include "tests/support/environment.h"

namespace kolo::models {
namespace {

using testing::error_of;
using testing::read_file;
using testing::TempFolder;
using testing::write_file;

class DamagedStore : public Store {};

/// Every byte of a checkpoint matters.
TEST_F(DamagedStore, AnyDamageIsFound) {
  write(4);
  const StoredCheckpoint checkpoint = store_.list().front();
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint.folder)) {
    const std::string whole = read_file(entry.path());
    for (std::size_t at = 0; at < whole.size(); at += std::max<std::size_t>(whole.size() / 16, 1)) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 4);
      write_file(entry.path(), damaged);
      if (entry.path().filename() != "manifest.json") {
        EXPECT_TRUE(problem_of(checkpoint).has_value()) << entry.path() << " byte " << at;
      }
      write_file(entry.path(), whole.substr(0, at));
      EXPECT_TRUE(problem_of(checkpoint).has_value()) << entry.path() << " cut at " << at;
    }
    std::filesystem::remove(entry.path());
    EXPECT_TRUE(problem_of(checkpoint).has_value()) << entry.path() << " gone";
    ASSERT_EQ(mkfifo(entry.path().c_str(), 0600), 0);
    EXPECT_TRUE(problem_of(checkpoint).has_value()) << entry.path() << " a pipe";
    const CheckpointHold does_not_wait(checkpoint);
    std::filesystem::remove(entry.path());
    write_file(entry.path(), whole);
    ASSERT_EQ(problem_of(checkpoint), std::nullopt);
  }
  write_file(checkpoint.folder / "part-00001-of-00002.safetensors", "short");
  EXPECT_EQ(problem_of(checkpoint)->substr(0, 51), "part-00001-of-00002.safetensors has 5 bytes instead");
}

/// A manifest that says something else than the parts, or that no version writes, is no reason to read beyond them.
TEST_F(DamagedStore, AManifestMustFitItsParts) {
  write(4);
  const StoredCheckpoint checkpoint = store_.list().front();
  const std::string whole = read_file(checkpoint.folder / "manifest.json");
  const auto problem_with = [&](std::string_view text, std::string_view instead) {
    std::string changed = whole;
    const auto at = changed.find(text);
    EXPECT_NE(at, std::string::npos) << text;
    write_file(checkpoint.folder / "manifest.json", changed.replace(at, text.size(), instead));
    return problem_of(checkpoint).value_or("nothing");
  };
  const std::string no = "manifest.json is no manifest ";
  EXPECT_EQ(problem_with("[0,10,20]", "[0,10,20,20]"), no + "('value.layers.0.weight' is not cut into 2 parts)");
  EXPECT_EQ(problem_with("[0,10,20]", "[0,21,20]"), no + "('value.layers.0.weight' is not cut into 2 parts)");
  EXPECT_EQ(problem_with("[4,5]", "[4,6]"), no + "('value.layers.0.weight' is not cut into 2 parts)");
  EXPECT_EQ(problem_with("[4,5]", "[4294967296,4294967296]"), no + "('value.layers.0.weight' has too many elements)");
  EXPECT_EQ(problem_with("[0,10,20]", "[0,9,20]"),
            "part-00000-of-00002.safetensors and manifest.json disagree about 'value.layers.0.weight'");
  EXPECT_EQ(problem_with("value.layers.0.bias", "value.layers.0.bios"),
            "part-00000-of-00002.safetensors and manifest.json disagree about 'value.layers.0.bios'");
  EXPECT_EQ(problem_with("\"step\": 4", "\"step\": 5"), "manifest.json is of another step");
  EXPECT_EQ(problem_with("part-00001-of-00002", "part-00001-of-00003"), no + "(its text is damaged)");
  EXPECT_EQ(problem_with("crc32c\": \"", "crc32c\": \"x"), no + "(its text is damaged)");
  EXPECT_EQ(problem_with("crc32c\": \"", "crc32c\": \"fffffffff"), no + "(its text is damaged)") << "beyond 64 bits";
  EXPECT_EQ(problem_with("crc32c\": \"", "crc32c\": \"+"),
            no + "('+" + whole.substr(whole.find("crc32c") + 10, 8) + "' is no CRC-32C)");
  EXPECT_EQ(problem_with("\"step\": 4", "\"step\": \"four\""), no + "(its text is damaged)");
  EXPECT_EQ(problem_with("\"step\": 4", "\"step\": 4, \"held_out_loss\": 1, \"held_out_of\": {}"),
            no + "(its text is damaged)");
  EXPECT_EQ(problem_with("\"step\": 4",
                         "\"step\": 4, \"held_out_loss\": 1, "
                         "\"held_out_of\": {\"batches\": -1, \"ranks\": 1, \"examples\": 1}"),
            no + "(its batches are below 0)");
  EXPECT_EQ(problem_with("value.layers.0.bias", "value.layers.0.\xff"), no + "(its text is damaged)") << "no UTF-8";
  EXPECT_EQ(problem_with("kolo checkpoint 2", "something"), no + "(it is of no known format)");
  EXPECT_EQ(problem_with("kolo checkpoint 2", "kolo checkpoint 1"),
            "it is a 'kolo checkpoint 1', and this version of kolo reads 'kolo checkpoint 2'; go on with the version "
            "that wrote it");
  EXPECT_THROW(open_checkpoint(checkpoint), OtherFormat);
}

/// One that says no loss any more is as if it had never said one; what is to be noted in it is an error.
TEST_F(DamagedStore, DamagedManifestsSayNoLoss) {
  write(4, 2, HeldOut{1.0});
  write(8, 2, HeldOut{2.0});
  const auto manifest = store_.list().back().folder / "manifest.json";
  const std::string whole = read_file(manifest);
  const std::string changed = [&] {
    std::string text = whole;
    return text.replace(text.find("value.layers"), 5, "\xff\xfe\xfd\xfc\xfb");
  }();
  for (const std::string& text : {std::string(), whole.substr(0, whole.size() / 2), std::string("[]"),
                                  std::string("{\"format\": \"kolo checkpoint 1\"}"), changed}) {
    write_file(manifest, text);
    ASSERT_TRUE(store_.best()) << text;
    EXPECT_EQ(store_.best()->checkpoint.step, 8) << text;
    EXPECT_THROW(store_.note_held_out(4, HeldOut{0.5}), ModelError) << text;
    EXPECT_EQ(read_file(manifest), text) << "it is as it was";
  }
  std::filesystem::remove(manifest);
  ASSERT_EQ(mkfifo(manifest.c_str(), 0600), 0);
  EXPECT_EQ(problem_of(store_.list().back()), "manifest.json is no regular file");
  EXPECT_EQ(store_.best()->checkpoint.step, 8);
  EXPECT_EQ(store_.best()->doubt, "") << "it says no loss another time either";
  std::filesystem::remove(manifest);
  write_file(manifest, whole);
  EXPECT_EQ(store_.best()->checkpoint.step, 4);
}

TEST_F(DamagedStore, NumbersThatAreNotFiniteAreFound) {
  testing::floats_of(optimizer_->state().back().values).back() = std::numeric_limits<float>::quiet_NaN();
  write(4);
  EXPECT_EQ(problem_of(store_.list().front()),
            "1 of the numbers of 'square.layers.1.bias' in part-00001-of-00002.safetensors are infinite or NaN");
}

/// Other checkpoints would take as much, and all would be set aside.
TEST_F(DamagedStore, ThatThereIsNoMemoryIsNoProblemOfAPart) {
  if (sanitized) GTEST_SKIP() << "sanitizers end a process that has no memory";
  write(4);
  StoredParts stored = newest();
  const auto say_in_little_memory = [&] {
    const rlimit none{1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_AS, &none);
    while (std::malloc(1 << 16) != nullptr) continue;  // what the heap has left
    try {
      const auto problem = stored.problem_of(0);
      std::fputs(problem ? problem->c_str() : "sound", stderr);
    } catch (const std::bad_alloc&) {
      std::fputs("no memory", stderr);
    }
    std::_Exit(7);
  };
  EXPECT_EXIT(say_in_little_memory(), ::testing::ExitedWithCode(7), "no memory");
}

}  // namespace
}  // namespace kolo::models
