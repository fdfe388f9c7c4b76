// What a CNN does.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/gpu/calls.h"
#include "tests/gpu/pairs.h"
#include "tests/gpu/smoke.h"

namespace kolo::smoke {
namespace {

struct Filters {
  std::int64_t channels, filters, kernel;
  Convolution how;
  Pooling pooling;
};

/// A stage on both devices, with all that its passes need.
class Stage {
 public:
  Stage(Both& both, const Filters& of, const Shape& of_x, bool norm)
      : both_(both),
        how_(of),
        norm_(norm),
        x_(both.floats(of_x)),
        w_(both.floats({of.filters, of.channels, of.kernel, of.kernel})),
        dw_(both.floats(w_.host().shape)),
        dx_(both.floats(of_x)) {
    for (Pair* one : {&bias_, &scale_, &shift_, &slope_, &offset_, &dbias_}) *one = both.floats({of.filters});
    const ImageStage shaped = stage([](const Pair& pair) -> const Tensor& { return pair.host(); }, false);
    const Shape of_y = shaped.output(of_x);
    y_ = both.floats(of_y);
    d_ = both.floats(of_y);
    here_ = both.choices(both.cpu().choices(shaped, of_x));
    there_ = both.choices(both.gpu().choices(shaped, of_x));
  }

  void forward(Compute& compute, const Of& of) const {
    compute.convolve(stage(of, false), of(x_), of(y_), chosen(compute, of));
  }
  void back(Compute& compute, const Of& of, bool add) const {
    compute.convolve_backward(stage(of, norm_), of(x_), chosen(compute, of), of(d_), add, of(dw_),
                              add ? Tensor{} : of(dbias_), of(dx_));
  }
  void check() const {
    const std::string name =
        fmt::format(" of {} filters of {}x{}{}", how_.filters, how_.kernel, how_.kernel, norm_ ? ", with a norm" : "");
    y_.require_near(1e-5, "convolve" + name);
    dw_.require_near(1e-5, "the gradient" + name);
    dbias_.require_near(1e-5, "the bias's gradient" + name);
    dx_.require_near(1e-5, "the images' gradient" + name);
  }
  double flops() const {
    const Shape& of_x = x_.host().shape;
    return 2 * static_cast<double>(of_x.elements() / of_x[1] * w_.host().elements());
  }

 private:
  ImageStage stage(const Of& of, bool back) const {
    ImageStage all{.convolution = how_.how, .filters = of(w_), .bias = of(bias_), .pooling = how_.pooling};
    if (norm_) {
      all.activation = Activation::relu;
      all.scale = of(scale_);
      all.shift = of(shift_);
    }
    if (back) {
      all.slope = of(slope_);
      all.offset = of(offset_);
    }
    return all;
  }
  const Tensor& chosen(Compute& compute, const Of& of) const { return of(&compute == &both_.gpu() ? there_ : here_); }

  Both& both_;
  Filters how_;
  bool norm_;
  Pair x_, w_, dw_, dx_, bias_, scale_, shift_, slope_, offset_, dbias_, y_, d_, here_, there_;
};

void check_stages(Line& line) {
  Both both;
  const std::vector<Filters> all{{1, 5, 3, {}, {}},
                                 {3, 6, 3, {.padding = 1}, {.window = 2}},
                                 {2, 70, 5, {.stride = 2, .padding = 2}, {.window = 3, .stride = 2, .padding = 1}},
                                 {16, 2, 1, {}, {.window = 2, .stride = 3}},
                                 {4, 8, 2, {.stride = 3}, {.window = 3, .stride = 1}}};
  for (const Filters& one : all) {
    for (const bool norm : {false, true}) {
      const Stage stage(both, one, {2, one.channels, 13, 17}, norm);
      for (const bool add : {false, true}) {
        both.run([&](Compute& compute, const Of& of) {
          stage.forward(compute, of);
          stage.back(compute, of, add);
        });
        stage.check();
      }
    }
  }
  const Stage large(both, {3, 32, 3, {}, {.window = 2}}, {pretended() ? 2 : 256, 3, 32, 32}, true);
  const double back = both.time(line, [&](Compute& compute, const Of& of) { large.back(compute, of, false); });
  const double forward = both.time(line, [&](Compute& compute, const Of& of) { large.forward(compute, of); });
  line.note(fmt::format("forward {}, back {}", speed(large.flops(), forward), speed(2 * large.flops(), back)));
}

/// Pooling alone of images.
class Pools {
 public:
  Pools(Both& both, const Pooling& how, const Shape& of_x, const std::vector<float>& values)
      : both_(both), how_(how), x_(both.floats(of_x, values)), dx_(both.floats(of_x)) {
    const Shape of_y{of_x[0], of_x[1], extent_behind(of_x[2], how.window, how.step(), how.padding),
                     extent_behind(of_x[3], how.window, how.step(), how.padding)};
    y_ = both.floats(of_y);
    d_ = both.floats(of_y);
    here_ = both.choices(both.cpu().choices({.pooling = how}, of_x));
    there_ = both.choices(both.gpu().choices({.pooling = how}, of_x));
  }
  void run(Compute& compute, const Of& of) const {
    const Tensor& chosen = of(&compute == &both_.gpu() ? there_ : here_);
    compute.pool(how_, of(x_), of(y_), chosen);
    compute.pool_backward(how_, chosen, of(d_), of(dx_));
  }
  void check() const {
    require(y_.difference() == 0, "pool gives other numbers than on the host");
    dx_.require_near(1e-6, "pool_backward");
  }

 private:
  Both& both_;
  Pooling how_;
  Pair x_, dx_, y_, d_, here_, there_;
};

void check_pooling(Line& line) {
  Both both;
  for (std::size_t place = 0; place < 4; ++place) {  // what is no number must reach the loss
    std::vector<float> values{1, 2, 3, 4};
    values[place] = NAN;
    const Pools pools(both, {.window = 2}, {1, 1, 2, 2}, values);
    both.run([&](Compute& compute, const Of& of) { pools.run(compute, of); });
    pools.check();
  }
  for (const Pooling& how : {Pooling{.window = 2}, Pooling{.window = 3, .stride = 2, .padding = 1}}) {
    const Shape of_x{5, 7, 13, 17};
    const Pools pools(both, how, of_x, both.numbers(of_x.elements()));
    const auto go = [&](Compute& compute, const Of& of) { pools.run(compute, of); };
    both.run(go);
    pools.check();
    both.time(line, go);
  }
}

void check_batch_norm(Line& line) {
  Both both;
  constexpr std::int64_t channels = 5;
  const Shape of_x{3, 2, 7, 9}, of_w{channels, 2, 3, 3}, of_channels{channels};
  for (const bool keeps : {false, true}) {
    const Pair x = both.floats(of_x), w = both.floats(of_w), gain = both.floats(of_channels);
    const Pair bias = both.floats(of_channels), running_mean = both.floats(of_channels);
    const Pair running_variance = both.floats(of_channels, {1, 2, 3, 4, 5}), mean = both.floats(of_channels);
    const Pair sums = both.doubles(channels + 1, NAN), squares = both.doubles(channels, NAN);
    const Pair own = both.doubles(2 * channels + 1, NAN), inverse = both.doubles(channels, NAN);
    const Pair products = both.doubles(2 * channels, NAN), scale = both.floats(of_channels);
    const Pair shift = both.floats(of_channels), slope = both.floats(of_channels), offset = both.floats(of_channels);
    const Pair d_gain = both.floats(of_channels), d_bias = both.floats(of_channels);
    const ImageStage shaped{.filters = w.host(), .activation = Activation::relu, .pooling = {.window = 2}};
    const Shape of_y = shaped.output(of_x);
    const Pair y = both.floats(of_y), d = both.floats(of_y), here = both.choices(both.cpu().choices(shaped, of_x));
    const Pair there = both.choices(both.gpu().choices(shaped, of_x));
    const auto go = [&](Compute& compute, const Of& of) {
      Buffer outputs;
      const Tensor& chosen = of(&compute == &both.gpu() ? there : here);
      ImageStage stage = shaped;
      stage.filters = of(w);
      if (keeps) stage.convolved = outputs.make(compute, DType::f32, compute.convolved(stage, of_x), "a check");
      const BatchStatistics statistics{of(sums), of(squares), of(own), of(mean), of(inverse), of(products)};
      compute.batch_sums(stage, of(x), statistics);
      compute.batch_squares(statistics);
      compute.batch_fold(true, 1e-5, statistics, {of(gain), of(bias), of(running_mean), of(running_variance)},
                         of(scale), of(shift));
      stage.scale = of(scale);
      stage.shift = of(shift);
      compute.convolve(stage, of(x), of(y), chosen);
      compute.batch_products(stage, of(x), chosen, of(d), statistics, false, of(d_gain), of(d_bias));
      compute.batch_products(stage, of(x), chosen, of(d), statistics, true, of(d_gain), of(d_bias));
      compute.batch_fold_backward(statistics, of(gain), of(slope), of(offset));
    };
    both.run(go);
    const std::vector<const Pair*> all{&sums,  &squares, &own,    &mean,   &inverse, &products,     &scale,
                                       &shift, &slope,   &offset, &d_gain, &d_bias,  &running_mean, &running_variance,
                                       &y};
    for (std::size_t i = 0; i < all.size(); ++i) all[i]->require_near(1e-5, fmt::format("result {} of the norm", i));
    both.time(line, go);
  }
}

}  // namespace

void check_images(Checks& checks) {
  checks.run("convolve and convolve_backward", check_stages);
  checks.run("pool and pool_backward", check_pooling);
  checks.run("batch norm, both passes", check_batch_norm);
}

}  // namespace kolo::smoke
