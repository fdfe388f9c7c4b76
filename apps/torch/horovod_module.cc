// The module kolo._horovod of the Python package: what kolo.horovod.torch is made of.

#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <kolo/error.h>
#include <kolo/op.h>

#include "apps/torch/c10d_store.h"
#include "apps/torch/named_collectives.h"

namespace {

namespace py = pybind11;
using kolo_torch::NamedCollectives;
using kolo_torch::NamedOperation;
using kolo_torch::NamedOperationPtr;
using Outputs = std::vector<at::Tensor>;
using Names = std::vector<std::string>;
using Unlocked = py::call_guard<py::gil_scoped_release>;

std::shared_ptr<NamedCollectives> join_job(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  kolo::Config config = kolo::Config::from_environment();
  config.may_exit = false;
  return std::make_shared<NamedCollectives>(
      std::make_shared<kolo_torch::Job>(std::make_unique<kolo_torch::C10dStore>(store), rank, size, config));
}

py::list gather_objects(NamedCollectives& self, const kolo::Group& group, const std::string& name,
                        const std::string& bytes) {
  std::vector<std::string> all;
  {
    const py::gil_scoped_release release;
    all = self.session()->all_gather_object(name, bytes, group);
  }
  py::list list;
  for (const std::string& object : all) list.append(py::bytes(object));
  return list;
}

py::bytes broadcast_object(NamedCollectives& self, const kolo::Group& group, const std::string& name,
                           const std::string& bytes, int root) {
  std::string object;
  {
    const py::gil_scoped_release release;
    object = self.session()->broadcast_object(name, bytes, {.root = root, .group = group});
  }
  return object;
}

/// Errors of kolo's become those of the Python package.
void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const kolo::Error& error) {
    const char* name = "HorovodInternalError";
    if (error.code() == kolo::ErrorCode::in_flight) name = "NameInFlightError";
    if (error.code() == kolo::ErrorCode::invalid_argument) name = "InvalidArgumentError";
    PyErr_SetString(py::module_::import("kolo.horovod.exceptions").attr(name).ptr(), error.what());
  }
}

}  // namespace

PYBIND11_MODULE(_horovod, module) {
  py::module_::import("torch.distributed");
  py::register_local_exception_translator(&translate);
  py::enum_<kolo::ReduceOp>(module, "ReduceOp")
      .value("sum", kolo::ReduceOp::sum)
      .value("average", kolo::ReduceOp::average)
      .value("min", kolo::ReduceOp::min)
      .value("max", kolo::ReduceOp::max)
      .value("product", kolo::ReduceOp::product)
      .value("adasum", kolo::ReduceOp::adasum);
  py::enum_<kolo::OpKind>(module, "OpKind")
      .value("allreduce", kolo::OpKind::all_reduce)
      .value("allgather", kolo::OpKind::all_gather)
      .value("broadcast", kolo::OpKind::broadcast)
      .value("alltoall", kolo::OpKind::all_to_all)
      .value("reducescatter", kolo::OpKind::reduce_scatter)
      .value("barrier", kolo::OpKind::barrier);
  py::class_<kolo::Group>(module, "Group").def(py::init());
  py::class_<NamedOperation, NamedOperationPtr>(module, "Operation")
      .def("done", &NamedOperation::done, Unlocked())
      .def("wait", &NamedOperation::wait, Unlocked())
      .def_property_readonly("outputs", [](const NamedOperation& self) { return self.results().outputs; })
      .def_property_readonly("rows", [](const NamedOperation& self) { return self.results().rows; });
  py::class_<NamedCollectives, std::shared_ptr<NamedCollectives>>(module, "Collectives")
      .def(py::init(&join_job), Unlocked())
      .def_property_readonly("rank", [](NamedCollectives& self) { return self.session()->rank(); })
      .def_property_readonly("size", [](NamedCollectives& self) { return self.session()->size(); })
      .def_property_readonly("local_rank", [](NamedCollectives& self) { return self.session()->local_rank(); })
      .def_property_readonly("local_size", [](NamedCollectives& self) { return self.session()->local_size(); })
      .def(
          "leave", [](NamedCollectives& self) { self.job()->abandon(); }, Unlocked())
      .def(
          "new_group",
          [](NamedCollectives& self, const std::vector<int>& ranks) { return self.session()->new_group(ranks); },
          Unlocked())
      .def(
          "remove_group", [](NamedCollectives& self, const kolo::Group& group) { self.session()->remove_group(group); },
          Unlocked())
      .def(
          "all_reduce",
          [](NamedCollectives& self, const kolo::Group& group, const std::string& name, const Names& names,
             const Outputs& inputs, const Outputs& outputs, kolo::ReduceOp op, double before, double after) {
            return self.all_reduce(group, name, names, inputs, outputs, op, {before, after});
          },
          Unlocked())
      .def(
          "reduce_scatter",
          [](NamedCollectives& self, const kolo::Group& group, const std::string& name, const Names& names,
             const Outputs& inputs, kolo::ReduceOp op, double before, double after) {
            return self.reduce_scatter(group, name, names, inputs, op, {before, after});
          },
          Unlocked())
      .def("all_gather", &NamedCollectives::all_gather, Unlocked())
      .def("grouped_all_gather", &NamedCollectives::grouped_all_gather, Unlocked())
      .def("broadcast", &NamedCollectives::broadcast, Unlocked())
      .def("all_to_all", &NamedCollectives::all_to_all, Unlocked())
      .def("barrier", &NamedCollectives::barrier, Unlocked())
      .def(
          "refuse",
          [](NamedCollectives& self, const kolo::Group& group, kolo::OpKind kind, bool grouped, const std::string& name,
             const std::string& why, bool is_argument) {
            using kolo::ErrorCode;
            return self.refuse(group, kind, grouped, name,
                               {is_argument ? ErrorCode::invalid_argument : ErrorCode::backend, why});
          },
          Unlocked())
      .def(
          "join", [](NamedCollectives& self, const kolo::Group& group) { return self.session()->join(group); },
          Unlocked())
      .def("all_gather_object", &gather_objects)
      .def("broadcast_object", &broadcast_object);
}
