#include "apps/cli/flags.h"

#include <array>

namespace kolo::train {
namespace {

struct Section {
  std::string_view name;
  std::vector<Flag> (*rows)();
};

constexpr std::array sections{Section{"Model", model_flags},
                              Section{"Data", data_flags},
                              Section{"Training", training_flags},
                              Section{"Optimizer", optimizer_flags},
                              Section{"Checkpoints", checkpoint_flags},
                              Section{"Output", output_flags}};

std::vector<Flag> all_flags() {
  std::vector<Flag> all;
  for (const Section& section : sections) {
    for (Flag& flag : section.rows()) {
      flag.section = section.name;
      all.push_back(std::move(flag));
    }
  }
  return all;
}

}  // namespace

std::span<const Flag> flags() {
  static const std::vector<Flag> table = all_flags();
  return table;
}

std::vector<std::string_view> flag_sections() {
  std::vector<std::string_view> names;
  for (const Section& section : sections) names.push_back(section.name);
  return names;
}

}  // namespace kolo::train
