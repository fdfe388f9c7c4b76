#include "apps/cli/flag_values.h"

namespace kolo::train {

std::vector<Flag> checkpoint_flags() {
  const auto here = [](const std::string& path) -> std::string { return path.empty() ? "none" : "a folder"; };
  Flag checkpoint = path_flag(
      "checkpoint", "DIR", "write checkpoints there, in the background, and one at the end: all that it takes to go on",
      &Options::checkpoint, "a folder");
  checkpoint.agreed = [here](const Options& options) { return here(options.checkpoint); };
  return {
      std::move(checkpoint),
      count_flag("every", "steps between checkpoints (default: only the one at the end)", &Options::every, 1),
      count_flag("keep", "checkpoints to keep, the newest (default: 2)", &Options::keep, 1, 1'000'000),
      switch_flag("resume",
                  "go on from the newest usable checkpoint in --checkpoint DIR; from the beginning if there is none",
                  &Options::resume),
  };
}

std::vector<Flag> output_flags() {
  return {
      path_flag("save", "FILE.safetensors", "where the trained parameters go (f32)", &Options::save, "a file to write"),
      path_flag("log", "FILE.jsonl", "one JSON object per step and per evaluation", &Options::log, "a file to write"),
      path_flag("tensorboard", "DIR", "the same as event files that TensorBoard reads", &Options::tensorboard,
                "a folder to write to"),
      path_flag("plot", "FILE.svg", "a picture of the loss, at the end", &Options::plot, "a file to write"),
      count_flag("eval-every",
                 "steps between measurements on the held-out data (default: after each epoch; always at the end)",
                 &Options::eval_every, 1),
      switch_flag("eval-only", "measure on the held-out data and train nothing", &Options::eval_only),
      count_flag("sample", "llama: write so many tokens at the end", &Options::sample, 0, 1'000'000),
      flag("prompt", "TEXT",
           "llama: what they follow: text, or of u16 and u32 the tokens' numbers (default: a line break, or 0)",
           &Options::prompt, [](const Given& given) { return text_of(given, "some text"); }),
      flag("temperature", "X", "llama: how freely tokens are drawn; 0 takes the likeliest (default: 0.8)",
           &Options::temperature, not_negative_of),
  };
}

}  // namespace kolo::train
