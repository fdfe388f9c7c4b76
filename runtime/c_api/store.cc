#include <chrono>
#include <cstdlib>
#include <span>

#include "runtime/c_api/parts.h"

// Stores of the C API, and worlds from them.

namespace kolo::c_api {
namespace {

/// A store whose functions are a C program's.
class FunctionStore final : public Store {
 public:
  FunctionStore(const kolo_store_functions& functions, void* user) : functions_(functions), user_(user) {}
  ~FunctionStore() override {
    if (functions_.destroy) functions_.destroy(user_);
  }

  void set(std::string_view key, std::span<const std::byte> value) override {
    check(functions_.set(user_, text(key).c_str(), value.data(), value.size()), "set", key);
  }
  Bytes get(std::string_view key, Deadline deadline) override {
    const std::chrono::duration<double> left = deadline - std::chrono::steady_clock::now();
    void* value = nullptr;
    std::size_t bytes = 0;
    const int status = functions_.get(user_, text(key).c_str(), std::max(left.count(), 0.0), &value, &bytes);
    const std::unique_ptr<void, decltype(&std::free)> owner(value, std::free);
    check(status, "get", key);
    if (!value) return {};
    const auto* begin = static_cast<const std::byte*>(value);
    return {begin, begin + bytes};
  }
  std::int64_t add(std::string_view key, std::int64_t n) override {
    std::int64_t sum = 0;
    check(functions_.add(user_, text(key).c_str(), n, &sum), "add", key);
    return sum;
  }
  void remove(std::string_view key) override { check(functions_.remove(user_, text(key).c_str()), "remove", key); }

 private:
  static std::string text(std::string_view key) { return std::string(key); }
  static void check(int status, const char* function, std::string_view key) {
    if (status == KOLO_OK) return;
    const bool known = status > 0 && status <= KOLO_BACKEND;
    throw Error(known ? static_cast<ErrorCode>(status - 1) : ErrorCode::backend,
                fmt::format("the program's store has not done {} of '{}' (its function returned {}: {})", function, key,
                            status, kolo_status_name(status)));
  }

  const kolo_store_functions functions_;
  void* const user_;
};

}  // namespace
}  // namespace kolo::c_api

using kolo::c_api::at;
using kolo::c_api::guarded;
using kolo::c_api::result;

int kolo_file_store_create(const char* path, kolo_store** store) {
  return guarded([&] {
    kolo_store*& made = result(store, "store");
    made = new kolo_store{std::make_unique<kolo::FileStore>(&at(path, "path"))};
  });
}

int kolo_tcp_store_create(const char* host, uint16_t port, int is_server, double timeout_seconds, kolo_store** store) {
  return guarded([&] {
    kolo_store*& made = result(store, "store");
    const auto timeout = std::chrono::ceil<std::chrono::milliseconds>(kolo::c_api::duration_of(timeout_seconds));
    made = new kolo_store{std::make_unique<kolo::TcpStore>(&at(host, "host"), port, is_server != 0, timeout)};
  });
}

int kolo_tcp_store_port(const kolo_store* store, uint16_t* port) {
  return guarded([&] {
    at(port, "port") = 0;
    const auto* tcp = dynamic_cast<const kolo::TcpStore*>(at(store, "store").store.get());
    if (!tcp) throw std::invalid_argument("the store has no port: it is none of kolo_tcp_store_create()");
    *port = tcp->port();
  });
}

int kolo_store_from_functions(const kolo_store_functions* functions, void* user, kolo_store** store) {
  return guarded([&] {
    kolo_store*& made = result(store, "store");
    const kolo_store_functions& given = at(functions, "functions");
    if (!given.set || !given.get || !given.add || !given.remove)
      throw std::invalid_argument("a store needs set, get, add and remove; one of them is null");
    auto owner = std::make_unique<kolo_store>();
    owner->store = std::make_unique<kolo::c_api::FunctionStore>(given, user);
    made = owner.release();
  });
}

int kolo_store_destroy(kolo_store* store) {
  return guarded([&] { delete store; });
}

int kolo_store_set(kolo_store* store, const char* key, const void* value, size_t bytes) {
  return guarded([&] {
    const std::string_view given = kolo::c_api::bytes_of(value, bytes, "value");
    at(store, "store").store->set(&at(key, "key"), std::as_bytes(std::span(given)));
  });
}

int kolo_store_get(kolo_store* store, const char* key, double seconds, void** value, size_t* bytes) {
  return guarded([&] {
    void*& made = at(value, "value");
    made = nullptr;
    at(bytes, "bytes") = 0;
    const kolo::Store::Bytes got = at(store, "store").store->get(&at(key, "key"), kolo::c_api::from_now(seconds));
    made = kolo::c_api::copy_of({reinterpret_cast<const char*>(got.data()), got.size()});
    *bytes = got.size();
  });
}

int kolo_store_add(kolo_store* store, const char* key, int64_t n, int64_t* sum) {
  return guarded([&] {
    at(sum, "sum") = 0;
    *sum = at(store, "store").store->add(&at(key, "key"), n);
  });
}

int kolo_store_remove(kolo_store* store, const char* key) {
  return guarded([&] { at(store, "store").store->remove(&at(key, "key")); });
}

int kolo_store_world(kolo_store* store, int rank, int size, const kolo_config* config, kolo_world** world) {
  return guarded([&] {
    kolo_world*& made = result(world, "world");
    kolo::Store& chosen = *at(store, "store").store;
    const kolo::Config settings = kolo::c_api::settings_of(config);
    made = new kolo_world{kolo::store_world(chosen, rank, size, settings), settings};
  });
}
