// Settings: what each variable takes, what garbage is answered with, and the tables made of them.

#include <kolo/config.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

using testing::error_text;

std::string refusal(std::string_view variable, std::string_view value) {
  Config config;
  return error_text([&] { config.set(variable, value); }, ErrorCode::invalid_argument);
}

TEST(ConfigTest, Defaults) {
  const Config config;
  EXPECT_EQ(config.get("KOLO_FUSION_BYTES"), "67108864");
  EXPECT_EQ(config.get("KOLO_FUSION_TUNING"), "auto");
  EXPECT_EQ(config.get("KOLO_STALL_REPORT_SECONDS"), "10");
  EXPECT_EQ(config.get("KOLO_STALL_ABORT_SECONDS"), "600");
  EXPECT_EQ(config.get("KOLO_SPIN_US"), "200");
  EXPECT_EQ(config.get("KOLO_FAKE_NODES"), "");
  EXPECT_EQ(config.get("KOLO_BACKEND"), "auto");
  EXPECT_EQ(config.get("KOLO_GPU_BACKEND"), "auto");
  EXPECT_EQ(config.get("KOLO_GPU_DIRECT_BYTES"), "2097152");
  EXPECT_EQ(config.get("KOLO_GPU_PACK_BYTES"), "67108864");
  EXPECT_EQ(config.get("KOLO_GPU_STAGING_BYTES"), "16777216");
  EXPECT_EQ(config.get("KOLO_NCCL_ALGO"), "auto");
  EXPECT_EQ(config.get("KOLO_NCCL_WIRE"), "native");
  EXPECT_EQ(config.get("KOLO_NCCL_REGISTER"), "0");
  EXPECT_EQ(config.get("KOLO_BANNER"), "0");
}

TEST(ConfigTest, TheFusionThresholdIsTunedUnlessItIsSet) {
  EXPECT_TRUE(Config().tunes_fusion());
  Config set, other, asked;
  set.set("KOLO_FUSION_BYTES", Config().get("KOLO_FUSION_BYTES"));
  EXPECT_FALSE(set.tunes_fusion()) << "also to the default";
  set.set("KOLO_FUSION_TUNING", "auto");
  EXPECT_FALSE(set.tunes_fusion());
  set.set("KOLO_FUSION_TUNING", "on");
  EXPECT_TRUE(set.tunes_fusion());
  other.fusion_bytes = 1000;
  EXPECT_FALSE(other.tunes_fusion());
  asked.set("KOLO_FUSION_TUNING", "off");
  EXPECT_FALSE(asked.tunes_fusion());
  EXPECT_EQ(refusal("KOLO_FUSION_TUNING", "1"), "KOLO_FUSION_TUNING is '1'; it takes one of auto, on, off");
}

TEST(ConfigTest, EverySettingReadsBackWhatItPrints) {
  Config config;
  config.set("KOLO_FUSION_BYTES", "1.5K");
  config.set("KOLO_STALL_REPORT_SECONDS", "0.25");
  config.set("KOLO_STALL_ABORT_SECONDS", "0");
  config.set("KOLO_SPIN_US", "1e3");
  config.set("KOLO_FAKE_NODES", "2,2");
  config.set("KOLO_BACKEND", "mpi");
  config.set("KOLO_BANNER", "1");
  EXPECT_EQ(config.fusion_bytes, 1536);
  EXPECT_EQ(config.stall_report_seconds, 0.25);
  EXPECT_EQ(config.stall_abort_seconds, 0);
  EXPECT_EQ(config.spin_us, 1000);
  EXPECT_EQ(config.fake_nodes, "2,2");
  EXPECT_EQ(config.backend, "mpi");
  EXPECT_TRUE(config.banner);
  Config again;
  for (const Setting& row : settings()) again.set(row.variable, config.get(row.variable));
  for (const Setting& row : settings()) EXPECT_EQ(again.get(row.variable), config.get(row.variable));
}

TEST(ConfigTest, SuffixesCountIn1024s) {
  EXPECT_EQ(parse_bytes("64MB"), 67108864);
  EXPECT_EQ(parse_bytes("67108864"), 67108864);
  EXPECT_EQ(parse_bytes("64M"), 67108864);
  EXPECT_EQ(parse_bytes("64MiB"), 67108864);
  EXPECT_EQ(parse_bytes("64mib"), 67108864);
  EXPECT_EQ(parse_bytes("1K"), 1024);
  EXPECT_EQ(parse_bytes("1.5G"), 1610612736);
  EXPECT_EQ(parse_bytes("2T"), 2199023255552);
  EXPECT_EQ(parse_bytes("10B"), 10);
  EXPECT_EQ(parse_bytes("0"), 0);
  for (const char* garbage : {"", "MB", "x", "-1", "1.2.3", "1 MB", " 1", "64MBs", "64X", "64KMB", "0x10", "1e3",
                              "9999999T", "nan", "inf", "."}) {
    EXPECT_EQ(parse_bytes(garbage), std::nullopt) << "'" << garbage << "'";
  }
}

TEST(ConfigTest, GarbageIsRefusedByName) {
  for (const char* value : {"lots", "0", "-4", "", "0.2"}) {
    EXPECT_EQ(refusal("KOLO_FUSION_BYTES", value),
              "KOLO_FUSION_BYTES is '" + std::string(value) +
                  "'; it takes a positive number of bytes, such as 67108864 or 64MB (K, M, G count in 1024s)");
  }
  for (const char* value : {"soon", "0", "-1", "", "inf", "nan", "10s"}) {
    EXPECT_EQ(refusal("KOLO_STALL_REPORT_SECONDS", value),
              "KOLO_STALL_REPORT_SECONDS is '" + std::string(value) + "'; it takes a positive number of seconds");
  }
  EXPECT_EQ(refusal("KOLO_STALL_ABORT_SECONDS", "-1"),
            "KOLO_STALL_ABORT_SECONDS is '-1'; it takes a number of seconds, 0 for never");
  for (const char* value : {"-1", "0.5", "1e10", "many", ""}) {
    EXPECT_EQ(refusal("KOLO_SPIN_US", value),
              "KOLO_SPIN_US is '" + std::string(value) + "'; it takes a whole number of microseconds, 0 or more");
  }
  for (const char* value : {"yes", "2", "", "true"}) {
    EXPECT_EQ(refusal("KOLO_BANNER", value), "KOLO_BANNER is '" + std::string(value) + "'; it takes 0 or 1");
  }
}

TEST(ConfigTest, UnknownVariablesNameTheNearest) {
  EXPECT_EQ(refusal("KOLO_FUSION_BYTE", "1"), "KOLO_FUSION_BYTE is no setting; did you mean KOLO_FUSION_BYTES?");
  EXPECT_EQ(refusal("KOLO_STALL_REPORT", "1"),
            "KOLO_STALL_REPORT is no setting; did you mean KOLO_STALL_REPORT_SECONDS?");
  EXPECT_EQ(refusal("KOLO_SPIN", "1"), "KOLO_SPIN is no setting; did you mean KOLO_SPIN_US?");
  EXPECT_EQ(error_text([] { (void)Config().get("KOLO_BAKEND"); }, ErrorCode::invalid_argument),
            "KOLO_BAKEND is no setting; did you mean KOLO_BACKEND?");
  for (const char* far : {"KOLO_Q", "KOLO_RANK", "KOLO_VERBOSE", "KOLO_THREADS", "KOLO_STALL"}) {
    EXPECT_EQ(refusal(far, "1"), std::string(far) + " is no setting") << "nothing is near, or several are";
  }
}

/// Environment variables for one scope.
class Environment {
 public:
  explicit Environment(std::vector<std::string> names, const std::vector<std::string>& values)
      : names_(std::move(names)) {
    for (std::size_t i = 0; i < names_.size(); ++i) setenv(names_[i].c_str(), values[i].c_str(), 1);
  }
  ~Environment() {
    for (const auto& name : names_) unsetenv(name.c_str());
  }

 private:
  std::vector<std::string> names_;
};

TEST(ConfigTest, ReadsTheEnvironment) {
  const Environment environment({"KOLO_FUSION_BYTES", "KOLO_SPINN_US", "KOLO_SHARED_DIR", "KOLORIT"},
                                {"64MB", "5", "/x", "1"});
  std::vector<std::string> unknown;
  EXPECT_EQ(Config::from_environment(&unknown).fusion_bytes, 67108864);
  EXPECT_EQ(unknown, std::vector<std::string>{"KOLO_SPINN_US is no setting; did you mean KOLO_SPIN_US?"});
  EXPECT_EQ(Config::from_environment().spin_us, 200);
}

TEST(ConfigTest, GarbageInTheEnvironmentIsAnError) {
  const Environment environment({"KOLO_SPIN_US"}, {"fast"});
  EXPECT_EQ(error_text([] { (void)Config::from_environment(); }, ErrorCode::invalid_argument),
            "KOLO_SPIN_US is 'fast'; it takes a whole number of microseconds, 0 or more");
}

TEST(ConfigTest, TablesHaveARowForEverySetting) {
  const std::string help = settings_help(), markdown = settings_markdown();
  for (const Setting& row : settings()) {
    EXPECT_NE(help.find(std::string(row.variable) + " "), help.npos) << row.variable;
    EXPECT_NE(help.find(row.doc), help.npos) << row.variable;
    EXPECT_NE(markdown.find("| `" + std::string(row.variable) + "` | "), markdown.npos) << row.variable;
  }
  EXPECT_EQ(static_cast<std::size_t>(std::count(markdown.begin(), markdown.end(), '\n')), settings().size() + 2);
  EXPECT_NE(help.find("(default: 67108864 bytes)"), help.npos);
  EXPECT_NE(help.find("(default: unset)"), help.npos);
}

TEST(ConfigTest, TheTableStandsInTheReadme) {
  std::ifstream file(std::string(KOLO_SOURCE_DIR) + "/runtime/README.md");
  if (!file) GTEST_SKIP() << "there is no runtime/README.md";
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_NE(text.str().find(settings_markdown()), std::string::npos) << "runtime/README.md ought to contain\n"
                                                                     << settings_markdown();
}

}  // namespace
}  // namespace kolo
