#include "runtime/negotiation/mismatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "runtime/operation/arguments.h"

namespace kolo {
namespace {

// Bytes of what differs, and of one side of it: a text has at most 2 KB, however many ranks there are.
constexpr std::size_t enough = 1024, enough_of_one = 320;

/// One way in which signatures can differ, in the order in which they are looked at.
struct Aspect {
  std::string_view noun;
  std::string_view advice;
  std::function<std::string(const Signature&)> show;
};

const std::array<Aspect, 10>& aspects() {
  static const std::array<Aspect, 10> table{{
      {"operations", "call the same operation for this name on every rank, or use another name",
       [](const Signature& s) { return std::string(to_string(s.kind)); }},
      {"numbers of tensors", "submit the same tensors together on every rank",
       [](const Signature& s) {
         return s.members.empty() ? std::string("one") : fmt::format("{} together", s.members.size());
       }},
      {"reduce ops", "pass the same op on every rank", [](const Signature& s) { return std::string(to_string(s.op)); }},
      {"dtypes", "submit the same dtype on every rank",
       [](const Signature& s) { return std::string(to_string(s.dtype)); }},
      {"shapes", "submit the same shape on every rank", [](const Signature& s) { return to_string(s.dtype, s.shape); }},
      {"roots", "name the same root on every rank", [](const Signature& s) { return fmt::format("root {}", s.root); }},
      {"scales", "pass the same prescale and postscale on every rank",
       [](const Signature& s) { return fmt::format("prescale {}, postscale {}", s.prescale, s.postscale); }},
      {"divisors", "divide by the group's size, or by the ranks that took part, on every rank",
       [](const Signature& s) {
         return std::string(s.divide_by_group ? "by the group's size" : "by the ranks that took part");
       }},
      {"priorities", "pass the same priority on every rank",
       [](const Signature& s) { return fmt::format("priority {}", s.priority); }},
      {"device kinds", "keep the tensor on the same kind of device on every rank",
       [](const Signature& s) { return std::string(to_string(s.device)); }},
  }};
  return table;
}

/// The first of the tensors submitted together that is not the same on all ranks, if their number is.
std::optional<Aspect> first_other_member(const std::vector<Announcement::Variant>& variants) {
  const auto& members = variants.front().signature.members;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const bool same = std::all_of(variants.begin(), variants.end(),
                                  [&](const auto& variant) { return variant.signature.members[i] == members[i]; });
    if (same) continue;
    return Aspect{"tensors", "submit the same tensors together on every rank", [i](const Signature& s) {
                    return fmt::format("number {} is '{}' {}", i + 1, clipped(s.members[i].name, enough_of_one / 2),
                                       to_string(s.members[i].dtype, s.members[i].shape));
                  }};
  }
  return std::nullopt;
}

/// "ranks 0-2: f32[5,4]; rank 3: f32[4,4]", sides in the order of their lowest ranks.
std::string sides(const std::vector<Announcement::Variant>& variants, const RankSet& others, const Aspect& aspect) {
  std::vector<std::pair<std::string, RankSet>> shown;
  for (const auto& variant : variants) {
    const auto text = aspect.show(variant.signature);
    const auto same = std::find_if(shown.begin(), shown.end(), [&](const auto& side) { return side.first == text; });
    if (same == shown.end()) {
      shown.emplace_back(text, variant.ranks);
    } else {
      same->second.add(variant.ranks);
    }
  }
  std::sort(shown.begin(), shown.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  std::string text;
  RankSet rest = others;
  for (std::size_t i = 0; i < shown.size(); ++i) {
    const auto& [value, ranks] = shown[i];
    if (i < 2 || text.size() < enough) {
      text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", to_string(ranks), clipped(value, enough_of_one));
    } else {
      rest.add(ranks);
    }
  }
  if (!rest.empty()) text += fmt::format("; {}: something else", to_string(rest));
  return text;
}

}  // namespace

Failure explain_rejection(const Announcement& announcement, std::string_view group) {
  auto variants = announcement.variants;
  std::sort(variants.begin(), variants.end(), [](const auto& a, const auto& b) { return a.ranks < b.ranks; });
  for (const auto& variant : variants) {
    if (!variant.failure) continue;
    return {variant.failure->code, fmt::format("{}: {}: {}", describe(variant.signature.kind, announcement.name, group),
                                               to_string(variant.ranks), clipped(variant.failure->message, enough))};
  }
  const auto kind = variants.front().signature.kind;
  std::vector<Aspect> looked_at(aspects().begin(), aspects().end());
  const bool equally_many = std::all_of(variants.begin(), variants.end(), [&](const auto& variant) {
    return variant.signature.kind == kind &&
           variant.signature.members.size() == variants.front().signature.members.size();
  });
  if (const auto member = equally_many ? first_other_member(variants) : std::nullopt)
    looked_at.insert(looked_at.begin(), *member);
  for (const Aspect& aspect : looked_at) {
    const auto first = aspect.show(variants.front().signature);
    const bool differs = std::any_of(variants.begin(), variants.end(),
                                     [&](const auto& variant) { return aspect.show(variant.signature) != first; });
    if (!differs) continue;
    return {ErrorCode::mismatch,
            fmt::format("{}: ranks submitted different {} ({}); {}", describe(kind, announcement.name, group),
                        aspect.noun, sides(variants, announcement.others, aspect), aspect.advice)};
  }
  return {ErrorCode::mismatch, fmt::format("{}: ranks submitted different descriptions; submit the same on every rank",
                                           describe(kind, announcement.name, group))};
}

}  // namespace kolo
