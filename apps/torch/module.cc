// The module kolo._torch of the Python package.

#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/torch/c10d_backend.h"
#include "apps/torch/c10d_over_nodes.h"

namespace {

using kolo_torch::C10dBackend;
using kolo_torch::Collectives;
using Group = c10::intrusive_ptr<C10dBackend>;

/// The process groups that a Python process has made. Used under Python's lock.
class Groups {
 public:
  Group create(const c10d::DistributedBackendOptions& options, const std::string& name) {
    C10dBackend::About about{.name = name,
                             .store = options.store,
                             .rank = options.group_rank,
                             .size = options.group_size,
                             .timeout = std::chrono::duration_cast<std::chrono::milliseconds>(options.timeout),
                             .group_name = options.group_id,
                             .ranks = {options.global_ranks_in_group.begin(), options.global_ranks_in_group.end()}};
    const std::shared_ptr<Collectives> parent = about.ranks.empty() ? nullptr : default_group();
    const pybind11::gil_scoped_release release;
    Group made = c10::make_intrusive<C10dBackend>(about, parent.get());
    const pybind11::gil_scoped_acquire acquire;
    std::erase_if(groups_, [](const Member& one) { return one.collectives.expired(); });
    groups_.push_back({made->collectives(), about.ranks.empty()});
    return made;
  }

  /// The process ends: leaves all jobs, so that other ranks do not take that for a crash, and waits a little for
  /// functions that follow operations.
  void leave() {
    std::vector<std::shared_ptr<Collectives>> living;
    for (const Member& one : groups_) living.push_back(one.collectives.lock());
    std::erase(living, nullptr);
    const pybind11::gil_scoped_release release;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    for (const auto& group : living) group->job()->abandon();
    for (const auto& group : living) group->job()->completions->finish(until);
    living.clear();
  }

 private:
  struct Member {
    std::weak_ptr<Collectives> collectives;
    bool is_default;  // made without a list of ranks
  };

  /// The newest that was not left.
  std::shared_ptr<Collectives> default_group() {
    std::shared_ptr<Collectives> found;
    for (const Member& one : groups_) {
      const auto group = one.collectives.lock();
      if (one.is_default && group && !group->left()) found = group;
    }
    return found;
  }

  std::vector<Member> groups_;
};

}  // namespace

PYBIND11_MODULE(_torch, module) {
  pybind11::module_::import("torch.distributed");
  pybind11::class_<C10dBackend, c10d::Backend, Group>(module, "KoloBackend")
      .def("perform_nocolor_split", [](C10dBackend&, const pybind11::object&) {})
      .def("get_error", &C10dBackend::getError)
      .def_property_readonly("host_is_stuck", [](const C10dBackend& group) {
        const auto& collectives = group.collectives();
        return collectives->job()->host_is_stuck(collectives->group());
      });
  using kolo_torch::C10dOverNodes;
  pybind11::class_<C10dOverNodes, c10d::Backend, c10::intrusive_ptr<C10dOverNodes>>(module, "KoloOverNodes")
      .def("perform_nocolor_split", [](C10dOverNodes&, const pybind11::object&) {})
      .def("get_error", &C10dOverNodes::getError)
      .def(pybind11::init([](Group gpus, c10::intrusive_ptr<c10d::Backend> hosts) {
             return c10::make_intrusive<C10dOverNodes>(std::move(gpus), std::move(hosts));
           }),
           pybind11::keep_alive<1, 3>());  // whose binding lets go of Python's lock where its threads are joined
  pybind11::class_<Groups>(module, "Groups")
      .def(pybind11::init())
      .def("create", &Groups::create, pybind11::arg("options"), pybind11::arg("name"))
      .def("leave", &Groups::leave);
}
