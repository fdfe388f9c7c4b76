#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "bench/kolo_bench/report/table.h"

namespace kolo::bench {
namespace {

using Json = nlohmann::ordered_json;

template <class Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json in_json(const Percentiles& t) {
  return {{"p50", t.p50}, {"p95", t.p95}, {"p99", t.p99}, {"min", t.min}, {"max", t.max}, {"mean", t.mean}};
}

/// Times of iterations, and their mean as other benchmarks compute it.
Json in_json(const Percentiles& t, double mean_of_total) {
  Json json = in_json(t);
  json["mean_of_total"] = mean_of_total;
  return json;
}

Json in_json(const Overlap& o) {
  return {{"overall_us", o.overall_us},
          {"compute_us", o.compute_us},
          {"pure_comm_us", o.pure_comm_us},
          {"percent", o.percent()}};
}

Json in_json(const Beside& b) {
  return {{"bytes", b.bytes},     {"count", b.count},       {"p50_us", b.us.p50},
          {"p90_us", b.us.p90},   {"p99_us", b.us.p99},     {"max_us", b.us.max},
          {"with_us", b.with_us}, {"alone_us", b.alone_us}, {"percent_kept", b.percent_kept()}};
}

Json in_json(const DeviceInfo& d) {
  return {{"index", d.index}, {"bus", d.bus}, {"name", d.name}, {"peak_bytes", d.peak_bytes}};
}

Json in_json(const WorldInfo& w) {
  Json json{{"ranks", w.ranks},
            {"nodes", w.nodes},
            {"hosts", w.hosts},
            {"cores", w.cores},
            {"version", w.version},
            {"mpi", w.mpi},
            {"mpi_threads", w.mpi_threads},
            {"path", w.path},
            {"backend", w.backend},
            {"memory", w.memory},
            {"huge_pages", w.huge_pages}};
  json["device"] = w.device;
  if (w.device == "cpu") return json;
  json["gpus"] = Json::array();
  for (const DeviceInfo& device : w.devices) json["gpus"].push_back(in_json(device));
  json["nccl"] = w.nccl.empty() ? Json(nullptr) : Json{{"version", w.nccl}, {"algorithm", w.nccl_algo}};
  return json;
}

Json in_json(const Result& r) {
  Json json{{"op", r.op},
            {"bytes", r.bytes},
            {"count", r.count},
            {"dtype", to_string(r.dtype)},
            {"redop", r.redop ? Json(to_string(*r.redop)) : Json(nullptr)},
            {"root", r.root >= 0 ? Json(r.root) : Json(nullptr)},
            {"in_place", r.in_place},
            {"mode", r.mode},
            {"iterations", r.iterations},
            {"time_us", in_json(r.time_us, r.mean_of_total_us)},
            {"algbw_gbs", r.algbw_gbs},
            {"busbw_gbs", or_null(r.busbw_gbs)},
            {"wrong", or_null(r.wrong)},
            {"method", r.method.empty() ? Json(nullptr) : Json(r.method)},
            {"slowest", {{"rank", r.slowest_rank}, {"share", r.slowest_share}}}};
  if (r.copy_limit_gbs) json["copy_limit_gbs"] = *r.copy_limit_gbs;
  if (r.overlap) json["overlap"] = in_json(*r.overlap);
  if (r.beside) json["beside"] = in_json(*r.beside);
  if (!r.buckets.empty()) json["buckets"] = r.buckets, json["tensors"] = r.tensors;
  if (r.compare.empty()) return json;
  json["compare"] = Json::array();
  for (const PeerResult& peer : r.compare) {
    Json one{{"name", peer.name},
             {"peer_version", peer.version},
             {"time_us", in_json(peer.time_us, peer.mean_of_total_us)},
             {"ratio", peer.ratio},
             {"wrong", or_null(peer.wrong)}};
    if (!peer.algorithm.empty()) one["algorithm"] = peer.algorithm;
    if (peer.overlap) one["overlap"] = in_json(*peer.overlap);
    json["compare"].push_back(std::move(one));
  }
  return json;
}

}  // namespace

std::string to_json(const Report& report) {
  Json json{{"schema", 1}, {"world", in_json(report.world)}, {"results", Json::array()}};
  for (const Result& result : report.results) json["results"].push_back(in_json(result));
  if (!report.idle.empty()) {
    Json idle{{"seconds", report.idle_seconds}, {"ranks", Json::array()}};
    for (const IdleRank& one : report.idle) {
      idle["ranks"].push_back({{"rank", one.rank}, {"cpu_percent", one.cpu_percent}, {"mpi_calls", one.mpi_calls}});
    }
    json["idle"] = std::move(idle);
  }
  for (const PackResult& one : report.pack) {
    json["pack"].push_back({{"list", one.name},
                            {"tensors", one.tensors},
                            {"bytes", one.bytes},
                            {"copy_us", in_json(one.copy_us)},
                            {"pack_us", in_json(one.pack_us)},
                            {"unpack_us", in_json(one.unpack_us)},
                            {"pack_share", one.share(one.pack_us)},
                            {"unpack_share", one.share(one.unpack_us)},
                            {"wrong", or_null(one.wrong)}});
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kolo::bench
