#include "models/pretrained.h"

#include "models/error.h"

namespace kolo::models {

struct Pretrained::Contents {};

Pretrained::Pretrained(std::filesystem::path) {
  throw ModelError("pretrained parameters are not built yet; leave --init out");
}
Pretrained::~Pretrained() = default;
Pretrained::Pretrained(Pretrained&&) noexcept = default;
Pretrained& Pretrained::operator=(Pretrained&&) noexcept = default;
std::string Pretrained::model() const {
  return "mlp";
}
void Pretrained::settings(ModelSettings&) const {}
void Pretrained::load(const Model&) const {}

}  // namespace kolo::models
